"""The options of a command as text, each with what gave it its value: for the log and `.config`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from juicepy import urls
from juicepy.cmd.options import Option

if TYPE_CHECKING:
    from juicepy.vfs.options import Setting

logger = logging.getLogger(__name__)

DEFAULT = "default"
_SOURCES = {
    ParameterSource.COMMANDLINE: "command line",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "preset",
}


def in_force(ctx: click.Context) -> tuple[Setting, ...]:
    """The options of the command, secrets of URLs blotted out."""
    from juicepy.vfs.options import Setting

    found = []
    for param in ctx.command.params:
        if isinstance(param, Option):
            name = str(param.name)
            source = _SOURCES.get(ctx.get_parameter_source(name) or ParameterSource.DEFAULT)
            text = urls.redact(as_text(param, ctx.params[name]))
            found.append(Setting(name.replace("_", "-"), text, source or DEFAULT))
    return tuple(found)


def as_text(param: click.Parameter, value: Any) -> str:
    """A value as it could be given to the option; what is not set is empty."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ",".join(as_text(param, each) for each in value)
    if isinstance(value, bool):
        return str(value).lower()
    shown = getattr(param.type, "shown", str)  # of our own types; click's need none
    return str(shown(value))


def tell(settings: Sequence[Setting]) -> None:
    """Log what is in force: first what was chosen, then what was left as it is."""
    chosen = [f"{each.name}={each.text} ({each.source})" for each in settings if is_chosen(each)]
    left = [f"{each.name}={each.text}" for each in settings if not is_chosen(each)]
    logger.info("Settings: %s", ", ".join(chosen) or "none")
    logger.info("Settings by default: %s", ", ".join(left))


def is_chosen(setting: Setting) -> bool:
    return setting.source != DEFAULT
