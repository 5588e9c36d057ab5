"""`jfs mount --preset NAME`: defaults for one way of reading (docs/caching.md says why each).

What the command line or the environment sets stays; a preset stands in for defaults only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import click


@dataclass(frozen=True, slots=True)
class Preset:
    """`values`: option without dashes -> what would be given to it."""

    text: str
    values: Mapping[str, str]


# Of data that nobody changes: other clients' changes are seen when this time has passed.
_UNCHANGED = {
    "attr-cache": "10m",
    "entry-cache": "10m",
    "dir-entry-cache": "10m",
    "readdir-cache": "true",
    "open-cache": "10m",
    "open-cache-limit": "1000000",
}

PRESETS = {
    "seq-once": Preset(
        "a large file, read once in sequence",
        {"max-readahead": "64M", "buffer-size": "512M", "cache-partial-only": "true"},
    ),
    "seq-threads": Preset(
        "a large file, read once from many threads",
        {"max-readahead": "32M", "buffer-size": "1G", "cache-partial-only": "true"},
    ),
    "small-once": Preset(
        "millions of small files, read in one epoch",
        {**_UNCHANGED, "cache-size": "0"},
    ),
    "small-epochs": Preset(
        "millions of small files, read in many epochs",
        _UNCHANGED,
    ),
    "random": Preset(
        "random seeks in large files",
        {"open-mode": "whole", "prefetch": "0"},
    ),
}


def choose(ctx: click.Context, param: click.Parameter, name: str) -> str:
    """Callback of the option: what follows takes its defaults from the preset."""
    if name:
        if name not in PRESETS:
            known = ", ".join(PRESETS)
            raise click.BadParameter(f"{name!r} is not one of {known}", ctx=ctx, param=param)
        values = PRESETS[name].values
        ctx.default_map = {key.replace("-", "_"): value for key, value in values.items()}
    return name


def shown() -> str:
    """The presets, for the help."""
    return "; ".join(f"{name}: {preset.text}" for name, preset in PRESETS.items())
