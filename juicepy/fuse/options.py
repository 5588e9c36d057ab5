"""What a mount is asked for: `FuseOptions`, and the parsing of `-o` lists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from juicepy.errors import Refused

MIN_WRITE, MAX_WRITE = 4096, 1 << 20

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_SYNCHRONOUS, MS_DIRSYNC, MS_NOATIME, MS_NODIRATIME = 16, 128, 1024, 2048
MS_RELATIME, MS_STRICTATIME, MS_LAZYTIME = 1 << 21, 1 << 24, 1 << 25

FLAGS: dict[str, tuple[int, bool]] = {  # option -> (flag of mount(2), set or clear)
    "ro": (MS_RDONLY, True),
    "rw": (MS_RDONLY, False),
    "nosuid": (MS_NOSUID, True),
    "suid": (MS_NOSUID, False),
    "nodev": (MS_NODEV, True),
    "dev": (MS_NODEV, False),
    "noexec": (MS_NOEXEC, True),
    "exec": (MS_NOEXEC, False),
    "sync": (MS_SYNCHRONOUS, True),
    "async": (MS_SYNCHRONOUS, False),
    "dirsync": (MS_DIRSYNC, True),
    "noatime": (MS_NOATIME, True),
    "atime": (MS_NOATIME, False),
    "nodiratime": (MS_NODIRATIME, True),
    "diratime": (MS_NODIRATIME, False),
    "relatime": (MS_RELATIME, True),
    "norelatime": (MS_RELATIME, False),
    "strictatime": (MS_STRICTATIME, True),
    "lazytime": (MS_LAZYTIME, True),
    "nolazytime": (MS_LAZYTIME, False),
}
# taken, with nothing to do
_OF_FSTAB = ("defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail")
_ALWAYS_SO = ("nonempty", "big_writes", "large_read", "async_read", "async_dio", "noselinux")
IGNORED = frozenset((*_OF_FSTAB, *_ALWAYS_SO, "_netdev", "silent", "loud"))


@dataclass(frozen=True)
class FuseOptions:
    """How a volume is mounted.

    `options`: `-o` items, each may hold several, separated by commas. `allow_other` None: on for
    root. `workers`: most threads that serve requests at once, in each of `processes`.
    `auto_inval_data`: the kernel drops pages of a file when it sees another mtime, also after own
    writes. `stop_grace_s`: how long a busy mount is waited for after `request_stop` before its
    connection is cut.
    """

    fsname: str
    subtype: str = "juicefs"
    options: tuple[str, ...] | list[str] = ()
    allow_other: bool | None = None
    default_permissions: bool = True
    read_only: bool = False
    max_write: int = MAX_WRITE
    max_read: int = 0
    max_background: int = 64
    max_readahead: int = 1 << 20
    workers: int = 200
    processes: int = 1
    enable_acl: bool = False
    writeback_cache: bool = False
    auto_inval_data: bool = False
    passthrough: bool = True
    debug: bool = False
    stop_grace_s: float = 30.0

    def __post_init__(self) -> None:
        if not MIN_WRITE <= self.max_write <= MAX_WRITE:
            raise Refused(f"max write {self.max_write} is not between {MIN_WRITE} and {MAX_WRITE}")


@dataclass(frozen=True, slots=True)
class MountFlags:
    """`-o` items sorted out: flags for mount(2), and words for the kernel's FUSE."""

    flags: int
    words: tuple[str, ...]


def resolve(options: FuseOptions, *, as_root: bool) -> tuple[FuseOptions, MountFlags]:
    """Merge the `-o` items into `options`. Refuses what neither the kernel nor we know."""
    flags = MS_NOSUID | MS_NODEV | (MS_RDONLY if options.read_only else 0)
    for item in split_items(options.options):
        name, eq, value = item.partition("=")
        if not eq and name in FLAGS:
            bit, on = FLAGS[name]
            flags = flags | bit if on else flags & ~bit
        elif name not in IGNORED and not name.startswith("x-") and name != "comment":
            options = _merge(options, item, name, value if eq else None)
    allow_other = as_root if options.allow_other is None else options.allow_other
    options = replace(options, allow_other=allow_other, read_only=bool(flags & MS_RDONLY))
    if options.default_permissions is False and options.enable_acl:
        options = replace(options, default_permissions=True)  # the kernel checks ACLs only then
    return options, MountFlags(flags, tuple(_words(options)))


def split_items(lists: Iterable[str]) -> Iterable[str]:
    for text in lists:
        yield from (item for item in map(str.strip, text.split(",")) if item)


def _merge(options: FuseOptions, item: str, name: str, value: str | None) -> FuseOptions:
    """`options` with one item of ours."""
    key = name.replace("-", "_")
    if key in SWITCHES and value is None:
        return replace(options, **{key: True})  # type: ignore[arg-type]  # all are bool
    if key in TEXTS and value:
        return replace(options, **{key: value})  # type: ignore[arg-type]  # all are str
    if key in NUMBERS and value is not None:
        if not value.isdigit():
            raise Refused(f"-o {item}: {name} needs a number")
        return replace(options, **{key: int(value)})  # type: ignore[arg-type]  # all are int
    raise Refused(f"-o {item}: unknown mount option")


SWITCHES = ("allow_other", "default_permissions", "writeback_cache", "auto_inval_data", "debug")
TEXTS = ("fsname", "subtype")
NUMBERS = ("max_read", "max_write", "max_background", "max_readahead")


def _words(options: FuseOptions) -> Iterable[str]:
    if options.default_permissions:
        yield "default_permissions"
    if options.allow_other:
        yield "allow_other"
    if options.max_read:
        yield f"max_read={options.max_read}"


def flag_words(flags: int) -> list[str]:
    """`flags` as words again, for fusermount3."""
    words = ["ro" if flags & MS_RDONLY else "rw"]
    return words + [name for name, (bit, on) in FLAGS.items() if on and bit & flags & ~MS_RDONLY]
