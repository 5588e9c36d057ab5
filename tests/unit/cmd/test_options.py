"""Types of options, booleans with a value, global options anywhere."""

import click
import pytest
from click.testing import CliRunner

from juicepy.cmd import options
from juicepy.cmd.options import Command, Duration, Octal, Option, Rate, Size


@pytest.mark.parametrize(
    ("unit", "text", "size"),
    [
        ("M", "300", 300 << 20),
        ("M", "300M", 300 << 20),
        ("K", "4M", 4 << 20),
        ("K", "64", 64 << 10),
        ("G", "1.5", 3 << 29),
        ("", "128K", 128 << 10),
        ("M", "1GiB", 1 << 30),
        ("M", "2TB", 2 << 40),
        ("M", "100B", 100),
        ("M", "0", 0),
    ],
)
def test_sizes_have_units(unit: str, text: str, size: int) -> None:
    assert Size(unit).convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1X", "1 2", "M"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="no size"):
        Size("M").convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1.0s", 1), ("100ms", 0.1), ("1h30m", 5400), ("2d", 172800), ("0", 0), ("1.5", 1.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1x", "s", "1s1", "-1s", "1h x"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="no duration"):
        Duration().convert(text, None, None)


def test_duration_may_be_negative_where_that_means_never() -> None:
    assert Duration(may_be_negative=True).convert("-1s", None, None) == -1


def test_rates_are_mbps() -> None:
    rates = {text: Rate().convert(text, None, None) for text in ("100", "10.5", "1G", "500K")}
    assert rates == {"100": 100, "10.5": 10, "1G": 1000, "500K": 0}


def test_modes_are_octal() -> None:
    assert Octal().convert("0600", None, None) == 0o600
    with pytest.raises(click.BadParameter):
        Octal().convert("0680", None, None)


@click.command(
    cls=Command,
    params=[
        click.Argument(["name"]),
        Option(["--flag", "-f"], is_flag=True),
        Option(["--size"], type=Size("M"), default="1M", section="SIZES"),
    ],
)
@click.pass_context
def example(ctx: click.Context, /, **given: object) -> None:
    click.echo(f"{given['flag']} {given['size']} {sorted(options.given_options(ctx))}")


def said(*words: str) -> str:
    result = CliRunner().invoke(example, words)
    assert result.exit_code == 0, result.output
    return result.output.strip()


def test_booleans_take_a_value_or_none() -> None:
    assert said("n") == "False 1048576 ['name']"
    assert said("n", "--flag") == "True 1048576 ['flag', 'name']"
    assert said("--flag=false", "n") == "False 1048576 ['flag', 'name']"
    assert said("--flag=TRUE", "n", "--size=2") == "True 2097152 ['flag', 'name', 'size']"


def test_boolean_that_is_none_is_refused() -> None:
    result = CliRunner().invoke(example, ["--flag=maybe", "n"])
    assert result.exit_code != 0
    assert "--flag" in result.output


def test_words_after_two_dashes_are_no_options() -> None:
    result = CliRunner().invoke(example, ["--", "--flag=false"])
    assert result.output.startswith("False")


def test_global_options_may_follow_the_command() -> None:
    assert said("n", "-v") == "False 1048576 ['name']"


def test_help_has_sections_and_hides_global_options() -> None:
    text = CliRunner().invoke(example, ["--help"]).output
    assert "SIZES:" in text
    assert "[default: 1M]" in text
    assert "--verbose" not in text


def test_error_is_told_with_its_subject_on_one_line() -> None:
    assert options.describe(OSError(2, "No such\nfile", "x")) == "x: No such file"
    assert options.describe(OSError("plain")) == "plain"
