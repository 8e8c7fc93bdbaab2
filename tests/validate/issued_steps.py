"""Run as a program: what the real step of `validate` issues as rank 0 of many, noted by a process group without data.

stdin: [[workload, knobs, nranks], …]
stdout: for each, what its steps issue: [[[collective, size_bytes, dtype, nranks], …], one a step].
"""

from __future__ import annotations

import json
import sys
import warnings
from types import SimpleNamespace

import torch.distributed as dist

from collbench.measure.clock import now_ns
from collbench.measure.device import Cpu
from collbench.predict.capture.recorder import recording
from collbench.predict.workload import Workload
from collbench.validate.step import Knobs, build

STEPS = 3  # DDP's buckets are its own from the second on


def form(kinds, timeout_s):
    """As Job.form, for rank 0."""
    made = {}
    for kind, groups in kinds.items():
        handles = [dist.new_group(list(ranks)) for ranks in groups]
        made[kind] = [
            SimpleNamespace(handle=handle) if 0 in ranks else None
            for ranks, handle in zip(groups, handles, strict=True)
        ]
    return made


def recorded_steps(workload, knobs, nranks):
    """Run real steps; yields what was recorded of each as soon as it has ended."""
    knobs = {name: tuple(value) if isinstance(value, list) else value for name, value in knobs.items()}
    with recording(nranks) as record:
        deadline = SimpleNamespace(wait=now_ns)
        job = SimpleNamespace(device=Cpu(0, 1), deadline=deadline, world_size=nranks, form=form)
        step, _, _ = build(job, Workload.from_dict(workload), Knobs(**knobs), timeout_s=10)
        for _ in range(STEPS):
            record.events.clear()
            step.run()
            yield record


def issued(workload, knobs, nranks):
    return [
        [[event.collective, event.size_bytes, event.dtype, event.nranks] for event in record.events]
        for record in recorded_steps(workload, knobs, nranks)
    ]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps([issued(*case) for case in json.load(sys.stdin)]))
