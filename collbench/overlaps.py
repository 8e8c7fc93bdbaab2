"""What a collective and a matrix product cost one another when they run at the same time."""

from __future__ import annotations

from collections.abc import Iterable

from collbench.columns import aligned
from collbench.results import Record
from collbench.units import format_size


def overlap_lines(overlaps: Iterable[Record]) -> list[str]:
    """`overlap` records as a table under a title, a line for each size and group; no line where there is none."""
    lines: list[tuple[str, ...]] = [
        ("collective", "group", "type", "in place", "size", "alone us", "beside us", "collective", "product", "ranks")
    ]
    for record in overlaps:
        lines.append(
            (
                record["collective"],
                record["group"],
                record["dtype"],
                "yes" if record["in_place"] else "no",
                format_size(record["size_bytes"]),
                f"{record['comm_alone_us']:.2f}",
                f"{record['comm_with_compute_us']:.2f}",
                _factor(record["comm_slowdown"]),
                _factor(record["compute_slowdown"]),
                " ".join(map(str, record["group_ranks"])) if len(record["group_ranks"]) <= 4 else str(record["nranks"]),
            )
        )
    if len(lines) == 1:
        return []
    title = "beside a matrix product: the collective's time, and how many times longer each takes than alone"
    return [title, *aligned(lines, left=(0, 1, 2, 3, 9))]


def _factor(value: float | None) -> str:
    return "-" if value is None else f"x{value:.2f}"
