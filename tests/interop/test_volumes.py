"""A volume passes from one program to the other and back, on every engine and data format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.programs import OURS, PEER, Program
from tests.support.trees import Tree, assert_same, describe, disturb, essence, plant
from tests.support.volumes import VARIANTS, assert_sound, new_volume

ENGINES = ("redis", "sqlite", "mariadb", "postgres")
CASES = [
    pytest.param(engine, variant, marks=() if variant == "plain" else pytest.mark.long)
    for engine in ENGINES
    for variant in VARIANTS
    if variant != "zstd-encrypted"
]


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tree, Tree]:
    """The tree as a local file system shows it, planted and then disturbed."""
    root = tmp_path_factory.mktemp("truth") / "tree"
    root.mkdir()
    plant(root)
    planted = essence(describe(root))
    disturb(root)
    return planted, essence(describe(root))


@pytest.mark.parametrize(
    ("first", "second"),
    [pytest.param(OURS, PEER, id="ours-first"), pytest.param(PEER, OURS, id="peer-first")],
)
@pytest.mark.parametrize(("engine", "variant"), CASES)
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
