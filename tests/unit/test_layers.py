"""Imports point down only: cmd > jobs, fuse > fs > vfs > meta, chunk > cache, object > root."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "juicepy"

ROOT = {"types", "errors", "concurrency", "log", "memory", "urls", "volume", "metrics", "runtime"}
BELOW = {
    "object": ROOT,
    "cache": ROOT,
    "chunk": ROOT | {"cache", "object"},
    "meta": ROOT,
    "vfs": ROOT | {"cache", "object", "chunk", "meta"},
    "fs": ROOT | {"cache", "object", "chunk", "meta", "vfs"},
    "fuse": ROOT | {"cache", "object", "chunk", "meta", "vfs", "fs"},
    "jobs": ROOT | {"cache", "object", "chunk", "meta", "vfs", "fs"},
    "cmd": ROOT | {"cache", "object", "chunk", "meta", "vfs", "fs", "fuse", "jobs"},
}
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def layer(path: Path) -> str:
    """The package of a module, or the name of a module of the root."""
    return path.parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, layer) of every import of our own, also of those inside functions."""
    for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            module = node.module or ""
            is_top = module == "juicepy"
            names = [f"juicepy.{each.name}" for each in node.names] if is_top else [module]
        for name in names:
            parts = name.split(".")
            if parts[0] == "juicepy" and len(parts) > 1 and parts[1] != "__version__":
                yield node.lineno, parts[1]


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_point_down(path: Path) -> None:
    own = layer(path)
    allowed = BELOW.get(own, ROOT) | {own}
    wrong = [f"{path}:{line}: {name}" for line, name in imported(path) if name not in allowed]
    assert not wrong


def test_every_package_has_its_place() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert packages <= BELOW.keys()
    assert {layer(path) for path in MODULES} - packages - {"__init__", "fs"} <= ROOT


def test_object_and_cmd_are_never_names() -> None:
    """They would hide a builtin and a module of the standard library."""
    for path in MODULES:
        for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "juicepy":
                assert not {alias.name for alias in node.names} & {"object", "cmd"}, path
