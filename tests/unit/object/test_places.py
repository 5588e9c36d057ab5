"""What the forms of `--bucket` mean; nothing here connects to anything."""

from __future__ import annotations

import pytest

from juicepy.errors import Refused
from juicepy.object import azure, s3
from juicepy.object.registry import create_storage
from juicepy.object.target import DriverSettings, Target, parse_bucket


def place(bucket: str, kind: str = "s3", **settings: object) -> s3.Place:
    target = Target(kind, bucket, "ak", "sk", "", DriverSettings(**settings))  # type: ignore[arg-type]
    return s3.locate(parse_bucket(bucket, "http" if kind == "minio" else "https"), target)


@pytest.mark.parametrize(
    ("bucket", "base_url", "region"),
    [
        (
            "https://b.s3.us-west-2.amazonaws.com",
            "https://b.s3.us-west-2.amazonaws.com",
            "us-west-2",
        ),
        (
            "https://s3.us-west-2.amazonaws.com/b",
            "https://b.s3.us-west-2.amazonaws.com",
            "us-west-2",
        ),
        ("http://b.s3-eu-west-1.amazonaws.com", "http://b.s3-eu-west-1.amazonaws.com", "eu-west-1"),
        (
            "https://b.s3.cn-north-1.amazonaws.com.cn",
            "https://b.s3.cn-north-1.amazonaws.com.cn",
            "cn-north-1",
        ),
        ("https://b.s3.amazonaws.com", "https://b.s3.amazonaws.com", "us-east-1"),
    ],
)
def test_amazon_hosts_tell_bucket_and_region(bucket: str, base_url: str, region: str) -> None:
    found = place(bucket)
    assert (found.bucket, found.base_url, found.region) == ("b", base_url, region)
    assert found.vhost_style
    assert str(create_storage("s3", bucket, "ak", "sk")) == "s3://b/"


def test_dotted_bucket_uses_the_path_where_certificates_matter() -> None:
    assert not place("https://my.b.s3.us-west-2.amazonaws.com").vhost_style
    assert place("http://my.b.s3.us-west-2.amazonaws.com").vhost_style


def test_bare_bucket_is_at_amazon_in_the_region_of_the_settings() -> None:
    assert place("b", region="eu-west-1").base_url == "https://b.s3.eu-west-1.amazonaws.com"
    assert place("b", region="cn-north-1").base_url == "https://b.s3.cn-north-1.amazonaws.com.cn"


@pytest.mark.parametrize(
    "bucket", ["http://host:9000/b", "http://host:9000/b/ignored", "http://b.host:9000"]
)
def test_other_hosts_are_asked_in_path_style(bucket: str) -> None:
    found = place(bucket)
    assert (found.bucket, found.base_url, found.vhost_style) == ("b", "http://host:9000", False)
    assert str(create_storage("s3", bucket, "ak", "sk")) == "s3://host:9000/b/"


@pytest.mark.parametrize("bucket", ["http://host.test/b", "http://b.host.test"])
def test_virtual_host_style_on_demand(bucket: str) -> None:
    assert place(bucket, vhost_style=True).base_url == "http://b.host.test"


def test_minio_is_http_and_path_style_unless_told() -> None:
    assert place("host:9000/b", "minio", vhost_style=True).base_url == "http://host:9000"
    assert place("https://host/b", "minio").base_url == "https://host"
    assert str(create_storage("minio", "host:9000/b", "ak", "sk")) == "minio://host:9000/b/"


@pytest.mark.parametrize(
    "bucket", ["http://host:9000", "https://s3.us-west-2.amazonaws.com", "https://"]
)
def test_bucket_without_a_name_is_refused(bucket: str) -> None:
    with pytest.raises(Refused, match="--bucket"):
        create_storage("s3", bucket, "ak", "sk")


def container(bucket: str, account: str = "", key: str = "a2V5", text: str = "") -> azure.Place:
    settings = DriverSettings(connection_string=text)
    return azure.locate(Target("wasb", bucket, account, key, "", settings))


@pytest.mark.parametrize(
    ("bucket", "account", "endpoint"),
    [
        ("https://c.core.windows.net", "acct", "https://acct.blob.core.windows.net"),
        ("http://c.example.test:81", "acct", "http://acct.blob.example.test:81"),
        ("c", "acct", "https://acct.blob.core.windows.net"),
        ("https://c", "acct", "https://acct.blob.core.windows.net"),
        ("https://c.acct.blob.core.windows.net", "acct", "https://acct.blob.core.windows.net"),
        ("https://c.acct.blob.core.windows.net", "", "https://acct.blob.core.windows.net"),
    ],
)
def test_azure_account_makes_the_host(bucket: str, account: str, endpoint: str) -> None:
    found = container(bucket, account)
    assert (found.container, found.account, found.endpoint) == ("c", "acct", endpoint)


def test_connection_string_decides_all_but_the_container() -> None:
    text = (
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=a2V5PQ==;EndpointSuffix=core.test"
    )
    found = container("http://c.127.0.0.1:10000", "other", "other", text)
    assert (found.container, found.account) == ("c", "a")
    assert found.endpoint == "https://a.blob.core.test"
    assert found.key == "a2V5PQ=="
    local = container("c", text="AccountName=a;AccountKey=a2V5;BlobEndpoint=http://h:1/a/;")
    assert local.endpoint == "http://h:1/a"
    shared = container(
        "c", text="BlobEndpoint=https://b.blob.core.test;SharedAccessSignature=?sv=1"
    )
    assert (shared.account, shared.sas, shared.key) == ("b", "sv=1", "")
    assert container("c", text="UseDevelopmentStorage=true").account == "devstoreaccount1"


def test_azure_without_an_account_is_refused() -> None:
    with pytest.raises(Refused, match="--access-key"):
        container("https://c.core.windows.net")
    with pytest.raises(Refused, match="AZURE_STORAGE_CONNECTION_STRING"):
        container("c", text="AccountKey=x")


def test_google_bucket_is_the_first_label() -> None:
    settings = DriverSettings(gs_endpoint="127.0.0.1:1")
    for bucket in ("gs://b", "b", "gs://b.us-east1", "gs://b/"):
        assert str(create_storage("gs", bucket, settings=settings)) == "gs://b/"


def test_places_and_targets_hide_their_secrets() -> None:
    target = Target(
        "s3", "b", "AKID", "SECRET", "TOKEN", DriverSettings(connection_string="SECRET")
    )
    for text in (repr(target), repr(container("c", "acct", "SECRET"))):
        for secret in ("SECRET", "TOKEN", "AKID"):
            assert secret not in text


def test_settings_come_from_the_variables_that_juicefs_reads() -> None:
    found = DriverSettings.from_env(
        {
            "JFS_S3_VHOST_STYLE": "1",
            "AZURE_STORAGE_CONNECTION_STRING": "AccountName=a",
            "AWS_DEFAULT_REGION": "eu-west-1",
        }
    )
    assert (found.vhost_style, found.connection_string, found.region) == (
        True,
        "AccountName=a",
        "eu-west-1",
    )
    assert DriverSettings.from_env({}) == DriverSettings()
