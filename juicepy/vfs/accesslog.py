"""The access log: a line per operation, for whoever has `.accesslog` open (mount-surface.md 1.2).

    2026.11.30 02:33:15.172994 [uid:0,gid:0,pid:17391] unlink (1,a) - OK <0.000433>

`FORMATS` tells for each operation how its arguments and its result are printed. What a VFS method
is not told (the caller's buffer size, whether a lock request waits) is printed as 0 or `false`.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import Condition
from typing import Any

from juicepy.types import INTERNAL, S_IFMT, Attr, Cred, Inode, Kind, LockKind, SetAttr

ACCESSLOG = Inode(INTERNAL + 1)
LIMIT_LINES = 10240
IDLE_S = 1.0
IDLE_LINE = b"#\n"

Format = Callable[[Sequence[Any], Any], str]  # (arguments after the credentials, result or None)

_TYPE = {
    Kind.FILE: "-",
    Kind.DIR: "d",
    Kind.SYMLINK: "l",
    Kind.FIFO: "f",
    Kind.BLOCK: "b",
    Kind.CHAR: "c",
    Kind.SOCKET: "s",
}
_TYPE_OF_BITS = {S_IFMT[kind]: char for kind, char in _TYPE.items()}
_LOCKS = {LockKind.READ: "R", LockKind.WRITE: "W", LockKind.UNLOCK: "U"}
_FLOCKS = {LockKind.READ: "LOCKSH", LockKind.WRITE: "LOCKEX", LockKind.UNLOCK: "UNLOCK"}
_ESCAPES = {
    7: r"\a",
    8: r"\b",
    9: r"\t",
    10: r"\n",
    11: r"\v",
    12: r"\f",
    13: r"\r",
    34: r"\"",
    92: r"\\",
}


class LogReader:
    """One open `.accesslog`: a queue of lines, of which an overflow is dropped. Thread-safe."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._lines: deque[bytes] = deque()
        self._changed = Condition()  # guards _lines and _rest
        self._rest = b""

    def put(self, line: bytes) -> None:
        with self._changed:
            if len(self._lines) < LIMIT_LINES:
                self._lines.append(line)
                self._changed.notify()

    def read(self, cred: Cred, offset: int, size: int) -> bytes:
        """What has been logged, at most `size` bytes; `#` and a newline if nothing comes in 1 s."""
        with self._changed:
            if not self._rest and not self._lines:
                self._changed.wait(self._idle_s)
            parts, room = [self._rest], size - len(self._rest)
            while self._lines and room > 0:
                parts.append(self._lines.popleft())
                room -= len(parts[-1])
            text = b"".join(parts)
            self._rest = text[size:]
        return text[:size] or IDLE_LINE[:size]


class AccessLog:
    """Hands lines to the open readers. While there is none, `readers` is empty and all is free."""

    def __init__(self) -> None:
        self.readers: tuple[LogReader, ...] = ()  # replaced as a whole, so reading needs no lock
        self._changed = Condition()  # guards the replacing

    def open(self) -> LogReader:
        reader = LogReader()
        with self._changed:
            self.readers = (*self.readers, reader)
        return reader

    def close(self, reader: LogReader) -> None:
        with self._changed:
            self.readers = tuple(other for other in self.readers if other is not reader)

    def write(
        self,
        cred: Cred,
        op: str,
        arguments: Sequence[Any],
        result: Any,
        error: OSError | None,
        seconds: float,
    ) -> None:
        if op == "read" and arguments[0] == ACCESSLOG:
            return  # else a reader would be busy with its own reads
        now = time.time()
        stamp = time.strftime("%Y.%m.%d %H:%M:%S", time.localtime(now))
        status = "OK" if error is None else os.strerror(error.errno or 5).lower()
        text = (
            f"{stamp}.{int(now % 1 * 1e6):06d} [uid:{cred.uid},gid:{cred.gid},pid:{cred.pid}] "
            f"{op} {FORMATS[op](arguments, result)} - {status} <{seconds:.6f}>\n"
        )
        line = text.encode("utf-8", "surrogateescape")
        for reader in self.readers:
            reader.put(line)


