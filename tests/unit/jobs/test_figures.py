"""Tables of figures, from snapshots of `.stats`."""

from pathlib import Path

import pytest

from juicepy.errors import Refused
from juicepy.jobs import figures


def test_snapshot_adds_lines_of_one_name(tmp_path: Path) -> None:
    path = tmp_path / "stats"
    path.write_text("juicefs_a_b 1\njuicefs_a_b 2.5\nother 7\nnot a sample\n\n")
    assert figures.snapshot(str(path)) == {"a_b": 3.5, "other": 7.0}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "   0 "), (9999, "9999 "), (10000, "  10K"), (4 << 20, "4096K"), (96 << 20, "  96M")],
)
def test_quantities_fit_their_cells(value: float, text: str) -> None:
    assert figures.quantity(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.321, "0.32 "), (12.345, "12.3 "), (123.4, " 123 "), (2500, "2500 "), (0.0001, "0.00 ")],
)
def test_latencies_fit_their_cells(value: float, text: str) -> None:
    assert figures.milliseconds(value) == text


def test_rows_tell_what_happened_between_two_snapshots() -> None:
    fuse, get = "fuse_ops_durations_histogram_seconds", "object_request_durations_histogram_seconds"
    before = {"cpu_usage": 1.0, f"{fuse}_total": 100.0, f"{fuse}_sum": 1.0}
    now = {
        "cpu_usage": 1.5,
        "memory": 96 << 20,
        f"{fuse}_total": 300.0,
        f"{fuse}_sum": 1.4,
        "fuse_read_size_bytes_sum": 8 << 20,
        "transaction_restart_Mknod": 3.0,
        "transaction_restart_Write": 1.0,
        f"{get}_GET_total": 10.0,
        f"{get}_GET_sum": 0.05,
        "object_request_data_bytes_GET": 40 << 20,
    }
    table = figures.Table("ufmco", 1)
    titles, names = table.header()
    row = table.row(before, now, 2.0)
    assert len(titles) == len(names) == len(row)
    usage, fuse_cells, meta, cache, objects = row.split("|")
    assert usage.split() == ["25.0%", "96M", "0", "0"]
    assert fuse_cells.split() == ["100", "2.00", "4096K", "0"]
    assert meta.split() == ["0", "0", "0", "0", "2"]
    assert cache.split() == ["0", "0"]
    assert objects.split() == ["20M", "5", "5.00", "0", "0", "0", "0", "0"]


def test_without_verbosity_there_are_fewer_columns() -> None:
    names = figures.Table("uo", 0).header()[1].replace("|", " ")
    assert names.split() == ["cpu", "mem", "buf", "get", "put"]


def test_unknown_section_is_refused() -> None:
    with pytest.raises(Refused, match="--schema 'ux'"):
        figures.Table("ux", 0)


def test_a_directory_that_is_no_mount_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not a JuiceFS mount point"):
        figures.find(str(tmp_path), "stats")
