from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from juicepy.types import ROOT, LockKind, PosixLock, SetAttr
from juicepy.vfs import accesslog
from juicepy.vfs.accesslog import AccessLog, LogReader, mode_text, quoted
from juicepy.vfs.vfs import VFS
from tests.unit.vfs.volumes import ME, close, create, opened, read

LINE = re.compile(
    r"\d{4}\.\d\d\.\d\d \d\d:\d\d:\d\d\.\d{6} \[uid:0,gid:0,pid:77\] (.*) <\d+\.\d{6}>"
)
TIMES = re.compile(r"\d{10},\d{10},\d{10}")


class Log:
    """An open access log; `lines` gives what came since, without times and numbers of handles."""

    def __init__(self, vfs: VFS) -> None:
        self.vfs = vfs
        self.ino = vfs.lookup(ME, ROOT, b".accesslog").ino
        self.fh = vfs.open(ME, self.ino, os.O_RDONLY).fh

    def lines(self) -> list[str]:
        text = b"".join(self.vfs.read(ME, self.ino, self.fh, 0, 1 << 20)).decode()
        matches = [LINE.fullmatch(line) for line in text.splitlines()]
        assert all(matches), text
        return [TIMES.sub("A,M,C", match[1]) for match in matches if match and not self.own(match)]

    def own(self, match: re.Match[str]) -> bool:
        return f"({self.ino}," in match[1]


@pytest.fixture
def vfs() -> Iterator[VFS]:
    with opened(enable_xattr=True, enable_ioctl=True) as vfs:
        yield vfs


@contextmanager
def failing() -> Iterator[None]:
    with pytest.raises(OSError):
        yield


def test_lines_look_like_those_of_juicefs(vfs: VFS) -> None:
    log = Log(vfs)
    with failing():
        vfs.lookup(ME, ROOT, b"d")
    d = vfs.mkdir(ME, ROOT, b"d", 0o755, 0).ino
    f, fh = create(vfs, b"f", b"hi\n", parent=d)
    vfs.flush(ME, f, fh, 0x8A270F35A3F946A7)
    assert read(vfs, f, fh) == b"hi\n"
    vfs.rename(ME, d, b"f", d, b"g", 1)
    vfs.symlink(ME, d, b"s", b"aa")
    vfs.link(ME, f, d, b"h")
    vfs.setxattr(ME, f, b"user.a", b"1", 0)
    found, opened_file = vfs.tmpfile(ME, d, 0o600, 0, os.O_RDWR)
    assert log.lines() == [
        "lookup (1,d): - no such file or directory",
        f"mkdir (1,d,?rwxr-xr-x:00755): ({d},[drwxr-xr-x:0040755,2,0,0,A,M,C,4096]) - OK",
        f"create ({d},f,-rw-r--r--:0100644): ({f},[-rw-r--r--:0100644,1,0,0,A,M,C,0])"
        f" [fh:{fh}] - OK",
        f"write ({f},3,0,{fh}) - OK",
        f"flush ({f},{fh},8A270F35A3F946A7) - OK",
        f"read ({f},1048576,0,{fh}): (3) - OK",
        f"rename ({d},f,{d},g,1) - OK",
        f"symlink ({d},s,aa): ({f + 1},[lrwxrwxrwx:0120777,1,0,0,A,M,C,2]) - OK",
        f"link ({f},{d},h): ({f},[-rw-r--r--:0100644,2,0,0,A,M,C,3]) - OK",
        f"setxattr ({f},user.a,1,0) - OK",
        f"tmpfile ({d},,-rw-------:0100600):"
        f" ({found.ino},[-rw-------:0100600,0,0,0,A,M,C,0]) [fh:{opened_file.fh}] - OK",
    ]
    close(vfs, found.ino, opened_file.fh)
    close(vfs, f, fh)


