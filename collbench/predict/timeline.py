"""Plays tasks on streams. Knows streams and durations, nothing of strategies; pure arithmetic.

A stream runs its tasks one at a time in the order they were added, as a CUDA stream or one NCCL communicator does.
A task starts when the task before it on its stream and every task it comes after have ended. (channels.py: what slows
what it runs beside.) Records are named tuples: of a long step, or of a plan's many, there are a million to make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from collbench.predict.placement import Group

COMPUTE, COMM = "compute", "comm"


class Call(NamedTuple):
    """One collective call. `size_bytes` is nccl-tests' size; `dtype` is torch's name."""

    collective: str
    size_bytes: int
    group: Group
    dtype: str


class Task(NamedTuple):
    """Work for one stream: milliseconds of computation, or a collective call.

    after: positions in the schedule of tasks that must have ended.  phase: a label that the timeline carries along.
    """

    name: str
    stream: str
    work: float | Call
    after: tuple[int, ...]
    phase: str


class Schedule:
    """A list of tasks in the order of issue, to which tasks are added."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def add(self, name: str, work: float | Call, *, after: tuple[int, ...] = (), stream: str, phase: str) -> int:
        """Append a task to its stream; returns its position, for other tasks' `after`."""
        self.tasks.append(Task(name, stream, work, after, phase))
        return len(self.tasks) - 1

    def call(self, name: str, call: Call, *, after: tuple[int, ...], stream: str, phase: str) -> tuple[int, ...]:
        """Append a collective; returns its position for others' `after`, none for a group of one: it sends nothing."""
        if call.group.nranks == 1:
            return ()
        return (self.add(name, call, after=after, stream=stream, phase=phase),)

    def calls(self) -> list[Call]:
        """The collective calls, in the order of issue."""
        return [task.work for task in self.tasks if isinstance(task.work, Call)]


class Placed(NamedTuple):
    """A task and when it runs, in ms from the start of the step. `slot`: above 1 beside others of its stream."""

    task: Task
    start_ms: float
    end_ms: float
    slot: int = 1

    @property
    def name(self) -> str:
        """The task's name."""
        return self.task.name

    @property
    def stream(self) -> str:
        """`compute` or `comm`."""
        return self.task.stream.partition(":")[0]

    @property
    def channel(self) -> str:
        """Where nothing else runs meanwhile: the task's stream, or the second (third …) slot of it."""
        return self.task.stream if self.slot == 1 else f"{self.task.stream}:{self.slot}"


def play(tasks: Sequence[Task], cost_ms: Callable[[Call], float], *, overlap: bool = True) -> list[Placed]:
    """Place every task. `cost_ms` gives a call's duration in ms; without overlap tasks run one by one as listed."""
    ends: list[float] = []
    free: dict[str, float] = {}
    placed: list[Placed] = []
    for task in tasks:
        stream = task.stream if overlap else ""
        start = free.get(stream, 0.0)
        for position in task.after:
            if ends[position] > start:
                start = ends[position]
        end = start + (cost_ms(task.work) if isinstance(task.work, Call) else task.work)
        free[stream] = end
        ends.append(end)
        placed.append(Placed(task, start, end))
    return placed


def last_end_ms(placed: Sequence[Placed], phase: str | None = None) -> float:
    """When the last task (of a phase) ends; 0 where there is none."""
    return max((each.end_ms for each in placed if phase in (None, each.task.phase)), default=0.0)
