"""Faults of torch.distributed for the worker's tests, put in by PYTHONPATH into rank processes alone.

COLLBENCH_TEST_FAULTS names them: `late` (rank 1 sleeps 20 ms before every all_reduce), `slow` (every rank does, 30 ms),
`corrupt` (rank 1 spoils one element of every broadcast), `sum` (reduce_scatter does as torch 2.8's gloo does: it
ignores the operator), `absent` (rank 1 never gets past importing torch).
"""

import os
import sys
import time

_FAULTS = os.environ.get("COLLBENCH_TEST_FAULTS", "").split(",")
_RANK = int(os.environ.get("RANK", "-1"))


class _Absent:
    @staticmethod
    def find_spec(name, *_):
        if name == "torch":
            time.sleep(120)


if "absent" in _FAULTS and _RANK == 1:
    sys.meta_path.insert(0, _Absent)

if _RANK >= 0 and {"late", "slow", "corrupt", "sum"} & set(_FAULTS):
    import torch.distributed as dist

    _all_reduce, _broadcast = dist.all_reduce, dist.broadcast
    _scatter_name = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
    _reduce_scatter = getattr(dist, _scatter_name)

    def _late(tensor, *args, **kwargs):
        if _RANK == 1:
            time.sleep(0.02)
        return _all_reduce(tensor, *args, **kwargs)

    def _slow(tensor, *args, **kwargs):
        time.sleep(0.03)
        return _all_reduce(tensor, *args, **kwargs)

    def _corrupt(tensor, *args, **kwargs):
        work = _broadcast(tensor, *args, **kwargs)
        if _RANK == 1:
            if work is not None:
                work.wait()
            tensor[tensor.numel() // 2] += 1
        return work

    def _sum(output, input, op=None, **kwargs):
        return _reduce_scatter(output, input, op=dist.ReduceOp.SUM, **kwargs)

    if "late" in _FAULTS:
        dist.all_reduce = _late
    if "slow" in _FAULTS:
        dist.all_reduce = _slow
    if "corrupt" in _FAULTS:
        dist.broadcast = _corrupt
    if "sum" in _FAULTS:
        setattr(dist, _scatter_name, _sum)
