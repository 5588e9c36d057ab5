"""A volume passes from one program to the other and back, on every engine and data format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import OURS, PEER, Program
from tests.support.trees import Tree, assert_same, describe, disturb, essence, plant
from tests.support.volumes import VARIANTS, assert_sound, new_volume

ENGINES = ("redis", "sqlite", "mariadb", "postgres")
ORDERS = {"ours-first": (OURS, PEER), "peer-first": (PEER, OURS)}


def _cases() -> Iterator[Any]:
    """Plain data in both orders on every engine; other formats in one, each in both by turns."""
    for engine_number, engine in enumerate(ENGINES):
        for number, variant in enumerate(each for each in VARIANTS if each != "zstd-encrypted"):
            is_plain = variant == "plain"
            for turn, (name, order) in enumerate(ORDERS.items()):
                if is_plain or (engine_number + number + turn) % 2 == 0:
                    marks = () if is_plain else pytest.mark.long
                    yield pytest.param(
                        *order, engine, variant, marks=marks, id=f"{engine}-{variant}-{name}"
                    )


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tree, Tree]:
    """The tree as a local file system shows it, planted and then disturbed."""
    root = tmp_path_factory.mktemp("truth") / "tree"
    root.mkdir()
    plant(root)
    planted = essence(describe(root))
    disturb(root)
    return planted, essence(describe(root))


@pytest.mark.parametrize(("first", "second", "engine", "variant"), list(_cases()))
def test_volume_passes_from_hand_to_hand(
    first: Program,
    second: Program,
    engine: str,
    variant: str,
    new_meta_url: Callable[[str], str],
    truth: tuple[Tree, Tree],
    tmp_path: Path,
) -> None:
    planted, disturbed = truth
    volume = new_volume(new_meta_url(engine), tmp_path, variant)
    volume.format(first)
    with volume.mounted(second) as mount:
        tree = mount.path / "tree"
        tree.mkdir()
        plant(tree)
        written = describe(tree)
    assert_same(essence(written), planted, f"what {second} planted")
    with volume.mounted(first) as mount:
        tree = mount.path / "tree"
        assert_same(describe(tree), written, f"what {first} sees of it")
        disturb(tree)
        written = describe(tree)
    assert_same(essence(written), disturbed, f"what {first} disturbed")
    with volume.mounted(second) as mount:
        assert_same(describe(mount.path / "tree"), written, f"what {second} sees of that")
    copy = assert_sound(volume)
    with copy.mounted(PEER, "--read-only") as mount:
        assert_same(describe(mount.path / "tree"), written, "what is loaded from the dump")
