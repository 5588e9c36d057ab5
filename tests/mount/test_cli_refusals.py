"""Bad input: one line on stderr that names it, exit code 1, no traceback, no password."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.objects import S3Server
from tests.support.programs import OURS
from tests.support.redis_servers import redis_server
from tests.support.volumes import Volume, new_volume

SECRET = "p@s:w/?#%[] d"


def refused(*words: str | Path, named: str, env: dict[str, str] | None = None) -> str:
    """The line of a command that must be refused."""
    result = OURS.run(*words, env=env, check=False)
    assert result.code == 1, result
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result
    assert lines[0].startswith(f"jfs {words[0]}: "), result
    assert named in lines[0], result
    assert SECRET not in result.text
    return lines[0]


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Volume:
    home = tmp_path_factory.mktemp("refusals")
    made = new_volume(f"sqlite3://{home}/meta.db", home)
    made.format(OURS, "--quiet")
    return made


@pytest.fixture
def meta_url(tmp_path: Path) -> str:
    """Of a database without a volume."""
    return f"sqlite3://{tmp_path}/new.db"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["NAME"], "NAME"),
        (["ab"], "NAME"),
        (["abc", "--block-size", "32K"], "--block-size"),
        (["abc", "--block-size", "32M"], "--block-size"),
        (["abc", "--block-size", "3M"], "--block-size"),
        (["abc", "--block-size", "big"], "--block-size"),
        (["abc", "--capacity", "-1"], "--capacity"),
        (["abc", "--inodes", "many"], "--inodes"),
        (["abc", "--trash-days", "-1"], "--trash-days"),
        (["abc", "--compress", "gzip"], "--compress"),
        (["abc", "--storage", "tape"], "--storage"),
        (["abc", "--storage", "s3"], "--bucket"),
        (["abc", "--shards", "2"], "--shards"),
        (["abc", "--shards", "300"], "--shards"),
        (["abc", "--encrypt-rsa-key", "/nonexistent.pem"], "--encrypt-rsa-key"),
        (["abc", "--encrypt-rsa-key", "/etc/passwd"], "--encrypt-rsa-key"),
        (["abc", "--nosuch"], "--nosuch"),
        (["abc", "--tag", "novalue", "--storage", "mem", "--bucket", "x"], "--tag"),
        (["abc", "--bucket", "/proc/nonexistent"], "/proc/nonexistent"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_format(words: list[str], named: str, meta_url: str, tmp_path: Path) -> None:
    if "--bucket" not in words and "s3" not in words:
        words = [*words, "--bucket", str(tmp_path / "objects")]
    refused("format", "--quiet", meta_url, *words, named=named)


def test_unknown_scheme() -> None:
    refused("format", "foo://x", "abc", named="foo")


def test_url_without_scheme() -> None:
    refused("status", "/some/file.db", named="META-URL")


def test_directory_of_the_database_is_missing(tmp_path: Path) -> None:
    url = f"sqlite3://{tmp_path}/none/meta.db"
    refused("format", "-q", url, "abc", "--bucket", tmp_path / "o", named=url)
    assert not (tmp_path / "o" / "abc" / "juicefs_uuid").exists()


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@127.0.0.1:1/1",
        f"mysql://jfs:{SECRET}@(127.0.0.1:1)/db",
        f"postgres://jfs:{SECRET}@127.0.0.1:1/db",
    ],
)
def test_server_that_cannot_be_reached_is_named(url: str) -> None:
    refused("status", url, named="127.0.0.1:1")


@pytest.fixture(scope="module")
def guarded_redis() -> Iterator[str]:
    """Address of a server with another password."""
    with redis_server(password="other") as server:
        yield f"127.0.0.1:{server.port}"


def test_wrong_password_is_told_and_not_shown(guarded_redis: str) -> None:
    refused("status", f"redis://:{SECRET}@{guarded_redis}/1", named=guarded_redis)
    env = {"META_PASSWORD": SECRET}
    refused("status", f"redis://{guarded_redis}/1", named=guarded_redis, env=env)


def test_database_without_a_volume(meta_url: str, tmp_path: Path) -> None:
    for words in (["status", meta_url], ["config", meta_url], ["mount", meta_url, str(tmp_path)]):
        refused(*words, named="not formatted")


def test_name_of_another_volume(volume: Volume) -> None:
    refused("format", "-q", volume.meta_url, "other-name", named="vol-plain")


def test_block_size_of_a_volume_is_fixed(volume: Volume) -> None:
    words = ["format", "-q", volume.meta_url, volume.name, "--block-size", "1M"]
    refused(*words, named="block size")


def test_bucket_that_is_not_empty(volume: Volume, meta_url: str) -> None:
    words = ["format", "-q", meta_url, volume.name, "--bucket", volume.bucket]
    refused(*words, named=volume.bucket.rstrip("/"))


def test_store_that_cannot_be_reached(meta_url: str) -> None:
    bucket = "http://127.0.0.1:1/bucket"
    words = ["--storage", "minio", "--bucket", bucket, "--access-key", "a", "--secret-key", SECRET]
    refused("format", "-q", meta_url, "abc", *words, named="--bucket")


def test_bucket_that_vanished_from_a_server(s3_server: S3Server, tmp_path: Path) -> None:
    volume = new_volume(
        f"sqlite3://{tmp_path}/meta.db",
        tmp_path / "v",
        storage="minio",
        bucket=f"{s3_server.url}/jfs-vanished",
        flags=["--access-key", "a", "--secret-key", SECRET],
    )
    volume.format(OURS, "-q")
    point = tmp_path / "mnt"
    point.mkdir()
    words = ["mount", volume.meta_url, point, "--bucket", f"{s3_server.url}/jfs-other"]
    refused(*words, named="bucket")


def test_bucket_that_vanished(tmp_path: Path) -> None:
    home = tmp_path / "v"
    volume = new_volume(f"sqlite3://{tmp_path}/meta.db", home)
    volume.format(OURS, "-q")
    for path in sorted(Path(volume.bucket).rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    Path(volume.bucket).rmdir()
    point = tmp_path / "mnt"
    point.mkdir()
    refused("mount", volume.meta_url, point, named="--bucket")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--cache-dir", "/proc/none"], "--cache-dir"),
        (["--buffer-size", "1"], "--buffer-size"),
        (["--attr-cache", "soon"], "--attr-cache"),
        (["--max-uploads", "0"], "--max-uploads"),
        (["--free-space-ratio", "nan"], "--free-space-ratio"),
        (["--metrics", "nowhere"], "--metrics"),
        (["--subdir", "none", "--read-only"], "--subdir"),
        (["--log", "/proc/none/x.log", "-d"], "--log"),
        (["--fuse", "other"], "--fuse"),
        (["-o", "nosuchoption"], "nosuchoption"),
        (["--root-squash", "nobody"], "--root-squash"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mount_options(words: list[str], named: str, volume: Volume, tmp_path: Path) -> None:
    refused("mount", *words, volume.meta_url, tmp_path, named=named)


@pytest.mark.parametrize("daemon", [[], ["-d"]], ids=["foreground", "background"])
def test_mount_points(daemon: list[str], volume: Volume, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for path, reason in (
        (tmp_path / "none", "does not exist"),
        (file, "not a directory"),
        (tmp_path, "not empty"),
        (Path("/proc"), "busy"),
    ):
        words = [*daemon, "--log", str(tmp_path / "x.log"), volume.meta_url]
        assert reason in refused("mount", *words, path, named=str(path))


def test_umount_of_what_is_not_mounted(tmp_path: Path) -> None:
    assert "not mounted" in refused("umount", tmp_path, named=str(tmp_path))
    assert "no JuiceFS mount" in refused("umount", "/proc", named="/proc")


def test_info_outside_of_a_mount(tmp_path: Path) -> None:
    refused("info", tmp_path, named=str(tmp_path))
    refused("info", tmp_path / "none", named="none")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--min-client-version", "new"], "--min-client-version"),
        (["--enable-acl=false"], "--enable-acl"),
        (["--dir-stats=maybe"], "--dir-stats"),
        (["--tier", "9"], "--tier"),
        (["--trash-days", "-2"], "--trash-days"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_config(words: list[str], named: str, volume: Volume) -> None:
    refused("config", volume.meta_url, *words, named=named)


def test_config_asks_before_the_trash_is_emptied(volume: Volume) -> None:
    result = OURS.run("config", volume.meta_url, "--trash-days", "0", check=False)
    assert result.code == 1
    assert "trash will be emptied" in result.stderr
    assert "Proceed anyway?" in result.stderr


def test_session_that_is_not_there(volume: Volume) -> None:
    refused("status", volume.meta_url, "-s", "999", named="session not found")


def test_verbose_shows_where_it_failed(meta_url: str) -> None:
    result = OURS.run("status", "--verbose", meta_url, check=False)
    assert result.code == 1
    assert "Traceback" in result.stderr
