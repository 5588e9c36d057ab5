"""The program `jfs`: finds the command, imports only it, and turns errors into one line.

Exit codes are those of `juicefs`: 0 done, 1 refused or failed, 3 no such command.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Sequence

import click

from juicepy import log
from juicepy.cmd.options import Command, apply_globals, describe, global_options, is_verbose

# name -> (module, section of the help, first line of the help); imported when asked for
COMMANDS = {
    "format": ("format", "ADMIN", "Format a volume"),
    "config": ("config", "ADMIN", "Change configuration of a volume"),
    "version": ("version", "ADMIN", "Show version"),
    "status": ("status", "INSPECTOR", "Show status of a volume"),
    "info": ("info", "INSPECTOR", "Show internal information of a path or inode"),
    "stats": ("stats", "INSPECTOR", "Show what a mount does, as figures"),
    "profile": ("profile", "INSPECTOR", "Show which operations of a mount take the time"),
    "debug": ("debug", "INSPECTOR", "Show where a mount spends CPU and memory"),
    "warmup": ("warmup", "TOOL", "Bring files into the cache of a mount"),
    "download": ("download", "TOOL", "Copy a tree of a volume to a local directory"),
    "upload": ("upload", "TOOL", "Copy a local tree to a volume"),
    "mount": ("mount", "SERVICE", "Mount a volume"),
    "umount": ("umount", "SERVICE", "Unmount a volume"),
}
ENVIRONMENT = "JFS"  # the first word of the variables that options come from
USAGE_ERROR = 1
UNKNOWN_COMMAND = 3

logger = logging.getLogger(__name__)


class Commands(click.Group):
    """The commands of the table above."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"juicepy.cmd.{COMMANDS[cmd_name][0]}")
        found: Command = module.command
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS:
            click.echo(f"jfs: no such command: {args[0]!r} (see jfs --help)", err=True)
            ctx.exit(UNKNOWN_COMMAND)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, (_, section, text) in COMMANDS.items():
            sections.setdefault(section, []).append((name, text))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)


@click.group(
    cls=Commands,
    params=global_options(),
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A POSIX file system on Redis or SQL and object storage, shared with JuiceFS.",
)
@click.option(
    *("--version", "-V"),
    is_flag=True,
    is_eager=True,
    allow_from_autoenv=False,  # JFS_VERSION may well be set to one
    help="Print the version only.",
)
@click.pass_context
def cli(ctx: click.Context, /, version: bool, **given: object) -> None:
    apply_globals(given)


def run(argv: Sequence[str]) -> int:
    """Carry out one command line; the exit code. Whatever goes wrong is told on stderr."""
    arguments = ["version"] if list(argv[:1]) in (["--version"], ["-V"]) else list(argv)
    name = next((word for word in arguments if word in COMMANDS), "")
    prefix = f"jfs {name}".strip()
    try:
        result = cli.main(
            arguments,
            prog_name="jfs",
            standalone_mode=False,
            obj=arguments,
            auto_envvar_prefix=ENVIRONMENT,
        )
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.exceptions.Abort as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # click makes an Abort of it
            _fail(f"{prefix}: interrupted")
            return 130
        return _fail(f"{prefix}: aborted")
    except click.ClickException as error:
        return _fail(f"{prefix}: {error.format_message()}")
    except KeyboardInterrupt:
        _fail(f"{prefix}: interrupted")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return USAGE_ERROR
    except OSError as error:
        return _fail(f"{prefix}: {describe(error)}", error)
    except Exception as error:
        return _fail(f"{prefix}: internal error: {type(error).__name__}: {error}", error)


def _fail(text: str, error: BaseException | None = None) -> int:
    if error is not None and is_verbose():
        logger.error("%s", text, exc_info=error)
    else:
        click.echo(log.redactor.clean(text), err=True)
    return USAGE_ERROR


def main() -> None:
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
