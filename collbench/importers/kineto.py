"""PyTorch profiler traces (Kineto), plain or gzip, one a rank: together they say how long a call took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath

from collbench.importers.kineto_join import tables
from collbench.importers.kineto_trace import Trace, read_trace
from collbench.importers.source import Log
from collbench.importers.table import Format, Joint, Refusal, Table


def _recognises(log: Log) -> bool:
    return log.holds('"ph"') and log.holds("record_param_comms", '"Collective name"', '"gloo:', '"nccl')


def _read(log: Log) -> Iterator[Table | Refusal]:
    return (found for _, found in _join([read_trace(log)]))


def _join(traces: Sequence[Trace]) -> Iterator[tuple[list[int], Table | Refusal]]:
    alike: dict[tuple[int | None, str | None], list[int]] = defaultdict(list)
    for index, trace in enumerate(traces):
        yield from (([index], refusal) for refusal in trace.refusals)
        alike[trace.world_size, trace.backend].append(index)
    for members in alike.values():
        for job in _jobs(traces, members):
            for indices, found in tables([traces[index] for index in job]):
                yield [job[index] for index in indices], found


def _jobs(traces: Sequence[Trace], members: list[int]) -> Iterable[list[int]]:
    """Traces of one world size and backend, by job: no rank of a job has traces in two folders.

    They are told apart as high up in the tree of folders as that allows: by `a` and `b` for a/rank0, a/rank1, b/rank0.
    """
    folders = {index: PurePath(traces[index].name).parent.parts for index in members}
    for depth in range(max(map(len, folders.values())) + 1):
        jobs: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for index in members:
            jobs[folders[index][:depth]].append(index)
        if all(_has_each_rank_once([(traces[index].rank, folders[index]) for index in job]) for job in jobs.values()):
            break
    return jobs.values()


def _has_each_rank_once(places: list[tuple[int | None, tuple[str, ...]]]) -> bool:
    folder_of = dict(places)
    return all(rank is None or folder_of[rank] == folder for rank, folder in places)


FORMAT = Format(
    name="kineto",
    title="PyTorch profiler traces (Kineto)",
    recognises=_recognises,
    read=_read,
    joint=Joint(part=read_trace, join=_join),
)
