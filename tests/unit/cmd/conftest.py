"""Commands set up logging for the whole process: put back after each test."""

import logging
import threading
from collections.abc import Iterator

import pytest

from juicepy.cmd import options


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("juicepy")
    before = root.handlers[:], root.level, ours.level, threading.excepthook
    yield
    root.handlers, threading.excepthook = before[0], before[3]
    root.setLevel(before[1])
    ours.setLevel(before[2])
    for name in options._verbosity:
        options._verbosity[name] = False
