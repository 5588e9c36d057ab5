"""`jfs config`: show or change the settings of a volume."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from juicepy import log, urls
from juicepy.cmd.options import META_URL, Command, Duration, Option, given_options, meta_url
from juicepy.cmd.volume_options import (
    MANAGEMENT,
    limit_options,
    management_options,
    storage_options,
    volume_storage,
    with_options,
)
from juicepy.errors import Refused
from juicepy.volume import Format, Tier, go_json, version_key

if TYPE_CHECKING:
    from juicepy.meta.engine import MetaEngine

CONTROL = {"yes", "force", "meta_url", "tier"}
STORAGE = {"storage", "bucket", "access_key", "secret_key", "session_token", "storage_class", "tag"}
SECRET = ("secret_key", "session_token")


def _more_options() -> list[click.Parameter]:
    def option(*names: str, **given: Any) -> Option:
        return Option([*names], section=MANAGEMENT, **given)

    return [
        option("--encrypt-secret", is_flag=True, help="Encrypt secrets stored in plain form."),
        option("--min-client-version", default="", help="Oldest client allowed to connect."),
        option("--max-client-version", default="", help="Newest client allowed to connect."),
        option("--dir-stats", is_flag=True, help="Directory statistics (for quotas, summaries)."),
        option("--user-group-quota", is_flag=True, help="Quotas of users and groups."),
        option("--changelog", is_flag=True, help="Change log; this client cannot write then."),
        option("--changelog-max-age", type=Duration(), default="2h", help="Age kept; 0: all."),
        option("--changelog-max-lines", type=int, default=0, help="Entries kept; 0: all."),
        option("--tier", type=click.IntRange(0, 3), default=0, help="Tier that class and tag set."),
    ]


@click.command(
    cls=Command,
    params=[
        META_URL,
        Option(["--yes", "-y"], is_flag=True, help="Answer yes to all questions."),
        Option(["--force"], is_flag=True, help="Skip the checks."),
        *storage_options(),
        *limit_options(),
        *management_options(),
        *_more_options(),
    ],
)
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Change settings of a volume: those that are given. Without any, show them."""
    from juicepy.jobs import volume as volumes
    from juicepy.meta.registry import open_engine

    explicit = given_options(ctx, shared=False) - CONTROL
    if explicit & STORAGE:
        explicit = given_options(ctx) - CONTROL
    log.redactor.hide(given["secret_key"], given["session_token"])
    url = meta_url(given["meta_url"])
    with closing(open_engine(url)) as engine:
        old = volumes.formatted(engine, urls.parse(url).where)
        if not explicit:
            click.echo(go_json(old.shown(), 2))
            return
        new = _changed(old.decrypted(), given, explicit)
        changes = volumes.shown_changes(old.decrypted(), new)
        seals = given["encrypt_secret"] and old.encrypted_secrets() != old
        if not changes and not seals:
            click.echo("Nothing changed.")
            return
        if not given["force"]:
            _check(engine, old, new, given, explicit)
        volumes.update(engine, old, new)
        for name, before, after in changes:
            click.echo(_told(name, before, after))
        if seals:
            click.echo("encrypt-secret: done")


def _changed(old: Format, given: dict[str, Any], explicit: set[str]) -> Format:
    """The volume as the options want it. Refused where the options are at odds with it."""
    from juicepy.jobs import volume as volumes

    for name in ("min_client_version", "max_client_version"):
        if name in explicit and given[name]:
            _check_version(name, given[name])
    new = with_options(old, given, explicit)
    if "changelog_max_age" in explicit:
        new = new.with_(change_log_max_age=int(given["changelog_max_age"]))
    elif new.change_log and not old.change_log and not new.change_log_max_age:
        new = new.with_(change_log_max_age=volumes.CHANGELOG_AGE_S)
    volumes.check_update(old, new)
    if given["trash_days"] < 0 or given["inodes"] < 0:
        raise Refused("--trash-days and --inodes cannot be negative")
    return volumes.requirements(new)


def _check_version(name: str, text: str) -> None:
    try:
        version_key(text)
    except Refused as error:
        raise Refused(f"--{name.replace('_', '-')}: {error}") from error


def _check(
    engine: MetaEngine, old: Format, new: Format, given: dict[str, Any], explicit: set[str]
) -> None:
    """See that the changes work; ask where they take something away."""
    from juicepy.jobs import volume as volumes

    if explicit & STORAGE:
        with volume_storage(new) as storage:
            try:
                volumes.check_storage(storage)
            except OSError as error:
                text = error.strerror or str(error)
                raise Refused(f"--bucket {new.bucket}: {storage} is not usable: {text}") from error
    warnings = []
    space, inodes = volumes.usage(engine)
    limits = explicit & {"capacity", "inodes"}
    if limits and (0 < new.capacity < space or 0 < new.inodes < inodes):
        warnings.append(
            f"New quota is too small (used / quota): {space} / {new.capacity} bytes, "
            f"{inodes} / {new.inodes} inodes."
        )
    if old.trash_days > 0 and new.trash_days == 0:
        warnings.append(
            "The current trash will be emptied and removed files will be purged immediately."
        )
    warnings += _shut_out(engine, new) if explicit & _VERSIONS else []
    for text in warnings:
        click.echo(f"WARNING: {text}", err=True)
    if warnings and not given["yes"]:
        click.confirm("Proceed anyway?", abort=True, err=True)


_VERSIONS = {"min_client_version", "max_client_version"}


def _shut_out(engine: MetaEngine, new: Format) -> list[str]:
    """A warning with the connected clients that the new versions refuse."""
    least, most = new.min_client_version, new.max_client_version
    refused = []
    for session in engine.sessions():
        record = json.loads(session.record)
        version = version_key(record.get("Version", "0"))
        if (least and version < version_key(least)) or (most and version > version_key(most)):
            refused.append(f"{record.get('HostName')} (pid {record.get('ProcessID')})")
    return [f"These clients will be refused: {', '.join(refused)}."] if refused else []


def _told(name: str, before: Any, after: Any) -> str:
    """One line about a change, as JuiceFS prints it."""
    option = {"change_log": "changelog"}.get(name, name).replace("_", "-")
    option = option.replace("change-log", "changelog")
    if name in SECRET:
        return f"{option:>10}: updated"
    if name == "tiers":
        lines = []
        for number, tier in sorted(after.items()):
            if before.get(number, Tier()) != tier:
                lines.append(
                    f"set tier {number} storage-class: {tier.storage_class}, tag: {tier.tag}"
                )
        return "\n".join(lines)
    if name == "capacity":
        before, after = (f"{value / (1 << 30):.1f} GiB" for value in (before, after))
    elif name.endswith("_limit"):
        before, after = (f"{value:.1f} Mbps" for value in (before, after))
    elif isinstance(after, bool):
        before, after = str(before).lower(), str(after).lower()
    elif name == "change_log_max_age":
        before, after = f"{before}s", f"{after}s"
    return f"{option:>10}: {before} -> {after}"
