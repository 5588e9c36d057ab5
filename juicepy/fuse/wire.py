"""Structs and constants of the FUSE kernel protocol, named as in the kernel's linux/fuse.h.

Padding and fields nobody reads are skipped with `x`, so that what `unpack` gives is what a handler
takes. Sizes are those of protocol 7.36 and later. Native byte order, no implicit alignment.
"""

from __future__ import annotations

from struct import Struct

KERNEL_VERSION = 7
KERNEL_MINOR_VERSION = 45  # the newest whose structs stand here; kernels speak the smaller of both
OLDEST_MINOR = 31

MIN_READ_BUFFER = 8192

IN_HEADER = Struct("=IIQQIIIH2x")  # len opcode unique nodeid uid gid pid total_extlen
OUT_HEADER = Struct("=IiQ")  # len error unique

ATTR = Struct("=QQQqqq10I")  # ino size blocks, times, nsecs, mode nlink uid gid rdev blksize flags
ENTRY_OUT = Struct("=QQQQII" + ATTR.format[1:])  # nodeid generation entry_valid attr_valid nsecs
ATTR_OUT = Struct("=QI4x" + ATTR.format[1:])  # attr_valid nsec
FORGET_IN = Struct("=Q")  # nlookup
FORGET_ONE = Struct("=QQ")  # nodeid nlookup
BATCH_FORGET_IN = Struct("=I4x")  # count
GETATTR_IN = Struct("=I4xQ")  # getattr_flags fh
SETATTR_IN = Struct("=I4xQQQqqqIIII4xII4x")
MKNOD_IN = Struct("=III4x")  # mode rdev umask
MKDIR_IN = Struct("=II")  # mode umask
RENAME_IN = Struct("=Q")  # newdir
RENAME2_IN = Struct("=QI4x")  # newdir flags
LINK_IN = Struct("=Q")  # oldnodeid
OPEN_IN = Struct("=II")  # flags open_flags
CREATE_IN = Struct("=IIII")  # flags mode umask open_flags
OPEN_OUT = Struct("=QIi")  # fh open_flags backing_id
RELEASE_IN = Struct("=Q4xIQ")  # fh release_flags lock_owner
FLUSH_IN = Struct("=Q8xQ")  # fh lock_owner
READ_IN = Struct("=QQI20x")  # fh offset size
WRITE_IN = Struct("=QQIIQI4x")  # fh offset size write_flags lock_owner flags
WRITE_OUT = Struct("=I4x")  # size
KSTATFS = Struct("=QQQQQIII28x")  # blocks bfree bavail files ffree bsize namelen frsize
FSYNC_IN = Struct("=QI4x")  # fh fsync_flags
SETXATTR_IN = Struct("=III4x")  # size flags setxattr_flags
SETXATTR_IN_COMPAT = Struct("=II")  # size flags
GETXATTR_IN = Struct("=I4x")  # size
GETXATTR_OUT = Struct("=I4x")  # size
LK_IN = Struct("=QQQQIII4x")  # fh owner start end type pid lk_flags
LK_OUT = Struct("=QQII")  # start end type pid
ACCESS_IN = Struct("=I4x")  # mask
INIT_IN = Struct("=IIII")  # major minor max_readahead flags
INIT_IN_FLAGS2 = Struct("=I44x")  # follows INIT_IN where INIT_EXT is set
INIT_OUT = Struct("=IIIIHHIIHHIIH22x")
# major minor max_readahead flags max_background congestion_threshold max_write time_gran
# max_pages map_alignment flags2 max_stack_depth request_timeout
INTERRUPT_IN = Struct("=Q")  # unique
BMAP_IN = Struct("=QI4x")  # block blocksize
IOCTL_IN = Struct("=QII8xII")  # fh flags cmd in_size out_size
IOCTL_OUT = Struct("=iIII")  # result flags in_iovs out_iovs
POLL_IN = Struct("=QQII")  # fh kh flags events
FALLOCATE_IN = Struct("=QQQI4x")  # fh offset length mode
DIRENT = Struct("=QQII")  # ino off namelen type, then the name, padded to 8 bytes
LSEEK_IN = Struct("=QqI4x")  # fh offset whence
LSEEK_OUT = Struct("=Q")  # offset
COPY_FILE_RANGE_IN = Struct("=QQQQQQ8x")  # fh_in off_in nodeid_out fh_out off_out len
COPY_FILE_RANGE_OUT = Struct("=Q")  # bytes_copied, of COPY_FILE_RANGE_64
SYNCFS_IN = Struct("=8x")
EXT_HEADER = Struct("=II")  # size type
SUPP_GROUPS = Struct("=I")  # nr_groups, then the groups
NOTIFY_INVAL_INODE_OUT = Struct("=Qqq")  # ino off len
NOTIFY_STORE_OUT = Struct("=QQI4x")  # ino offset size, then the data
NOTIFY_INVAL_ENTRY_OUT = Struct("=QII")  # parent namelen flags, then the name and a NUL
BACKING_MAP = Struct("=iI8x")  # fd flags

