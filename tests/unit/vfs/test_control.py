from __future__ import annotations

import errno
import json
import os
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from threading import Event
from typing import Any

import pytest

from juicepy.concurrency import Workers
from juicepy.types import ROOT, Cred, Inode, Kind, SetAttr
from juicepy.vfs import control
from juicepy.vfs.control import ControlChannel, Job
from juicepy.vfs.heap import HEAP
from juicepy.vfs.vfs import VFS
from tests.support.waiting import wait_for
from tests.unit.vfs.volumes import ME, KiB, close, create, names, new_volume, opened, write

PROGRESS = struct.Struct(">BQQ")


@pytest.fixture
def workers() -> Iterator[Workers]:
    pool = Workers("test-control", 2)
    yield pool
    pool.close()


def request(opcode: int, body: bytes = b"") -> bytes:
    return struct.pack(">II", opcode, len(body)) + body


def answered(channel: ControlChannel, offset: int, size: int = 1) -> bytes:
    """What the stream holds from `offset` on, once there are `size` bytes."""

    def found() -> bytes | None:
        text = channel.read(ME, offset, 1 << 20)
        return text if len(text) >= size else None

    return wait_for(found, "an answer") or b""


# ------------------------------------------------------------ the channel
def test_response_follows_the_request_in_the_stream(workers: Workers) -> None:
    channel = ControlChannel({7: lambda cred, body, job: b"<" + body + b">"}, workers)
    first = request(7, b"one")
    assert channel.write(ME, first) == len(first)
    assert answered(channel, len(first), 5) == b"<one>"
    assert channel.read(ME, 0, len(first)) == first
    second = request(7, b"two")
    channel.write(ME, second)
    end = len(first) + 5 + len(second)
    assert answered(channel, end, 5) == b"<two>"
    assert channel.read(ME, end + 5, 10) == b""


def test_request_may_come_in_pieces(workers: Workers) -> None:
    channel = ControlChannel({7: lambda cred, body, job: body}, workers)
    whole = request(7, b"body")
    for at in range(len(whole)):
        channel.write(ME, whole[at : at + 1])
    assert answered(channel, len(whole), 4) == b"body"


def test_unknown_opcode_means_too_old(workers: Workers) -> None:
    channel = ControlChannel({}, workers)
    channel.write(ME, request(1))
    assert answered(channel, 8) == bytes([errno.EINVAL])


def test_malformed_length_is_eio(workers: Workers) -> None:
    channel = ControlChannel({}, workers)
    channel.write(ME, struct.pack(">II", 1, 0xFFFFFFFF))
    assert answered(channel, 8) == bytes([errno.EIO])


def test_short_body_is_eio_and_an_error_is_its_errno(workers: Workers) -> None:
    def short(cred: Cred, body: bytes, job: Job) -> bytes:
        return bytes(struct.unpack(">Q", body))

    def failing(cred: Cred, body: bytes, job: Job) -> bytes:
        raise PermissionError(errno.EPERM, "no")

    channel = ControlChannel({1: short, 2: failing}, workers)
    channel.write(ME, request(1, b"x"))
    assert answered(channel, 9) == bytes([errno.EIO])
    channel.write(ME, request(2))
    assert answered(channel, 18) == bytes([errno.EPERM])


def test_progress_comes_before_the_response(workers: Workers) -> None:
    def work(cred: Cred, body: bytes, job: Job) -> bytes:
        job.add(3, 100)
        job.add(1, 50)
        return b"\0"

    channel = ControlChannel({1: work}, workers)
    channel.write(ME, request(1))
    assert answered(channel, 8, 18) == PROGRESS.pack(0xFE, 4, 150) + b"\0"


def test_progress_of_a_long_job_comes_now_and_then(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "PROGRESS_S", 0.0)
    goes_on = Event()

    def work(cred: Cred, body: bytes, job: Job) -> bytes:
        job.add(1, 2)
        assert goes_on.wait(30)
        return b"\0"

    channel = ControlChannel({1: work}, workers)
    channel.write(ME, request(1))
    assert answered(channel, 8, 17) == PROGRESS.pack(0xFE, 1, 2)
    goes_on.set()
    assert answered(channel, 25, 18) == PROGRESS.pack(0xFE, 1, 2) + b"\0"


def test_closing_the_channel_cancels_the_job(workers: Workers) -> None:
    closed, ended = Event(), Event()

    def work(cred: Cred, body: bytes, job: Job) -> bytes:
        try:
            assert closed.wait(30)
            job.add(1, 0)
            return b"\0"
        finally:
            ended.set()

    channel = ControlChannel({1: work}, workers)
    channel.write(ME, request(1))
    channel.close()
    closed.set()
    assert ended.wait(30)
    assert answered(channel, 8) == bytes([errno.EIO])


