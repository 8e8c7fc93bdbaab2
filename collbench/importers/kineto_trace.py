"""One PyTorch profiler trace (Kineto) -> the collective calls of its rank.

NCCL: Kineto copies what torch knows of a call (`record_param_comms`) to the kernel it launched, whose time on the GPU
is the call's: from the rank's arrival to its completion, its wait for the others included. gloo: torch marks the span
in which a call runs (`gloo:all_reduce`) and, with record_shapes=True, its tensors; of the group it says nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from collbench.collectives import COLLECTIVES, REDOPS
from collbench.dtypes import DTYPES
from collbench.importers.evidence import MOST_RANKS
from collbench.importers.json_text import Lines, Walk, integer, number, parsed, text_of
from collbench.importers.source import Log
from collbench.importers.table import Refusal
from collbench.importers.words import collective_named, dtype_named, is_uneven

_EVENTS = "traceEvents"
_OF_CPP = {"long int": "int64", "unsigned char": "uint8", "signed char": "int8"}
_LONGEST_LIST = 1_000_000  # characters of a list of ranks

Ranks = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that a call is among. ranks: None where the trace does not name them all."""

    name: str
    size: int
    ranks: Ranks | None
    description: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective call on one rank. Times in ns on the trace's clock; exact to `half_step_us`.

    sequence: the call's number in its group, None before torch 2.12 and on gloo.
    """

    line: int
    collective: str
    group: Group
    dtype: str
    redop: str | None
    size_bytes: int
    count: int | None  # None where the shares differ
    uneven: bool
    sequence: int | None
    start_ns: int
    end_ns: int
    half_step_us: float


@dataclass(slots=True)
class Trace:
    """What one file says. on_gpu: the calls' times are kernels', else spans on the CPU.  skipped: calls by name."""

    name: str
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    host: str | None = None
    on_gpu: bool = True
    calls: list[Call] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    refusals: list[Refusal] = field(default_factory=list)
    is_cut: bool = False


@dataclass(slots=True)
class _Span:
    """An event that may be a call: its arguments, and its times."""

    line: int
    name: str
    arguments: dict[str, Any]
    start_ns: int
    end_ns: int
    half_step_us: float

    @property
    def external_id(self) -> str:
        return str(self.arguments.get("External id", ""))


@dataclass(slots=True)
class _Found:
    """The spans of a trace, by what they are. parameters: of `record_param_comms`, by External id."""

    kernels: list[_Span] = field(default_factory=list)
    operations: list[_Span] = field(default_factory=list)
    gloo: list[_Span] = field(default_factory=list)
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    members: dict[str, Any] = field(default_factory=dict)


def read_trace(log: Log) -> Trace:
    """The calls of a trace; what is no trace, or holds no call, has none."""
    text = log.text()
    if text.lstrip()[:1] == "[":
        text = '{"traceEvents":' + text  # Chrome's older form, the list alone
    trace, found = Trace(log.name), _Found()
    lines, walk = Lines(text), Walk(text, max(0, text.find("{")))
    for key, at, value in walk.members(_EVENTS):
        if key == _EVENTS:
            _sort(value, at, lines, found)
        else:
            found.members[key] = value
    trace.is_cut = not walk.whole and walk.torn_at is not None
    _describe(trace, found)
    _fill(trace, found)
    return trace


def _sort(event: Any, at: int, lines: Lines, found: _Found) -> None:
    if not isinstance(event, dict):
        return
    name, category, arguments = event.get("name"), event.get("cat"), event.get("args")
    if type(name) is not str or not isinstance(arguments, dict) or event.get("ph") != "X":
        return
    if category == "kernel" and ("Collective name" in arguments or name.lower().startswith(("nccl", "rccl", "msccl"))):
        kind = found.kernels
    elif name == "record_param_comms":
        kind = found.operations
    elif category in ("user_annotation", "cpu_op") and name.startswith("gloo:"):
        kind = found.gloo
    else:
        return
    start, length = _ns(event.get("ts")), _ns(event.get("dur"))
    printed = number(event.get("dur"))
    if start is None or length is None or printed is None or length < 0:
        return
    span = _Span(lines.at(at), name, arguments, start, start + length, printed.half_step)
    kind.append(span)
    if kind is found.operations and span.external_id:
        found.parameters[span.external_id] = arguments


def _ns(value: Any) -> int | None:
    """Microseconds, `5149338402514.778`, as whole nanoseconds, without going through a float."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    whole, _, fraction = value.partition(".")
    if not whole.removeprefix("-").isdecimal() or not (fraction or "0").isdecimal():
        known = number(value)
        return None if known is None or abs(known.value) > 1e18 else round(known.value * 1000)
    part = int((fraction + "000")[:3])
    return int(whole) * 1000 + (-part if whole.startswith("-") else part)


