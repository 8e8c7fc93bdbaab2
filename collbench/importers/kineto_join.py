"""The calls of one or several ranks' traces -> rows: a call's time is from its last arrival to its last completion.

A rank's own duration of a call includes its wait for the others (pytorch/pytorch#194908): only the rank that comes last
does not wait. With the traces of several ranks a call, matched by its group and its number there, lasts from the latest
start to the latest end. That takes one clock: on one host it is given (Kineto converts GPU times to the host's clock),
between hosts it is assumed, and a rank that is done before another one begins, which no exchange of all with all
allows, disproves it. Then the shortest of the ranks' durations is taken, which needs no common clock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from typing import Any

from collbench.collectives import COLLECTIVES
from collbench.importers.kineto_trace import Call, Group, Trace
from collbench.importers.table import Printed, Refusal, Row, Table

_NAME = "kineto"
_WAITS = "waits included"
# Nobody leaves these before everybody has come.
_ALL_WAIT = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")

_Key = tuple[str, int, tuple[int, ...] | None, str]  # group and collective
_OfRanks = dict[int, list[Call]]


@dataclass(frozen=True, slots=True)
class _Time:
    """One call as a whole. first: of the calls on the ranks, the one of the lowest rank."""

    first: Call
    ns: int
    size_bytes: int


@dataclass(slots=True)
class _Times:
    """What the calls of one group took."""

    times: list[_Time] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    waits_included: bool = False


def tables(traces: Sequence[Trace]) -> Iterator[tuple[list[int], Table | Refusal]]:
    """(indices of the traces it is made of, lowest rank first; table) of the traces of one job.

    Each process group and each collective in it has its own table.
    """
    numbers, left_out = _numbers(traces), _left_out(traces)
    members: dict[_Key, _OfRanks] = defaultdict(dict)
    for rank, own in _by_rank(traces).items():
        for call in own:
            group = call.group
            members[(group.name, group.size, group.ranks, call.collective)].setdefault(rank, []).append(call)
    for calls in members.values():
        found = _alone(calls) if len(calls) == 1 else _together(calls, traces)
        indices = [index for rank in sorted(calls) for index, number in enumerate(numbers) if number == rank]
        for each in [found] if isinstance(found, Refusal) else _table(found, traces):
            if isinstance(each, Table):
                each.notes += left_out
                left_out = []  # once
            yield indices, each


def _numbers(traces: Sequence[Trace]) -> list[int]:
    """The rank of each trace; one below 0 where it does not say."""
    return [trace.rank if trace.rank is not None else -1 - index for index, trace in enumerate(traces)]


def _by_rank(traces: Sequence[Trace]) -> _OfRanks:
    """Each rank's calls in the order of their start; those of several traces of one rank together, each once."""
    ranks: dict[int, dict[tuple[Any, ...], Call]] = defaultdict(dict)
    for rank, trace in zip(_numbers(traces), traces, strict=True):
        for call in trace.calls:
            ranks[rank].setdefault((call.start_ns, call.end_ns, call.collective, call.group, call.sequence), call)
    return {rank: sorted(ranks[rank].values(), key=lambda call: call.start_ns) for rank in sorted(ranks)}


def _alone(calls: _OfRanks) -> _Times:
    """One rank's own times."""
    [(rank, own)] = calls.items()
    of_rank = f"rank {rank}'s" if rank >= 0 else "one rank's"
    note = f"{of_rank} own durations, its waits for the others included: give the traces of all ranks together"
    return _Times([_Time(call, call.end_ns - call.start_ns, call.size_bytes) for call in own], [note], True)


def _together(calls: _OfRanks, traces: Sequence[Trace]) -> _Times | Refusal:
    matched, unmatched = _matched(calls)
    call = next(iter(calls.values()))[0]
    if not matched:
        numbers = ", ".join(f"rank {rank}: {len(own)}" for rank, own in list(calls.items())[:8])
        reason = f"its {call.collective} calls in process group {call.group.name!r} cannot be matched ({numbers})"
        return Refusal(call.line, f"{reason}: import one trace alone")
    found = _Times()
    if unmatched:
        found.notes.append(f"{unmatched} calls left out: not in the traces of all ranks, or not alike there")
    if len(calls) < call.group.size:
        found.notes.append(
            f"traces of {len(calls)} of {call.group.size} ranks: a rank without one may have come later still"
        )
    contradictions = [skew for each in matched if (skew := _skew_ns(each)) > 0]
    hosts = {trace.host for trace in traces if trace.calls}
    if contradictions:
        found.notes.append(
            f"in {len(contradictions)} of {len(matched)} calls a rank is done up to {max(contradictions) / 1000:g} us "
            "before another begins: their clocks differ; the shortest duration of each call is taken"
        )
    elif len(hosts) > 1:
        found.notes.append(f"from the last arrival on; the clocks of {len(hosts)} hosts are taken as one")
    else:
        found.notes.append("from the last arrival on")
    for each in matched:
        if contradictions:
            length = min(one.end_ns - one.start_ns for one in each)
        else:
            length = max(one.end_ns for one in each) - max(one.start_ns for one in each)
        found.times.append(_Time(each[0], length, max(one.size_bytes for one in each)))
    return found


