"""A predicted step as a Chrome trace: what Perfetto (ui.perfetto.dev) and chrome://tracing open.

Format: "Trace Event Format", JSON object form: complete events ("X") with `ts` and `dur` in us, a track a thread, named
by metadata events ("M"). All ranks of a predicted step are alike, so there is one process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from collbench.predict.prediction import StepPrediction
from collbench.predict.timeline import COMPUTE, Call, Placed
from collbench.report.exposure import Span, length, merged, outside
from collbench.report.files import write_file

_RANK = 0  # the process: one rank stands for all
_NS_PER_MS = 1e6
_DIGITS = 6  # of ms: whole ns

Event = dict[str, Any]


def write_trace(prediction: StepPrediction, path: str | os.PathLike[str]) -> None:
    """Write `trace_of` as JSON. InputError where the file cannot be written."""
    write_file(path, (json.dumps(trace_of(prediction), allow_nan=False) + "\n").encode(), "--trace")


def trace_of(prediction: StepPrediction) -> dict[str, Any]:
    """The trace: a track a stream, computation first. On the track of the computation stands also what it waits for.

    args of a collective: what it is, its size, its group, and how much of it computation hides; of a wait: for whom.
    """
    bars = [bar for bar in prediction.timeline if bar.end_ms > bar.start_ms]
    channels = [COMPUTE, *sorted({bar.channel for bar in bars} - {COMPUTE})]
    computing = merged(_span(bar) for bar in bars if bar.stream == COMPUTE)
    events = [*_names(prediction, bars, channels)]
    events += [_event(bar.name, *_described(bar, computing), _span(bar), channels.index(bar.channel)) for bar in bars]
    for wait in outside((0.0, prediction.step_ms), computing):
        who = _waited_for(wait, bars)
        events.append(_event(f"wait: {who}", "wait", {"waits_for": who}, wait, channels.index(COMPUTE)))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {key: value for key, value in prediction.to_dict().items() if not isinstance(value, list | dict)},
    }


def _names(prediction: StepPrediction, bars: list[Placed], channels: list[str]) -> Iterator[Event]:
    """Metadata: what the process and its tracks are called, and in which order they stand."""
    placement = prediction.placement
    rank = f"each of {placement.nranks} ranks: {prediction.workload}, {prediction.strategy}"
    yield {"ph": "M", "pid": _RANK, "name": "process_name", "args": {"name": rank}}
    for track, channel in enumerate(channels):
        calls = [bar.task.work for bar in bars if bar.channel == channel]
        names = dict.fromkeys(call.collective for call in calls if isinstance(call, Call))
        title = f"{channel} ({', '.join(names)})" if names else channel
        yield {"ph": "M", "pid": _RANK, "tid": track, "name": "thread_name", "args": {"name": title}}
        yield {"ph": "M", "pid": _RANK, "tid": track, "name": "thread_sort_index", "args": {"sort_index": track}}


def _event(name: str, category: str, args: dict[str, Any], span: Span, track: int) -> Event:
    """In whole ns, so that what follows on one track begins where the last ended."""
    start_ns, end_ns = (round(time_ms * _NS_PER_MS) for time_ms in span)
    times = {"ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3}
    return {"ph": "X", "pid": _RANK, "tid": track, "name": name, "cat": category, **times, "args": args}


def _described(bar: Placed, computing: list[Span]) -> tuple[str, dict[str, Any]]:
    """(category, args): a computation's phase; whether a collective is hidden, exposed or both, and what it is."""
    call = bar.task.work
    if not isinstance(call, Call):
        return bar.task.phase, {"phase": bar.task.phase}
    exposed_ms = round(length(outside(_span(bar), computing)), _DIGITS)
    hidden_ms = round(bar.end_ms - bar.start_ms - exposed_ms, _DIGITS) + 0.0  # -0.0 is 0
    state = "hidden" if not exposed_ms else "exposed" if not hidden_ms else "partly exposed"
    return state, {
        "collective": call.collective,
        "size_bytes": call.size_bytes,
        "dtype": call.dtype,
        "group": call.group.name,
        "ranks": call.group.nranks,
        "nodes": call.group.nnodes,
        "carries": bar.task.phase,
        "state": state,
        "exposed_ms": exposed_ms,
        "hidden_ms": hidden_ms,
    }


def _waited_for(wait: Span, bars: Iterable[Placed]) -> str:
    """The collective during whose service the wait ends: what held the computation up."""
    running = [bar for bar in bars if bar.stream != COMPUTE and bar.start_ms < wait[1] <= bar.end_ms]
    return min(running, key=lambda bar: bar.end_ms).name if running else "communication"


def _span(bar: Placed) -> Span:
    return bar.start_ms, bar.end_ms
