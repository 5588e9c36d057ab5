"""Driver `gs`: Google Cloud Storage.

`--bucket` is `gs://BUCKET` or `BUCKET`; what follows the first dot is the location that the real
client creates a bucket in, and is not part of the name. Credentials are Google's own chain
(`GOOGLE_APPLICATION_CREDENTIALS`, gcloud's login, the machine's service account). An emulator's
address takes unsigned requests.
"""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError
from obstore.store import GCSStore

from juicepy.errors import Refused
from juicepy.object.cloud import NO_RETRY, CloudStorage, client_pair
from juicepy.object.target import Target, parse_bucket

if TYPE_CHECKING:
    from obstore.store import ClientConfig, GCSConfig


def open_gs(target: Target) -> CloudStorage:
    """The storage for `target`; connects to nothing."""
    name = parse_bucket(target.bucket, "gs").host.partition(".")[0]
    config: GCSConfig = {}
    endpoint = target.settings.gs_endpoint
    if endpoint:
        endpoint = endpoint if "://" in endpoint else f"http://{endpoint}"
        config = {"service_account_key": _emulator_account(endpoint)}

    def make(options: ClientConfig) -> GCSStore:
        return GCSStore(name, config=config, client_options=options, retry_config=NO_RETRY)

    try:
        clients = client_pair(make, target.settings, allow_http=endpoint.startswith("http://"))
    except BaseError as error:
        raise Refused(
            "gs: cannot read the Google credentials; see GOOGLE_APPLICATION_CREDENTIALS",
            errno.EACCES,
        ) from error

    def check_bucket() -> None:
        """Google makes buckets in a project, which a volume does not know: it must exist."""
        try:
            next(iter(obstore.list(clients[0], chunk_size=1)), None)
        except (BaseError, OSError) as error:
            denied = "status code: 403" in str(error) or "status code: 401" in str(error)
            raise OSError(
                errno.EACCES if denied else errno.EIO,
                "the bucket cannot be listed; gs buckets are created beforehand",
                name,
            ) from None

    return CloudStorage(
        f"gs://{name}/", clients, check_bucket, storage_class=target.settings.storage_class
    )


def _emulator_account(endpoint: str) -> str:
    """The service account by which object_store is told to ask `endpoint`, unsigned."""
    nobody = {"client_email": "", "private_key": "", "private_key_id": ""}
    return json.dumps({"gcs_base_url": endpoint, "disable_oauth": True, **nobody})