def _matched(calls: _OfRanks) -> tuple[list[list[Call]], int]:
    """(the same call on each rank, lowest rank first; how many calls of the first rank have no match).

    By the number of a call in its group; where there are none by their order, if all ranks have as many.
    """
    numbered = all(call.sequence is not None for own in calls.values() for call in own)
    if not numbered and len({len(own) for own in calls.values()}) > 1:
        return [], 0
    by_number: list[dict[tuple[int, int], Call]] = []
    for own in calls.values():
        seen: dict[int, int] = defaultdict(int)
        numbers: dict[tuple[int, int], Call] = {}
        for order, call in enumerate(own):
            number = call.sequence if numbered and call.sequence is not None else order
            numbers[(number, seen[number])] = call
            seen[number] += 1
        by_number.append(numbers)
    first, *others = by_number
    matched = []
    for key, call in first.items():
        each = [call, *(own[key] for own in others if key in own)]
        if len(each) == len(by_number) and all(_alike(call, other) for other in each):
            matched.append(each)
    return matched, len(first) - len(matched)


def _alike(call: Call, other: Call) -> bool:
    return call.dtype == other.dtype and (call.size_bytes == other.size_bytes or call.uneven or other.uneven)


def _skew_ns(each: list[Call]) -> int:
    """How far clocks must differ for this call to be possible; 0 where they need not."""
    last_start = max(call.start_ns for call in each)
    if each[0].collective in _ALL_WAIT:
        return max(0, last_start - min(call.end_ns for call in each))
    return max(0, last_start - max(call.end_ns for call in each) + 1)


# --- rows ------------------------------------------------------------------------------------------------------------


def _table(found: _Times, traces: Sequence[Trace]) -> Iterator[Table | Refusal]:
    timeless = [time for time in found.times if time.ns <= 0]
    if timeless:
        yield Refusal(timeless[0].first.line, f"{len(timeless)} {timeless[0].first.collective} calls took no time")
    cells: dict[tuple[Any, ...], list[_Time]] = defaultdict(list)
    for time in found.times:
        first = time.first
        if time.ns > 0:
            cells[(time.size_bytes, first.count, first.dtype, first.redop, first.uneven)].append(time)
    if cells:
        table = _head(found.times[0].first, traces)
        table.notes += found.notes
        table.rows = [_row(repeats, found.waits_included, traces) for repeats in cells.values()]
        yield table


def _head(call: Call, traces: Sequence[Trace]) -> Table:
    backend = next((trace.backend for trace in traces if trace.backend), None)
    table = Table(format=_NAME, line=call.line, timing="isolated", is_document=True)
    table.collective, table.backend = call.collective, backend
    table.nranks, table.nnodes = call.group.size, _nodes(call.group, traces)
    sizes = {trace.world_size for trace in traces if trace.world_size}
    if len(sizes) == 1:
        table.more["world_size"] = sizes.pop()
    table.more["traces"] = [trace.name for trace in traces]
    ranks = call.group.ranks
    table.more["groups"] = {_kind(call.group, traces): [list(ranks)]} if ranks is not None else {}
    if table.nnodes is not None:
        table.inferred["nnodes"] = "the hosts that the traces name"
    if not all(trace.on_gpu for trace in traces):
        table.notes.append("no GPU kernels in the trace: times are those of spans on the CPU")
        if backend == "gloo" and call.collective == "all_reduce":
            table.notes.append("gloo runs reduce_scatter as an all_reduce: such calls are among these")
    if any(trace.is_cut for trace in traces):
        table.notes.append("a trace has no end: what is whole of it was read")
    return table


def _left_out(traces: Sequence[Trace]) -> list[str]:
    """A note on the calls of which no table is made."""
    skipped: Counter[str] = sum((trace.skipped for trace in traces), Counter())
    listed = ", ".join(f"{count} {name}" for name, count in sorted(skipped.items())[:12])
    return [f"calls that are no collective of this program left out: {listed}"] if listed else []


def _nodes(group: Group, traces: Sequence[Trace]) -> int | None:
    """The hosts of all its ranks; None where one is not known."""
    hosts = {trace.rank: trace.host for trace in traces}
    found = {hosts.get(rank) for rank in group.ranks or (-1,)}
    return None if None in found else len(found)


def _row(repeats: list[_Time], waits_included: bool, traces: Sequence[Trace]) -> Row:
    call = repeats[0].first
    times_us = sorted(time.ns / 1000 for time in repeats)
    more: dict[str, Any] = {"iterations": len(times_us), "group": _kind(call.group, traces)}
    if call.group.ranks is not None:
        more["group_ranks"] = list(call.group.ranks)
    if len(times_us) > 1:
        middle, late = median(times_us), times_us[ceil(0.95 * len(times_us)) - 1]
        more |= {"time_min_us": times_us[0], "time_p50_us": middle, "time_p95_us": late, "time_max_us": times_us[-1]}
    words = [word for word, holds in (("uneven", call.uneven), (_WAITS, waits_included)) if holds]
    if words:
        more["mode"] = " ".join(words)
    collective = COLLECTIVES[call.collective]
    return Row(
        line=call.line,
        size_bytes=repeats[0].size_bytes,
        time_us=Printed(median(times_us), 2 * call.half_step_us),
        count=call.count,
        dtype=call.dtype,
        redop=call.redop,
        in_place=collective.in_place if collective.in_place != collective.out_of_place else None,
        more=more,
    )


def _kind(group: Group, traces: Sequence[Trace]) -> str:
    """The results file's word for a group: `world`, `intra`, `inter`, else what torch calls it."""
    world = next((trace.world_size for trace in traces if trace.world_size), None)
    if group.size == world or (world is None and group.description == "default_pg"):
        return "world"
    nodes = _nodes(group, traces)
    if nodes == 1:
        return "intra"
    if nodes == group.size:
        return "inter"
    return group.description if group.description not in ("", "undefined") else f"group {group.name}"
