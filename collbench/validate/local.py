"""torch's own work on each rank around its collectives, measured here: the rate of copies, and the host's time."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from collbench.measure.job import Job
from collbench.measure.samples import quantile
from collbench.predict.workload import Workload
from collbench.validate.silent import entered_ns
from collbench.validate.step import Knobs, build, slowest

_WARMUP = 2
_TURNS = 7
_ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """copy_GBps: of bytes read and written, None where nothing is copied.  host_us: around each collective."""

    copy_GBps: float | None
    host_us: float


def measure_local(
    job: Job, workload: Workload, knobs: Knobs, moved_bytes: Sequence[float], collectives: int, timeout_s: float
) -> Local:
    """Of a step with so many collectives, whose copies move (read and write) so many bytes each.

    On a GPU the host runs ahead, and its time is none of the step's.
    """
    copied_ms = _copies_ms(job, moved_bytes) if moved_bytes else 0.0
    host_ms = 0.0
    if collectives and job.device.torch_device.type == "cpu":
        host_ms = max(0.0, _silent_ms(job, workload, knobs, timeout_s) - copied_ms)
        gc.collect()  # a module and its hooks hold one another, and the step that is measured next needs their memory
    return Local(
        copy_GBps=sum(moved_bytes) / copied_ms / 1e6 if copied_ms else None,
        host_us=1e3 * host_ms / max(1, collectives),
    )


def _copies_ms(job: Job, moved_bytes: Sequence[float]) -> float:
    """All copies of a step, one after another, on all ranks at once: they share the memory. The slowest rank's median.

    They go through more than the cache, as a step does.
    """
    counts = [max(1, round(moved / 2 / _ELEMENT_BYTES)) for moved in moved_bytes]
    size = max(*counts, 2 * job.device.cache_bytes // _ELEMENT_BYTES)
    source = torch.ones(size, device=job.device.torch_device)
    into = torch.ones_like(source)
    samples_ms = []
    for _ in range(_WARMUP + _TURNS):
        job.deadline.wait()
        begun, at = job.device.mark(), 0
        for count in counts:
            at = at if at + count <= size else 0
            into[at : at + count].copy_(source[at : at + count])
            at += count
        ended = job.device.mark()
        job.device.synchronize()
        samples_ms.append(job.control.maximum(job.device.between_marks_ns([begun, ended]))[0] / 1e6)
    del source, into
    if job.device.torch_device.type == "cuda":
        torch.cuda.empty_cache()  # the step's own memory is counted next
    return quantile(samples_ms[_WARMUP:], 0.5)


def _silent_ms(job: Job, workload: Workload, knobs: Knobs, timeout_s: float) -> float:
    """What the real step takes longer than its computation where its collectives take no time, in turns with that.

    Where collectives block, each waits for the rank that comes last: what counts is the longest way of any rank from
    one to the next.
    """
    real, make_silent, _ = build(job, workload, knobs, timeout_s, sends=False)
    computation = make_silent()
    longer_ms = []
    for _ in range(_WARMUP + _TURNS):
        without_ms = slowest(job, computation.run(syncs=False)).step_ms
        entered_ns()
        reading = real.run()
        between_ns = entered_ns() if knobs.strategy != "ddp" else []
        marks_ns = [real.start_ns, *between_ns, real.start_ns + round(1e6 * reading.step_ms)]
        ways_ns = job.control.maximum([later - earlier for earlier, later in pairwise(marks_ns)])
        longer_ms.append(sum(ways_ns) / 1e6 - without_ms)
    return quantile(longer_ms[_WARMUP:], 0.5)
