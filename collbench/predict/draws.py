"""How far off a step may be: it is played many times, each time with other errors of the model. numpy alone.

A model that is wrong about a collective is wrong about all calls like it. So there is one error a draw for each
collective, group and regime of sizes, not one for each call: independent errors would cancel, and an interval made of
them would promise more than the model knows. An error is a normal deviate in the logarithm of the time, scaled on
either side so that 5 % and 95 % of the draws reach the ends of the call's own interval.

All draws are played at once: every end is an array [DRAWS]. A regime's deviates are the quantiles of the normal
distribution in an order of its own (a Latin hypercube), which follows from its name alone: the same everywhere, so that
what two plans differ by is not chance. With one regime the interval is exactly that of its ends.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from collbench.predict.timeline import Call, Task

Floats = NDArray[np.float64]

DRAWS = 210  # so that the middles of two of as many equal slices are 5 % and 95 %
LOW, HIGH = DRAWS // 20, DRAWS - 1 - DRAWS // 20  # their places in ascending order
_SEED = 20_240_517
_END = NormalDist().inv_cdf(0.95)


@cache
def deviates(regime: str) -> Floats:
    """The errors of a regime in units of its interval's halves: -1 at 5 % of the draws, 1 at 95 %."""
    normal = NormalDist()
    quantiles = np.array([normal.inv_cdf((draw + 0.5) / DRAWS) / _END for draw in range(DRAWS)])
    return np.random.default_rng([_SEED, zlib.crc32(regime.encode())]).permutation(quantiles)


def drawn_ms(time_ms: float, low_ms: float, high_ms: float, regime: str) -> Floats:
    """A time in every draw, from its 90 % interval around it."""
    if time_ms <= 0:
        return np.zeros(DRAWS)
    below, above = math.log(time_ms / low_ms), math.log(high_ms / time_ms)
    errors = deviates(regime)
    return np.asarray(time_ms * np.exp(errors * np.where(errors < 0, below, above)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What a step takes in every draw, in ms; `exposed_tail_ms` as StepPrediction's."""

    step_ms: Floats
    exposed_tail_ms: Floats


def play_drawn(tasks: Sequence[Task], cost_ms: Callable[[Call], Floats], *, overlap: bool = True) -> Drawn:
    """`timeline.play` in all draws; `cost_ms` gives a call's duration in each."""
    streams = [task.stream if overlap else "" for task in tasks]
    waits = list(_waits(tasks, streams))
    last_use = {position: user for user, positions in enumerate(waits) for position in positions}
    nothing = np.zeros(DRAWS)
    ends: dict[int, Floats] = {}  # only while somebody will wait for them: a long step has many tasks
    free: dict[str, Floats] = {}
    last: dict[tuple[str, str], Floats] = {}  # of each phase, on each stream
    for position, task in enumerate(tasks):
        stream = streams[position]
        start = free.get(stream, nothing)
        for before in waits[position]:
            start = np.maximum(start, ends[before])
            if last_use[before] == position:
                del ends[before]
        end = start + (cost_ms(task.work) if isinstance(task.work, Call) else task.work)
        free[stream] = last[task.phase, stream] = end
        if position in last_use:
            ends[position] = end
    return Drawn(
        step_ms=_latest(list(free.values())),
        exposed_tail_ms=np.maximum(
            0.0,
            _latest([end for (phase, _), end in last.items() if phase == "gradients"])
            - _latest([end for (phase, _), end in last.items() if phase == "backward"]),
        ),
    )


def _waits(tasks: Sequence[Task], streams: Sequence[str]) -> Iterator[list[int]]:
    """What each task waits for on other streams: of each stream the last one, where no task before it has waited so."""
    waited: dict[str, dict[str, int]] = {stream: {} for stream in streams}
    for task, stream in zip(tasks, streams, strict=True):
        mine, new = waited[stream], {}
        for before in task.after:
            other = streams[before]
            if other != stream and before > mine.get(other, -1):
                mine[other] = new[other] = before
        yield list(new.values())


def _latest(ends: list[Floats]) -> Floats:
    latest = np.zeros(DRAWS)
    for end in ends:
        latest = np.maximum(latest, end)
    return latest
