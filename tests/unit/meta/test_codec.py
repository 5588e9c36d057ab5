"""Stored records, byte for byte as the shared format describes them."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from juicepy.meta import codec
from juicepy.types import AclRule, Attr, Entry, Inode, Kind, LockKind, PosixLock, Slice, SliceId

SECOND = 1_000_000_000


def test_fresh_root_has_the_bytes_of_the_format() -> None:
    when = 0x6B0CDF34 * SECOND
    root = Attr(Kind.DIR, 0o777, 0, 0, when, when, when, 2, 4096, 0, Inode(1))
    time = "000000006b0cdf34" + "00000000"
    expected = (
        "00" + "21ff" + "00000000" * 2 + time * 3 + "00000002" + "0000000000001000"
        "00000000" + "0000000000000001" + "00"
    )
    assert codec.encode_attr(root).hex() == expected
    assert codec.decode_attr(bytes.fromhex(expected)) == root


def test_attr_lengths_follow_acl_and_tier() -> None:
    plain = Attr(Kind.FILE, 0o644, parent=Inode(7))
    assert len(codec.encode_attr(plain)) == 72
    assert len(codec.encode_attr(plain.with_(default_acl=2))) == 80
    assert codec.encode_attr(plain.with_(default_acl=2)).endswith(
        bytes.fromhex("000000000000000200")
    )
    assert codec.encode_attr(plain.with_(tier=3))[71:] == b"\x03\x00"
    assert len(codec.encode_attr(plain.with_(tier=3, access_acl=1))) == 81


def test_record_of_71_bytes_is_read() -> None:
    attr = Attr(Kind.SYMLINK, 0o777, 1, 2, 3, 4, 5, 1, 9, 0, Inode(77))
    assert codec.decode_attr(codec.encode_attr(attr)[:71]) == attr


u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
ns = st.integers(-(2**40) * SECOND, 2**40 * SECOND)


@settings(max_examples=100)
@given(
    st.builds(
        Attr,
        st.sampled_from(Kind),
        st.integers(0, 0o7777),
        u32,
        u32,
        ns,
        ns,
        ns,
        u32,
        u64,
        u32,
        u64,
        st.integers(0, 255),
        u32,
        u32,
        st.integers(0, 3),
    )
)
def test_every_attr_comes_back(attr: Attr) -> None:
    assert codec.decode_attr(codec.encode_attr(attr)) == attr


def test_times_and_links_lie_where_patches_put_them() -> None:
    attr = Attr(Kind.DIR, 0o755, mtime_ns=5, ctime_ns=6, nlink=3)
    raw = bytearray(codec.encode_attr(attr))
    raw[codec.MTIME_AT : codec.MTIME_AT + 24] = codec.encode_times(12 * SECOND + 34)
    raw[codec.NLINK_AT : codec.NLINK_AT + 4] = (9).to_bytes(4, "big")
    changed = codec.decode_attr(bytes(raw))
    when = 12 * SECOND + 34
    assert changed == attr.with_(mtime_ns=when, ctime_ns=when, nlink=9)


def test_entry_bytes() -> None:
    entry = Entry(Inode(3), Kind.FILE)
    assert codec.encode_entry(entry).hex() == "010000000000000003"
    assert codec.decode_entry(bytes.fromhex("010000000000000003")) == entry


def test_slice_bytes() -> None:
    piece = Slice(8, SliceId(4), 2, 0, 2)
    raw = bytes.fromhex("000000080000000000000004000000020000000000000002")
    assert codec.encode_slices([piece]) == raw
    assert codec.decode_slices(raw * 2) == (piece, piece)
    assert codec.decode_slices(b"") == ()


def test_posix_lock_bytes() -> None:
    raw = bytes.fromhex("0000000100005c3600000000000000050000000000000006")
    lock = PosixLock(LockKind.WRITE, 5, 6, 0x5C36)
    assert codec.encode_plocks([lock]) == raw
    assert codec.decode_plocks(raw) == (lock,)


def test_acl_bytes() -> None:
    rule = AclRule(6, 0, 7, 0, ((1001, 7),), ())
    raw = bytes.fromhex("000600000007000000000001000003e9000700000000")
    assert codec.encode_acl(rule) == raw
    assert codec.decode_acl(raw) == rule
    both = AclRule(users=((1, 2), (3, 4)), groups=((5, 6),))
    assert codec.decode_acl(codec.encode_acl(both)) == both
    assert codec.decode_acl_names(codec.encode_acl_names(both.users)) == both.users


def test_delayed_slices_and_limits() -> None:
    refs = ((SliceId(1), 2), (SliceId(3), 4))
    assert len(codec.encode_refs(refs)) == 24
    assert codec.decode_refs(codec.encode_refs(refs)) == refs
    assert codec.encode_limits(-1, -1) == b"\xff" * 16
    assert codec.decode_limits(codec.encode_limits(4096, 7)) == (4096, 7)


def test_device_numbers_are_the_kernels() -> None:
    assert codec.make_rdev(5, 300) == 0x0010052C
    assert codec.make_rdev(8, 17) == 0x0811
    assert codec.split_rdev(0x0010052C) == (5, 300)
    assert codec.split_rdev(0x0811) == (8, 17)


@pytest.mark.parametrize(
    ("decode", "raw"),
    [
        (codec.decode_attr, b""),
        (codec.decode_attr, b"\0" * 72),
        (codec.decode_entry, b"\1"),
        (codec.decode_entry, b"\xff" * 9),
        (codec.decode_slices, b"\0" * 23),
        (codec.decode_plocks, b"\xff" * 24),
        (codec.decode_acl, b"\0" * 15),
        (codec.decode_acl, b"\0" * 17),
        (codec.decode_refs, b"\0"),
        (codec.decode_limits, b"\0" * 8),
    ],
)
def test_malformed_record_is_an_io_error(decode: object, raw: bytes) -> None:
    with pytest.raises(OSError, match="malformed") as caught:
        decode(raw)  # type: ignore[operator]  # each is a function of bytes
    assert caught.value.errno == errno.EIO
