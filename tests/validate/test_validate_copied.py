"""The copies that are predicted around collectives are those that torch makes: as many bytes, read and written."""

from __future__ import annotations

import pytest
from step_cases import run_program

from collbench.model.link import LinkModel
from collbench.predict.copies import copies_ms
from collbench.predict.step import predict_step
from collbench.predict.workload import Workload

RANKS = 8
# Every dimension 0 is a multiple of the ranks: padding is taken to be read like what it pads.
LAYER = {"tensors": [[512, 40], 512], "backward_ms": 0.1}
MIXED = {
    "storage_dtype": "float32", "param_dtype": "bfloat16", "grad_dtype": "float32", "reduce_dtype": "float32",
    "layers": [
        {**LAYER, "name": "embedding", "wrap": False},
        {**LAYER, "repeat": 3},
        {"tensors": [[64, 16]], "frozen_tensors": [[128, 16]], "backward_ms": 0.1},
    ],
}  # fmt: skip
PLAIN = {"layers": MIXED["layers"]}
HALF = {**MIXED, "param_dtype": "float16", "grad_dtype": "float16", "reduce_dtype": "float16"}
BF16 = {**MIXED, "reduce_dtype": "bfloat16"}
CASES = {
    "ddp": (PLAIN, {"strategy": "ddp", "bucket_cap_mb": 0.1}),
    "ddp, compressed": (PLAIN, {"strategy": "ddp", "bucket_cap_mb": 0.1, "comm_hook": "fp16"}),
    "fsdp": (PLAIN, {"strategy": "fsdp"}),
    "fsdp, mixed": (MIXED, {"strategy": "fsdp"}),
    "fsdp, reduced as computed": (BF16, {"strategy": "fsdp"}),
    "fsdp, divided apart": (HALF, {"strategy": "fsdp"}),
    "fsdp, accumulating": (MIXED, {"strategy": "fsdp", "accumulate": 3}),
    "fsdp, reducing once": (MIXED, {"strategy": "fsdp", "accumulate": 3, "grad_sync": False}),
    "fsdp, resharded to two": (MIXED, {"strategy": "fsdp", "reshard_after_forward": 2}),
    "fsdp, none resharded": (MIXED, {"strategy": "fsdp", "reshard_after_forward": False}),
    "hsdp": (MIXED, {"strategy": "hsdp", "mesh": (2, 4)}),
    "hsdp, one shard": (MIXED, {"strategy": "hsdp", "mesh": (8, 1)}),
}


@pytest.fixture(scope="module")
def copied():
    """Bytes of each case's third step."""
    return run_program("copied_bytes.py", CASES, RANKS)


@pytest.mark.workers
@pytest.mark.parametrize("name", CASES)
def test_as_many_bytes_are_copied_as_predicted(name, copied):
    workload, knobs = CASES[name]
    views = {"gradient_as_bucket_view": True} if knobs["strategy"] == "ddp" else {}  # as the real step has it
    predicted = predict_step(
        Workload.from_dict(workload), LinkModel(bandwidth_GBps=1.0), nodes=1, ranks_per_node=RANKS, copy_GBps=1.0,
        **knobs, **views,
    )  # fmt: skip
    # torch's own bookkeeping, a tensor of one element here and there, is counted with them
    assert 1e6 * sum(copies_ms(predicted.timeline)) == pytest.approx(sum(copied[name].values()), abs=200)
