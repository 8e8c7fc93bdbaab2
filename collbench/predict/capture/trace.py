"""How long each layer takes, from a trace of torch.profiler: Chrome's JSON, as `export_chrome_trace` writes it.

The trace must have been taken with_stack=True, which has the calls of modules. What counts is the time of kernels, at
the place of their launch; without kernels that of CPU operations. Backward operations are those of the layer whose
forward operation has the same sequence number. Communication does not count.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from collbench.errors import InputError
from collbench.predict.capture.spent import Spent, medians

_MODULE = "nn.Module: "
_BACKWARD = "autograd::engine::evaluate_function"
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_COMMUNICATION = ("nccl", "c10d::", "gloo:", "record_param_comms")


@dataclass(frozen=True, slots=True)
class _Span:
    """A stretch of time of a thread, in µs; `what`: a layer, or a class of module."""

    start: float
    end: float
    thread: Any
    what: str


@dataclass(frozen=True, slots=True)
class _Cost:
    """Time that passed for what a thread did at some moment."""

    at: float
    thread: Any
    ms: float


class _Spans:
    """Spans that do not cut one another, to be asked for the innermost at a moment."""

    def __init__(self, spans: Iterable[_Span]) -> None:
        self.spans = sorted(spans, key=lambda span: (span.start, -span.end))
        self._starts = [span.start for span in self.spans]
        self._latest = list(accumulate((span.end for span in self.spans), max))  # end of any up to there

    def at(self, moment: float, thread: Any) -> _Span | None:
        for index in range(bisect_right(self._starts, moment) - 1, -1, -1):
            span = self.spans[index]
            if span.thread == thread and span.end > moment:
                return span
            if self._latest[index] <= moment:
                return None
        return None


def trace_ms(path: str | Path, forward: Sequence[str], classes: Mapping[str, Sequence[str]]) -> tuple[Spent, str]:
    """(ms of each layer, the median over the trace's steps; in words what they are).

    forward: layers in the order in which forward enters them.  classes: the names of each one's class or classes.
    InputError where the trace cannot be read, or is not of such a model.
    """
    events = _read(path)
    steps = _steps(path, _modules(events), forward, classes)
    starts = [step[0].start for step in steps]
    layers = [_Spans(step) for step in steps]
    backward = _Spans(_backward(events, layers, starts))
    begins = _begins(starts, backward)
    runs: list[Spent] = [Counter() for _ in steps]
    for cost in _costs(events):
        number = bisect_right(starts, cost.at) - 1
        if number < 0:
            continue
        behind = backward.at(cost.at, cost.thread)
        if behind is not None:
            runs[number]["backward", behind.what] += cost.ms  # type: ignore[assignment]
        elif cost.at < begins[number]:
            span = layers[number].at(cost.at, cost.thread)
            runs[number]["forward", span.what if span else ""] += cost.ms  # type: ignore[assignment]
    return medians(runs), f"from the trace {Path(path).name}, medians of {len(steps)} steps"


def _read(path: str | Path) -> list[dict[str, Any]]:
    try:
        data = Path(path).read_bytes()
        document = json.loads(gzip.decompress(data) if str(path).endswith(".gz") else data)
        events = document["traceEvents"]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: is no trace of torch.profiler (JSON with traceEvents)") from None
    return [event for event in events if event.get("ph") == "X" and "ts" in event]


def _span(event: Mapping[str, Any], what: str) -> _Span:
    start = float(event["ts"])
    return _Span(start, start + float(event.get("dur", 0)), (event.get("pid"), event.get("tid")), what)


def _modules(events: Sequence[Mapping[str, Any]]) -> list[_Span]:
    """Calls of modules, by class, as they begin."""
    calls = [event for event in events if event["name"].startswith(_MODULE)]
    spans = [_span(event, event["name"].removeprefix(_MODULE).rpartition("_")[0]) for event in calls]
    return sorted(spans, key=lambda span: (span.start, -span.end))


def _steps(
    path: str | Path, modules: Sequence[_Span], forward: Sequence[str], classes: Mapping[str, Sequence[str]]
) -> list[list[_Span]]:
    """The layers' spans in each whole forward of the trace. `fully_shard` puts FSDP before the name of a class."""
    steps: list[list[_Span]] = []
    found: list[_Span] = []
    inside: list[_Span] = []
    for module in modules:
        inside = [span for span in inside if span.end > module.start]
        layer = forward[len(found)]
        if not all(layer.startswith(f"{span.what}.") for span in inside):
            continue  # a part of a layer
        if module.what.removeprefix("FSDP") in classes[layer] or module.what in classes[layer]:
            found.append(_Span(module.start, module.end, module.thread, layer))
            inside.append(found[-1])
            if len(found) == len(forward):
                steps.append(found)
                found = []
    if not steps:
        missing = forward[len(found)]
        reason = f"no call of {missing} ({classes[missing][0]})" if modules else "no calls of modules"
        raise InputError(f"{path}: has {reason}: profile this model with_stack=True, a whole step of it")
    return steps


def _backward(events: Sequence[Mapping[str, Any]], layers: Sequence[_Spans], starts: Sequence[float]) -> list[_Span]:
    """What autograd evaluates, with the layer that it is of; without a sequence number that of the one before it."""
    evaluated = [event for event in events if event["name"].startswith(_BACKWARD)]
    whole = _Spans(_span(event, "") for event in evaluated)
    layer_of: dict[int, str] = {}
    for event in sorted(events, key=lambda each: float(each["ts"])):
        number = event.get("args", {}).get("Sequence number")
        if event.get("cat") != "cpu_op" or number is None:
            continue
        span = _span(event, "")
        step = bisect_right(starts, span.start) - 1
        if step >= 0 and whole.at(span.start, span.thread) is None:
            owner = layers[step].at(span.start, span.thread)
            layer_of[number] = owner.what if owner else ""  # the last operation of a number made its node
    spans = []
    last = ""
    for event in sorted(evaluated, key=lambda each: float(each["ts"])):
        last = layer_of.get(event.get("args", {}).get("Sequence number"), last)
        spans.append(_span(event, last))
    return spans


def _begins(starts: Sequence[float], backward: _Spans) -> list[float]:
    """When each step's backward begins."""
    moments = [span.start for span in backward.spans]
    places = [bisect_right(moments, start) for start in starts]
    return [moments[place] if place < len(moments) else float("inf") for place in places]


def _costs(events: Sequence[Mapping[str, Any]]) -> list[_Cost]:
    kernels = [event for event in events if event.get("cat") in _KERNELS]
    if kernels:
        launches = {
            event["args"]["correlation"]: _span(event, "")
            for event in events
            if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
        }
        sites = ((launches.get(event.get("args", {}).get("correlation")), event) for event in kernels)
        return [_Cost(site.start, site.thread, _ms(event)) for site, event in sites if site and _computes(event)]
    operations = [event for event in events if event.get("cat") == "cpu_op"]
    costs = []
    until: dict[Any, float] = {}
    for event in sorted(operations, key=lambda each: (float(each["ts"]), -float(each.get("dur", 0)))):
        span = _span(event, "")
        if span.start >= until.get(span.thread, 0.0):  # not part of another one
            until[span.thread] = span.end
            if _computes(event):
                costs.append(_Cost(span.start, span.thread, _ms(event)))
    return costs


def _computes(event: Mapping[str, Any]) -> bool:
    return not event["name"].lower().startswith(_COMMUNICATION)


def _ms(event: Mapping[str, Any]) -> float:
    return float(event.get("dur", 0)) / 1e3
