"""The fixtures of this directory."""

from tests.support.servers import new_meta_url, redis_process

__all__ = ["new_meta_url", "redis_process"]