# ------------------------------------------------------------ virtual files
@pytest.fixture
def vfs() -> Iterator[VFS]:
    with opened(new_volume(trash_days=1), enable_xattr=True) as vfs:
        yield vfs


def refused(code: int, work: Callable[[], object]) -> None:
    with pytest.raises(OSError) as caught:
        work()
    assert caught.value.errno == code


def test_virtual_files_look_like_those_of_juicefs(vfs: VFS) -> None:
    below = vfs.mkdir(ME, ROOT, b"d", 0o755, 0).ino
    expected = {
        b".accesslog": (0x7FFFFFFF00000001, 0o400, Kind.FILE),
        b".control": (0x7FFFFFFF00000002, 0o666, Kind.FILE),
        b".stats": (0x7FFFFFFF00000003, 0o444, Kind.FILE),
        b".config": (0x7FFFFFFF00000004, 0o400, Kind.FILE),
        b".trash": (0x7FFFFFFF10000000, 0o555, Kind.DIR),
    }
    for name, (ino, mode, kind) in expected.items():
        found = vfs.lookup(ME, ROOT, name)
        assert (found.ino, found.attr.mode, found.attr.kind) == (ino, mode, kind)
        assert found.attr_timeout_s == 3600
        if name != b".control":
            refused(errno.ENOENT, partial(vfs.lookup, ME, below, name))
    assert vfs.lookup(ME, below, b".control").ino == expected[b".control"][0]
    assert vfs.lookup(ME, ROOT, b".config").attr.length > 1000
    shown = {name for name in names(vfs) if name.startswith(b".")}
    assert shown == {b".", b"..", b".accesslog", b".stats", b".config", b".trash"}


def test_virtual_names_cannot_be_made_removed_or_changed(vfs: VFS) -> None:
    ino, fh = create(vfs, b"f")
    close(vfs, ino, fh)
    stats = vfs.lookup(ME, ROOT, b".stats").ino
    refused(errno.EEXIST, lambda: vfs.mknod(ME, ROOT, b".stats", 0o644, 0, 0))
    refused(errno.EEXIST, lambda: vfs.mkdir(ME, ROOT, b".trash", 0o755, 0))
    refused(errno.EEXIST, lambda: vfs.symlink(ME, ROOT, b".config", b"f"))
    refused(errno.EEXIST, lambda: vfs.link(ME, ino, ROOT, b".stats"))
    refused(errno.EEXIST, lambda: create(vfs, b".accesslog"))
    refused(errno.EPERM, lambda: vfs.unlink(ME, ROOT, b".stats"))
    refused(errno.EPERM, lambda: vfs.rmdir(ME, ROOT, b".trash"))
    refused(errno.EPERM, lambda: vfs.rename(ME, ROOT, b".stats", ROOT, b"x", 0))
    refused(errno.EPERM, lambda: vfs.rename(ME, ROOT, b"f", ROOT, b".stats", 0))
    refused(errno.EPERM, lambda: vfs.link(ME, stats, ROOT, b"x"))
    refused(errno.EPERM, lambda: vfs.setxattr(ME, stats, b"user.a", b"1", 0))
    refused(errno.ENODATA, lambda: vfs.getxattr(ME, stats, b"user.a"))
    refused(errno.EACCES, lambda: vfs.open(ME, stats, os.O_RDWR))
    assert vfs.setattr(ME, stats, SetAttr(mode=0o777), 0, None)[0].mode == 0o444


def test_names_with_prefix_replace_the_plain_ones() -> None:
    with opened(prefix_internal=True) as vfs:
        assert b".jfs.stats" in names(vfs)
        assert vfs.lookup(ME, ROOT, b".jfs.control").ino == control.CONTROL
        refused(errno.ENOENT, lambda: vfs.lookup(ME, ROOT, b".control"))
        close(vfs, *create(vfs, b".stats"))


def test_hidden_files_are_found_but_not_listed() -> None:
    with opened(hide_internal=True) as vfs:
        assert names(vfs) == [b".", b".."]
        assert vfs.lookup(ME, ROOT, b".stats").ino == control.STATS


def content(vfs: VFS, name: bytes) -> bytes:
    ino = vfs.lookup(ME, ROOT, name).ino
    handle = vfs.open(ME, ino, os.O_RDONLY)
    assert handle.direct_io
    text = b"".join(vfs.read(ME, ino, handle.fh, 0, 1 << 20))
    assert text[100:200] == b"".join(vfs.read(ME, ino, handle.fh, 100, 100))
    vfs.release(ME, ino, handle.fh, 0)
    return text


