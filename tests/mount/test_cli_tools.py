"""`jfs stats`, `profile` and `warmup` on our mounts and on those of JuiceFS."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from juicepy.jobs import figures
from tests.support.programs import OURS, PEER, Mount, Program
from tests.support.volumes import Volume, new_volume
from tests.support.waiting import wait_for

MIB = 1 << 20


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    volume = new_volume(f"sqlite3://{tmp_path}/meta.db", tmp_path)
    volume.format(OURS)
    return volume


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Volume:
    home = tmp_path_factory.mktemp("filled")
    volume = new_volume(f"sqlite3://{home}/meta.db", home)
    volume.format(OURS)
    with volume.mounted(OURS) as writer:
        (writer.path / "d" / "e").mkdir(parents=True)
        for number in range(3):
            (writer.path / "d" / f"f{number}").write_bytes(os.urandom(5 * MIB))
        (writer.path / "d" / "e" / "small").write_bytes(b"x" * 1000)
        os.symlink("d", writer.path / "link")
    return volume


@pytest.fixture(params=[OURS, PEER], ids=str)
def mount(request: pytest.FixtureRequest, filled: Volume) -> Iterator[Mount]:
    """Of the filled volume, with a cache of its own; a test leaves no file behind."""
    program: Program = request.param
    with filled.mounted(program) as mount:
        yield mount


def cached(mount: Mount, path: str = "d") -> float:
    out = OURS.run("warmup", "--check", mount.path / path).stdout
    found = re.search(r"\((\d+\.\d)%\) are cached", out)
    assert found, out
    return float(found[1])


def test_warmup_fills_and_empties_the_cache(mount: Mount) -> None:
    assert cached(mount) == 0.0
    done = OURS.run("warmup", mount.path / "d", "-p", "4")
    assert re.search(r"4 files cached, 15\.00 MiB \(15729640 Bytes\) in \d", done.stdout)
    wait_for(lambda: cached(mount) == 100.0, "the blocks in their files")
    assert "/raw" not in OURS.run("warmup", "--check", mount.path / "d").stdout
    OURS.run("warmup", "--evict", mount.path / "d" / "f0")
    assert cached(mount, "d/f0") == 0.0
    assert cached(mount, "link/f1") == 100.0
    OURS.run("warmup", "--background", mount.path / "d" / "f0")
    wait_for(lambda: cached(mount) == 100.0, "the work in the background")


def test_warmup_of_a_list(mount: Mount, tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.write_text(f"{mount.path}/d/f0\n\n{mount.path}/d/e\n")
    done = OURS.run("warmup", "--file", listed)
    assert "2 files cached" in done.stdout
    wait_for(lambda: cached(mount, "d/e") == 100.0, "the blocks in their files")
    assert cached(mount, "d/f1") == 0.0


def test_warmup_from_a_directory_of_the_mount(mount: Mount) -> None:
    words = [str(OURS.executable), "warmup", "f0", "../link/e"]
    done = subprocess.run(words, cwd=mount.path / "d", text=True, capture_output=True, check=True)
    assert "2 files cached" in done.stdout
    wait_for(lambda: cached(mount, "d/e") == cached(mount, "d/f0") == 100.0, "the blocks")
    assert cached(mount, "d/f1") == 0.0


def test_warmup_goes_on_without_the_paths_that_are_not_there(mount: Mount, tmp_path: Path) -> None:
    listed = tmp_path / "list"
    missing = [f"{mount.path}/d/no{number}" for number in range(12)]
    listed.write_text("\n".join([*missing, f"{mount.path}/d/f0"]))
    done = OURS.run("warmup", "--file", listed, check=False)
    assert done.code == 1
    assert "1 files cached" in done.stdout
    assert done.stderr.count("No such file") == 10
    assert "12 of 13 paths do not exist" in done.stderr


def test_warmup_sums_up(volume: Volume) -> None:
    with volume.mounted(OURS) as mount:
        for name in ("a", "b", "lost"):
            (mount.path / name).write_bytes(os.urandom(4 * MIB))
    with volume.mounted(OURS) as mount:
        OURS.run("warmup", mount.path / "a")
        wait_for(lambda: cached(mount, "a") == 100.0, "the block in its file")
        raw = OURS.run("info", mount.path / "lost").stdout
        key = re.search(r"(chunks/\S+)", raw)
        assert key, raw
        (Path(volume.bucket) / volume.name / key[1]).unlink()
        done = OURS.run("warmup", mount.path, "--io-retries", "1", check=False)
        assert done.code == 1
        assert re.search(r"3 files cached, 12.00 MiB .*, 4.00 MiB .* were there, 4.00", done.stdout)
        assert "4.00 MiB (4194304 Bytes) are not cached: again in 0.5 s" in done.stderr
        assert done.stderr.count("again") == 1
        assert "4.00 MiB (4194304 Bytes) could not be cached" in done.stderr
        checked = OURS.run("warmup", "--check", mount.path)
        assert re.search(r"3 files checked, 8.00 MiB .* are cached, 4.00 MiB", checked.stdout)
        gone = OURS.run("warmup", mount.path / "lost", "--io-retries", "0", check=False)
        assert (gone.code, gone.stderr.count("again")) == (1, 0)


def test_warmup_shows_its_progress_on_a_terminal(mount: Mount) -> None:
    reader, terminal = pty.openpty()
    words = [str(OURS.executable), "warmup", str(mount.path / "d")]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=terminal) as process:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the other end was closed
            while data := os.read(reader, 1 << 16):
                shown += data
    os.close(reader)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert re.search(r"files +\S+ +15.0/15.0 MiB", text), text
    assert re.search(r"[kKM]i?B/s|\?", text), text
    assert re.search(r"\d:\d\d:\d\d", text), text


def test_the_first_epoch_after_a_warmup_asks_no_metadata(volume: Volume) -> None:
    long = ("--attr-cache", "1h", "--entry-cache", "1h", "--dir-entry-cache", "1h")
    with volume.mounted(OURS) as mount:
        for number in range(20):
            path = mount.path / "set" / f"c{number % 3}" / f"f{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(5000 + number))
    with volume.mounted(OURS, *long, "--readdir-cache", "--open-cache", "1h") as mount:
        OURS.run("warmup", mount.path / "set")
        before = figures.snapshot(str(mount.path / ".stats"))
        found = [path.read_bytes() for path in sorted((mount.path / "set").glob("*/*"))]
        now = figures.snapshot(str(mount.path / ".stats"))
        assert sorted(map(len, found)) == [5000 + number for number in range(20)]
        changed = {name for name in now if now[name] != before.get(name, 0)}
        assert "fuse_ops_total_open" in changed
        assert not {name for name in changed if name.startswith("meta_ops")}
        assert not {name for name in changed if name.startswith("object_request")}


def test_stats_show_what_happens(mount: Mount) -> None:
    with subprocess.Popen(
        [OURS.executable, "stats", mount.path, "--interval", "0.5", "-c", "6", "-l", "1"],
        stdout=subprocess.PIPE,
        text=True,
    ) as stats:
        for _ in range(40):
            (mount.path / "d" / "new").write_bytes(b"x" * 10_000)
            time.sleep(0.05)
        out, _ = stats.communicate(timeout=30)
    titles, names, *rows = out.splitlines()
    assert "usage" in titles
    assert "fuse" in titles
    assert names.startswith(" cpu  ")
    assert len(rows) == 6
    assert len({len(row) for row in (titles, names, *rows)}) == 1
    operations = [int(row.split("|")[1].split()[0]) for row in rows]
    assert max(operations) > 20
    assert operations[0] == 0
    written = [row.split("|")[1].split()[-1] for row in rows]
    assert any(each not in ("0", "0K") for each in written)


def test_profile_follows_the_mount(mount: Mount) -> None:
    source = "" if mount.program is PEER else ".accesslog"
    tables: list[list[str]] = []

    def collect(lines: Iterator[str]) -> None:
        for line in lines:
            if line.startswith("> profile of "):
                tables.append([])
            elif line.strip():
                tables[-1].append(line)

    words = [OURS.executable, "profile", mount.path / source, "--interval", "1", "-u", "0,4711"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as profile:
        assert profile.stdout is not None
        reader = threading.Thread(target=collect, args=[profile.stdout])
        reader.start()
        end = time.monotonic() + 60
        while len(tables) < 3 and time.monotonic() < end:  # the third begins: two are whole
            (mount.path / "d" / "f1").read_bytes()
            (mount.path / "d" / "probe").touch()
            (mount.path / "d" / "probe").unlink()
        profile.send_signal(signal.SIGINT)
        reader.join()
    rows = [line.split() for line in tables[1][1:]]
    assert {"open", "create", "unlink"} <= {row[0] for row in rows}
    shares = [float(row[-1]) for row in rows]
    assert shares == sorted(shares, reverse=True)


def test_profile_of_a_saved_log(mount: Mount, tmp_path: Path) -> None:
    saved = tmp_path / "log"
    with saved.open("wb") as out, (mount.path / ".accesslog").open("rb", buffering=0) as log:
        (mount.path / "d" / "probe").touch()
        (mount.path / "d" / "probe").unlink()
        while b"unlink" not in (data := log.read(1 << 16)):
            out.write(data)
        out.write(data)
    ours = OURS.run("profile", saved, "--interval", "0").stdout
    theirs = PEER.run("profile", saved, "--interval", "0").stdout

    def counts(text: str) -> dict[str, int]:
        found = re.findall(r"^(\w+) +(\d+) +\d+ +\d+ +[\d.]+ *$", text, re.MULTILINE)
        return {name: int(count) for name, count in found}

    assert counts(ours)["unlink"] == 1
    assert counts(ours) == counts(theirs)
    assert counts(OURS.run("profile", saved, "--interval", "0", "-u", "4711").stdout) == {}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["stats", "PLACE"], "is not a JuiceFS mount point"),
        (["stats", "PLACE/nosuch"], "is not a JuiceFS mount point"),
        (["stats", "PLACE", "--interval", "0"], "--interval 0"),
        (["stats", "PLACE", "--schema", "x"], "--schema 'x'"),
        (["profile", "PLACE"], "is not a JuiceFS mount point"),
        (["profile", "PLACE", "-p", "x"], "--pid 'x'"),
        (["profile", "PLACE", "--interval", "0"], "--interval 0"),
        (["warmup", "PLACE"], "is not inside a JuiceFS mount"),
        (["warmup", "PLACE/nosuch"], "No such file"),
        (["warmup"], "no PATH"),
        (["warmup", "PLACE", "--evict", "--check"], "exclude each other"),
        (["warmup", "PLACE", "-p", "0"], "--threads 0"),
        (["warmup", "PLACE", "--io-retries", "-1"], "--io-retries -1"),
        (["warmup", "-f", "PLACE/nosuch"], "nosuch"),
    ],
)
def test_bad_input_gets_one_line(words: list[str], told: str, tmp_path: Path) -> None:
    done = OURS.run(*(word.replace("PLACE", str(tmp_path)) for word in words), check=False)
    assert done.code == 1
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def busy(volume: Volume) -> Iterator[Mount]:
    """A mount of ours that is written to all the time."""
    with volume.mounted(OURS) as mount:
        end = threading.Event()

        def write() -> None:
            while not end.is_set():
                (mount.path / "f").write_bytes(b"x" * 100_000)

        writer = threading.Thread(target=write)
        writer.start()
        yield mount
        end.set()
        writer.join()


def test_debug_profile_tells_what_takes_the_cpu(busy: Mount, tmp_path: Path) -> None:
    out = tmp_path / "raw.txt"
    words = ("debug", "profile", busy.path, "--seconds", "2", "--out", out)
    done = OURS.run(*words)
    assert re.search(r"\d+ samples of process \d+", done.stdout)
    rows = [line.split(maxsplit=2) for line in done.stdout.splitlines()[2:]]
    assert sum(float(row[0].rstrip("%")) for row in rows) > 50
    assert all(float(row[0].rstrip("%")) <= float(row[1].rstrip("%")) for row in rows)
    assert "juicepy/fuse/server.py" in out.read_text()


def test_debug_profile_tells_what_takes_the_memory(busy: Mount) -> None:
    done = OURS.run("debug", "profile", "--heap", busy.path, "--seconds", "1", "-c", "30")
    title, *rows = done.stdout.splitlines()
    assert title.split() == ["KiB", "blocks", "line"]
    assert 0 < len(rows) <= 30
    assert any("juicepy/" in row for row in rows)
    sizes = [float(row.split()[0]) for row in rows]
    assert sizes == sorted(sizes, reverse=True)


def test_debug_profile_says_what_is_missing(volume: Volume, tmp_path: Path) -> None:
    def refused(*words: str | Path) -> str:
        done = OURS.run("debug", "profile", *words, check=False)
        assert (done.code, len(done.stderr.splitlines())) == (1, 1), done
        return done.stderr

    assert "is not a JuiceFS mount point" in refused(tmp_path)
    with volume.mounted(OURS) as mount:
        assert "--seconds 0" in refused(mount.path, "--seconds", "0")
        assert "--out x.pdf" in refused(mount.path, "--out", "x.pdf")
        code = "import sys; sys.executable = '/nowhere/python'; import juicepy.cmd.main as main;"
        code += f"sys.exit(main.run(['debug', 'profile', {str(mount.path)!r}]))"
        env = {**os.environ, "PATH": "/nowhere"}
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, "pip install py-spy" in done.stderr) == (1, True), done.stderr
    with volume.mounted(PEER) as mount:
        assert "not a mount of this program" in refused(mount.path)