def test_lines_of_attributes_and_special_files(vfs: VFS) -> None:
    f, fh = create(vfs, b"f")
    log = Log(vfs)
    vfs.setattr(ME, f, SetAttr(), 100, fh)
    vfs.setattr(ME, f, SetAttr(mode=0o600), None, None)
    vfs.setattr(ME, f, SetAttr(atime_ns=5 * 10**9, mtime_ns=6 * 10**9), None, None)
    vfs.setattr(ME, f, SetAttr(uid=1, gid=2), None, None)
    vfs.setattr(ME, f, SetAttr(atime_now=True, mtime_now=True), None, None)
    p = vfs.mknod(ME, ROOT, b"p", 0o10644, 0, 0).ino
    vfs.mknod(ME, ROOT, b"c", 0o20644, 0, 0x103)
    with failing():
        vfs.rmdir(ME, ROOT, b'q`x\n"\xc3\xa9\xff')
    lines = log.lines()
    times = re.compile(r"(\d+|A),(\d+|M),(\d+|C),(100|0)\]")
    assert [times.sub(r"T,\4]", line) for line in lines] == [
        f"setattr ({f}[{fh}],0x8,[size=100]): ({f},[-rw-r--r--:0100644,1,0,0,T,100]) - OK",
        f"setattr ({f}[0],0x1,[mode=-rw-------:00600]):"
        f" ({f},[-rw-------:0100600,1,0,0,T,100]) - OK",
        f"setattr ({f}[0],0x30,[atime=5,mtime=6]): ({f},[-rw-------:0100600,1,0,0,T,100]) - OK",
        f"setattr ({f}[0],0x6,[uid=1,gid=2]): ({f},[-rw-------:0100600,1,1,2,T,100]) - OK",
        f"setattr ({f}[0],0x1B0,[atime=NOW,mtime=NOW]):"
        f" ({f},[-rw-------:0100600,1,1,2,T,100]) - OK",
        f"mknod (1,p,frw-r--r--:010644,0x00000000): ({p},[frw-r--r--:0010644,1,0,0,T,0]) - OK",
        f"mknod (1,c,crw-r--r--:020644,0x00000103): ({p + 1},[crw-r--r--:0020644,1,0,0,T,0]) - OK",
        'rmdir (1,q`x\\n\\"é\\xff) - no such file or directory',
    ]
    close(vfs, f, fh)


def test_lines_of_locks_and_of_the_rest(vfs: VFS) -> None:
    f, fh = create(vfs, b"f", b"data")
    log = Log(vfs)
    vfs.try_setlk(ME, f, fh, 0x41, PosixLock(LockKind.WRITE, 5, 14, 7630))
    vfs.getlk(ME, f, fh, 0x42, PosixLock(LockKind.READ, 0, 9, 1))
    vfs.getlk(ME, f, fh, 0x42, PosixLock(LockKind.READ, 0, 1, 1))
    vfs.try_flock(ME, f, fh, 0x41, LockKind.WRITE)
    vfs.fsync(ME, f, fh, True)
    vfs.fallocate(ME, f, fh, 0, 0, 1000)
    vfs.access(ME, f, 4)
    vfs.ioctl(ME, f, fh, 0x80086601, b"", 4)
    with failing():
        vfs.ioctl(ME, f, fh, 0x5401, b"", 0)
    with failing():
        vfs.getxattr(ME, f, b"user.none")
    vfs.unlink(ME, ROOT, b"f")
    vfs.release(ME, f, fh, 0)
    assert log.lines() == [
        f"setlk ({f},{fh},0000000000000041,5,14,W,false,7630) - OK",
        f"getlk ({f},{fh},0000000000000042): (5,14,W,7630) - OK",
        f"getlk ({f},{fh},0000000000000042): (0,0,U,0) - OK",
        f"flock ({f},{fh},0000000000000041,LOCKEX,false) - OK",
        f"fsync ({f},1) - OK",
        f"fallocate ({f},0,0,1000) - OK",
        f"access ({f},0x4) - OK",
        f"ioctl ({f},0x80086601,0x0,[],[0 0 0 0]) - OK",
        f"ioctl ({f},0x5401,0x0,[],[]) - inappropriate ioctl for device",
        f"getxattr ({f},user.none,0): (0) - no data available",
        "unlink (1,f) - OK",
        f"release ({f},{fh}) - OK",
    ]


def test_listing_is_one_line_with_the_count_of_entries(vfs: VFS) -> None:
    log = Log(vfs)
    handle = vfs.opendir(ME, ROOT, 0)
    count = len(list(vfs.readdir(ME, ROOT, handle.fh, 0, plus=True)))
    assert f"readdir (1,0,0,true): ({count}) - OK" in log.lines()


