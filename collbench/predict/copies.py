"""torch's own local work around its collectives: copies into and out of what is sent, at one stated rate.

A copy counts the bytes that it reads and those that it writes. Where the host does not run ahead of its device, as on a
CPU, what it takes itself around each collective (hooks, allocations, views) is a stated time too. Both are nothing
unless they are stated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from collbench.predict.options import Options
from collbench.predict.timeline import Placed, Schedule, Task

COPIES = "copies"  # the phase of these tasks, whatever their stream
COPY_IN = "comm:copy in"  # fully_shard's stream for what it gathers
COPY_OUT = "comm:copy out"  # what follows a collective beside the computation


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """GBps: of bytes read and bytes written together, None where copies are not counted.  host_us: around each
    collective."""

    GBps: float | None
    host_us: float

    @classmethod
    def of(cls, options: Options) -> Copying:
        """As a step's options have it."""
        return cls(GBps=options.copy_GBps, host_us=options.host_us)

    @property
    def counted(self) -> bool:
        """Whether there is any such work."""
        return self.GBps is not None or self.host_us > 0

    def add(
        self,
        schedule: Schedule,
        name: str,
        moved_bytes: float,
        *,
        after: tuple[int, ...],
        stream: str,
        collectives: int = 0,
    ) -> tuple[int, ...]:
        """Append a copy of so many bytes, read and written, and the host's time around so many collectives.

        Returns its position, for others' `after`; none, and nothing appended, where it takes no time.
        """
        copied_ms = 0.0 if self.GBps is None else moved_bytes / self.GBps / 1e6
        work_ms = copied_ms + collectives * self.host_us / 1e3
        if not work_ms:
            return ()
        return (schedule.add(name, work_ms, after=after, stream=stream, phase=COPIES),)


def without_copies(tasks: Iterable[Task]) -> list[Task]:
    """The same tasks, where copies take no time."""
    return [task._replace(work=0.0) if task.phase == COPIES else task for task in tasks]


def copies_ms(timeline: Iterable[Placed]) -> list[float]:
    """What each copy of a step takes, as they begin."""
    return [bar.end_ms - bar.start_ms for bar in timeline if bar.task.phase == COPIES]
