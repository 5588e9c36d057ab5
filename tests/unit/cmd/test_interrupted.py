"""Ctrl-C during a command."""

import click
import pytest

from juicepy.cmd import main, version


def test_interrupted_command_exits_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(version, "command", click.Command("version", callback=interrupted))
    assert main.run(["version"]) == 130
    assert "jfs version: interrupted" in capsys.readouterr().err
