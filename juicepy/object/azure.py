"""Driver `wasb`: Azure Blob Storage.

| `--bucket` | blob service |
|---|---|
| `http[s]://CONTAINER.SUFFIX` | `ACCOUNT.blob.SUFFIX` |
| `http[s]://CONTAINER.ACCOUNT.blob.SUFFIX` | `ACCOUNT.blob.SUFFIX` |
| `CONTAINER`, `https://CONTAINER` | `ACCOUNT.blob.core.windows.net` |

`ACCOUNT` and its key are `--access-key` and `--secret-key` (in the second form, ours alone, the
account may be left out). A connection string decides all but the container, Azurite included.
Without a key the chain of `azure-identity` is asked: environment, workload and managed identity,
the Azure CLI.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from obstore.store import AzureStore

from juicepy.errors import Refused
from juicepy.object.cloud import NO_RETRY, CloudStorage, client_pair
from juicepy.object.target import Target, parse_bucket

if TYPE_CHECKING:
    from obstore.store import AzureCredential, ClientConfig

_SUFFIX = "core.windows.net"
_EMULATOR = (
    "AccountName=devstoreaccount1;BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1;"
    # the published key of every Azure emulator
    "AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@dataclass(frozen=True, slots=True)
class Place:
    """A container, its account and the base of its URLs; `key`, `sas` empty: azure-identity."""

    container: str
    account: str
    endpoint: str
    key: str = field(default="", repr=False)
    sas: str = field(default="", repr=False)


def open_azure(target: Target) -> CloudStorage:
    """The storage for `target`; connects to nothing."""
    place = locate(target)
    credentials = _credentials(place)

    def make(options: ClientConfig) -> AzureStore:
        return AzureStore(
            place.container,
            account_name=place.account,
            endpoint=place.endpoint,
            credential_provider=credentials,
            client_options=options,
            retry_config=NO_RETRY,
        )

    clients = client_pair(make, target.settings, allow_http=place.endpoint.startswith("http:"))
    return CloudStorage(
        f"wasb://{place.container}/",
        clients,
        lambda: _make_container(place),
        storage_class=target.settings.storage_class,
    )


def locate(target: Target) -> Place:
    """Container, account, endpoint and keys that `target` means."""
    url = parse_bucket(target.bucket)
    container, _, suffix = url.host.partition(".")
    if not container:
        raise Refused(f"--bucket: no container name in {target.bucket!r}")
    if target.settings.connection_string:
        return _from_connection_string(container, target.settings.connection_string)
    account, key = target.access_key, target.secret_key
    named, blob, rest = suffix.partition(".blob.")
    if blob and "." not in named and account in ("", named):
        account, suffix = named, rest
    if not account:
        raise Refused("wasb needs the storage account: give it as --access-key")
    return Place(container, account, f"{url.scheme}://{account}.blob.{suffix or _SUFFIX}", key)


def _from_connection_string(container: str, text: str) -> Place:
    parts = dict(part.partition("=")[::2] for part in text.strip().split(";") if part)
    if parts.get("UseDevelopmentStorage", "").lower() == "true":
        parts = dict(part.partition("=")[::2] for part in _EMULATOR.split(";"))
    account = parts.get("AccountName", "")
    endpoint = parts.get("BlobEndpoint", "")
    if not endpoint:
        scheme = parts.get("DefaultEndpointsProtocol", "https")
        endpoint = f"{scheme}://{account}.blob.{parts.get('EndpointSuffix', _SUFFIX)}"
    if not account:
        account = endpoint.partition("://")[2].partition(".")[0]
    key, sas = parts.get("AccountKey", ""), parts.get("SharedAccessSignature", "")
    if not account or not (key or sas):
        raise Refused(
            "AZURE_STORAGE_CONNECTION_STRING: needs AccountName with AccountKey, "
            "or SharedAccessSignature"
        )
    return Place(container, account, endpoint.rstrip("/"), key, sas.lstrip("?"))


def _credentials(place: Place) -> Callable[[], AzureCredential]:
    if place.key:
        return lambda: {"access_key": place.key, "expires_at": None}
    if place.sas:
        return lambda: {"sas_token": place.sas, "expires_at": None}
    from obstore.auth.azure import AzureCredentialProvider

    return AzureCredentialProvider()


def _make_container(place: Place) -> None:
    """Create the container through azure-storage-blob if it is not there."""
    from azure.core.exceptions import AzureError, HttpResponseError, ResourceExistsError
    from azure.storage.blob import ContainerClient

    credential: Any = place.sas or None
    if place.key:
        credential = {"account_name": place.account, "account_key": place.key}
    elif not place.sas:
        from azure.identity import DefaultAzureCredential

        credential = DefaultAzureCredential()
    client = ContainerClient(
        place.endpoint, place.container, credential, connection_timeout=10, read_timeout=30
    )
    try:
        with client:
            client.create_container()
    except ResourceExistsError:
        return
    except HttpResponseError as error:
        code = errno.EACCES if error.status_code in (401, 403) else errno.EIO
        reason = f"cannot create the container ({getattr(error, 'error_code', '')})"
        raise OSError(code, reason, place.container) from None
    except AzureError as error:
        reason = f"cannot reach {place.endpoint} ({type(error).__name__})"
        raise OSError(errno.EIO, reason, place.container) from None
