from __future__ import annotations

import threading
from collections import Counter

import pytest

from juicepy.meta import cleanup
from juicepy.meta.cleanup import Deleter
from juicepy.meta.mem.engine import open_mem
from juicepy.types import Inode


def test_files_that_wait_for_deletion_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who removes a hundred thousand of them deletes those himself that find no room."""
    monkeypatch.setattr(cleanup, "_WAITING", 10)
    deleter = Deleter(open_mem("mem://"), threads=2)
    deleter.delete_slice = lambda ident, size: None
    go_on, by = threading.Event(), Counter[str]()

    def delete(ino: Inode, length: int) -> None:
        name = threading.current_thread().name
        if name.startswith("delete"):
            go_on.wait(10)
        by[name.partition("_")[0]] += 1

    monkeypatch.setattr(deleter, "file", delete)
    for number in range(50):
        deleter.later(Inode(number + 10), 5)
    here = threading.current_thread().name
    assert 50 - 10 - 2 <= by[here] <= 50 - 10
    go_on.set()
    deleter.close()
    assert by == {here: by[here], "delete": 50 - by[here]}
