"""What the commands' options have in common: their types, their sections, the global ones.

Sizes, durations and rates are written as JuiceFS takes them (`4M`, `1h30m`, `1.5s`), booleans as
`--flag`, `--flag=true` or `--flag=false`. Global options may stand before or after the command.

Every option also comes from the environment, by one rule: `--cache-size` of `jfs mount` from
`JFS_MOUNT_CACHE_SIZE`. The command line wins; an empty variable counts as none. `shown` of a type
is the inverse of `convert`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from juicepy import log, urls

logger = logging.getLogger(__name__)

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50, "E": 60}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_SECONDS["d"] = 86400.0
_TRUE = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
OTHER_VARIABLES = {"JFS_GC_SKIPPEDTIME"}  # of JuiceFS, with names like ours of options
_verbosity = {"verbose": False, "quiet": False, "trace": False}


class Size(click.ParamType[int]):
    """Bytes, from a number with a unit; a bare number counts in `unit`."""

    name = "size"

    def __init__(self, unit: str) -> None:
        self._unit = unit

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([KMGTPE]?)(?:i?B)?", value.strip(), re.I)
        if match is None:
            self.fail(f"{value!r} is no size, as in 4M or 1.5G", param, ctx)
        unit = match[2].upper() or ("" if value.strip()[-1:] in "bB" else self._unit)
        return int(float(match[1]) * (1 << _UNITS[unit]))

    def shown(self, value: int) -> str:
        for unit, bits in reversed(_UNITS.items()):
            if value and value % (1 << bits) == 0:
                return f"{value >> bits}{unit or 'B'}"
        return "0"


class Duration(click.ParamType[float]):
    """Seconds, from `1h30m`, `100ms` or a bare number of seconds; negative if `may_be_negative`."""

    name = "duration"

    def __init__(self, *, may_be_negative: bool = False) -> None:
        self._may_be_negative = may_be_negative

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        text = value.strip()
        if self._may_be_negative and text.startswith("-"):
            return -self.convert(text[1:], param, ctx)
        if re.fullmatch(r"\d+(\.\d*)?|\.\d+", text):
            return float(text)
        parts = re.findall(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h|d)", text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            self.fail(f"{value!r} is no duration, as in 1s, 100ms or 1h30m", param, ctx)
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)

    def shown(self, value: float) -> str:
        return f"{value:.9f}".rstrip("0").rstrip(".") + "s"


class Rate(click.ParamType[int]):
    """Mbps, from a number with K, M, G or T; a bare number is Mbps."""

    name = "Mbps"

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([KMGT]?)(?:bps)?", value.strip(), re.I)
        if match is None:
            self.fail(f"{value!r} is no rate, as in 100 or 1G (bits per second)", param, ctx)
        factor = {"K": 1e-3, "": 1, "M": 1, "G": 1e3, "T": 1e6}[match[2].upper()]
        return int(float(match[1]) * factor)


class Octal(click.ParamType[int]):
    """Permission bits, in octal."""

    name = "octal"

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if not re.fullmatch(r"[0-7]{1,4}", value):
            self.fail(f"{value!r} is no octal mode, as in 0600", param, ctx)
        return int(value, 8)

    def shown(self, value: int) -> str:
        return f"{value:04o}"


class Option(click.Option):
    """An option with the section of the help it stands in; shows its default as JuiceFS does."""

    def __init__(self, *names: Any, section: str = "OPTIONS", **given: Any) -> None:
        self.section = section
        given.setdefault("show_envvar", "envvar" in given)
        given.setdefault("show_default", given.get("default") not in (None, False, "", ()))
        super().__init__(*names, **given)


class Command(click.Command):
    """A command whose options stand in sections, with the global options everywhere."""

    def __init__(self, *args: Any, **given: Any) -> None:
        given["params"] = [*given.get("params", []), *global_options(hidden=True)]
        given.setdefault("context_settings", {"help_option_names": ["-h", "--help"]})
        super().__init__(*args, **given)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _warn_of_unknown(ctx, self.params)
        given, left = _split_booleans(self.params, args, ctx)
        rest = super().parse_args(ctx, left)
        for name, value in given.items():
            ctx.params[name] = value
            ctx.set_parameter_source(name, ParameterSource.COMMANDLINE)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        names = [param.name for param in global_options()]
        apply_globals({name: ctx.params.pop(name) for name in names if name in ctx.params})
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                section = param.section if isinstance(param, Option) else "OPTIONS"
                sections.setdefault(section, []).append(record)
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        named = [param for param in self.params if isinstance(param, Option)]
        if ctx.auto_envvar_prefix and named:
            example = next((param for param in named if not param.is_flag), named[0])
            option, variable = max(example.opts, key=len), variable_of(ctx, example)
            formatter.write_paragraph()
            formatter.write_text(
                f"Options also come from the environment, as {option} from {variable}."
            )


def variable_of(ctx: click.Context, param: click.Parameter) -> str:
    """The environment variable of an option."""
    return f"{ctx.auto_envvar_prefix}_{param.name}".upper()


def _warn_of_unknown(ctx: click.Context, params: list[click.Parameter]) -> None:
    """Tell of variables that look like options of this command and are none."""
    if ctx.auto_envvar_prefix is None:
        return
    known = {variable_of(ctx, param) for param in params} | OTHER_VARIABLES
    for name in sorted(os.environ):
        if name.startswith(f"{ctx.auto_envvar_prefix}_") and name not in known:
            logger.warning("%s stands for no option of %s", name, ctx.command_path)


def _split_booleans(
    params: list[click.Parameter], args: list[str], ctx: click.Context
) -> tuple[dict[str, bool], list[str]]:
    """Takes `--flag=true` and `--flag=false` out of the arguments."""
    flags = {
        name: param
        for param in params
        if isinstance(param, click.Option) and param.is_flag
        for name in param.opts
    }
    given: dict[str, bool] = {}
    left: list[str] = []
    for at, word in enumerate(args):
        if word == "--":
            return given, left + args[at:]
        name, equals, value = word.partition("=")
        if equals and name in flags:
            if value.lower() not in _TRUE:
                text = f"{value!r} is neither true nor false"
                raise click.BadParameter(text, ctx=ctx, param=flags[name])
            given[str(flags[name].name)] = _TRUE[value.lower()]
        else:
            left.append(word)
    return given, left


def global_options(hidden: bool = False) -> list[click.Parameter]:
    """The options that every command takes."""

    def flag(*names: str, text: str) -> click.Option:
        return click.Option([*names], is_flag=True, hidden=hidden, help=text)

    return [
        flag("--verbose", "--debug", "-v", "verbose", text="Enable the debug log."),
        flag("--quiet", "-q", "quiet", text="Show warnings and errors only."),
        flag("--trace", "trace", text="Enable the debug log of the libraries too."),
        flag("--no-color", "no_color", text="Disable colors."),
        flag("--no-agent", "no_agent", text="Accepted for JuiceFS scripts: there is no agent."),
    ]


def apply_globals(given: Mapping[str, object]) -> None:
    """Set up logging as the global options say; each one stays once it was given."""
    for name in _verbosity:
        _verbosity[name] = _verbosity[name] or bool(given.get(name))
    if given.get("no_color"):
        os.environ["NO_COLOR"] = "1"
    setup_log()


def setup_log(path: str | None = None) -> None:
    """Logs to stderr, or to the file at `path`, at the verbosity that was asked for."""
    quiet, trace = _verbosity["quiet"], _verbosity["trace"]
    log.setup(_verbosity["verbose"], path, quiet=quiet, trace=trace)


def is_verbose() -> bool:
    return _verbosity["verbose"] or _verbosity["trace"]


def verbosity() -> list[str]:
    """The global options to hand on to a child process."""
    return [f"--{name}" for name, is_on in _verbosity.items() if is_on]


def meta_url(given: str) -> str:
    """The META-URL with the password of META_PASSWORD; its secrets are kept out of all output."""
    url = urls.with_password(given, os.environ.get("META_PASSWORD"))
    log.redactor.hide(*urls.secrets_of(url))
    return url


def given_options(ctx: click.Context, *, shared: bool = True) -> set[str]:
    """Names of the options that stand on the command line, or in the environment.

    Without `shared` not those whose variables are for many programs (ACCESS_KEY).
    """
    sources = {ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT}
    given = {name for name in ctx.params if ctx.get_parameter_source(name) in sources}
    if not shared:
        for param in ctx.command.params:
            if (
                ctx.get_parameter_source(str(param.name)) is ParameterSource.ENVIRONMENT
                and isinstance(param.envvar, str)
                and os.environ.get(param.envvar)
            ):
                given.discard(str(param.name))
    return given


def describe(error: OSError) -> str:
    """An OSError as a clause: what is wrong, and with what."""
    text = str(error.strerror) if error.strerror else str(error) or type(error).__name__
    if error.strerror and error.filename is not None:
        text = f"{error.filename}: {text}"
    return " ".join(text.split())


META_URL = click.Argument(["meta_url"], metavar="META-URL", required=True)