def _describe(trace: Trace, found: _Found) -> None:
    information = found.members.get("distributedInfo")
    information = information if isinstance(information, dict) else {}
    trace.rank, trace.world_size = integer(information.get("rank")), integer(information.get("world_size"))
    trace.backend = text_of(information.get("backend")).rpartition(":")[2] or None
    trace.host = text_of(found.members.get("host_name")) or None
    base = integer(found.members.get("baseTimeNanoseconds")) or 0
    for span in (*found.kernels, *found.operations, *found.gloo):
        span.start_ns += base
        span.end_ns += base
    if trace.rank is None:
        ranks = {integer(span.arguments.get("Rank")) for span in (*found.operations, *found.kernels)} - {None}
        trace.rank = ranks.pop() if len(ranks) == 1 else None


def _fill(trace: Trace, found: _Found) -> None:
    groups = _groups(found.members)
    if found.kernels:
        _take(trace, _merged(found), groups)
    elif found.gloo:
        trace.on_gpu = False
        _take_gloo(trace, found.gloo, groups)
    elif found.operations and trace.backend in ("nccl", "rccl"):
        reason = "has no GPU kernels, and how long the CPU takes to start a call is not its time"
        trace.refusals.append(Refusal(found.operations[0].line, f"{reason}: profile with ProfilerActivity.CUDA too"))
    elif found.operations:
        trace.on_gpu = False
        _take(trace, found.operations, groups)


def _groups(members: dict[str, Any]) -> dict[str, Group]:
    """The process groups that `distributedInfo` lists, by name."""
    information = members.get("distributedInfo")
    listed = information.get("pg_config") if isinstance(information, dict) else None
    groups = {}
    for each in listed if isinstance(listed, list) else []:
        if isinstance(each, dict):
            ranks = _ranks(each.get("ranks"))
            size = integer(each.get("pg_size")) or len(ranks or ())
            name = text_of(each.get("pg_name"))
            whole = ranks if ranks and len(ranks) == size else None
            groups[name] = Group(name, size, whole, text_of(each.get("pg_desc")))
    return groups


def _ranks(value: Any) -> Ranks | None:
    """`[0, 1]` as a list or as its text; None where it is cut (`[0, 1, ...]`)."""
    if type(value) is str and len(value) <= _LONGEST_LIST:
        value = parsed(value)
    if not isinstance(value, list):
        return None
    ranks = [integer(rank) for rank in value]
    return tuple(rank for rank in ranks if rank is not None) if None not in ranks else None


def _merged(found: _Found) -> list[_Span]:
    """The kernels with all that is known of their calls; several kernels of one call are one span."""
    spans: dict[tuple[Any, ...], _Span] = {}
    for index, kernel in enumerate(found.kernels):
        arguments = found.parameters.get(kernel.external_id, {}) | kernel.arguments
        span = replace(kernel, arguments=arguments)
        told = [str(arguments.get(name)) for name in ("Collective name", "Process Group Name", "Seq", "In msg nelems")]
        key = (kernel.external_id, *told) if kernel.external_id else (index,)
        if (first := spans.get(key)) is None:
            spans[key] = span
        else:
            first.start_ns, first.end_ns = min(first.start_ns, span.start_ns), max(first.end_ns, span.end_ns)
    return list(spans.values())


# --- NCCL: what record_param_comms says ------------------------------------------------------------------------------


def _take(trace: Trace, spans: list[_Span], groups: dict[str, Group]) -> None:
    untold = 0
    for span in spans:
        named = span.arguments.get("Collective name")
        if type(named) is not str:
            untold += 1
        elif collective_named(named) is None:
            trace.skipped[named[:40]] += 1
        else:
            made = _call(span, groups)
            if isinstance(made, Call):
                trace.calls.append(made)
            else:
                trace.refusals.append(Refusal(span.line, f"{named[:40]}: {made}"))
    if untold:
        reason = "do not say which collective they are of: torch 2.2 and later write that into the trace"
        trace.refusals.append(Refusal(spans[0].line, f"{untold} communication kernels {reason}"))


def _call(span: _Span, groups: dict[str, Group]) -> Call | str:
    told = span.arguments
    named = text_of(told.get("Collective name"))
    dtype, group = dtype_named(told.get("dtype")), _group(told, groups)
    sent, received = integer(told.get("In msg nelems")), integer(told.get("Out msg nelems"))
    if dtype is None:
        return f"its dtype is {str(told.get('dtype'))[:40]!r}, which is none of {', '.join(DTYPES)}"
    if group is None:
        return "no group size"
    if sent is None or received is None:
        return "no message sizes"
    elements = _elements(str(collective_named(named)), sent, received, group.size)
    if elements is None:
        return f"{sent} elements in and {received} out do not fit a group of {group.size}"
    total, count = elements
    uneven = is_uneven(named) and (sent != received or _is_split(told))
    return _made(span, named, group, dtype, total, None if uneven else count, uneven, integer(told.get("Seq")))