def test_config_tells_settings_and_no_secret() -> None:
    url = new_volume(secret_key="hush", access_key="me")
    with opened(url, mount_point="/mnt/x", attr_cache_s=2.5, root_squash=(1, 2)) as vfs:
        text = content(vfs, b".config")
    assert b"hush" not in text
    told = json.loads(text)
    assert told["Format"]["SecretKey"] == "removed"
    assert told["Mountpoint"] == "/mnt/x"
    assert told["AttrTimeout"] == 2_500_000_000
    assert told["RootSquash"] == {"Uid": 1, "Gid": 2}
    assert told["Chunk"]["BlockSize"] == 64 * KiB
    assert told["Pid"] == os.getpid()
    assert "CommPath" not in told
    assert told["Meta"]["Sid"] > 0
    assert list(told)[:4] == ["Meta", "Format", "Chunk", "Security"]
    assert text.startswith(b'{\n "Meta": {\n  "Retries": 10')


def test_stats_are_a_snapshot_of_the_open(vfs: VFS) -> None:
    ino = vfs.lookup(ME, ROOT, b".stats").ino
    handle = vfs.open(ME, ino, os.O_RDONLY)
    before = vfs.read(ME, ino, handle.fh, 0, 1 << 20)
    vfs.mkdir(ME, ROOT, b"d", 0o755, 0)
    assert vfs.read(ME, ino, handle.fh, 0, 1 << 20) == before
    assert b"juicefs_fuse_ops_total_lookup 1\n" in b"".join(before)
    assert b"juicefs_fuse_ops_total_mkdir 1\n" in content(vfs, b".stats")


# ------------------------------------------------------------ commands
def ask(vfs: VFS, opcode: int, body: bytes) -> tuple[tuple[int, int], bytes]:
    """(last progress, the rest of the response) of a request through `.control`."""
    ino = vfs.lookup(ME, ROOT, b".control").ino
    fh = vfs.open(ME, ino, os.O_RDWR).fh
    sent = request(opcode, body)
    assert vfs.write(ME, ino, fh, 0, memoryview(sent), 0) == len(sent)

    def found() -> tuple[tuple[int, int], bytes] | None:
        return parsed(b"".join(vfs.read(ME, ino, fh, len(sent), 1 << 20)))

    answer = wait_for(found, "an answer")
    vfs.release(ME, ino, fh, 0)
    assert answer is not None
    return answer


def parsed(text: bytes) -> tuple[tuple[int, int], bytes] | None:
    progress = (0, 0)
    while text[:1] == b"\xfe" and len(text) >= PROGRESS.size:
        progress = PROGRESS.unpack_from(text)[1:]
        text = text[PROGRESS.size :]
    if text[:1] == b"\xff":
        size = struct.unpack_from(">I", text, 1)[0]
        return (progress, text[5:]) if len(text) == 5 + size else None
    return (progress, text) if text else None


def ask_json(vfs: VFS, opcode: int, body: bytes) -> tuple[tuple[int, int], Any]:
    progress, text = ask(vfs, opcode, body)
    return progress, json.loads(text)


@pytest.fixture
def tree(vfs: VFS) -> Inode:
    """The directory `x` with files `f1` to `f4`, the same again in `x/y`, and an empty `x/y/z`."""
    x = vfs.mkdir(ME, ROOT, b"x", 0o755, 0).ino
    y = vfs.mkdir(ME, x, b"y", 0o755, 0).ino
    vfs.mkdir(ME, y, b"z", 0o755, 0)
    for parent in (x, y):
        for number in range(1, 5):
            data = b"%d" % number * (10000 * number)
            close(vfs, *create(vfs, b"f%d" % number, data, parent=parent))
    return x


def test_info_of_a_tree(vfs: VFS, tree: Inode) -> None:
    progress, told = ask_json(vfs, 1005, struct.pack(">QBBB", tree, 1, 0, 1))
    assert told == {
        "Ino": tree,
        "Failed": False,
        "Reason": "",
        "Summary": {"Length": 200000, "Size": 225280, "Files": 8, "Dirs": 3},
        "Paths": ["/x"],
        "Chunks": None,
        "Objects": None,
        "PLocks": [],
        "FLocks": [],
        "Tier": {"ID": 0, "StorageClass": "", "Tag": ""},
        "RestoreStatus": "",
    }
    assert progress == (11, 225280)
    _, told = ask_json(vfs, 1005, struct.pack(">QBBB", tree, 0, 0, 1))
    assert told["Summary"] == {"Length": 100000, "Size": 114688, "Files": 4, "Dirs": 2}


