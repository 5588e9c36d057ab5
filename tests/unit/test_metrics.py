from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families

from juicepy.metrics import Metrics


@pytest.fixture
def metrics() -> Metrics:
    return Metrics({"vol_name": "vola", "mp": '/mnt/"a"'})


def exposed(metrics: Metrics) -> dict[str, str]:
    text = metrics.exposition().decode()
    return dict(
        line.rsplit(" ", 1)  # type: ignore[misc]  # two parts each
        for line in text.splitlines()
        if not line.startswith("#")
    )


def stats(metrics: Metrics) -> dict[str, str]:
    return dict(line.split(" ") for line in metrics.stats().decode().splitlines())  # type: ignore[misc]


def test_counters_keep_the_names_of_juicefs(metrics: Metrics) -> None:
    metrics.watch("blockcache_hits", lambda: 3)
    metrics.fuse_ops.observe("read", 0.5)
    metrics.bgjob_deletions.labels("trash").inc()
    found = exposed(metrics)
    mount = '{mp="/mnt/\\"a\\"",vol_name="vola"}'
    assert found["juicefs_blockcache_hits" + mount] == "3.0"
    assert found['juicefs_fuse_ops_total{method="read",mp="/mnt/\\"a\\"",vol_name="vola"}'] == "1.0"
    assert not [name for name in found if "_created" in name]
    assert [name for name in found if name.startswith("juicefs_juicefs_bgjob_deletions_total{")]


def test_type_lines_name_the_samples_below_them(metrics: Metrics) -> None:
    metrics.fuse_ops.observe("read", 0.5)
    kind = ""
    for line in metrics.exposition().decode().splitlines():
        if line.startswith("# TYPE"):
            kind, stem = line.split(" ")[3], line.split(" ")[2]
        elif not line.startswith("#"):
            name = re.split("[{ ]", line)[0]
            allowed = {stem}
            if kind == "histogram":
                allowed = {stem + end for end in ("_bucket", "_count", "_sum")}
            assert name in allowed


def test_histogram_buckets_are_cumulative(metrics: Metrics) -> None:
    for seconds in (0.000005, 0.00001, 0.00002, 1e6):
        metrics.fuse_ops.observe("read", seconds)
    family = next(f for f in metrics.registry.collect() if "fuse_ops_durations_histogram" in f.name)
    counts = [s.value for s in family.samples if s.name.endswith("_bucket")]
    assert counts[0] == 2
    assert counts[2] == 3
    assert counts[-2] == 3
    assert counts[-1] == 4


def test_stats_carry_method_and_errno_in_the_name(metrics: Metrics) -> None:
    metrics.fuse_ops.observe("mkdir", 0.25)
    metrics.fuse_ops.observe("mkdir", 0.25)
    metrics.object_request("PUT", 0.125, 4096)
    metrics.object_request("DELETE", 0.125)
    metrics.fuse_failed(FileNotFoundError(2, "no"))
    found = stats(metrics)
    assert found["juicefs_fuse_ops_total_mkdir"] == "2"
    assert found["juicefs_fuse_ops_durations_seconds_mkdir"] == "0.5"
    assert found["juicefs_fuse_ops_durations_histogram_seconds_total"] == "2"
    assert found["juicefs_fuse_ops_durations_histogram_seconds_sum"] == "0.5"
    assert found["juicefs_object_request_data_bytes_PUT"] == "4096"
    assert found["juicefs_object_request_durations_histogram_seconds_DELETE_total"] == "1"
    assert found["juicefs_fuse_ops_io_errors_ENOENT"] == "1"
    assert int(found["juicefs_memory"]) > 1 << 20


def test_stats_have_no_exponent(metrics: Metrics) -> None:
    metrics.set("used_space", 1e20)
    metrics.fuse_ops.observe("read", 0.0000001)
    assert all(
        re.fullmatch(r"\S+ -?[0-9.]+", line) for line in metrics.stats().decode().split("\n")[:-1]
    )
    assert stats(metrics)["juicefs_used_space"] == "1" + "0" * 20


def test_failing_gauge_source_does_not_spoil_the_snapshot(metrics: Metrics) -> None:
    def broken() -> float:
        raise OSError(5, "database is away")

    metrics.watch("used_space", broken)
    metrics.watch("used_inodes", lambda: 7)
    found = stats(metrics)
    assert found["juicefs_used_space"] == "0"
    assert found["juicefs_used_inodes"] == "7"


def test_no_observation_of_many_threads_is_lost(metrics: Metrics) -> None:
    def work() -> None:
        for _ in range(2000):
            metrics.fuse_ops.observe("read", 0.001)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work) for _ in range(4)]:
            done.result()
    assert metrics.fuse_ops.totals()["read"][0] == 8000


def test_exposition_is_what_prometheus_reads(metrics: Metrics) -> None:
    metrics.fuse_ops.observe("read", 0.5)
    metrics.object_request("PUT", 0.125, 4096)
    families = list(text_string_to_metric_families(metrics.exposition().decode()))
    types = {family.name: family.type for family in families}
    assert types["juicefs_blockcache_hits"] == "counter"
    assert types["juicefs_used_space"] == "gauge"
    assert types["juicefs_fuse_ops_durations_histogram_seconds"] == "histogram"
    assert "unknown" not in types.values()
    samples = [sample for family in families for sample in family.samples]
    assert all(sample.labels["vol_name"] == "vola" for sample in samples)
