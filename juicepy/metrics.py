"""Metrics: what this client counts, under the names JuiceFS gives them (spec: mount surface, 2).

Every attribute of `Metrics` is named like its metric without the prefix `juicefs_`. Two texts come
from it: `exposition()` for Prometheus, with the labels of the mount on each sample, and `stats()`
for the virtual file `.stats`, with the labels `method` and `errno` in the name.

Own instruments stand where a request passes: `OpTimes` costs 0.4 us where the library's counter,
counter and histogram cost 2.5 us. The library's exposition would call each counter `..._total`;
JuiceFS does so only with those in `_TOTALS`.
"""

from __future__ import annotations

import errno
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from juicepy import runtime

logger = logging.getLogger(__name__)

C = TypeVar("C", bound=Collector)

PREFIX = "juicefs_"
_TOTALS = {
    "juicefs_fuse_ops",
    "juicefs_meta_ops",
    "juicefs_juicefs_bgjob_deletions",
    "juicefs_process_cpu_seconds",
    "juicefs_process_network_receive_bytes",
    "juicefs_process_network_transmit_bytes",
}

_GAUGES = (
    "blockcache_blocks",
    "blockcache_bytes",
    "cpu_usage",
    "memory",
    "uptime",
    "fuse_open_handlers",
    "go_goroutines",
    "go_memstats_alloc_bytes",
    "go_memstats_sys_bytes",
    "go_threads",
    "last_backup_duration",
    "last_successful_backup",
    "object_request_uploading",
    "process_virtual_memory_max_bytes",
    "staging_block_bytes",
    "staging_blocks",
    "staging_writing_blocks",
    "store_cache_size_bytes",
    "used_buffer_size_bytes",
    "used_read_buffer_size_bytes",
    "used_space",
    "used_inodes",
    "total_space",
    "total_inodes",
)

_COUNTED_ELSEWHERE = (
    "blockcache_drops",
    "blockcache_evicts",
    "blockcache_hits",
    "blockcache_hit_bytes",
    "blockcache_miss",
    "blockcache_miss_bytes",
    "blockcache_writes",
    "blockcache_write_bytes",
    "meta_tracking_drops",
    "meta_tracking_hits",
    "meta_tracking_lost",
    "meta_tracking_pushes",
    "process_network_receive_bytes",
    "process_network_transmit_bytes",
    "staging_block_delay_seconds",
    "staging_block_errors",
    "staging_write_bytes",
)

_OF_THE_PROCESS: dict[str, Callable[[], float]] = {
    "cpu_usage": runtime.cpu_seconds,
    "memory": runtime.resident_bytes,
    "go_goroutines": runtime.python_threads,
    "go_threads": runtime.threads,
    "go_memstats_alloc_bytes": runtime.resident_bytes,
    "go_memstats_sys_bytes": runtime.address_bytes,
    "process_virtual_memory_max_bytes": runtime.address_limit,
    "process_network_receive_bytes": runtime.received_bytes,
    "process_network_transmit_bytes": runtime.sent_bytes,
}


def exponential(first: float, factor: float, count: int) -> list[float]:
    """`count` upper bounds of buckets, each `factor` times the one before."""
    return [first * factor**k for k in range(count)]


class OpTimes:
    """Counts and times operations by method, and all of them in one histogram. Thread-safe.

    As a collector it yields `<stem>_total{method}`, `seconds{method}` and the histogram.
    """

    def __init__(self, stem: str, seconds: str, histogram: str, bounds: Sequence[float]) -> None:
        self._names = (PREFIX + stem, PREFIX + seconds, PREFIX + histogram)
        self._bounds = list(bounds)
        self._lock = Lock()  # guards _methods and _buckets; a bare one: taken on every request
        self._methods: dict[str, list[float]] = {}
        self._buckets = [0] * (len(self._bounds) + 1)

    def observe(self, method: str, seconds: float) -> None:
        bucket = bisect_left(self._bounds, seconds)
        with self._lock:
            times = self._methods.get(method)
            if times is None:
                times = self._methods[method] = [0, 0.0]
            times[0] += 1
            times[1] += seconds
            self._buckets[bucket] += 1

    def totals(self) -> dict[str, tuple[int, float]]:
        """Method -> (count, seconds)."""
        with self._lock:
            return {name: (int(n), s) for name, (n, s) in sorted(self._methods.items())}

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            methods = {name: tuple(times) for name, times in sorted(self._methods.items())}
            buckets = list(self._buckets)
        count = CounterMetricFamily(self._names[0], "Operations.", labels=["method"])
        spent = CounterMetricFamily(self._names[1], "Seconds in operations.", labels=["method"])
        for name, (n, seconds) in methods.items():
            count.add_metric([name], n)
            spent.add_metric([name], seconds)
        yield count
        yield spent
        total = sum(seconds for _, seconds in methods.values())
        yield _histogram_family(self._names[2], "Latency.", self._bounds, buckets, total)