def test_info_of_a_file_names_its_slices_or_objects(vfs: VFS) -> None:
    ino, fh = create(vfs, b"f", b"x" * 100 * KiB)
    vfs.fsync(ME, ino, fh, False)
    write(vfs, ino, fh, 200 * KiB, b"y")
    vfs.fsync(ME, ino, fh, False)
    _, told = ask_json(vfs, 1005, struct.pack(">QBBB", ino, 0, 1, 0))
    assert [(c["ChunkIndex"], c["Size"], c["Len"]) for c in told["Chunks"]] == [
        (0, 100 * KiB, 100 * KiB),
        (0, 0, 100 * KiB),
        (0, 1, 1),
    ]
    assert told["Objects"] is None
    first, last = told["Chunks"][0]["Id"], told["Chunks"][2]["Id"]
    _, told = ask_json(vfs, 1005, struct.pack(">QBBB", ino, 0, 0, 0))
    assert [(o["Key"], o["Size"], o["Off"], o["Len"]) for o in told["Objects"]] == [
        (f"volume/chunks/0/0/{first}_0_65536", 65536, 0, 65536),
        (f"volume/chunks/0/0/{first}_1_36864", 36864, 0, 36864),
        ("", 0, 0, 100 * KiB),
        (f"volume/chunks/0/0/{last}_0_1", 1, 0, 1),
    ]
    assert told["Tier"]["StorageClass"] == "actual()"
    close(vfs, ino, fh)


def test_info_of_nothing_tells_why(vfs: VFS) -> None:
    progress, told = ask_json(vfs, 1005, struct.pack(">QBBB", 99999, 0, 0, 0))
    assert (told["Failed"], told["Reason"]) == (True, "no such file or directory")
    assert progress == (0, 0)
    _, text = ask(vfs, 1003, struct.pack(">QBB", 99999, 0, 0))
    assert text == struct.pack(">I", 25) + b"no such file or directory"


def test_old_info_is_a_text(vfs: VFS, tree: Inode) -> None:
    _, text = ask(vfs, 1003, struct.pack(">QBB", tree, 1, 0))
    assert text[4:].decode() == (
        f"  inode: {tree}\n  files: 8\n   dirs: 3\n length: 195.31 KiB (200000 Bytes)\n"
        "   size: 220.00 KiB (225280 Bytes)\n   path: /x\n"
    )
    assert struct.unpack(">I", text[:4])[0] == len(text) - 4
    f1 = vfs.lookup(ME, tree, b"f1").ino
    _, text = ask(vfs, 1003, struct.pack(">QBB", f1, 1, 1))
    assert text[4:].decode().endswith("\t10000\t0\t10000\n")


def test_summary_shows_the_biggest_children(vfs: VFS, tree: Inode) -> None:
    progress, told = ask_json(vfs, 1007, struct.pack(">QBBB", tree, 3, 2, 1))
    assert told["Errno"] == 0
    node = told["Tree"]
    rest = {"Inode": 0, "Path": "...", "Type": 1, "Size": 65536, "Files": 3, "Dirs": 0}
    assert (node["Path"], node["Size"], node["Files"], node["Dirs"]) == ("", 225280, 8, 3)
    y, f4, last = node["Children"]
    assert (y["Path"], y["Size"], y["Dirs"]) == ("y", 114688, 2)
    assert [child["Path"] for child in y["Children"]] == ["y/f4", "y/f3", "y/..."]
    assert y["Children"][2]["Dirs"] == 1
    assert (f4["Path"], f4["Type"], f4["Size"]) == ("f4", 1, 40960)
    assert last == rest
    assert progress == (11, 225280)
    _, told = ask_json(vfs, 1007, struct.pack(">QBBB", ROOT, 1, 10, 1))
    assert [child["Path"] for child in told["Tree"]["Children"]] == ["x"]
    assert "Children" not in told["Tree"]["Children"][0]
    _, told = ask_json(vfs, 1007, struct.pack(">QBBB", 99999, 2, 2, 1))
    assert told == {
        "Errno": 2,
        "Tree": {"Inode": 99999, "Path": "", "Type": 2, "Size": 0, "Files": 0, "Dirs": 0},
    }


def fill_body(path: bytes, action: int, background: int = 0) -> bytes:
    return struct.pack(">I", len(path)) + path + struct.pack(">HBB", 5, background, action)


