"""The fixtures of this directory."""

from tests.support.objects import azure_server, s3_server
from tests.support.servers import new_meta_url

__all__ = ["azure_server", "new_meta_url", "s3_server"]