def test_every_operation_has_a_format() -> None:
    operations = {
        name.removeprefix("try_")
        for name, method in vars(VFS).items()
        if hasattr(method, "__wrapped__")
    }
    assert operations | {"readdir"} == set(accesslog.FORMATS)


def test_reading_the_log_is_not_logged(vfs: VFS) -> None:
    log = Log(vfs)
    vfs.access(ME, ROOT, 4)
    vfs.read(ME, log.ino, log.fh, 0, 4096)
    vfs.access(ME, ROOT, 1)
    text = b"".join(vfs.read(ME, log.ino, log.fh, 0, 4096))
    assert text.count(b"\n") == 1
    assert b"access (1,0x1) - OK" in text


def test_nothing_is_kept_while_nobody_reads() -> None:
    with opened() as vfs:
        log = Log(vfs)
        assert len(vfs.log.readers) == 1
        vfs.release(ME, log.ino, log.fh, 0)
        assert len(vfs.log.readers) == 0


def test_no_line_is_made_while_nobody_reads(vfs: VFS, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*_: object) -> None:
        raise AssertionError("nobody reads this")

    log = Log(vfs)
    vfs.release(ME, log.ino, log.fh, 0)
    monkeypatch.setattr(vfs.log, "write", made)
    ino, fh = create(vfs, b"f")
    read(vfs, ino, fh, 0, 10)
    close(vfs, ino, fh)
    directory = vfs.opendir(ME, ROOT, 0).fh
    assert list(vfs.readdir(ME, ROOT, directory, 0, plus=True))
    with failing():
        vfs.lookup(ME, ROOT, b"absent")
    with pytest.raises(AssertionError, match="nobody reads"):
        Log(vfs)


def test_each_reader_gets_all_lines() -> None:
    log = AccessLog()
    first, second = log.open(), log.open()
    log.write(ME, "unlink", (1, b"a"), None, None, 0.1)
    assert first.read(ME, 0, 4096) == second.read(ME, 0, 4096) != b"#\n"


def test_idle_reader_gets_a_sign_of_life() -> None:
    assert LogReader(idle_s=0.01).read(ME, 0, 4096) == b"#\n"


def test_small_reads_lose_nothing() -> None:
    reader = LogReader(idle_s=0.01)
    for number in range(10):
        reader.put(b"line %d\n" % number)
    text = b"".join(reader.read(ME, 0, 5) for _ in range(14))
    assert text == b"".join(b"line %d\n" % number for number in range(10))


def test_overflow_drops_new_lines() -> None:
    reader = LogReader()
    for number in range(accesslog.LIMIT_LINES + 5):
        reader.put(b"%d\n" % number)
    assert reader.read(ME, 0, 1 << 20).count(b"\n") == accesslog.LIMIT_LINES


@pytest.mark.parametrize(
    ("st_mode", "text"),
    [
        (0o100644, "-rw-r--r--"),
        (0o755, "?rwxr-xr-x"),
        (0o106755, "-rwsr-sr-x"),
        (0o106644, "-rwSr-Sr--"),
        (0o041777, "drwxrwxrwt"),
        (0o041776, "drwxrwxrwT"),
        (0o140600, "srw-------"),
    ],
)
def test_modes_are_shown_as_letters(st_mode: int, text: str) -> None:
    assert mode_text(st_mode) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"plain name", "plain name"),
        (b'with "quotes"\\', 'with "quotes"\\'),
        (b'q\n"w\\e', 'q\\n\\"w\\\\e'),
        (b"back`quote", "back`quote"),
        (b"\xff\x01", "\\xff\\x01"),
        ("ü".encode(), "ü"),
    ],
)
def test_odd_names_are_escaped(name: bytes, text: str) -> None:
    assert quoted(name) == text


def test_reader_that_is_gone_gets_nothing() -> None:
    log = AccessLog()
    reader = log.open()
    log.close(reader)
    log.close(reader)
    log.write(ME, "unlink", (1, b"a"), None, OSError(2, "no"), 0.1)
    assert len(log.readers) == 0
