"""The program: which command, which exit code, which line on stderr."""

import subprocess
import sys

import pytest

from juicepy.cmd import main
from juicepy.cmd.main import COMMANDS, run

HEAVY = "redis sqlalchemy obstore boto3 azure botocore rich psycopg pymysql cryptography.hazmat"


def test_help_imports_no_driver() -> None:
    program = (
        "import sys; from juicepy.cmd.main import run; run(['--help']); "
        f"print(sorted(m for m in {HEAVY.split()!r} if m in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    assert f"Usage: jfs {name}" in capsys.readouterr().out
    assert name in COMMANDS


def test_help_lists_the_commands_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    for name, (_, section, line) in COMMANDS.items():
        assert section in text
        assert f"  {name}" in text
        assert line in text


def test_unknown_command_is_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["frobnicate"]) == 3
    assert capsys.readouterr().err.splitlines() == [
        "jfs: no such command: 'frobnicate' (see jfs --help)"
    ]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["format"], "META-URL"),
        (["status", "mem://a", "b"], "b"),
        (["mount", "mem://a", "/", "--nope"], "--nope"),
        (["status", "mem://a", "-s", "x"], "-s"),
        (["mount", "mem://a", "/", "--attr-cache", "soon"], "--attr-cache"),
    ],
)
def test_usage_error_is_one_line_and_code_1(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert named in lines[0]
    assert lines[0].startswith(f"jfs {words[0]}: ")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version"]) == 0
    first = capsys.readouterr().out
    assert run(["--version"]) == 0
    assert run(["-V"]) == 0
    assert capsys.readouterr().out == first * 2
    assert first.startswith("jfs version 1.")


class Broken:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def main(self, *args: object, **given: object) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (OSError(13, "Permission denied", "/x"), "jfs status: /x: Permission denied", 1),
        (KeyError("k"), "jfs status: internal error: KeyError: 'k'", 1),
        (KeyboardInterrupt(), "jfs status: interrupted", 130),
    ],
)
def test_failures_are_one_line_without_traceback(
    error: BaseException,
    line: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(main, "cli", Broken(error))
    assert run(["status", "mem://x"]) == code
    assert capsys.readouterr().err.splitlines() == [line]
