"""The 90 % intervals of a step: what it takes in the draws of the model's errors (draws.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from collbench.predict.cost import Costs
from collbench.predict.draws import DRAWS, HIGH, LOW, Floats, play_drawn
from collbench.predict.timeline import Call, Placed, Task, last_end_ms

Interval = tuple[float, float]
Play = Callable[[Sequence[Task], Callable[[Call], float]], list[Placed]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepIntervals:
    """Of `StepPrediction.step_ms` and `exposed_tail_ms`."""

    step_ms: Interval
    exposed_tail_ms: Interval


def tail_ms(placed: Sequence[Placed]) -> float:
    """From the end of the last backward computation to the end of the last gradient collective."""
    return max(0.0, last_end_ms(placed, "gradients") - last_end_ms(placed, "backward"))


def plain_intervals(tasks: Sequence[Task], costs: Costs, *, overlap: bool) -> StepIntervals:
    """Of a step whose streams just run in turn. `costs` must have intervals."""
    drawn = play_drawn(tasks, costs.drawn_ms, overlap=overlap)
    step, tail = (np.sort(values) for values in (drawn.step_ms, drawn.exposed_tail_ms))
    return StepIntervals(
        step_ms=(float(step[LOW]), float(step[HIGH])), exposed_tail_ms=(float(tail[LOW]), float(tail[HIGH]))
    )


def shared_intervals(tasks: Sequence[Task], costs: Costs, play_exactly: Play, compute_ms: float) -> StepIntervals:
    """Of a step where what runs at a time slows one another. `costs` must have intervals; compute_ms: without calls.

    Event by event, one draw takes as long as all take at once on plain streams. So the plain play says which draws are
    the 5 % and the 95 % of the step, and of the tail, and these alone are played as they are.
    """
    drawn = play_drawn(tasks, costs.drawn_ms)
    steps_ms = drawn.step_ms + _delays_ms(tasks, costs, drawn.step_ms - compute_ms)
    step, tail = (
        np.argsort(values, kind="stable")[[LOW, HIGH]].tolist() for values in (steps_ms, drawn.exposed_tail_ms)
    )
    played = {}
    for draw in {*step, *tail}:

        def cost_ms(call: Call, draw: int = draw) -> float:
            return float(costs.drawn_ms(call)[draw])

        placed = play_exactly(tasks, cost_ms)
        played[draw] = last_end_ms(placed), tail_ms(placed)
    steps, tails = [played[draw][0] for draw in step], [played[draw][1] for draw in tail]
    return StepIntervals(step_ms=(min(steps), max(steps)), exposed_tail_ms=(min(tails), max(tails)))


def _delays_ms(tasks: Sequence[Task], costs: Costs, exposed_ms: Floats) -> Floats:
    """About how much communication that is hidden delays the computation that hides it, in every draw."""
    comm, delays = np.zeros(DRAWS), np.zeros(DRAWS)
    for call, count in Counter(task.work for task in tasks if isinstance(task.work, Call)).items():
        factors, together = costs.slowdown(call), count * costs.drawn_ms(call)
        comm += together
        delays += together * factors.comm * (1 - 1 / factors.compute)
    hidden_share = 1 - exposed_ms / np.maximum(comm, 1e-9)
    return np.asarray(delays * hidden_share)
