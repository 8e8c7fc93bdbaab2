"""Rows of nccl-tests' tables -> tables of measurements: what belongs together, and who took part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from collbench.collectives import COLLECTIVES
from collbench.importers.derived import count_in
from collbench.importers.evidence import share
from collbench.importers.nccl_comments import Device, Run
from collbench.importers.nccl_layout import Layout
from collbench.importers.nccl_row import Half, RowText, per_iteration
from collbench.importers.table import Refusal, Row, Table

_NOT_LABELLED = ("", "")
# (redop, root) columns before 2.13 -> the collectives whose table had them.
_OLD_COLUMNS = {
    (False, False): ("all_gather_into_tensor", "send_recv", "hypercube"),
    (True, False): ("all_reduce", "reduce_scatter_tensor", "all_to_all_single"),
    (False, True): ("broadcast", "gather", "scatter"),
    (True, True): ("reduce",),
}
_MOST_IN_TURNS = 0.6  # of the sizes come again where two runs write in turns: one of them may be cut short
_MODES = (("unalign", 0), ("agg_iters", 1), ("blocking", 0), ("cudagraph", 0))


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A row where it stands."""

    line: int
    row: RowText
    layout: Layout
    tokens: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether its size, time and bandwidth may belong to one row; coarse, to choose between two readings."""
        for half in self.row.halves:
            time, algbw = half.values.get("time"), half.values.get("algbw")
            if time is None or algbw is None or algbw.value < 1 or not time.value:
                continue
            said = (
                self.row.size / (time.value * self.layout.time_factor * 1e3) / (algbw.value * self.layout.rate_factor)
            )
            if not 0.9 < said < 1.1:
                return False
        return True

    @property
    def cell(self) -> tuple[Any, ...]:
        row = self.row
        return row.size, row.count, row.dtype, row.redop, row.root


def tables_of(name: str, line: int, rows: list[ReadRow], run: Run) -> Iterator[Table | Refusal]:
    """The tables that the rows under one header make: several where a leading column or their order says so."""
    if any("cputime" in half for half in rows[0].layout.halves):
        yield Refusal(line, "the times are those of the host's calls (-C, cputime), not of the operations")
        return
    labelled: dict[tuple[str, str], list[ReadRow]] = {}
    for row in rows:
        label = row.row.label if row.row.label is not None and row.row.label[0] != "?" else _NOT_LABELLED
        labelled.setdefault(label, []).append(row)
    for label, group in labelled.items():
        layers = _layers(group, run.jobs)
        for index, layer in enumerate(layers):
            table = _table(name, line if len(labelled) == 1 else layer[0][0].line, layer, run)
            if label is not _NOT_LABELLED and label[1].isdigit() and int(label[1][:8]) > 0:
                what = "nnodes" if label[0] == "nodes" else "nranks"
                setattr(table, what, int(label[1][:8]))
            if len(layers) > 1:
                table.notes.append(
                    f"rows of {len(layers)} runs alternate under one header; whose a row is, is told by their order "
                    f"alone: these are each size's row {index + 1}"
                )
            yield table


def _layers(rows: list[ReadRow], jobs: int) -> list[list[tuple[ReadRow, int]]]:
    """[(row, pass)] of each run. Sizes that come again are passes of one run where a whole pass ends before the next
    begins, or where sizes were rounded; runs side by side where each size comes as often as the others, in turns."""
    seen: dict[tuple[Any, ...], int] = {}
    numbered = []
    for row in rows:
        number = seen.get(row.cell, 0)
        seen[row.cell] = number + 1
        numbered.append((row, number))
    times = [count for cell, count in seen.items() if cell[0] > 0]
    repeated = sum(count > 1 for count in times)
    passes = [number for row, number in numbered if row.row.size > 0]
    rounded = any((share(row.row.size, row.row.count, row.row.dtype) or 1) > 1 for row in rows) and jobs < 2
    in_turns = repeated > _MOST_IN_TURNS * len(times) and passes != sorted(passes) and not rounded
    if not in_turns:
        # Sizes that were rounded to one, as to 0, are no passes: the last of them counts where one is shown.
        are_passes = passes == sorted(passes)
        return [[(row, number if are_passes and row.row.size else 0) for row, number in numbered]]
    layers: list[list[tuple[ReadRow, int]]] = [[] for _ in range(max(number for _, number in numbered) + 1)]
    for row, number in numbered:
        layers[number].append((row, 0))
    return layers


def _table(name: str, line: int, numbered: list[tuple[ReadRow, int]], run: Run) -> Table:
    layout = numbered[0][0].layout
    table = Table(
        format=name,
        line=line,
        timing="pipelined",
        collective=run.program,
        backend="rccl" if run.is_rccl else "nccl",
        versions=dict(run.versions),
        hints={what: list(hints) for what, hints in run.hints.items()},
        possible=tuple(_possible([row for row, _ in numbered])),
    )
    if run.options:
        table.more["options"] = dict(run.options)
    if layout.in_place == (None,):
        if run.is_rccl:  # its -O 0 leaves out the first half
            table.notes.append("the table has one half and does not say whether it is in place")
        else:
            table.inferred["in_place"] = (
                "false: the table has one half and does not name it, and the first is out of place"
            )
    if run.failed and any("error" in half for half in layout.halves):
        table.notes.append(f"{run.failed} checks FAILED, and this layout does not say in which rows")
    _add_devices(table, run)
    merged: list[tuple[ReadRow, int, int]] = []
    for row, number in numbered:
        if merged and row.row.size and merged[-1][0].tokens == row.tokens:
            before, at, requests = merged[-1]
            merged[-1] = (before, at, requests + 1)
        else:
            merged.append((row, number, 1))
    for row, number, requests in merged:
        table.rows += _rows(row, number, requests, run, table)
    busbw = [row.busbw_GBps.value for row in table.rows if row.busbw_GBps is not None]
    if run.average_GBps is not None and len(busbw) == len(table.rows) and busbw:
        mean = sum(busbw) / len(busbw)
        if abs(mean - run.average_GBps) > 0.01 + 0.002 * abs(run.average_GBps):
            table.notes.append(
                f"the footer's average, {run.average_GBps:g} GB/s, is not that of these rows ({mean:.4g}): "
                "rows were left out of this log, or are not of one run"
            )
    return table


def _rows(read: ReadRow, number: int, requests: int, run: Run, table: Table) -> Iterator[Row]:
    row, layout = read.row, read.layout
    tail = dict(zip(layout.tail, row.tail, strict=False))
    more: dict[str, Any] = {"pass": number} if number else {}
    if requests > 1:
        more["requests"] = requests
    if "iters" in run.options:
        more["iterations"] = run.options["iters"]
    mode = " ".join(f"{word}={run.options[word]}" for word, plain in _MODES if run.options.get(word, plain) != plain)
    if run.is_uneven:
        mode = f"{mode} alltoallv".strip()
    if mode:
        more["mode"] = mode
    if "timestamp" in tail and len(row.tail) == len(layout.tail) + 1:
        more["measured"] = "T".join(row.tail[-2:])
    for half in row.halves:
        yield from _measured(read, half, more | _of_kernel({**tail, **half.texts}), table)


def _measured(read: ReadRow, half: Half, more: dict[str, Any], table: Table) -> Iterator[Row]:
    row, layout = read.row, read.layout
    time = half.values.get("time")
    if time is None:
        return  # a form that was not measured
    error = half.values.get("error")
    if error is not None:
        more = more | {"max_error": error.value}
    samples = per_iteration(half, layout.time_factor)
    if samples is not None:
        more = more | {"per_iter": samples}
    rates = (half.values.get("algbw"), half.values.get("busbw"))
    algbw, busbw = (rate and rate.times(layout.rate_factor) for rate in rates)
    yield Row(
        line=read.line,
        size_bytes=row.size,
        time_us=time.times(layout.time_factor),
        count=row.count,
        dtype=row.dtype,
        redop=row.redop or None,
        root=row.root,
        in_place=half.in_place if half.in_place is not None or table.backend == "rccl" else False,
        wrong=count_in(half.values.get("wrong")),
        algbw_GBps=algbw,
        busbw_GBps=busbw,
        more=more,
    )


def _of_kernel(texts: dict[str, str]) -> dict[str, Any]:
    """What rccl-tests' -A adds: the algorithm, protocol and channels that were chosen."""
    found: dict[str, Any] = {}
    for name, to in (("algo", "algorithm"), ("proto", "protocol")):
        if texts.get(name, "N/A") != "N/A":
            found[to] = texts[name][:40]
    if texts.get("nchannels", "")[:6].isdigit():
        found["channels"] = int(texts["nchannels"][:6])
    return found


