"""The page's sections on what a results file holds beyond measurements: groups together, computation beside, pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

from collbench.contention import Contention, contentions
from collbench.errors import InputError
from collbench.links import GROUPS, pair_tables
from collbench.numbers import UNKNOWN, digits, interval
from collbench.report.factors import Line, factor_figure
from collbench.report.html import element, folded, picture, section, table
from collbench.report.matrix import matrix_figure, matrix_lines
from collbench.results import Record, ResultsFile
from collbench.units import format_size

_MOST_PAIR_TABLES = 12  # with a picture


def groups_section(files: Sequence[ResultsFile]) -> str:
    """What the groups of a kind reach together, and what that costs each; nothing where no file says."""
    parts = []
    for network, measured in _networks(files, lambda file: file.measurements):
        found = contentions(measured)
        if found:
            parts += [element("h3", f"Together against alone{network}"), *_contention(found)]
    for network, aggregates in _networks(files, lambda file: file.aggregates):
        parts += [element("h3", f"All groups of a kind{network}"), *_aggregates(aggregates)]
    explanation = (
        "Groups of one kind run at the same time, as in training. The sum of their bus bandwidths is that of the "
        "stretch which all have in common, a part of the slowest group's time: where it is small, the sum says little."
    )
    return section("Groups together", element("p", explanation, "soft"), *parts) if parts else ""


def _contention(found: Sequence[Contention]) -> Iterator[str]:
    lines: dict[str, list[tuple[int, float]]] = {}
    for each in found:
        lines.setdefault(f"{each.collective} {each.group}, {each.timing}", []).append((each.size_bytes, each.ratio))
    drawn = _drawable(Line(name, points, of=name) for name, points in lines.items())
    if drawn:
        figure = factor_figure(drawn, "groups of a kind, together", "the group that is slowed most")
        yield picture(figure, "Time of a group while the others run, against alone", "small")
    head = ("collective", "group", "type", "timing", "slowed most", "size", "together, us", "alone, us", "ratio")
    rows = [
        (
            *(each.collective, each.group, _type(each.dtype, each.redop), each.timing, _ranks(each.group_ranks)),
            *(format_size(each.size_bytes), digits(each.together_us, 4), digits(each.alone_us, 4), f"{each.ratio:.2f}"),
        )
        for each in found
    ]
    yield folded(f"{len(rows)} rows", table(head, rows, 5))


def _aggregates(aggregates: Iterable[Record]) -> Iterator[str]:
    """A table a collective and kind of group: a row a size, where the slowest of halves and passes counts."""
    tables: dict[tuple[str, ...], dict[int, Record]] = {}
    for record in aggregates:
        alone = "one at a time" if record.get("concurrent") is False else ""
        kind = (record["collective"], record["group"], _type(record.get("dtype"), record.get("redop")))
        details = (record["timing"], alone, record.get("mode") or "")
        by_size = tables.setdefault((*kind, *details), {})
        held = by_size.get(record["size_bytes"])
        if held is None or record["time_us"] > held["time_us"]:
            by_size[record["size_bytes"]] = record
    head = ("size", "groups", "slowest, us", "sum of busbw, GB/s", "in common", "slowest")
    for words, by_size in tables.items():
        largest = by_size[max(by_size)]
        total = f"{digits(largest.get('busbw_GBps_sum'))} GB/s at {format_size(largest['size_bytes'])}"
        rows = [_aggregate_row(by_size[size]) for size in sorted(by_size)]
        yield folded(f"{', '.join(filter(None, words))}: {largest['groups']} groups, {total}", table(head, rows))


def _aggregate_row(record: Record) -> tuple[str, ...]:
    overlap = record.get("overlap")
    return (
        format_size(record["size_bytes"]),
        str(record["groups"]),
        digits(record["time_us"], 4),
        digits(record.get("busbw_GBps_sum")),
        UNKNOWN if overlap is None else f"{100 * overlap:.0f} %",
        _ranks(record.get("slowest_group") or ()),
    )


def overlap_section(files: Sequence[ResultsFile]) -> str:
    """How much a collective and a matrix product slow one another; nothing where no file says."""
    parts = []
    for network, overlaps in _networks(files, lambda file: file.overlaps):
        lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for record in overlaps:
            name = f"{record['collective']} {record['group']}{'' if record.get('in_place') else ', out of place'}"
            for what in ("comm", "compute"):
                if record.get(f"{what}_slowdown") is not None:
                    point = record["size_bytes"], record[f"{what}_slowdown"]
                    lines.setdefault((name, what), []).append(point)
        drawn = _drawable(
            Line(f"{name}: {_SIDES[what]}", points, of=name, dashed=what == "compute")
            for (name, what), points in lines.items()
        )
        parts += [element("h3", f"A collective beside a matrix product{network}")] if network else []
        if drawn:
            figure = factor_figure(
                drawn,
                "a collective beside a matrix product",
                "each against itself alone, medians over groups and repeats",
            )
            parts.append(picture(figure, "How many times longer a collective and a product take together", "small"))
        head = ("collective", "group", "type", "place", "ranks", "product", "size", "alone, us", "beside, us",
                "collective, times", "[95\u00a0%]", "product, times", "[95\u00a0%]")  # fmt: skip
        parts.append(folded(f"{len(overlaps)} rows", table(head, map(_overlap_row, overlaps), 6)))
    explanation = (
        "Each was timed alone and both at once. A step that hides communication behind computation pays both factors."
    )
    return section("Communication beside computation", element("p", explanation, "soft"), *parts) if parts else ""


_SIDES = {"comm": "the collective", "compute": "the product"}


def _overlap_row(record: Record) -> tuple[str, ...]:
    return (
        record["collective"],
        record["group"],
        _type(record.get("dtype"), record.get("redop")),
        "in" if record.get("in_place") else "out",
        _ranks(record.get("group_ranks") or ()),
        str(record.get("product") or UNKNOWN),
        format_size(record["size_bytes"]),
        digits(record["comm_alone_us"], 4),
        digits(record["comm_with_compute_us"], 4),
        *_factor(record, "comm"),
        *_factor(record, "compute"),
    )


def _factor(record: Record, what: str) -> tuple[str, str]:
    value, ends = record.get(f"{what}_slowdown"), record.get(f"{what}_slowdown_interval")
    return UNKNOWN if value is None else f"{value:.2f}", interval(ends) if ends else UNKNOWN


def pairs_section(files: Sequence[ResultsFile]) -> str:
    """A picture for every collective that was measured between pairs, with its text; nothing where none was."""
    parts = []
    for file in files:
        if all(record.get("group") not in GROUPS for record in file.measurements):
            continue
        try:
            tables = pair_tables(file)
        except InputError as reason:
            parts.append(element("p", str(reason)))
            continue
        for of_pairs in tables[:_MOST_PAIR_TABLES]:
            name = f"{of_pairs.collective}, {of_pairs.group}"
            parts.append(picture(matrix_figure([of_pairs]), f"Bandwidth and latency of every pair: {name}", "wide"))
            parts.append(folded(f"{name} as text", element("pre", "\n".join(matrix_lines(of_pairs)))))
        if len(tables) > _MOST_PAIR_TABLES:
            parts.append(element("p", f"{len(tables) - _MOST_PAIR_TABLES} more tables: 'collbench show --matrix'"))
    return section("Pairs", *parts) if parts else ""


def _networks(
    files: Sequence[ResultsFile], records_of: Callable[[ResultsFile], list[Record]]
) -> Iterator[tuple[str, list[Record]]]:
    """(words that tell it from others, its records) for every backend and number of ranks, where it has any: what was
    measured over different networks is not compared."""
    found: dict[tuple[str, int], list[Record]] = {}
    for file in files:
        networks = {run["run_id"]: (str(run.get("backend")), run.get("world_size") or 0) for run in file.runs}
        for record in records_of(file):
            found.setdefault(networks[record["run_id"]], []).append(record)
    for (backend, ranks), records in found.items():
        yield f": {backend}, {ranks} ranks" if len(found) > 1 else "", records


def _drawable(lines: Iterable[Line]) -> list[Line]:
    """Lines with a point a size, the median; without what has no place on a logarithmic axis."""
    kept = []
    for line in lines:
        by_size: dict[int, list[float]] = {}
        for size_bytes, factor in line.points:
            by_size.setdefault(size_bytes, []).append(factor)
        points = [(size, median(by_size[size])) for size in sorted(by_size) if size > 0]
        kept += [line._replace(points=points)] if points else []
    return kept


def _type(dtype: str | None, redop: str | None) -> str:
    return " ".join(word for word in (dtype or UNKNOWN, None if redop == "sum" else redop) if word)


def _ranks(ranks: Sequence[int]) -> str:
    """The ranks of a group, or its first and last ones."""
    words = list(map(str, ranks))
    return " ".join(words if len(words) <= 4 else [*words[:2], "…", words[-1]]) or UNKNOWN
