"""Options of the whole suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--posix-dir",
        metavar="DIR",
        help="run tests/mount/posix in this directory, instead of a local one and mounts of ours",
    )