def _possible(rows: list[ReadRow]) -> Iterator[str]:
    """The collectives whose table has these columns and words."""
    layout = rows[0].layout
    has_redop, has_root = "redop" in layout.first, "root" in layout.first
    redops, roots = {row.row.redop for row in rows}, {row.row.root for row in rows}
    checked = [_is_checked(rows, in_place) for in_place in (False, True)]
    for collective in COLLECTIVES.values():
        prints_redop = collective.reduces or collective.table_redop == "sum"
        if has_redop and has_root:
            if prints_redop != bool(redops - {None, ""}) or ("" in redops) != (collective.table_redop == ""):
                continue
            if collective.rooted != bool(roots - {None}):
                continue
            if checked[0] and checked[1] is not None and checked[1] != collective.in_place:
                continue
        elif "type" in layout.first and collective.name not in _OLD_COLUMNS[has_redop, has_root]:
            continue
        yield collective.name


def _is_checked(rows: list[ReadRow], in_place: bool) -> bool | None:
    """Whether this half's data were checked in any row; None where the table has no such half or column."""
    halves = [half for row in rows for half in row.row.halves if half.in_place is in_place and "wrong" in half.texts]
    return any("wrong" in half.values for half in halves) if halves else None


# --- who took part --------------------------------------------------------------------------------------------------


