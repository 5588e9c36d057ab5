"""The fixtures of this directory."""

from tests.support.servers import new_meta_url

__all__ = ["new_meta_url"]
