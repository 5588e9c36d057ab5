"""What this process uses: the figures behind the metrics of JuiceFS's Go runtime and process.

Its Grafana dashboard shows them; `go_goroutines` are threads here, `go_memstats_alloc_bytes` is
the resident memory, `go_memstats_sys_bytes` the address space.
"""

from __future__ import annotations

import os
import resource
import threading

_PAGE = os.sysconf("SC_PAGESIZE")


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident_bytes() -> int:
    return _statm(1)


def address_bytes() -> int:
    return _statm(0)


def address_limit() -> float:
    """As Go tells it: without a limit the largest number of 64 bits."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return float((1 << 64) - 1 if limit == resource.RLIM_INFINITY else limit)


def python_threads() -> int:
    return threading.active_count()


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def received_bytes() -> int:
    return _traffic("InOctets")


def sent_bytes() -> int:
    return _traffic("OutOctets")


def _statm(field: int) -> int:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[field]) * _PAGE


def _traffic(name: str) -> int:
    """A counter of the network that the process is in; 0 where it is not told."""
    try:
        with open("/proc/self/net/netstat", encoding="ascii") as file:
            rows = [line.split() for line in file if line.startswith("IpExt:")]
    except FileNotFoundError:
        return 0
    names, values = rows
    return int(dict(zip(names, values, strict=True))[name])
