"""Drivers `s3` and `minio`: Amazon S3 and what speaks its protocol.

| `--bucket` | request |
|---|---|
| `https://BUCKET.s3.REGION.amazonaws.com` | virtual-host style |
| `https://s3.REGION.amazonaws.com/BUCKET` | virtual-host style |
| `BUCKET` (s3 only) | virtual-host style; region: `AWS_REGION`, the profile's, us-east-1 |
| `http[s]://ENDPOINT/BUCKET` | path style (virtual-host style if asked for) |
| `http[s]://BUCKET.ENDPOINT` | the same |

(as the real client takes them). Query `disable-checksum` leaves the CRC-32C out,
`tls-insecure-skip-verify=true` accepts any certificate. Signature V4, payload unsigned.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from obstore.store import S3Store

from juicepy.errors import Refused
from juicepy.object.cloud import NO_RETRY, CloudStorage, client_pair
from juicepy.object.target import BucketUrl, Target, parse_bucket

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Credential

_AWS = re.compile(
    r"(?:(?P<bucket>.+)\.)?(?P<host>s3(?:[.-](?P<region>[a-z0-9-]+))?\.amazonaws\.com(?:\.cn)?)"
)
_DEFAULT_REGION = "us-east-1"
_CREDENTIALS_LIVE = timedelta(minutes=5)  # below the 10 minutes at which botocore must refresh


@dataclass(frozen=True, slots=True)
class Place:
    """A bucket and how requests for it look. `endpoint` is without the bucket."""

    bucket: str
    endpoint: str
    region: str
    vhost_style: bool
    is_aws: bool

    @property
    def base_url(self) -> str:
        """What obstore calls the endpoint: the host that is asked, with the bucket's label."""
        scheme, _, host = self.endpoint.partition("://")
        return f"{scheme}://{self.bucket}.{host}" if self.vhost_style else self.endpoint


def open_s3(target: Target) -> CloudStorage:
    """The storage for `target`; connects to nothing."""
    url = parse_bucket(target.bucket, "http" if target.kind == "minio" else "https")
    place = locate(url, target)
    credentials = _credentials(target)

    def make(options: ClientConfig) -> S3Store:
        return S3Store(
            place.bucket,
            endpoint=place.base_url,
            region=place.region,
            virtual_hosted_style_request=place.vhost_style,
            skip_signature=credentials is None,
            unsigned_payload=True,
            disable_bulk_delete=True,
            credential_provider=credentials,
            client_options=options,
            retry_config=NO_RETRY,
        )

    insecure = url.query.get("tls-insecure-skip-verify", [""])[0] == "true"
    clients = client_pair(
        make,
        target.settings,
        allow_http=url.scheme == "http",
        allow_invalid_certificates=insecure,
    )
    where = place.bucket if place.is_aws else f"{url_host(place.endpoint)}/{place.bucket}"
    return CloudStorage(
        f"{target.kind}://{where}/",
        clients,
        lambda: _make_bucket(place, credentials, verify=not insecure),
        checksum="disable-checksum" not in url.query,
        storage_class=target.settings.storage_class,
    )


def locate(url: BucketUrl, target: Target) -> Place:
    """Bucket, endpoint and style that `url` means."""
    region = target.settings.region
    aws = _AWS.fullmatch(url.host)
    in_path = url.path.partition("/")[0]
    if aws:
        bucket = in_path or aws["bucket"] or ""
        _check_bucket(bucket, target)
        endpoint = f"{url.scheme}://{aws['host']}"
        dotted = "." in bucket and url.scheme == "https"  # no certificate covers two labels
        found = aws["region"] or region or _DEFAULT_REGION
        return Place(bucket, endpoint, found, not dotted, True)
    if "." not in url.host and ":" not in url.host and not in_path and target.kind == "s3":
        region = region or _profile_region() or _DEFAULT_REGION
        suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        return Place(url.host, f"{url.scheme}://s3.{region}.{suffix}", region, True, True)
    bucket, host = (in_path, url.host) if in_path else _split_label(url.host)
    _check_bucket(bucket, target)
    vhost = target.settings.vhost_style and target.kind == "s3"
    return Place(bucket, f"{url.scheme}://{host}", region or _DEFAULT_REGION, vhost, False)


def url_host(url: str) -> str:
    return url.partition("://")[2]


def _split_label(host: str) -> tuple[str, str]:
    label, _, rest = host.partition(".")
    return (label, rest) if rest else ("", host)


def _check_bucket(bucket: str, target: Target) -> None:
    if not bucket:
        raise Refused(f"--bucket: no bucket name in {target.bucket!r}")


def _profile_region() -> str:
    import boto3

    return boto3.Session().region_name or ""


def _credentials(target: Target) -> Callable[[], S3Credential] | None:
    """The given keys, nothing for `anonymous`, else the chain of boto3, refreshed as it needs."""
    if target.access_key == "anonymous":
        return None
    if target.access_key:
        given: S3Credential = {
            "access_key_id": target.access_key,
            "secret_access_key": target.secret_key,
            "token": target.session_token or None,
            "expires_at": None,
        }
        return lambda: given
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return Boto3CredentialProvider(ttl=_CREDENTIALS_LIVE)
    except ValueError as error:
        raise Refused(
            "no credentials for S3: give --access-key and --secret-key, or set up an AWS profile",
            errno.EACCES,
        ) from error


def _make_bucket(
    place: Place, credentials: Callable[[], S3Credential] | None, *, verify: bool
) -> None:
    """Create the bucket through boto3 if it is not there."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    keys: dict[str, Any] = {}
    if credentials is not None:
        given = credentials()
        keys = {
            "aws_access_key_id": given["access_key_id"],
            "aws_secret_access_key": given["secret_access_key"],
            "aws_session_token": given.get("token"),
        }
    style = "virtual" if place.vhost_style else "path"
    config = Config(s3={"addressing_style": style}, connect_timeout=10, read_timeout=30)
    client = boto3.client(
        "s3",
        endpoint_url=place.endpoint,
        region_name=place.region,
        config=config,
        verify=verify,
        **keys,
    )
    try:
        try:
            client.head_bucket(Bucket=place.bucket)
        except ClientError as error:
            if _status(error) != 404:
                raise
            _create(client, place)
    except ClientError as error:
        denied = _status(error) in (401, 403)
        code = error.response.get("Error", {}).get("Code", "")
        raise OSError(
            errno.EACCES if denied else errno.EIO,
            f"cannot create the bucket ({code})",
            place.bucket,
        ) from None
    except BotoCoreError as error:
        reason = f"cannot reach {url_host(place.endpoint)} ({type(error).__name__})"
        raise OSError(errno.EIO, reason, place.bucket) from None


def _create(client: Any, place: Place) -> None:
    if place.is_aws and place.region != _DEFAULT_REGION:
        where = {"LocationConstraint": place.region}
        client.create_bucket(Bucket=place.bucket, CreateBucketConfiguration=where)
    else:
        client.create_bucket(Bucket=place.bucket)


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
