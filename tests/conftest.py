"""Options of the whole suite."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# a machine that is busy is no fault of what is tested
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--posix-dir",
        metavar="DIR",
        help="run tests/mount/posix in this directory, instead of a local one and mounts of ours",
    )
