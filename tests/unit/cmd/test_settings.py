"""Where options get their values from: command line, environment, preset; and what tells of it."""

from __future__ import annotations

import json
import logging
from typing import Any

import click
import pytest
from click.testing import CliRunner

from juicepy.cmd import main, mount_options, presets, settings
from juicepy.cmd.options import Command, Option
from juicepy.vfs.config import config_text
from juicepy.vfs.options import Setting
from juicepy.volume import Format


def parsed(*words: str) -> click.Context:
    """`jfs mount` with these words, parsed but not run."""
    command = Command("mount", params=mount_options.mount_options())
    parent = click.Context(main.cli, info_name="jfs", auto_envvar_prefix=main.ENVIRONMENT)
    return command.make_context("mount", list(words), parent=parent)


def found(*words: str) -> dict[str, tuple[str, str]]:
    return {each.name: (each.text, each.source) for each in settings.in_force(parsed(*words))}


def test_every_option_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JFS_MOUNT_BUFFER_SIZE", "1G")
    monkeypatch.setenv("JFS_MOUNT_WRITEBACK", "true")
    monkeypatch.setenv("JFS_MOUNT_O", "noexec allow_other")
    monkeypatch.setenv("JFS_MOUNT_CACHE_SIZE", "")
    params = parsed().params
    assert params["buffer_size"] == 1 << 30
    assert params["writeback"] is True
    assert params["o"] == ("noexec", "allow_other")
    assert params["cache_size"] == 100 << 30
    for param in mount_options.mount_options():
        assert param.name is not None
        monkeypatch.setenv(f"JFS_MOUNT_{param.name.upper()}", value := other_value(param))
        assert settings.as_text(param, parsed().params[param.name]) == value
        monkeypatch.delenv(f"JFS_MOUNT_{param.name.upper()}")


def other_value(param: click.Parameter) -> str:
    """A value of the option as its text is, which is not its default."""
    assert isinstance(param, Option)
    if param.is_flag:
        return "true"
    if param.name == "preset":
        return "random"
    kind = type(param.type).__name__
    return {"Size": "77K", "Duration": "77s", "Octal": "0444", "FloatParamType": "0.5"}.get(
        kind, "77"
    )


def test_the_command_line_wins_over_the_environment_and_that_over_presets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = presets.PRESETS["small-once"].values
    by_preset = found("--preset", "small-once")
    assert by_preset["open-cache"] == ("600s", "preset")
    assert {name for name, (_, source) in by_preset.items() if source == "preset"} == set(values)
    monkeypatch.setenv("JFS_MOUNT_OPEN_CACHE", "7s")
    monkeypatch.setenv("JFS_MOUNT_READDIR_CACHE", "true")
    mixed = found("--preset", "small-once", "--readdir-cache=false")
    assert mixed["open-cache"] == ("7s", "environment")
    assert mixed["readdir-cache"] == ("false", "command line")
    assert mixed["attr-cache"] == ("600s", "preset")
    assert mixed["heartbeat"] == ("12s", "default")
    monkeypatch.setenv("JFS_MOUNT_PRESET", "small-epochs")
    assert found()["attr-cache"] == ("600s", "preset")


@pytest.mark.parametrize("name", presets.PRESETS)
def test_presets_set_options_that_exist_to_values_that_are_allowed(name: str) -> None:
    context = parsed("--preset", name)
    mount_options.build("mem://x", "/mnt", context.params)
    names = {each.name for each in settings.in_force(context)}
    assert presets.PRESETS[name].values.keys() <= names


def test_an_unknown_preset_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(click.BadParameter, match="seq-once, seq-threads"):
        parsed("--preset", "fast")


def test_help_lists_presets_and_names_a_variable() -> None:
    done = CliRunner().invoke(main.cli, ["mount", "--help"], auto_envvar_prefix=main.ENVIRONMENT)
    text = " ".join(done.output.split()).replace("- ", "-")
    assert all(f"{name}: {preset.text}" in text for name, preset in presets.PRESETS.items())
    assert "--preset from JFS_MOUNT_PRESET" in text


def test_a_bad_value_in_the_environment_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JFS_MOUNT_BUFFER_SIZE", "much")
    with pytest.raises(click.BadParameter, match="'much' is no size"):
        parsed()


def test_a_variable_of_no_option_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JFS_MOUNT_BUFER_SIZE", "1G")
    monkeypatch.setenv("JFS_RSA_PASSPHRASE", "x")
    parsed()
    assert [record.getMessage() for record in caplog.records] == [
        "JFS_MOUNT_BUFER_SIZE stands for no option of jfs mount"
    ]


def test_the_version_of_somebody_else_is_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JFS_VERSION", "1.4.2")
    assert main.run(["mount", "--help"]) == 0


def test_text_of_a_value_is_what_the_option_takes() -> None:
    context = parsed("--cache-size", "0", "--attr-cache", "1h1ms", "--max-fuse-io", "77777")
    for param in mount_options.mount_options():
        value = context.params[str(param.name)]
        if value is not None and not (isinstance(param, Option) and param.multiple):
            text = settings.as_text(param, value)
            assert param.type_cast_value(context, text) == value, param.name


def test_settings_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    settings.tell(settings.in_force(parsed("--buffer-size", "64M", "--bucket", "s3://a:key@h/b")))
    chosen, left = (record.getMessage() for record in caplog.records)
    assert "buffer-size=64M (command line)" in chosen
    assert "bucket=s3://a:****@h/b (command line)" in chosen
    assert "attr-cache=1s" in left


def test_settings_are_told_in_the_config() -> None:
    options = mount_options.build("mem://x", "/mnt", parsed().params).vfs
    told = json.loads(config(options))
    assert "Options" not in told
    seen = (Setting("buffer-size", "64M", "command line"),)
    options = mount_options.build("mem://x", "/mnt", parsed().params, seen).vfs
    told = json.loads(config(options))
    assert told["Options"] == {"buffer-size": {"Value": "64M", "From": "command line"}}


def config(options: Any) -> bytes:
    return config_text(options, Format(name="v", uuid="u", meta_version=1), 1, "memory")  # type: ignore[arg-type]
