"""Which engine a metadata URL means: the one place that names them all."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from juicepy.errors import Refused
from juicepy.meta.engine import MetaEngine

# scheme -> module, function; imported when asked for, so that no driver loads without need
_ENGINES = {
    "redis": ("juicepy.meta.redis.engine", "open_redis"),
    "rediss": ("juicepy.meta.redis.engine", "open_redis"),
    "unix": ("juicepy.meta.redis.engine", "open_redis"),
    "sqlite3": ("juicepy.meta.sql.engine", "open_sql"),
    "mysql": ("juicepy.meta.sql.engine", "open_sql"),
    "postgres": ("juicepy.meta.sql.engine", "open_sql"),
    "mem": ("juicepy.meta.mem.engine", "open_mem"),
}


def open_engine(url: str) -> MetaEngine:
    """Connect to the engine of a metadata URL; without a scheme it is Redis. EINVAL, EIO."""
    if "://" not in url:
        url = f"redis://{url}"
    scheme = url.partition("://")[0]
    if scheme not in _ENGINES:
        raise Refused(f"unknown scheme {scheme!r} in the metadata URL")
    module, function = _ENGINES[scheme]
    opener: Callable[[str], MetaEngine] = getattr(importlib.import_module(module), function)
    return opener(url)
