"""Steps that once gave another result than a local directory, as a failure prints them."""

from __future__ import annotations

from tests.mount.model.operations import Step

EXAMPLES: dict[str, list[Step]] = {
    "an attribute outside the namespaces is not supported, rather than not there": [
        ("root", "mkdir", "top/a", 0o755),
        ("root", "getxattr", "top/a", "user"),
    ],
}
