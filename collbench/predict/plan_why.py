"""Why a step is as long as it is: where its computation waits, and for which collective."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from collbench.predict.timeline import COMPUTE, Placed

PHASES = ("forward", "backward", "tail", "after")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Computation stands still for `wait_ms` while a collective runs that it waits for, itself or through others.

    phase: forward and backward as the computation that waits; tail: the optimizer, for gradients; after: nothing is
    computed any more (parameters are gathered behind the optimizer).
    """

    phase: str
    collective: str
    wait_ms: float


def waits(timeline: Sequence[Placed]) -> tuple[Wait, ...]:
    """All waits of one step, those for one collective in one phase together, the longest first."""
    computed = sorted((each for each in timeline if each.stream == COMPUTE), key=lambda each: each.start_ms)
    calls = sorted((each for each in timeline if each.stream != COMPUTE), key=lambda each: each.end_ms)
    ends_ms = [each.end_ms for each in calls]
    found: defaultdict[tuple[str, str], float] = defaultdict(float)

    def wait(since_ms: float, until_ms: float, phase: str) -> None:
        """Back from the collective that ends the wait to the one whose end let that one begin, and so on."""
        while until_ms > since_ms:
            last = bisect_right(ends_ms, until_ms) - 1
            if last < 0:
                return
            begun_ms = max(since_ms, calls[last].start_ms)
            if begun_ms >= until_ms:  # it took no time
                return
            found[phase, calls[last].name] += until_ms - begun_ms
            until_ms = begun_ms

    now_ms = 0.0
    for each in computed:
        wait(now_ms, each.start_ms, "tail" if each.task.phase == "optimizer" else each.task.phase)
        now_ms = max(now_ms, each.end_ms)
    wait(now_ms, ends_ms[-1] if calls else 0.0, "after")
    longest = sorted(found.items(), key=lambda item: -item[1])
    return tuple(Wait(phase=phase, collective=name, wait_ms=ms) for (phase, name), ms in longest)