# setattr_in.valid
FATTR_MODE = 1 << 0
FATTR_UID = 1 << 1
FATTR_GID = 1 << 2
FATTR_SIZE = 1 << 3
FATTR_ATIME = 1 << 4
FATTR_MTIME = 1 << 5
FATTR_FH = 1 << 6
FATTR_ATIME_NOW = 1 << 7
FATTR_MTIME_NOW = 1 << 8
FATTR_CTIME = 1 << 10
FATTR_KILL_SUIDGID = 1 << 11

# open_out.open_flags
FOPEN_DIRECT_IO = 1 << 0
FOPEN_KEEP_CACHE = 1 << 1
FOPEN_NONSEEKABLE = 1 << 2
FOPEN_CACHE_DIR = 1 << 3
FOPEN_STREAM = 1 << 4
FOPEN_NOFLUSH = 1 << 5
FOPEN_PARALLEL_DIRECT_WRITES = 1 << 6
FOPEN_PASSTHROUGH = 1 << 7

# init flags; bits 32..63 travel in flags2
ASYNC_READ = 1 << 0
POSIX_LOCKS = 1 << 1
ATOMIC_O_TRUNC = 1 << 3
EXPORT_SUPPORT = 1 << 4
BIG_WRITES = 1 << 5
DONT_MASK = 1 << 6
FLOCK_LOCKS = 1 << 10
HAS_IOCTL_DIR = 1 << 11
AUTO_INVAL_DATA = 1 << 12
DO_READDIRPLUS = 1 << 13
READDIRPLUS_AUTO = 1 << 14
ASYNC_DIO = 1 << 15
WRITEBACK_CACHE = 1 << 16
PARALLEL_DIROPS = 1 << 18
POSIX_ACL = 1 << 20
MAX_PAGES = 1 << 22
CACHE_SYMLINKS = 1 << 23
EXPLICIT_INVAL_DATA = 1 << 25
HANDLE_KILLPRIV_V2 = 1 << 28
SETXATTR_EXT = 1 << 29
INIT_EXT = 1 << 30
CREATE_SUPP_GROUP = 1 << 34
DIRECT_IO_ALLOW_MMAP = 1 << 36
PASSTHROUGH = 1 << 37

GETATTR_FH = 1 << 0
RELEASE_FLOCK_UNLOCK = 1 << 1
LK_FLOCK = 1 << 0
WRITE_CACHE = 1 << 0
WRITE_KILL_SUIDGID = 1 << 2
OPEN_KILL_SUIDGID = 1 << 0
FSYNC_FDATASYNC = 1 << 0
SETXATTR_ACL_KILL_SGID = 1 << 0
IOCTL_UNRESTRICTED = 1 << 1
EXT_GROUPS = 32

EXPIRE_ONLY = 1  # of NOTIFY_INVAL_ENTRY, from minor version 38 on
EXPIRE_ONLY_MINOR = 38
NOTIFY_INVAL_INODE = 2
NOTIFY_INVAL_ENTRY = 3
NOTIFY_STORE = 4

# ioctl numbers of the device: direction << 30 | size << 16 | 229 << 8 | nr
DEV_IOC_CLONE = 2 << 30 | 4 << 16 | 229 << 8 | 0
DEV_IOC_BACKING_OPEN = 1 << 30 | 16 << 16 | 229 << 8 | 1
DEV_IOC_BACKING_CLOSE = 1 << 30 | 4 << 16 | 229 << 8 | 2
