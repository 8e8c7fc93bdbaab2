"""The 90 % intervals of a step: what it takes in the draws of the model's errors (draws.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from collbench.predict.cost import Costs
from collbench.predict.draws import DRAWS, HIGH, LOW, Floats, play_drawn
from collbench.predict.timeline import Call, Placed, Task, last_end_ms, play

Interval = tuple[float, float]
Play = Callable[[Sequence[Task], Callable[[Call], float]], list[Placed]]
Windows = Sequence[tuple[Sequence[Task], int]]  # the tasks of a step, and how many steps are like it


@dataclass(frozen=True, slots=True, kw_only=True)
class StepIntervals:
    """Of the fields of `StepPrediction`; total_ms None where no windows were asked for."""

    step_ms: Interval
    exposed_tail_ms: Interval
    comm_ms: Interval
    total_ms: Interval | None


def tail_ms(placed: Sequence[Placed]) -> float:
    """From the end of the last backward computation to the end of the last gradient collective."""
    return max(0.0, last_end_ms(placed, "gradients") - last_end_ms(placed, "backward"))


def plain_intervals(tasks: Sequence[Task], costs: Costs, windows: Windows = (), *, overlap: bool) -> StepIntervals:
    """Of a step whose streams just run in turn. `costs` must have intervals."""
    drawn = play_drawn(tasks, costs.drawn_ms, overlap=overlap)
    total_ms = np.zeros(DRAWS)
    for window, count in windows:
        same = window is tasks
        total_ms += count * (drawn if same else play_drawn(window, costs.drawn_ms, overlap=overlap)).step_ms
    return StepIntervals(
        step_ms=_ends(drawn.step_ms),
        exposed_tail_ms=_ends(drawn.exposed_tail_ms),
        comm_ms=_ends(_comm_ms(tasks, costs)),
        total_ms=_ends(total_ms) if windows else None,
    )


def shared_intervals(tasks: Sequence[Task], costs: Costs, play_exactly: Play, windows: Windows = ()) -> StepIntervals:
    """Of a step where what runs at a time slows one another. `costs` must have intervals.

    Event by event, one draw takes as long as all take at once on plain streams. So the plain play says which draws are
    the 5 % and the 95 % of the step, of the tail and of the total, and these alone are played as they are.
    """
    played: dict[tuple[int, int], tuple[float, float]] = {}  # (which tasks, draw): the step and its tail

    def exactly(window: Sequence[Task], draw: int) -> tuple[float, float]:
        key = id(window), draw
        if key not in played:
            placed = play_exactly(window, lambda call: float(costs.drawn_ms(call)[draw]))
            played[key] = last_end_ms(placed), tail_ms(placed)
        return played[key]

    steps_ms, tails_ms = _about(tasks, costs)
    steps = [exactly(tasks, draw)[0] for draw in _draws_of_ends(steps_ms)]
    tails = [exactly(tasks, draw)[1] for draw in _draws_of_ends(tails_ms)]
    total_ms = None
    if windows:
        about_ms = sum(count * (steps_ms if window is tasks else _about(window, costs)[0]) for window, count in windows)
        totals = [
            sum(count * exactly(window, draw)[0] for window, count in windows)
            for draw in _draws_of_ends(np.asarray(about_ms))
        ]
        total_ms = (min(totals), max(totals))
    return StepIntervals(
        step_ms=(min(steps), max(steps)),
        exposed_tail_ms=(min(tails), max(tails)),
        comm_ms=_ends(_comm_ms(tasks, costs)),
        total_ms=total_ms,
    )


def _ends(values: Floats) -> Interval:
    low, high = np.sort(values)[[LOW, HIGH]].tolist()
    return low, high


def _draws_of_ends(values: Floats) -> list[int]:
    draws: list[int] = np.argsort(values, kind="stable")[[LOW, HIGH]].tolist()
    return draws


def _counted(tasks: Sequence[Task]) -> Counter[Call]:
    return Counter(task.work for task in tasks if isinstance(task.work, Call))


def _comm_ms(tasks: Sequence[Task], costs: Costs) -> Floats:
    """All calls one after another, in every draw."""
    total = np.zeros(DRAWS)
    for call, count in _counted(tasks).items():
        total += count * costs.drawn_ms(call)
    return total


def _about(tasks: Sequence[Task], costs: Costs) -> tuple[Floats, Floats]:
    """About the step, and its tail on plain streams, in every draw."""
    drawn = play_drawn(tasks, costs.drawn_ms)
    compute_ms = last_end_ms(play(tasks, lambda call: 0.0))
    return drawn.step_ms + _delays_ms(tasks, costs, drawn.step_ms - compute_ms), drawn.exposed_tail_ms


def _delays_ms(tasks: Sequence[Task], costs: Costs, exposed_ms: Floats) -> Floats:
    """About how much communication that is hidden delays the computation that hides it, in every draw."""
    delays = np.zeros(DRAWS)
    for call, count in _counted(tasks).items():
        factors = costs.slowdown(call)
        delays += count * costs.drawn_ms(call) * factors.comm * (1 - 1 / factors.compute)
    hidden_share = 1 - exposed_ms / np.maximum(_comm_ms(tasks, costs), 1e-9)
    return np.asarray(delays * hidden_share)