class Distribution:
    """A histogram without labels that costs little; observed values are summed."""

    def __init__(self, name: str, bounds: Sequence[float]) -> None:
        self._name = PREFIX + name
        self._bounds = list(bounds)
        self._lock = Lock()  # guards _buckets and _sum
        self._buckets = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        bucket = bisect_left(self._bounds, value)
        with self._lock:
            self._buckets[bucket] += 1
            self._sum += value

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            buckets, total = list(self._buckets), self._sum
        name = self._name
        yield _histogram_family(name, "Distribution.", self._bounds, buckets, total)


class WatchedCounter:
    """A counter whose value is kept elsewhere and asked for at each snapshot."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.source: Callable[[], float] = lambda: 0.0

    def collect(self) -> Iterable[Metric]:
        yield CounterMetricFamily(PREFIX + self._name, _help(self._name), self.source())


class Metrics:
    """All metrics of one client, in a registry of their own.

    `labels` stand on each exposed sample: instance, juicefs_version, mp, vol_name and custom ones.
    """

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self.labels = dict(labels or {})
        self.registry = CollectorRegistry()
        self._gauges = {name: self._gauge(name) for name in _GAUGES}
        self._watched: dict[str, WatchedCounter] = {}
        self._declare_hot()
        self._declare_counters()
        self._declare_histograms()
        self.subdir_info = self._gauge("subdir_info", "subdir")
        started = time.monotonic()
        self.watch("uptime", lambda: time.monotonic() - started)
        for name, source in _OF_THE_PROCESS.items():
            self.watch(name, source)
        ProcessCollector(namespace=PREFIX.rstrip("_"), registry=self.registry)

    def _declare_hot(self) -> None:
        fine = exponential(1e-5, 1.8, 29)
        coarse = exponential(1e-4, 1.5, 30)
        self.fuse_ops = self._add(
            OpTimes(
                "fuse_ops",
                "fuse_ops_durations_seconds",
                "fuse_ops_durations_histogram_seconds",
                fine,
            )
        )
        self.meta_ops = self._add(
            OpTimes(
                "meta_ops",
                "meta_ops_duration_seconds",
                "meta_ops_durations_histogram_seconds",
                coarse,
            )
        )
        sizes = [4096.0 * k for k in range(1, 33)]
        self.fuse_read_size_bytes = self._add(Distribution("fuse_read_size_bytes", sizes))
        self.fuse_written_size_bytes = self._add(Distribution("fuse_written_size_bytes", sizes))
        self.transaction_durations_histogram_seconds = self._add(
            Distribution("transaction_durations_histogram_seconds", coarse)
        )

    def _declare_counters(self) -> None:
        counter = self._counter
        for name in _COUNTED_ELSEWHERE:
            self._watched[name] = self._add(WatchedCounter(name))
        self.fuse_ops_io_errors = counter("fuse_ops_io_errors", "errno")
        self.transaction_restart = counter("transaction_restart", "method")
        self.object_request_data_bytes = counter(
            "object_request_data_bytes", "method", "storage_class"
        )
        self.object_request_errors = counter("object_request_errors")
        # the doubled prefix is JuiceFS's
        self.bgjob_deletions = counter("juicefs_bgjob_deletions_total", "job")

    def _declare_histograms(self) -> None:
        histogram = self._histogram
        quick = exponential(1e-5, 2, 20)
        self.blockcache_read_hist_seconds = histogram("blockcache_read_hist_seconds", quick)
        self.blockcache_write_hist_seconds = histogram("blockcache_write_hist_seconds", quick)
        self.object_request_durations_histogram_seconds = histogram(
            "object_request_durations_histogram_seconds",
            exponential(0.01, 1.5, 25),
            "method",
            "storage_class",
        )
        self.compact_size_histogram_bytes = histogram(
            "compact_size_histogram_bytes", exponential(1024, 2, 16)
        )
        self.bgjob_duration_seconds = histogram(
            "juicefs_bgjob_duration_seconds", exponential(1, 2, 13), "job", "status"
        )

    def watch(self, name: str, source: Callable[[], float]) -> None:
        """Let `source` tell the value at each snapshot; where it fails with OSError it is 0.

        For every gauge, and for the counters of `_COUNTED_ELSEWHERE`.
        """

        def value() -> float:
            try:
                return float(source())
            except OSError as error:
                logger.warning("metric %s is not known now: %s", name, error)
                return 0.0

        if name in self._watched:
            self._watched[name].source = value
        else:
            self._gauges[name].set_function(value)

    def set(self, gauge: str, value: float) -> None:
        self._gauges[gauge].set(value)

    def object_request(
        self, method: str, seconds: float, size: int = 0, storage_class: str = "STANDARD"
    ) -> None:
        """One request to the object store has ended; `size` is the bytes of data moved."""
        labels = (method, "" if method == "DELETE" else storage_class)
        self.object_request_durations_histogram_seconds.labels(*labels).observe(seconds)
        if size:
            self.object_request_data_bytes.labels(*labels).inc(size)

    def fuse_failed(self, error: OSError) -> None:
        code = error.errno or errno.EIO
        self.fuse_ops_io_errors.labels(errno.errorcode.get(code, str(code))).inc()

    def collector(self, collector: Collector) -> None:
        """Add metrics whose labels change (quotas)."""
        self.registry.register(collector)

    def exposition(self) -> bytes:
        """The text format of Prometheus, 0.0.4."""
        return "".join(self._expose()).encode()

    def stats(self) -> bytes:
        """The text of `.stats`: `name value` lines."""
        return "".join(sorted(self._lines())).encode()

    # -- private
    def _expose(self) -> Iterator[str]:
        for family in sorted(self.registry.collect(), key=lambda family: family.name):
            total = "_total" if family.type == "counter" and family.name in _TOTALS else ""
            yield f"# HELP {family.name}{total} {family.documentation}\n"
            yield f"# TYPE {family.name}{total} {family.type}\n"
            for sample in _samples(family):
                labels = {**sample.labels, **self.labels}
                text = ",".join(f'{name}="{_escaped(labels[name])}"' for name in sorted(labels))
                braces = "{" + text + "}" if text else ""
                yield f"{sample.name}{braces} {_go(sample.value)}\n"

    def _lines(self) -> Iterator[str]:
        for family in self.registry.collect():
            for sample in _samples(family):
                name = sample.name
                if family.type == "histogram":
                    if name.endswith("_bucket"):
                        continue
                    name = name.removesuffix("_count").removesuffix("_sum")
                for label in ("errno", "method", "dir"):
                    if label in sample.labels:
                        name = f"{name}_{sample.labels[label]}"
                if family.type == "histogram":
                    name += "_sum" if sample.name.endswith("_sum") else "_total"
                yield f"{name} {_decimal(sample.value)}\n"

    def _add(self, collector: C) -> C:
        self.registry.register(collector)
        return collector

    def _gauge(self, name: str, *labels: str) -> Gauge:
        return Gauge(PREFIX + name, _help(name), labels, registry=self.registry)

    def _counter(self, name: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, _help(name), labels, registry=self.registry)

    def _histogram(self, name: str, bounds: Sequence[float], *labels: str) -> Histogram:
        return Histogram(PREFIX + name, _help(name), labels, buckets=bounds, registry=self.registry)


def _samples(family: Metric) -> Iterator[Sample]:
    """The samples of a family under JuiceFS's names, without the library's creation times."""
    for sample in family.samples:
        if sample.name == family.name + "_created":
            continue
        if family.type == "counter" and family.name not in _TOTALS:
            sample = sample._replace(name=family.name)
        yield sample


def _histogram_family(
    name: str, text: str, bounds: Sequence[float], buckets: Sequence[int], total: float
) -> Metric:
    counted, cumulative = 0, []
    for bound, n in zip([*map(_go, bounds), "+Inf"], buckets, strict=True):
        counted += n
        cumulative.append((bound, float(counted)))
    return HistogramMetricFamily(name, text, buckets=cumulative, sum_value=total)


def _help(name: str) -> str:
    return name.replace("_", " ").capitalize() + "."


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _go(value: float) -> str:
    """As Go prints a float, which is what Prometheus reads."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]  # the library's


def _decimal(value: float) -> str:
    """Without an exponent, as the readers of `.stats` want it."""
    if value == int(value):
        return str(int(value))
    return f"{value:.12f}".rstrip("0")
