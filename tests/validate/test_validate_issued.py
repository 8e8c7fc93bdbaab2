"""The real step issues what the prediction is of: the same collectives, sizes, types and groups, in the same order."""

from __future__ import annotations

import pytest
from step_cases import run_program

from collbench.model.link import LinkModel
from collbench.predict.step import predict_step
from collbench.predict.workload import Workload

RANKS = 8
LAYER = {"tensors": [[10, 16], 10], "forward_ms": 0.1, "backward_ms": 0.2}  # 10 is not a multiple of the ranks
MIXED = {
    "storage_dtype": "float32", "param_dtype": "bfloat16", "reduce_dtype": "float32",
    "layers": [
        {**LAYER, "name": "embedding", "wrap": False},
        {**LAYER, "name": "block", "repeat": 3},
        {"name": "adapter", "tensors": [[4, 16]], "frozen_tensors": [[16, 16]], "backward_ms": 0.1},
        {**LAYER, "name": "head", "wrap": False},
    ],
}  # fmt: skip
FROZEN_FIRST = {"layers": [{**LAYER, "repeat": 3, "trainable": False, "backward_ms": 0.0}, {**LAYER, "repeat": 2}]}
BUCKETS = {
    "grad_dtype": "float32",
    "layers": [
        {"tensors": [[300, 512], 300, [100, 512], 100], "repeat": 4},
        {"tensors": [[700, 512], 9], "frozen_tensors": [[700, 512]]},
    ],
}
CASES = {
    "ddp": (BUCKETS, {"strategy": "ddp"}),
    "ddp, small buckets": (BUCKETS, {"strategy": "ddp", "bucket_cap_mb": 0.5}),
    "ddp, several caps": (BUCKETS, {"strategy": "ddp", "bucket_cap_mb": (0.25, 1, 2)}),
    "ddp, compressed": (BUCKETS, {"strategy": "ddp", "comm_hook": "fp16", "bucket_cap_mb": 1.0}),
    "ddp, accumulating": (BUCKETS, {"strategy": "ddp", "accumulate": 3}),
    "fsdp": (MIXED, {"strategy": "fsdp"}),
    "fsdp, accumulating": (MIXED, {"strategy": "fsdp", "accumulate": 2}),
    "fsdp, reducing once": (MIXED, {"strategy": "fsdp", "accumulate": 3, "grad_sync": False}),
    "fsdp, all resharded": (MIXED, {"strategy": "fsdp", "reshard_after_forward": True}),
    "fsdp, none resharded": (MIXED, {"strategy": "fsdp", "reshard_after_forward": False, "accumulate": 2}),
    "fsdp, resharded to two": (MIXED, {"strategy": "fsdp", "reshard_after_forward": 2}),
    "fsdp, frozen first layers": (FROZEN_FIRST, {"strategy": "fsdp"}),
    "hsdp, accumulating": (MIXED, {"strategy": "hsdp", "mesh": (2, 4), "accumulate": 2}),
    "hsdp, reducing once": (MIXED, {"strategy": "hsdp", "mesh": (2, 4), "accumulate": 2, "grad_sync": False}),
    "hsdp, one replica": (MIXED, {"strategy": "hsdp", "mesh": (1, 8)}),
    "hsdp, one shard": (MIXED, {"strategy": "hsdp", "mesh": (8, 1)}),
}


@pytest.fixture(scope="module")
def issued():
    """What the third step of each case issues."""
    return {name: steps[-1] for name, steps in run_program("issued_steps.py", CASES, RANKS).items()}


@pytest.mark.workers
@pytest.mark.parametrize("name", CASES)
def test_the_real_step_issues_what_is_predicted(name, issued):
    workload, knobs = CASES[name]
    predicted = predict_step(
        Workload.from_dict(workload), LinkModel(bandwidth_GBps=1.0), nodes=1, ranks_per_node=RANKS, overlap=False,
        **knobs,
    )  # fmt: skip
    calls = [bar.task.work for bar in predicted.timeline if bar.stream != "compute"]
    assert issued[name] == [[call.collective, call.size_bytes, call.dtype, call.group.nranks] for call in calls]
    assert issued[name]