def quoted(name: bytes) -> str:
    """The name as it is, or C-escaped if it has control characters, backquotes or no UTF-8."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return _escaped(name.decode("utf-8", "surrogateescape"))
    plain = text.isprintable() and "`" not in text
    return text if plain else _escaped(text)


def _escaped(text: str) -> str:
    return "".join(_escape(char) for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    if code in _ESCAPES:
        return _ESCAPES[code]
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if char.isprintable():
        return char
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"


def mode_text(st_mode: int, kind: str | None = None) -> str:
    """`drwxr-xr-x`; `?` stands for the type where `st_mode` has none and `kind` is not given."""
    bits = [char if st_mode >> (8 - i) & 1 else "-" for i, char in enumerate("rwxrwxrwx")]
    for bit, place, char in ((0o4000, 2, "s"), (0o2000, 5, "s"), (0o1000, 8, "t")):
        if st_mode & bit:
            bits[place] = char if bits[place] == "x" else char.upper()
    return (kind or _TYPE_OF_BITS.get(st_mode & 0o170000, "?")) + "".join(bits)


def _entry(ino: Inode, attr: Attr) -> str:
    st_mode = attr.st_mode
    return (
        f" ({ino},[{mode_text(st_mode)}:0{st_mode:06o},{attr.nlink},{attr.uid},{attr.gid},"
        f"{attr.atime_ns // 10**9},{attr.mtime_ns // 10**9},{attr.ctime_ns // 10**9},"
        f"{attr.length}])"
    )


def _found(found: Any) -> str:
    return "" if found is None else _entry(found.ino, found.attr)


def _mode(st_mode: int) -> str:
    return f"{mode_text(st_mode)}:0{st_mode:04o}"


def _getattr(a: Sequence[Any], r: Any) -> str:
    return f"({a[0]}):{'' if r is None else _entry(a[0], r[0])}"


def _setattr(a: Sequence[Any], r: Any) -> str:
    ino, change, size, fh = a
    kind = _TYPE[r[0].kind] if r else None
    valid, items = _changes(change, size, kind)
    told = "" if r is None else _entry(ino, r[0])
    return f"({ino}[{fh or 0}],0x{valid:X},[{','.join(items)}]):{told}"


def _changes(change: SetAttr, size: int | None, kind: str | None) -> tuple[int, list[str]]:
    """The bits of FATTR_* and the `name=value` items of a setattr."""
    valid, items = 0, []
    if change.mode is not None:
        valid |= 0x1
        items.append(f"mode={mode_text(change.mode, kind)}:0{change.mode & 0o7777:04o}")
    if change.uid is not None:
        valid |= 0x2
        items.append(f"uid={change.uid}")
    if change.gid is not None:
        valid |= 0x4
        items.append(f"gid={change.gid}")
    times = (
        ("atime", change.atime_now, change.atime_ns, 0x10, 0x80),
        ("mtime", change.mtime_now, change.mtime_ns, 0x20, 0x100),
    )
    for name, now, time_ns, bit, now_bit in times:
        if now:
            valid |= bit | now_bit
            items.append(f"{name}=NOW")
        elif time_ns is not None:
            valid |= bit
            items.append(f"{name}={time_ns // 10**9}")
    if size is not None:
        valid |= 0x8
        items.append(f"size={size}")
    return valid, items


def _create(a: Sequence[Any], r: Any) -> str:
    parent, name, mode = a[:3]
    told = "" if r is None else f"{_found(r[0])} [fh:{r[1].fh}]"
    return f"({parent},{quoted(name)},{_mode(0o100000 | mode)}):{told}"


def _open(a: Sequence[Any], r: Any) -> str:
    return f"({a[0]},0x{a[1]:X})" + ("" if r is None else f" [fh:{r.fh}]")


def _getlk(a: Sequence[Any], r: Any) -> str:
    ino, fh, owner, _ = a
    lock = "0,0,U,0" if r is None else f"{r.start},{r.end},{_LOCKS[r.kind]},{r.pid}"
    return f"({ino},{fh},{owner:016X}): ({lock})"


def _setlk(a: Sequence[Any], r: Any) -> str:
    ino, fh, owner, lock = a
    what = f"{lock.start},{lock.end},{_LOCKS[lock.kind]},false,{lock.pid}"
    return f"({ino},{fh},{owner:016X},{what})"


def _copy(a: Sequence[Any], r: Any) -> str:
    ino, _, offset, ino_out, _, offset_out, length = a
    return f"({ino},{offset},{ino_out},{offset_out},{length},0)"


def _ioctl(a: Sequence[Any], r: Any) -> str:
    ino, _, cmd, data, _ = a
    return f"({ino},0x{cmd:X},0x0,[{_bytes(data)}],[{_bytes(r or b'')}])"


def _bytes(data: bytes) -> str:
    return " ".join(str(byte) for byte in data)


def _statfs(a: Sequence[Any], r: Any) -> str:
    if r is None:
        return f"({a[0]}): (0,0,0,0)"
    used = r.total_bytes - r.avail_bytes
    return f"({a[0]}): ({used},{r.avail_bytes},{r.used_inodes},{r.avail_inodes})"


def _is_virtual(ino: int) -> bool:
    return 0x7FFFFFFF00000000 < ino < 0x7FFFFFFF10000000


def _read(a: Sequence[Any], r: Any) -> str:
    ino, fh, offset, size = a
    count = sum(map(len, r or ()))
    told = f"{count}" if _is_virtual(ino) else f"({count})"
    return f"({ino},{size},{offset},{fh}): {told}"


def _size(result: Any) -> int:
    return len(result or b"")


def _readdir(a: Sequence[Any], r: Any) -> str:
    ino, _, offset, plus = a
    return f"({ino},0,{offset},{'true' if plus else 'false'}): ({r or 0})"


def _listxattr(a: Sequence[Any], r: Any) -> str:
    return f"({a[0]},0): ({sum(len(name) + 1 for name in r or ())})"


FORMATS: Mapping[str, Format] = {
    "lookup": lambda a, r: f"({a[0]},{quoted(a[1])}):{_found(r)}",
    "getattr": _getattr,
    "setattr": _setattr,
    "mknod": lambda a, r: f"({a[0]},{quoted(a[1])},{_mode(a[2])},0x{a[4]:08X}):{_found(r)}",
    "mkdir": lambda a, r: f"({a[0]},{quoted(a[1])},{_mode(a[2])}):{_found(r)}",
    "create": _create,
    "tmpfile": lambda a, r: _create((a[0], b"", a[1]), r),
    "unlink": lambda a, r: f"({a[0]},{quoted(a[1])})",
    "rmdir": lambda a, r: f"({a[0]},{quoted(a[1])})",
    "symlink": lambda a, r: f"({a[0]},{quoted(a[1])},{quoted(a[2])}):{_found(r)}",
    "readlink": lambda a, r: f"({a[0]}): ({quoted(r or b'')})",
    "rename": lambda a, r: f"({a[0]},{quoted(a[1])},{a[2]},{quoted(a[3])},{a[4]})",
    "link": lambda a, r: f"({a[0]},{a[1]},{quoted(a[2])}):{_found(r)}",
    "open": _open,
    "opendir": lambda a, r: f"({a[0]})" + ("" if r is None else f" [fh:{r.fh}]"),
    "readdir": _readdir,
    "releasedir": lambda a, r: f"({a[0]})",
    "fsyncdir": lambda a, r: f"({a[0]},{int(a[2])})",
    "release": lambda a, r: f"({a[0]},{a[1]})",
    "read": _read,
    "write": lambda a, r: f"({a[0]},{len(a[3])},{a[2]},{a[1]})",
    "flush": lambda a, r: f"({a[0]},{a[1]},{a[2]:016X})",
    "fsync": lambda a, r: f"({a[0]},{int(a[2])})",
    "fallocate": lambda a, r: f"({a[0]},{a[2]},{a[3]},{a[4]})",
    "lseek": lambda a, r: f"({a[0]},{a[1]},{a[2]},{a[3]}): ({r or 0})",
    "copy_file_range": _copy,
    "setxattr": lambda a, r: f"({a[0]},{quoted(a[1])},{len(a[2])},{a[3]})",
    "getxattr": lambda a, r: f"({a[0]},{quoted(a[1])},0): ({_size(r)})",
    "listxattr": _listxattr,
    "removexattr": lambda a, r: f"({a[0]},{quoted(a[1])})",
    "access": lambda a, r: f"({a[0]},0x{a[1]:X})",
    "statfs": _statfs,
    "getlk": _getlk,
    "setlk": _setlk,
    "flock": lambda a, r: f"({a[0]},{a[1]},{a[2]:016X},{_FLOCKS[a[3]]},false)",
    "ioctl": _ioctl,
    "syncfs": lambda a, r: f"({a[0]})",
}
