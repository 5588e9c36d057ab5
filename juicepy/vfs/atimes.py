"""Access times, on mounts that keep them (`--atime-mode relatime` or `strictatime`).

Only what comes to us counts: a read that the kernel serves from its pages does not. So on such a
mount an open keeps no pages, and the first read after it always comes.
"""

from __future__ import annotations

import logging
import os
import time

from juicepy.meta.client import MetaClient
from juicepy.types import Inode
from juicepy.vfs.files import FileHandle

logger = logging.getLogger(__name__)


class AccessTimes:
    """Tells the metadata what was read. Never fails the read."""

    def __init__(self, meta: MetaClient) -> None:
        self._meta = meta
        self.are_kept = meta.options.atime_mode != "noatime" and not meta.options.read_only

    def read(self, handle: FileHandle) -> None:
        """Data was read. Asks once a second per handle, and again after the file has changed."""
        if not self.are_kept or handle.flags & os.O_NOATIME or not handle.is_readable:
            return  # what is open for writing only is read by the kernel, to fill a page
        state = handle.file.version, int(time.monotonic())
        if handle.accessed != state:
            handle.accessed = state
            self.accessed(handle.file.ino)

    def accessed(self, ino: Inode) -> None:
        """A directory was listed, a symbolic link read."""
        if self.are_kept:
            try:
                self._meta.accessed(ino)
            except OSError as error:
                logger.debug("access time of inode %d: %s", ino, error)
