"""Cells measured in several passes: their time over all passes, and how well that is known. Pure; knows no torch.

A measurement's own `time_us_interval` comes from samples of a fraction of a second. It knows their noise, and cannot
know that the machine is in another state some seconds later: cells of 0.2 s, measured again and again on an unchanged
cluster, differ two to four times as much as their own intervals say, in one job as between jobs, with the same
connections as with new ones. So each pass counts as one sample here, whose time is its median.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from collbench.columns import aligned
from collbench.measure.samples import FEWEST_WITH_INTERVAL, interval_of_median, median, reach
from collbench.results import CELL_FIELDS, Record
from collbench.units import format_size

_CELL = tuple(name for name in CELL_FIELDS if name not in ("pass", "group_ranks"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """A cell in one group of ranks, measured several times: in passes, and in both halves of each where torch has one
    form alone.

    cell: {field of the record: value}, those that say what was measured.
    time_us: the median of the measurements' medians.  interval_us: holds the median over all times with at least 95 %
    probability, as far as those of the passes are a fair choice; a drift slower than the sweep is in no interval.
    own_reach: how far a measurement's own interval reaches, as a part of its median: the median of those that have one.
    """

    cell: dict[str, Any]
    group_ranks: tuple[int, ...]
    measured: int
    time_us: float
    interval_us: tuple[float, float]
    own_reach: float | None

    @property
    def reach(self) -> float:
        """How far the interval reaches from the time, as a part of it."""
        return reach(self.time_us, *self.interval_us)


def repeated(measurements: Iterable[Record]) -> list[Repeated]:
    """One for every cell and group that was measured often enough for an interval (six times), in the order in which
    the cells came."""
    cells: dict[tuple[Any, ...], list[Record]] = {}
    for record in measurements:
        key = (*(record.get(name) for name in _CELL), tuple(record.get("group_ranks") or ()))
        cells.setdefault(key, []).append(record)
    found = []
    for (*values, ranks), records in cells.items():
        times_us = [record["time_us"] for record in records]
        interval_us = interval_of_median(times_us)
        if interval_us is None or min(times_us) <= 0:
            continue
        own = [
            reach(record["time_us"], *record["time_us_interval"])
            for record in records
            if record.get("time_us_interval")
        ]
        found.append(
            Repeated(
                cell=dict(zip(_CELL, values, strict=True)),
                group_ranks=ranks,
                measured=len(records),
                time_us=median(times_us),
                interval_us=interval_us,
                own_reach=median(own) if own else None,
            )
        )
    return found


def repeat_lines(measurements: Iterable[Record]) -> list[str]:
    """A table under a title, a line for each cell, of its slowest group; no line where none was measured six times."""
    slowest: dict[tuple[Any, ...], Repeated] = {}
    for each in repeated(measurements):
        held = slowest.setdefault(tuple(each.cell.values()), each)
        if each.time_us > held.time_us:
            slowest[tuple(each.cell.values())] = each
    if not slowest:
        return []
    head = ("collective", "group", "type", "regime", "in place", "size", "measured", "time us", "± %", "once ± %")
    lines: list[tuple[str, ...]] = [(*head, "ranks")]
    for each in slowest.values():
        cell, ranks = each.cell, each.group_ranks
        dtype = cell["dtype"] or "-"
        lines.append(
            (
                cell["collective"],
                cell["group"] or "-",
                f"{dtype} {cell['redop']}" if cell["redop"] not in (None, "sum") else dtype,
                cell["timing"] if cell["concurrent"] is not False else f"{cell['timing']}, one at a time",
                {True: "yes", False: "no", None: "-"}[cell["in_place"]],
                format_size(cell["size_bytes"]),
                str(each.measured),
                f"{each.time_us:.2f}",
                f"{100 * each.reach:.1f}",
                "-" if each.own_reach is None else f"{100 * each.own_reach:.1f}",
                " ".join(map(str, ranks)) if len(ranks) <= 4 else str(len(ranks)),
            )
        )
    title = (
        f"what was measured {FEWEST_WITH_INTERVAL} times or more: the median, and its 95 % interval, which knows what "
        "changes from one time to the next"
    )
    return [title, *aligned(lines, left=(0, 1, 2, 3, 4, 10))]
