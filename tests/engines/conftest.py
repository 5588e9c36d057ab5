"""Fixtures: an empty database of every metadata engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from juicepy.meta.engine import MetaEngine
from tests.support.engines import ENGINES, SERVED, Place, Places
from tests.support.servers import new_meta_url

__all__ = ["new_meta_url"]


@pytest.fixture(scope="session")
def places(new_meta_url: Callable[[str], str]) -> Iterator[Places]:
    made = Places(new_meta_url)
    yield made
    made.close()


@pytest.fixture(params=ENGINES)
def place(request: pytest.FixtureRequest, places: Places, tmp_path: Path) -> Iterator[Place]:
    """An empty database; `open()` gives further engines onto it."""
    with places.place(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def engine(place: Place) -> MetaEngine:
    """An engine onto an empty database."""
    return place.open()


@pytest.fixture(params=SERVED)
def engine_url(request: pytest.FixtureRequest, places: Places, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database that other processes can open, too."""
    with places.place(request.param, tmp_path) as made:
        yield made.url
