"""Real programs on real files: unpack, clone, build, import, query, verify; then remount."""

from __future__ import annotations

import hashlib
import io
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.objects import ACCESS_KEY, SECRET_KEY
from tests.support.programs import OURS
from tests.support.trees import assert_same_hashes, hashes
from tests.support.volumes import Volume, check_blocks, new_volume

STEP_TIMEOUT_S = 600.0  # to find what hangs, not what is slow
LEFT_OUT = ("test", "site-packages", "idlelib", "lib2to3", "ensurepip", "turtledemo", "__pycache__")
GIT = ("git", "-c", "user.name=Tester", "-c", "user.email=tester@localhost", "-c", "gc.auto=0")

Make = Callable[[pytest.FixtureRequest, str, Path], Volume]


def _on_s3(request: pytest.FixtureRequest, meta_url: str, home: Path) -> Volume:
    bucket = request.getfixturevalue("s3_server").new_bucket()
    keys = ("--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY)
    return new_volume(meta_url, home, storage="s3", bucket=bucket, flags=keys)


def _on_files(_: pytest.FixtureRequest, meta_url: str, home: Path) -> Volume:
    return new_volume(meta_url, home)


def _compressed_and_encrypted(_: pytest.FixtureRequest, meta_url: str, home: Path) -> Volume:
    return new_volume(meta_url, home, "zstd-encrypted")


@pytest.mark.parametrize(
    ("engine", "make"),
    [
        pytest.param("sqlite", _on_files, id="sqlite-file"),
        pytest.param("redis", _on_s3, id="redis-s3", marks=pytest.mark.long),
        pytest.param("mariadb", _on_files, id="mariadb-file", marks=pytest.mark.long),
        pytest.param(
            "postgres",
            _compressed_and_encrypted,
            id="postgres-file-zstd-encrypted",
            marks=pytest.mark.long,
        ),
    ],
)
def test_real_work_is_the_same_after_a_remount(
    request: pytest.FixtureRequest,
    engine: str,
    make: Make,
    new_meta_url: Callable[[str], str],
    repository: Path,
    tmp_path: Path,
) -> None:
    volume = make(request, new_meta_url(engine), tmp_path / "volume")
    volume.format(OURS)
    with volume.mounted(OURS) as mount:
        root = mount.path / "work"
        root.mkdir()
        _unpack_standard_library(root / "lib")
        _clone_and_commit(repository, root / "git")
        _build_program(root / "program")
        _import_from_venv(root / "venv")
        _query_database(root / "database")
        _verify_with_fio(root / "fio")
        written = hashes(root)
    with volume.mounted(OURS) as mount:  # at another place, with an empty cache
        assert_same_hashes(hashes(mount.path / "work"), written)
        _run("git", "fsck", "--full", cwd=mount.path / "work/git")
        status = _run("git", "status", "--porcelain", cwd=mount.path / "work/git")
        assert status == "", status
    check_blocks(volume)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local git repository of two thousand files in two commits."""
    root = tmp_path_factory.mktemp("repository")
    chance = random.Random(8)
    for number in range(2000):
        path = root / f"part{number % 40:02}" / f"file{number:04}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{chance.random()}\n" for _ in range(chance.randrange(1, 60))))
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("part00")
    _run(*GIT, "init", "-q", cwd=root)
    _run(*GIT, "add", ".", cwd=root)
    _run(*GIT, "commit", "-q", "-m", "All files", cwd=root)
    for number in range(0, 2000, 20):
        (root / f"part{number % 40:02}" / f"file{number:04}.txt").write_text("changed\n")
    _run(*GIT, "commit", "-q", "-a", "-m", "Some changed", cwd=root)
    return root


def _unpack_standard_library(root: Path) -> None:
    """Through tar, which sets modes and times too; every byte is that of the original."""
    source = Path(sysconfig.get_path("stdlib"))
    archive = io.BytesIO()
    names = []
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path in sorted(source.rglob("*.py")):
            inside = path.relative_to(source)
            if not path.is_symlink() and not set(inside.parts) & set(LEFT_OUT):
                tar.add(path, str(inside))
                names.append(str(inside))
    assert len(names) > 400
    root.mkdir()
    subprocess.run(
        ["tar", "xf", "-", "-C", root],
        input=archive.getvalue(),
        check=True,
        timeout=STEP_TIMEOUT_S,
    )
    originals = {os.fsencode(name): _sha256(source / name) for name in names}
    assert_same_hashes(hashes(root), originals)
    for name in names[::25]:
        assert int((root / name).stat().st_mtime) == int((source / name).stat().st_mtime), name


def _clone_and_commit(source: Path, root: Path) -> None:
    _run(*GIT, "clone", "-q", "--no-hardlinks", str(source), str(root), cwd=root.parent)
    assert _run("git", "status", "--porcelain", cwd=root) == ""
    for number in range(0, 2000, 50):
        (root / f"part{number % 40:02}" / f"file{number:04}.txt").write_text("changed again\n")
    _run("git", "mv", "part01", "moved", cwd=root)
    _run("git", "rm", "-q", "-r", "part02", cwd=root)
    _run(*GIT, "commit", "-q", "-a", "-m", "Change, move and remove", cwd=root)
    _run(*GIT, "repack", "-q", "-a", "-d", cwd=root)
    _run("git", "fsck", "--full", "--strict", cwd=root)
    assert _run("git", "status", "--porcelain", cwd=root) == ""
    assert len(_run("git", "ls-files", cwd=root).splitlines()) == 1952


def _build_program(root: Path) -> None:
    """Forty modules with a header each, linked, run, and made again after a change."""
    root.mkdir()
    modules = [f"module{number}" for number in range(40)]
    for number, name in enumerate(modules):
        (root / f"{name}.h").write_text(f"int {name}(int);\n")
        (root / f"{name}.c").write_text(
            f'#include "{name}.h"\nint {name}(int x) {{ return x * {number} + 1; }}\n'
        )
    calls = "\n".join(f"    sum += {name}(sum % 7);" for name in modules)
    includes = "\n".join(f'#include "{name}.h"' for name in modules)
    (root / "main.c").write_text(
        f"#include <stdio.h>\n{includes}\nint main(void) {{\n    int sum = 1;\n{calls}\n"
        '    printf("%d\\n", sum);\n    return 0;\n}\n'
    )
    objects = " ".join(f"{name}.o" for name in (*modules, "main"))
    (root / "Makefile").write_text(
        f"program: {objects}\n\t$(CC) -o $@ $^\n%.o: %.c\n\t$(CC) -O0 -c -o $@ $<\n"
    )
    _run("make", "-j4", "-s", cwd=root)
    total = 1
    for number in range(40):
        total += (total % 7) * number + 1
    assert _run("./program", cwd=root) == f"{total}\n"
    assert "up to date" in _run("make", "-j4", cwd=root)
    (root / "module39.c").write_text("int module39(int x) { return x - x; }\n")
    _run("make", "-j4", "-s", cwd=root)
    assert _run("./program", cwd=root) != f"{total}\n"


def _import_from_venv(root: Path) -> None:
    _run(sys.executable, "-m", "venv", "--without-pip", str(root), cwd=root.parent)
    python = root / "bin" / "python"
    (packages,) = root.glob("lib/python*/site-packages")
    source = Path(sysconfig.get_path("stdlib"))
    for name in ("json", "email"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source / name, packages / f"copied_{name}", ignore=ignored)
    text = (
        "import copied_json, sys; print(copied_json.dumps([1]), sys.prefix, copied_json.__file__)"
    )
    for _ in range(2):  # the second time from the compiled files that the first has written
        said = _run(str(python), "-c", text, cwd=root)
        assert said.split() == ["[1]", str(root), str(packages / "copied_json/__init__.py")]
    assert list((packages / "copied_json/__pycache__").glob("*.pyc"))


def _query_database(root: Path) -> None:
    """Two connections, in the rollback mode and with a write-ahead log and its shared memory."""
    root.mkdir()
    for mode in ("delete", "wal"):
        path = root / f"{mode}.db"
        writer = sqlite3.connect(path, timeout=30, isolation_level=None)
        reader = sqlite3.connect(path, timeout=30)
        assert writer.execute(f"pragma journal_mode={mode}").fetchone() == (mode,)
        writer.execute("create table rows(number integer primary key, text)")
        for start in range(0, 1000, 100):
            writer.execute("begin immediate")
            rows = [(number, f"{number}" * 50) for number in range(start, start + 100)]
            writer.executemany("insert into rows values(?, ?)", rows)
            writer.execute("commit")
            count = reader.execute("select count(*) from rows").fetchone()
            assert count == (start + 100,)
        writer.execute("update rows set text = 'new' where number % 3 = 0")
        writer.execute("begin")
        writer.execute("delete from rows")
        writer.execute("rollback")
        assert reader.execute("pragma integrity_check").fetchall() == [("ok",)]
        assert reader.execute("select count(*) from rows where text = 'new'").fetchone() == (334,)
        reader.close()
        writer.close()


def _verify_with_fio(root: Path) -> None:
    root.mkdir()
    for name, *flags in (
        ("sequential", "--rw=write", "--bs=1m", "--size=24m", "--ioengine=psync"),
        ("random", "--rw=randwrite", "--bsrange=4k-128k", "--size=8m", "--ioengine=psync"),
        ("mapped", "--rw=randwrite", "--bs=4k", "--size=4m", "--ioengine=mmap"),
    ):
        words = ["fio", f"--name={name}", "--directory=.", *flags, "--verify=crc32c"]
        _run(*words, "--verify_fatal=1", "--end_fsync=1", "--thread", cwd=root)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run(*words: str, cwd: Path) -> str:
    """Standard output of a program that succeeds."""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        words,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=STEP_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{words}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout
