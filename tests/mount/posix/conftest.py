"""`place`: an empty directory on a local file system, then on each of the mounts of ours.

What a test asserts must hold on every one, so none can assert a quirk of ours. `--posix-dir DIR`
runs the tests there instead. They need root: other users are children with other ids.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.programs import OURS, discard
from tests.support.servers import new_meta_url
from tests.support.volumes import new_volume

__all__ = ["new_meta_url"]

FLAGS = {  # of format, of mount
    "redis": (("--trash-days", "1"), ("--atime-mode", "relatime")),
    "sqlite": (("--trash-days", "0"), ("--atime-mode", "strictatime")),
    "whole": (("--trash-days", "0"), ("--open-mode", "whole")),
    "written": (("--trash-days", "1"), ("-o", "writeback_cache", "--atime-mode", "relatime")),
}
ENGINES = {"whole": "redis", "written": "redis"}
# modes that run only what they have a part in
PARTS = {
    "whole": ("test_copies", "test_holes", "test_opening"),
    "written": ("test_flags", "test_opening", "test_permissions", "test_times"),
}
ALWAYS = ("--enable-ioctl", "--enable-cap", "-o", "dev,suid")

_numbers = itertools.count()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "base" in metafunc.fixturenames:
        given = metafunc.config.getoption("--posix-dir")
        module = metafunc.module.__name__.rpartition(".")[2]
        own = [kind for kind in FLAGS if kind not in PARTS or module in PARTS[kind]]
        kinds = ["given"] if given else ["local", *own]
        metafunc.parametrize("base", kinds, indirect=True, scope="session")


@pytest.fixture(scope="session")
def base(request: pytest.FixtureRequest, new_meta_url: Callable[[str], str]) -> Iterator[Path]:
    """The directory whose file system is tested. Other users may enter it."""
    kind = request.param
    if kind == "given":
        yield Path(request.config.getoption("--posix-dir")).resolve()
        return
    with open_home() as home:
        if kind == "local":
            yield home
            return
        formatting, mounting = FLAGS[kind]
        volume = new_volume(new_meta_url(ENGINES.get(kind, kind)), home / "volume")
        volume.format(OURS, *formatting)
        mount = volume.mount(OURS, home / f"mnt-{kind}", *ALWAYS, *mounting)
        try:
            yield mount.path
        except BaseException as error:
            error.add_note(f"log:\n{mount.tail()}")
            discard(mount)
            raise
        OURS.umount(mount)


@pytest.fixture(scope="session")
def ordinary_size(base: Path) -> int:
    """Entries of a large directory in the default run: fewer where each takes a disk's sync."""
    return 3_000 if "sqlite" in base.parts[-1] else 20_000


@pytest.fixture(scope="session")
def great_size(base: Path) -> int:
    """Entries of the largest directory, in the long run."""
    return 20_000 if "sqlite" in base.parts[-1] else 100_000


@pytest.fixture
def place(base: Path) -> Iterator[Path]:
    """An empty directory that everyone may write."""
    path = Path(tempfile.mkdtemp(prefix=f"t{next(_numbers)}-", dir=base))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def is_thrown_away(base: Path) -> bool:
    """Nobody has to clean up there: the whole volume goes."""
    return base.name in {f"mnt-{kind}" for kind in FLAGS}


@contextlib.contextmanager
def open_home() -> Iterator[Path]:
    """A new directory that other users may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="jfsposix", ignore_cleanup_errors=True) as home:
        Path(home).chmod(0o755)
        yield Path(home)
