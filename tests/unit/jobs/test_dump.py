"""JSON dumps, beside what JuiceFS 1.4.2 dumped."""

import io
import json
import uuid
from collections.abc import Iterator

import pytest

from juicepy.jobs import volume as volumes
from juicepy.jobs.dump import dump, escaped
from juicepy.meta.client import MetaClient, open_meta
from juicepy.meta.registry import open_engine
from juicepy.types import ROOT, Cred, Kind, Slice
from juicepy.volume import Format

VOLUME = Format(
    name="vol", uuid="u" * 36, secret_key="hush", trash_days=1, dir_stats=True, enable_acl=True
)


@pytest.fixture
def client() -> Iterator[MetaClient]:
    engine = open_engine(f"mem://{uuid.uuid4()}")
    volumes.store(engine, VOLUME)
    yield open_meta(engine)
    engine.close()


def dumped(client: MetaClient, **how: bool) -> tuple[str, dict]:  # type: ignore[type-arg]
    out = io.StringIO()
    dump(client.engine, client.format, out, **how)
    return out.getvalue(), json.loads(out.getvalue())


def test_escapes_are_those_of_juicefs() -> None:
    assert escaped(b'n\xff %41"\\') == "n%FF%20%2541%22%5C"
    assert escaped("é\u2028x\x7f".encode()) == "é\u2028x\x7f"
    assert escaped(b"\x00\x1f\xc3") == "%00%1F%C3"


def test_empty_volume(client: MetaClient) -> None:
    text, tree = dumped(client)
    assert list(tree) == ["Setting", "Counters", "Sustained", "DelFiles", "FSTree", "Trash"]
    assert tree["Setting"]["SecretKey"] == "removed"
    assert tree["FSTree"]["entries"] == {}
    assert '    "entries": {\n    }\n  },\n  "Trash": {' in text
    assert text.endswith("  }\n}\n")


def test_secrets_only_on_request(client: MetaClient) -> None:
    assert "hush" not in dumped(client)[0]
    assert dumped(client, keep_secrets=True)[1]["Setting"]["SecretKey"] == "hush"


def test_tree_is_written_as_juicefs_writes_it(client: MetaClient) -> None:
    root = Cred()
    directory, _ = client.mkdir(root, ROOT, b"d", 0o755, 0)
    file, _ = client.mknod(root, directory, b"f", Kind.FILE, 0o644, 0)
    client.write(file, 0, Slice(0, client.new_slice(), 2, 0, 2), 10**9)
    client.write(file, 1, Slice(5, client.new_slice(), 9, 1, 3), 10**9)
    client.setxattr(root, file, b"user.b", b'\xff v"', 0)
    client.mknod(root, ROOT, b"ln", Kind.SYMLINK, 0o777, 0, target=b'tar get%"')
    client.link(root, file, ROOT, b"hard")
    text, tree = dumped(client, skip_trash=True)
    assert "Trash" not in tree
    entries = tree["FSTree"]["entries"]
    assert list(entries) == ["d", "hard", "ln"]
    assert entries["ln"]["symlink"] == "tar%20get%25%22"
    assert entries["ln"]["attr"]["length"] == 0
    shown = entries["d"]["entries"]["f"]
    assert shown["xattrs"] == [{"name": "user.b", "value": "%FF%20v%22"}]
    assert shown["attr"]["inode"] == entries["hard"]["attr"]["inode"] == file
    assert shown["chunks"] == entries["hard"]["chunks"]
    assert (
        '            "chunks": [\n'
        '              {"index":0,"slices":[{"id":1,"size":2,"len":2}]},\n'
        '              {"index":1,"slices":[{"id":2,"pos":5,"size":9,"off":1,"len":3}]}\n'
        "            ]\n"
    ) in text
    assert f'"attr": {{"inode":{file},"type":"regular","mode":420,"uid":0,' in text


def test_tree_deeper_than_the_stack(client: MetaClient) -> None:
    parent = ROOT
    for _ in range(1200):
        parent, _ = client.mkdir(Cred(), parent, b"d", 0o755, 0)
    out = io.StringIO()
    assert dump(client.engine, client.format, out, skip_trash=True) == 1201
    assert out.getvalue().count('"d": {') == 1200


def test_trash_is_a_tree_of_its_own(client: MetaClient) -> None:
    client.mknod(Cred(), ROOT, b"f", Kind.FILE, 0o644, 0)
    client.unlink(Cred(), ROOT, b"f")
    (hour,) = dumped(client)[1]["Trash"]["entries"].values()
    assert [name.partition("-")[0] for name in hour["entries"]] == ["1"]


def test_counters_are_those_of_sql_dumps(client: MetaClient) -> None:
    client.mkdir(Cred(), ROOT, b"d", 0o755, 0)
    counters = dumped(client)[1]["Counters"]
    assert counters["usedSpace"] == 4096
    assert counters["usedInodes"] == 1
    assert list(counters)[2:] == ["nextInodes", "nextChunk", "nextSession", "nextTrash"]
