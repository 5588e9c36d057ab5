"""Errors: every one is an OSError whose errno is true at the layer that raises it.

OSError
├── FileNotFoundError
│   └── ObjectNotFound      an object is not in the store (object/); a lost block is EIO above
├── NotFormatted            the metadata engine answers but holds no volume
└── Refused                 a user's request that cannot be carried out: one clear line
"""

from __future__ import annotations

import errno
import os


class ObjectNotFound(FileNotFoundError):
    """No object of that key."""

    def __init__(self, key: str) -> None:
        super().__init__(errno.ENOENT, "no such object", key)


class NotFormatted(OSError):
    """The database is reachable, but there is no volume in it."""

    def __init__(self, where: str) -> None:
        super().__init__(
            errno.ENOENT, f"database is not formatted, please run `jfs format` first ({where})"
        )


class Refused(OSError):
    """A request that is refused before anything is changed; the text names the option or part."""

    def __init__(self, text: str, code: int = errno.EINVAL) -> None:
        super().__init__(code, text)

    def __str__(self) -> str:
        return str(self.strerror)


def posix_error(code: int, subject: object = None) -> OSError:
    """The OSError (of the fitting subclass) for `code`, about `subject`."""
    if subject is None:
        return OSError(code, os.strerror(code))
    if isinstance(subject, bytes):
        subject = os.fsdecode(subject)
    return OSError(code, os.strerror(code), str(subject))