def _made(
    span: _Span, named: str, group: Group, dtype: str, total: int, count: int | None, uneven: bool, sequence: int | None
) -> Call:
    collective = COLLECTIVES[str(collective_named(named))]
    words = span.name[:200].split("_")
    redop = next((word.lower() for word in words if word.lower() in REDOPS), None) if collective.reduces else None
    size_bytes = total * DTYPES[dtype].itemsize
    times = span.start_ns, span.end_ns, span.half_step_us
    return Call(span.line, collective.name, group, dtype, redop, size_bytes, count, uneven, sequence, *times)


def _is_split(told: dict[str, Any]) -> bool:
    """Whether a rank's shares differ: `In split size` is `[]` where they are equal."""
    shares = [_ranks(told.get(name)) for name in ("In split size", "Out split size")]
    return any(share is None or len(set(share)) > 1 for share in shares)


def _elements(collective: str, sent: int, received: int, nranks: int) -> tuple[int, int] | None:
    """(elements of nccl-tests' size, its count); None where the two sides contradict the number of ranks."""
    kind = COLLECTIVES[collective]
    if kind.sends_shares and kind.receives_shares:
        total = max(sent, received)
        return total, total // nranks
    if not kind.divided:
        return (max(sent, received),) * 2 if sent == received or 0 in (sent, received) else None
    share, whole = (sent, received) if kind.receives_shares else (received, sent)
    if kind.rooted and whole in (0, share):  # what a rank that is not the root tells
        whole = share * nranks
    return (whole, share) if whole == share * nranks else None


def _group(told: dict[str, Any], groups: dict[str, Group]) -> Group | None:
    name = str(told.get("Process Group Name", ""))[:200]
    known = groups.get(name)
    size = integer(told.get("Group size")) or (known.size if known else None)
    if not size or size > MOST_RANKS:
        return None
    ranks = _ranks(told.get("Process Group Ranks"))
    if (ranks is None or len(ranks) != size) and known is not None and known.size == size:
        ranks = known.ranks
    if ranks is None or len(ranks) != size:
        first, step = integer(told.get("Global rank start")), integer(told.get("Global rank stride"))
        ranks = tuple(range(first, first + size * step, step)) if first is not None and step else None
    description = text_of(told.get("Process Group Description")) or (known.description if known else "")
    return Group(name, size, ranks, description)


# --- gloo: spans without a group -------------------------------------------------------------------------------------


def _take_gloo(trace: Trace, spans: list[_Span], groups: dict[str, Group]) -> None:
    group = _only_group(groups, trace.world_size)
    shapeless = 0
    for span in spans:
        named = span.name.removeprefix("gloo:")[:40]
        collective, dtype, elements = collective_named(named), _gloo_dtype(span), _gloo_elements(span)
        if collective is None:
            trace.skipped[named] += 1
        elif group is None:
            reason = "gloo's spans do not say their group, and this job has several"
            trace.refusals.append(Refusal(span.line, f"{named}: {reason}"))
            return
        elif dtype is None or elements is None:
            shapeless += 1
        else:
            kind = COLLECTIVES[collective]
            count = elements // group.size if kind.sends_shares and kind.receives_shares else elements
            total = elements * group.size if kind.sends_shares != kind.receives_shares else elements
            trace.calls.append(_made(span, named, group, dtype, total, count, False, None))
    if shapeless:
        reason = "calls without the shape and type of their tensors: profile with record_shapes=True"
        trace.refusals.append(Refusal(spans[0].line, f"{shapeless} {reason}"))


def _only_group(groups: dict[str, Group], world_size: int | None) -> Group | None:
    """The group of all calls, where all groups of the job have the same ranks."""
    if len({(group.size, group.ranks) for group in groups.values()}) == 1:
        return next(iter(groups.values()))
    return Group("", world_size, tuple(range(world_size))) if world_size and not groups else None


def _gloo_dtype(span: _Span) -> str | None:
    types = span.arguments.get("Input type")
    first = text_of(types[0]) if isinstance(types, list) and types else ""
    return _OF_CPP.get(first) or dtype_named(first.removeprefix("c10::"))


def _gloo_elements(span: _Span) -> int | None:
    """Elements of one rank's contribution: of all tensors of a coalesced call, of one of a scatter's list."""
    shapes = span.arguments.get("Input Dims")
    if not isinstance(shapes, list) or not shapes:
        return None
    counts = []
    for shape in shapes[:1] if span.name == "gloo:scatter" else shapes:
        sides = [integer(side) for side in shape] if isinstance(shape, list) and len(shape) <= 64 else [None]
        if None in sides:
            return None
        counts.append(prod(side for side in sides if side is not None))
    total = sum(counts)
    return total if total < 2**60 else None
