"""One mounted toy file system per module, and an empty directory in it per test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.toymount import ToyMount, toy_mount

_numbers = itertools.count()


@pytest.fixture(scope="module")
def toy() -> Iterator[ToyMount]:
    with toy_mount() as mounted:
        yield mounted


@pytest.fixture
def place(toy: ToyMount) -> Path:
    path = toy.path / f"t{next(_numbers)}"
    path.mkdir()
    return path
