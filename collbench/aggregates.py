"""What groups of one kind reach when they run together: the slowest of them, and the bandwidth of all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from collbench.columns import aligned
from collbench.results import Record
from collbench.units import format_size

_TABLE = ("collective", "group", "dtype", "redop", "root", "timing", "concurrent", "mode")


def aggregate_lines(aggregates: Iterable[Record]) -> list[str]:
    """A table of `aggregate` records under a title, one line for each table at its largest size, where the slowest of
    halves and passes counts; no line where there is none."""
    largest: dict[tuple[Any, ...], Record] = {}
    for record in aggregates:
        key = tuple(record.get(name) for name in _TABLE)
        held = largest.get(key)
        if held is None or _weight(record) > _weight(held):
            largest[key] = record
    if not largest:
        return []
    lines: list[tuple[str, ...]] = [
        (
            "collective",
            "group",
            "type",
            "regime",
            "size",
            "groups",
            "slowest us",
            "sum busbw GB/s",
            "in common",
            "slowest",
        )
    ]
    for record in largest.values():
        dtype, redop = record.get("dtype") or "-", record.get("redop")
        total, overlap = record.get("busbw_GBps_sum"), record.get("overlap")
        lines.append(
            (
                record["collective"],
                record["group"],
                f"{dtype} {redop}" if redop not in (None, "sum") else dtype,
                record["timing"] if record.get("concurrent") is not False else f"{record['timing']}, one at a time",
                format_size(record["size_bytes"]),
                str(record["groups"]),
                f"{record['time_us']:.2f}",
                "-" if total is None else f"{total:.3f}",
                "-" if overlap is None else f"{100 * overlap:.0f} %",
                f"ranks {' '.join(map(str, record.get('slowest_group') or ()))}",
            )
        )
    title = "groups of a kind: the slowest, and what all carry in the stretch that they have in common"
    return [title, *aligned(lines, left=(0, 1, 2, 3, 9))]


def _weight(record: Record) -> tuple[int, float]:
    return record["size_bytes"], record["time_us"]
