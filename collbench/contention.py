"""What groups of one kind cost one another: the same cell measured together and one group at a time.

Pure arithmetic over measurement records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from collbench.columns import aligned
from collbench.results import Record
from collbench.units import format_size

_CELL = ("collective", "group", "dtype", "redop", "root", "timing", "mode", "size_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """One size of one collective: its time while the other groups of the kind run too, and alone.

    Both times are those of the group that is slowed most, each the median over halves and passes.
    """

    collective: str
    group: str
    group_ranks: tuple[int, ...]
    dtype: str | None
    redop: str | None
    timing: str
    size_bytes: int
    together_us: float
    alone_us: float

    @property
    def ratio(self) -> float:
        return self.together_us / self.alone_us


def contentions(measurements: Iterable[Record]) -> list[Contention]:
    """One for every cell that is there both concurrent and alone, in the order in which the cells came."""
    cells: dict[tuple[Any, ...], dict[tuple[int, ...], dict[tuple[bool, Any, Any], float]]] = {}
    for record in measurements:
        ranks, concurrent = record.get("group_ranks"), record.get("concurrent")
        if ranks and concurrent is not None:
            groups = cells.setdefault(tuple(record.get(name) for name in _CELL), {})
            # The last of a repeated measurement counts.
            form = (concurrent, record.get("in_place"), record.get("pass"))
            groups.setdefault(tuple(ranks), {})[form] = record["time_us"]
    found = []
    for (collective, kind, dtype, redop, _, timing, _, size_bytes), groups in cells.items():
        if len(groups) < 2:
            continue  # one group is always alone
        of_groups = []
        for ranks, times in groups.items():
            both = {form[1:] for form in times if form[0]} & {form[1:] for form in times if not form[0]}
            if both:
                together, alone = (median(times[now, *form] for form in both) for now in (True, False))
                of_groups.append((together / alone, ranks, together, alone))
        if of_groups:
            _, ranks, together, alone = max(of_groups)
            found.append(
                Contention(
                    collective=collective,
                    group=str(kind),
                    group_ranks=ranks,
                    dtype=dtype,
                    redop=redop,
                    timing=timing,
                    size_bytes=size_bytes,
                    together_us=together,
                    alone_us=alone,
                )
            )
    return found


def contention_lines(measurements: Iterable[Record]) -> list[str]:
    """The contentions as a table under a title, each collective's sizes in order; no line where there is none."""
    found = contentions(measurements)
    if not found:
        return []
    tables: dict[tuple[Any, ...], list[Contention]] = {}
    for each in found:
        key = (each.collective, each.group, each.dtype, each.redop, each.timing)
        tables.setdefault(key, []).append(each)
    lines: list[tuple[str, ...]] = [
        ("collective", "group", "type", "regime", "size", "together us", "alone us", "ratio", "slowed most")
    ]
    for each in (each for of_table in tables.values() for each in sorted(of_table, key=lambda each: each.size_bytes)):
        dtype = each.dtype or "-"
        lines.append(
            (
                each.collective,
                each.group,
                f"{dtype} {each.redop}" if each.redop not in (None, "sum") else dtype,
                each.timing,
                format_size(each.size_bytes),
                f"{each.together_us:.2f}",
                f"{each.alone_us:.2f}",
                f"{each.ratio:.2f}",
                f"ranks {' '.join(map(str, each.group_ranks))}",
            )
        )
    title = "contention: the groups of a kind together, against one after the other"
    return [title, *aligned(lines, left=(0, 1, 2, 3, 8))]
