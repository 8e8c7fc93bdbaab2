"""Torch itself is asked what its reducer and `fully_shard` do (torch_oracle.py, one process for all cases)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from collbench.predict.buckets import ddp_buckets
from collbench.predict.fsdp1 import fsdp1
from collbench.predict.fsdp_copies import fsdp
from collbench.predict.options import Options
from collbench.predict.placement import Placement
from collbench.predict.workload import Workload

pytestmark = pytest.mark.workers

LINEAR = {"tensors": [[256, 256], [256]]}
MIXED = [
    {"tensors": [[512, 512], [512]]},
    {"tensors": [[300, 300]], "trainable": False},
    {"tensors": [[1000, 700], [1000], [10]]},
    {"tensors": [[64, 64]]},
]
DDP_CASES = [
    {"layers": [LINEAR] * 20, "options": {}},
    {"layers": [LINEAR] * 20, "options": {"bucket_cap_mb": 1}},
    {"layers": [LINEAR] * 20, "options": {"bucket_cap_mb": 25}},
    {"layers": MIXED, "options": {}},
    {"layers": MIXED, "options": {"bucket_cap_mb": 0.01}},
    {"layers": MIXED, "options": {"bucket_cap_mb": 2.5}},
    {"layers": MIXED, "options": {"bucket_cap_mb": 0}},
    {"layers": [{"tensors": [[2048, 1024]]}] * 5, "options": {}},
    {"layers": [LINEAR] * 20, "options": {"bucket_cap_mb_list": [1, 2, 0.5]}},
    {"layers": [LINEAR] * 20, "options": {"find_unused_parameters": True}},
    {"layers": MIXED, "options": {"find_unused_parameters": True, "bucket_cap_mb": 2.5}},
    {"layers": MIXED, "options": {"find_unused_parameters": True, "bucket_cap_mb": 2.5, "static_graph": True}},
]

EMBEDDING = {"tensors": [[10, 4]], "wrap": False}
HEAD = {"tensors": [[30]], "wrap": False}
BLOCKS = [{"tensors": [[16, 4], [12]]}, {"tensors": [[8, 4]]}, {"tensors": [[24, 4]]}]
FROZEN = [layer | {"trainable": False} for layer in (EMBEDDING, *BLOCKS)]
FSDP_CASES = [
    {"mesh": [8], "layers": [EMBEDDING, *BLOCKS, HEAD]},
    {"mesh": [8], "layers": [EMBEDDING, *BLOCKS, HEAD], "reshard_after_forward": True},
    {"mesh": [8], "layers": [EMBEDDING, *BLOCKS, HEAD], "reshard_after_forward": False},
    {"mesh": [8], "layers": [EMBEDDING, *BLOCKS, HEAD], "reshard_after_forward": 2},
    {"mesh": [2, 4], "layers": [EMBEDDING, *BLOCKS, HEAD]},
    {"mesh": [8], "layers": BLOCKS},
    {"mesh": [8], "layers": [EMBEDDING, BLOCKS[0], FROZEN[2], BLOCKS[2]]},
    {"mesh": [8], "layers": [*FROZEN, *BLOCKS[1:]]},
    {"mesh": [8], "layers": [*FROZEN, HEAD]},
    {"mesh": [8], "layers": [EMBEDDING, *BLOCKS, HEAD], "accumulate": 3},
    {"mesh": [8], "layers": [EMBEDDING, *BLOCKS, HEAD], "accumulate": 3, "grad_sync": False},
    {"mesh": [2, 4], "layers": [EMBEDDING, HEAD, *BLOCKS, HEAD], "accumulate": 2, "grad_sync": False},
    {"mesh": [8], "layers": [EMBEDDING, *BLOCKS, HEAD], "recompute": True},
    {"mesh": [8], "layers": [EMBEDDING, *BLOCKS, HEAD], "prefetch_ahead": 1},
    {"mesh": [8], "layers": [EMBEDDING, *BLOCKS, *BLOCKS, HEAD], "prefetch_ahead": 2},
]
FSDP1 = {"mesh": [8], "layers": [EMBEDDING, *BLOCKS, *BLOCKS, HEAD]}
FSDP1_CASES = [
    FSDP1,
    FSDP1 | {"backward_prefetch": "post"},
    FSDP1 | {"backward_prefetch": "none"},
    FSDP1 | {"forward_prefetch": True},
    FSDP1 | {"forward_prefetch": True, "backward_prefetch": "post"},
    FSDP1 | {"accumulate": 3},
    FSDP1 | {"accumulate": 3, "grad_sync": False},
    FSDP1 | {"accumulate": 3, "reshard_after_forward": False},
    FSDP1 | {"accumulate": 3, "reshard_after_forward": False, "grad_sync": False},
]


@pytest.fixture(scope="module")
def torch_says():
    result = subprocess.run(
        [sys.executable, Path(__file__).with_name("torch_oracle.py")],
        input=json.dumps({"ddp": DDP_CASES, "fsdp": FSDP_CASES, "fsdp1": FSDP1_CASES}),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("index", range(len(DDP_CASES)))
def test_buckets_are_those_of_torchs_reducer(torch_says, index):
    case = DDP_CASES[index]
    caps = case["options"]
    cap_mb = tuple(caps["bucket_cap_mb_list"]) if "bucket_cap_mb_list" in caps else caps.get("bucket_cap_mb")
    rebuilt = caps.get("static_graph", False) or not caps.get("find_unused_parameters", False)
    buckets = ddp_buckets(Workload.from_dict({"layers": case["layers"]}), cap_mb, rebuilt=rebuilt)
    assert [bucket.size_bytes for bucket in buckets] == torch_says["ddp"][index]


@pytest.mark.parametrize("index", range(len(FSDP_CASES)))
def test_collectives_are_those_that_fully_shard_issues(torch_says, index):
    assert issued(fsdp, FSDP_CASES[index]) == torch_says["fsdp"][index]


@pytest.mark.parametrize("index", range(len(FSDP1_CASES)))
def test_collectives_are_those_that_fully_sharded_data_parallel_issues(torch_says, index):
    assert issued(fsdp1, FSDP1_CASES[index]) == torch_says["fsdp1"][index]


def issued(strategy, case):
    workload = Workload.from_dict({"param_dtype": "bfloat16", "reduce_dtype": "float32", "layers": case["layers"]})
    replicas = case["mesh"][0] if len(case["mesh"]) == 2 else 1
    placement = Placement(nodes=1, ranks_per_node=8, replicas=replicas)
    options = Options(**{name: value for name, value in case.items() if name not in ("mesh", "layers")})
    calls = strategy(workload, placement, options).calls()
    return [[call.collective, call.size_bytes, call.group.nranks, call.dtype] for call in calls]