def _add_devices(table: Table, run: Run) -> None:
    """Ranks, nodes and groups as the list of devices has them; what an elided list implies becomes a hint."""
    by_rank = {device.rank: device for device in run.devices}
    if not by_rank:
        return
    highest = max(by_rank)
    devices = [by_rank[rank] for rank in sorted(by_rank)]
    if set(by_rank) == set(range(highest + 1)):
        groups: dict[int, int] = {}
        for device in devices:
            groups[device.group] = groups.get(device.group, 0) + 1
        if len(set(groups.values())) == 1:
            table.nranks = next(iter(groups.values()))
        else:
            table.notes.append(f"{len(groups)} groups of unequal size ran at once: {sorted(groups.values())}")
        if len(groups) > 1:
            table.more["groups_at_once"] = len(groups)
            table.notes.append(f"{len(groups)} groups of {table.nranks} ran at once; the times are means over them")
        if len({device.pid for device in devices}) == 1 and devices[0].pid is not None and devices[0].host is None:
            table.nnodes = 1
            table.inferred["nnodes"] = "one process has all devices"
        if all(device.host is not None for device in devices):
            table.nodes = _nodes(devices)
            table.nnodes = len(table.nodes) if len(groups) == 1 else None
        return
    table.hints.setdefault("nranks", []).append((highest + 1, f"the highest rank shown, {highest}"))
    each = max(device.number for device in devices) + 1
    table.more["ranks_per_node"] = each
    first = devices[0].name
    if first:
        table.more["device"] = first


def _nodes(devices: list[Device]) -> list[dict[str, Any]]:
    nodes: dict[str, dict[str, Any]] = {}
    for device in devices:
        node = nodes.setdefault(device.host or "", {"host": device.host, "ranks": [], "devices": []})
        node["ranks"].append(device.rank)
        node["devices"].append(device.name or "?")
    return list(nodes.values())
