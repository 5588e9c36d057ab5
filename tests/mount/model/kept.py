"""Steps that once gave another result than a local directory, as a failure prints them."""

from __future__ import annotations

from tests.mount.model.operations import Step

EXAMPLES: dict[str, list[Step]] = {
    "an attribute outside the namespaces is not supported, rather than not there": [
        ("root", "mkdir", "top/a", 0o755),
        ("root", "getxattr", "top/a", "user"),
    ],
    "set-gid goes when somebody outside the group writes, also where it cannot be executed": [
        ("root", "open", 2, "top/d", 66, 0o2644),
        ("alice", "pwrite", 2, 4096, 65537, 162),
    ],
    "chown to nobody takes set-uid away": [
        ("alice", "open", 2, "top/c", 66, 0o4755),
        ("root", "fchown", 2, -1, -1),
        ("bob", "fchown", 2, -1, -1),
    ],
}
