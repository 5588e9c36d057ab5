"""Fixtures: an empty database of every metadata engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from juicepy.meta.engine import MetaEngine
from juicepy.meta.tx import Tx
from tests.support.engines import ENGINES, SERVED, Place, Places
from tests.support.servers import new_meta_url

__all__ = ["new_meta_url"]

PAUSE_S = 0.4  # for who must wait for a transaction, where the engine has only one at a time


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


@pytest.fixture
def before_commit(
    engine: MetaEngine, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], Any]], list[bool]]:
    """Have something done by others between the next body's end and its commit.

    Gives a list that tells whether it was done by then: an engine of one writer puts it off.
    """

    def set_up(others: Callable[[], Any]) -> list[bool]:
        real, in_time = engine.transact, []

        def transact(body: Callable[[Tx], Any]) -> Any:
            monkeypatch.setattr(engine, "transact", real)
            thread = threading.Thread(target=others)

            def frozen(tx: Tx) -> Any:
                result = body(tx)
                if not in_time:
                    thread.start()
                    thread.join(PAUSE_S)
                    in_time.append(not thread.is_alive())
                return result

            try:
                return real(frozen)
            finally:
                thread.join()

        monkeypatch.setattr(engine, "transact", transact)
        return in_time

    return set_up