def test_warm_up_fills_checks_and_drops(vfs: VFS, tree: Inode) -> None:
    counts: dict[str, Any] = {"FileCount": 8, "SliceCount": 8, "TotalBytes": 200000}
    counts |= {"MissBytes": 0, "CachedBytes": 0, "FailedPaths": 0, "Locations": {}}
    _, told = ask_json(vfs, 1004, fill_body(b"/x", 1))
    assert told == counts
    _, told = ask_json(vfs, 1004, fill_body(b"/x", 2))
    assert told["MissBytes"] == 200000
    f1 = vfs.lookup(ME, tree, b"f1").ino
    ask_json(vfs, 1004, fill_body(b"inode:%d" % f1, 0))
    progress, told = ask_json(vfs, 1004, fill_body(b"/x", 0))
    assert told == counts | {"CachedBytes": 10000}
    assert progress == (8, 200000)
    _, told = ask_json(vfs, 1004, fill_body(b"/x", 2))
    assert told == counts | {"Locations": {"memory": 200000}}
    _, told = ask_json(vfs, 1004, fill_body(b"inode:%d\n/missing" % f1, 2))
    assert (told["FileCount"], told["TotalBytes"], told["FailedPaths"]) == (1, 10000, 1)


def test_warm_up_in_the_background_answers_at_once(vfs: VFS, tree: Inode) -> None:
    ask_json(vfs, 1004, fill_body(b"/x", 1))
    _, told = ask_json(vfs, 1004, fill_body(b"/x", 0, background=1))
    assert told["FileCount"] == 0
    wait_for(lambda: vfs.store.cache.stats()[0] == 8, "8 blocks in the cache")


def test_heap_is_shown_to_who_runs_the_mount_only(vfs: VFS, tree: Inode) -> None:
    body = struct.pack(">HH", 2, 5)
    _, answer = ask(vfs, HEAP, body)
    assert answer.decode().split()[:3] == ["KiB", "blocks", "line"]
    assert not tracemalloc.is_tracing()
    ino = vfs.lookup(ME, ROOT, b".control").ino
    other = Cred(uid=4711)
    fh = vfs.open(other, ino, os.O_RDWR).fh
    sent = request(HEAP, body)
    vfs.write(other, ino, fh, 0, memoryview(sent), 0)
    wait_for(lambda: vfs.read(other, ino, fh, len(sent), 10) == [bytes([errno.EPERM])], "EPERM")
    vfs.release(other, ino, fh, 0)


class Kernel:
    """What a notifier was told."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, bytes]] = []

    def inval_inode(self, ino: Inode, offset: int = 0, length: int = 0) -> None:
        raise AssertionError("not asked for")

    def inval_entry(self, parent: Inode, name: bytes) -> None:
        self.entries.append((parent, name))


def test_removal_of_a_tree_tells_the_kernel(vfs: VFS, tree: Inode) -> None:
    kernel = Kernel()
    vfs.init(kernel)
    body = struct.pack(">QB", ROOT, 1) + b"x"
    progress, status = ask(vfs, 1002, body + bytes([1, 4]))
    assert status == b"\0"
    assert progress == (11, 0)
    assert b"x" not in names(vfs)
    assert kernel.entries == [(ROOT, b"x")]
    assert ask(vfs, 1002, body)[1] == bytes([errno.ENOENT])


def test_compaction_counts_chunks_and_merges_slices(vfs: VFS) -> None:
    ino, fh = create(vfs, b"f")
    for number in range(5):
        write(vfs, ino, fh, number * 10, b"0123456789")
        vfs.fsync(ME, ino, fh, False)
    assert len(vfs.meta.slices(ino, 0)) == 5
    progress, status = ask(vfs, 1008, struct.pack(">QH", ROOT, 2))
    assert (progress, status) == ((1, 1), b"\0")
    assert len(vfs.meta.slices(ino, 0)) == 1
    close(vfs, ino, fh)
    assert ask(vfs, 1008, struct.pack(">QH", 99999, 2))[1] == bytes([errno.ENOENT])


def test_requests_of_unknown_or_short_form_are_refused(vfs: VFS) -> None:
    assert ask(vfs, 1234, b"x")[1] == bytes([errno.EINVAL])
    assert ask(vfs, 1002, b"x")[1] == bytes([errno.EIO])


def test_clone_is_too_new_for_us(vfs: VFS) -> None:
    if hasattr(vfs.meta, "clone"):
        return
    assert ask(vfs, 1006, bytes(30))[1] == bytes([errno.EINVAL])
