"""The memory that control groups allow, from trees of files as the kernel shows them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from juicepy.cmd import cgroup

MIB = 1 << 20
V1_MOUNTS = (
    "31 23 0:28 / {top} rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / {top}/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "35 31 0:32 {root} {top}/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
)
V2_MOUNTS = "41 31 0:38 {root} {top} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
NO_LIMIT = "9223372036854771712\n"


def seen(
    tmp_path: Path, groups: str, mounts: str, files: dict[str, str], *, root: str = "/"
) -> int | None:
    """The limit for a process with this /proc/self/cgroup; `files` are those of the mount."""
    top, proc = tmp_path / "top", tmp_path / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text(groups)
    (proc / "mountinfo").write_text(mounts.format(top=top, root=root))
    for name, text in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return cgroup.memory_limit(str(proc))


def test_version_1_own_limit(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": NO_LIMIT,
        "memory/a/memory.limit_in_bytes": NO_LIMIT,
        "memory/a/b/memory.limit_in_bytes": f"{500 * MIB}\n",
        "memory/other/memory.limit_in_bytes": "1\n",
        "cpu/memory.limit_in_bytes": "2\n",
    }
    groups = "4:memory:/a/b\n1:cpu:/\n0::/\n"
    assert seen(tmp_path, groups, V1_MOUNTS, files) == 500 * MIB


def test_version_1_limit_of_a_parent_that_is_less(tmp_path: Path) -> None:
    files = {
        "memory/a/memory.limit_in_bytes": f"{100 * MIB}\n",
        "memory/a/b/memory.limit_in_bytes": f"{500 * MIB}\n",
    }
    assert seen(tmp_path, "4:cpu,memory:/a/b\n", V1_MOUNTS, files) == 100 * MIB


def test_version_1_limit_of_a_parent_that_is_not_shown(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": NO_LIMIT,
        "memory/memory.stat": f"cache 5\nhierarchical_memory_limit {70 * MIB}\nrss 1\n",
    }
    groups = "4:memory:/docker/1234\n"
    assert seen(tmp_path, groups, V1_MOUNTS, files, root="/docker/1234") == 70 * MIB


@pytest.mark.parametrize("name", ["memory.max", "memory.high"])
@pytest.mark.parametrize("where", ["", "a/", "a/b.scope/"])
def test_version_2_limits_of_all_levels(tmp_path: Path, name: str, where: str) -> None:
    files = {f"{each}memory.max": "max\n" for each in ("a/", "a/b.scope/")}
    files[where + name] = f"{64 * MIB}\n"
    assert seen(tmp_path, "0::/a/b.scope\n", V2_MOUNTS, files) == 64 * MIB


def test_both_versions_together_the_least_counts(tmp_path: Path) -> None:
    groups = "4:memory:/a\n0::/u\n"
    mounts = V1_MOUNTS + V2_MOUNTS.replace("{top}", "{top}/unified").replace("{root}", "/")
    files = {"memory/a/memory.limit_in_bytes": "7\n", "unified/u/memory.max": "5\n"}
    assert seen(tmp_path, groups, mounts, files) == 5


def test_a_group_outside_of_what_is_mounted_counts_as_its_top(tmp_path: Path) -> None:
    files = {"memory.max": "9\n", "x/memory.max": "1\n"}
    assert seen(tmp_path, "0::/../x\n", V2_MOUNTS, files) == 9


def test_names_with_blanks_are_found(tmp_path: Path) -> None:
    mounts = V2_MOUNTS.replace("{top}", "{top}/with\\040blank")
    files = {"with blank/a b/memory.max": "9\n"}
    assert seen(tmp_path, "0::/a b\n", mounts, files) == 9


@pytest.mark.parametrize("groups", ["", "nonsense\n", "4:memory:/gone\n", "0::/\n"])
def test_no_limit_is_none(tmp_path: Path, groups: str) -> None:
    files = {"memory/memory.limit_in_bytes": NO_LIMIT, "memory.max": "max\n"}
    assert seen(tmp_path, groups, V1_MOUNTS + V2_MOUNTS + "broken\n", files) is None


@pytest.mark.parametrize(
    ("limit", "buffers"),
    [(64, 32), (256, 56), (300, 100), (512, 256), (600, 300), (4096, 300)],
)
def test_default_buffers_leave_room_for_the_rest_of_the_mount(limit: int, buffers: int) -> None:
    assert cgroup.fitting(limit * MIB) == buffers * MIB


def test_the_limit_lowers_the_default_and_only_warns_of_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cgroup, "memory_limit", lambda: 256 * MIB)
    assert cgroup.default_buffers() == 56 * MIB
    cgroup.warn_of(256 * MIB)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        cgroup.warn_of(300 * MIB)
    assert "--buffer-size 300 MiB is more than" in caplog.text
    monkeypatch.setattr(cgroup, "memory_limit", lambda: None)
    assert cgroup.default_buffers() == 300 * MIB
