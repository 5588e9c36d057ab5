"""Struct sizes are those of the kernel's header."""

from __future__ import annotations

from struct import Struct

import pytest

from juicepy.fuse import wire

SIZES = {
    "IN_HEADER": 40,
    "OUT_HEADER": 16,
    "ATTR": 88,
    "ENTRY_OUT": 128,
    "ATTR_OUT": 104,
    "FORGET_IN": 8,
    "FORGET_ONE": 16,
    "BATCH_FORGET_IN": 8,
    "GETATTR_IN": 16,
    "SETATTR_IN": 88,
    "MKNOD_IN": 16,
    "MKDIR_IN": 8,
    "RENAME_IN": 8,
    "RENAME2_IN": 16,
    "LINK_IN": 8,
    "OPEN_IN": 8,
    "CREATE_IN": 16,
    "OPEN_OUT": 16,
    "RELEASE_IN": 24,
    "FLUSH_IN": 24,
    "READ_IN": 40,
    "WRITE_IN": 40,
    "WRITE_OUT": 8,
    "KSTATFS": 80,
    "FSYNC_IN": 16,
    "SETXATTR_IN": 16,
    "SETXATTR_IN_COMPAT": 8,
    "GETXATTR_IN": 8,
    "GETXATTR_OUT": 8,
    "LK_IN": 48,
    "LK_OUT": 24,
    "ACCESS_IN": 8,
    "INIT_IN": 16,
    "INIT_IN_FLAGS2": 48,
    "INIT_OUT": 64,
    "INTERRUPT_IN": 8,
    "BMAP_IN": 16,
    "IOCTL_IN": 32,
    "IOCTL_OUT": 16,
    "POLL_IN": 24,
    "FALLOCATE_IN": 32,
    "DIRENT": 24,
    "LSEEK_IN": 24,
    "LSEEK_OUT": 8,
    "COPY_FILE_RANGE_IN": 56,
    "COPY_FILE_RANGE_OUT": 8,
    "SYNCFS_IN": 8,
    "EXT_HEADER": 8,
    "SUPP_GROUPS": 4,
    "NOTIFY_INVAL_INODE_OUT": 24,
    "NOTIFY_STORE_OUT": 24,
    "NOTIFY_INVAL_ENTRY_OUT": 16,
    "BACKING_MAP": 16,
}


@pytest.mark.parametrize("name", SIZES)
def test_struct_has_the_size_of_the_kernel_header(name: str) -> None:
    assert getattr(wire, name).size == SIZES[name]


def test_every_struct_is_checked() -> None:
    structs = {name for name, value in vars(wire).items() if isinstance(value, Struct)}
    assert structs == set(SIZES)


def test_ioctl_numbers_of_the_device() -> None:
    assert wire.DEV_IOC_CLONE == 0x8004E500
    assert wire.DEV_IOC_BACKING_OPEN == 0x4010E501
    assert wire.DEV_IOC_BACKING_CLOSE == 0x4004E502
