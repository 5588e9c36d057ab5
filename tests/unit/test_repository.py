"""What a reader of the repository relies on."""

import ast
import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
TRACKED = subprocess.run(
    ["git", "ls-files", "-z"], cwd=TOP, capture_output=True, check=True, text=True
).stdout.split("\0")[:-1]


def code_blocks(text: str) -> list[str]:
    return [block.strip() for block in re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)]


def test_readme_has_exactly_two_commands() -> None:
    readme = (TOP / "README.md").read_text()
    assert code_blocks(readme) == ["bash scripts/demo.sh", "bash scripts/test.sh"]


def test_links_of_the_documents_lead_somewhere() -> None:
    for name in TRACKED:
        if name.endswith(".md"):
            path = TOP / name
            for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
                if "://" not in target:
                    assert (path.parent / target).exists(), f"{name}: {target}"


def test_ci_runs_what_a_desk_runs() -> None:
    assert "scripts/test.sh" in (TOP / ".ci" / "run").read_text()
    test = (TOP / "scripts" / "test.sh").read_text()
    for word in ("ruff format --check", "ruff check", "mypy --strict", '"not long"', "-m long"):
        assert word in test


@pytest.mark.parametrize("name", [*(n for n in TRACKED if n.endswith(".sh")), ".ci/run"])
def test_scripts_are_valid_bash(name: str) -> None:
    subprocess.run(["bash", "-n", str(TOP / name)], check=True)


def test_license_is_apache() -> None:
    text = (TOP / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_setup_names_every_library_that_is_imported() -> None:
    setup = configparser.ConfigParser()
    setup.read(TOP / "setup.cfg")
    lines = setup["options"]["install_requires"] + setup["options.extras_require"]["llfuse"]
    required = {re.split(r"[>=\[<]", line)[0].strip().lower() for line in lines.split()}
    providers = {
        "azure": "azure-storage-blob",
        "botocore": "boto3",
        "google_crc32c": "google-crc32c",
        "prometheus_client": "prometheus-client",
    }
    own = sys.stdlib_module_names | {"juicepy"}
    for path in (TOP / "juicepy").rglob("*.py"):
        for module in imported(path) - own:
            assert providers.get(module, module).lower() in required, f"{path}: {module}"


def imported(path: Path) -> set[str]:
    """Top-level names of the modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_nothing_is_left_to_be_done() -> None:
    for name in TRACKED:
        if name.startswith("juicepy/") and name.endswith(".py"):
            text = (TOP / name).read_text()
            assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError", text), name


def test_version_is_one() -> None:
    import juicepy
    from juicepy.volume import COMPATIBLE_VERSION, version_key

    assert version_key(juicepy.__version__) >= version_key(COMPATIBLE_VERSION)


def test_no_link_is_tracked() -> None:
    """One to a place of some machine would replace what stands there elsewhere."""
    assert [name for name in TRACKED if (TOP / name).is_symlink()] == []
