#!/usr/bin/env python3
"""Puts what `bench/beside.py --json` measured into a page: tables, and a plot beside it.

    python bench/tables.py bench.json docs/performance.md

Replaces what stands between the two marks of the page. Needs matplotlib: the extra `bench`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "juicepy"  # the same figures give the same file

import matplotlib.pyplot as plt  # noqa: E402

BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"

Row = dict[str, Any]


def ratios(row: Row) -> list[float]:
    """Ours over the peer's of each round; of memory the other way round: more is better."""
    pairs = zip(row["jfs"], row["juicefs"], strict=True)
    if row["phase"] == "memory":
        return [peer / ours for ours, peer in pairs]
    return [ours / peer for ours, peer in pairs]


def ratio(row: Row) -> float:
    return statistics.median(ratios(row))


def setup(row: Row) -> str:
    return f"{row['meta']}, {row['storage']}"


def table(rows: list[Row]) -> Iterator[str]:
    yield "| workload | phase | jfs | juicefs | unit | ratio | of the rounds |"
    yield "|---|---|---:|---:|---|---:|---|"
    for row in rows:
        ours, peer = (statistics.median(row[name]) for name in ("jfs", "juicefs"))
        spread = f"{min(ratios(row)):.2f} to {max(ratios(row)):.2f}"
        yield (
            f"| {row['workload']} | {row['phase']} | {ours:,.0f} | {peer:,.0f} "
            f"| {row['unit']} | {ratio(row):.2f} | {spread} |"
        )


def plot(rows: list[Row], path: Path) -> None:
    """A bar a phase and setup, on a logarithmic scale about 1."""
    setups = list(dict.fromkeys(map(setup, rows)))
    labels = list(dict.fromkeys(f"{row['workload']}: {row['phase']}" for row in rows))
    height = 0.8 / len(setups)
    figure, axes = plt.subplots(figsize=(8, 1 + 0.2 * len(labels) * max(1, len(setups) / 2)))
    for number, name in enumerate(setups):
        mine = [row for row in rows if setup(row) == name]
        places = [labels.index(f"{row['workload']}: {row['phase']}") for row in mine]
        widths = [ratio(row) - 1 for row in mine]
        axes.barh([at + number * height for at in places], widths, height, left=1, label=name)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks([at + 0.4 - height / 2 for at in range(len(labels))], labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("rate of jfs / rate of juicefs (memory: juicefs / jfs)")
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def figures(found: Row, picture: str) -> str:
    where = found["machine"]
    lines = [
        f"{where['date']}, Linux {where['kernel']}, {where['cores']} cores, "
        f"Python {where['python']}; `{where['jfs']}`, `{where['juicefs']}`. "
        "Medians of the rounds; made by",
        "",
        f"    {found['command']}",
        "",
        f"![ratios]({picture})",
    ]
    for name, rows in groupby(found["rows"], setup):
        lines += ["", f"### {name}", "", *table(list(rows))]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("json", type=Path)
    parser.add_argument("page", type=Path)
    given = parser.parse_args()
    found = json.loads(given.json.read_text())
    picture = given.page.with_suffix(".svg")
    plot(found["rows"], picture)
    before, _, rest = given.page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    given.page.write_text(f"{before}{BEGIN}{figures(found, picture.name)}{END}{after}")


if __name__ == "__main__":
    main()
