"""Torch's own FSDPMemTracker is asked what a step holds (memory_oracle.py, one process for all cases)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from collbench.predict.memory import ledger
from collbench.predict.options import Options
from collbench.predict.placement import Placement
from collbench.predict.strategies import STRATEGIES
from collbench.predict.workload import Workload

pytestmark = pytest.mark.workers

EVEN = {"root": 512, "layers": [1024] * 6}
UNEVEN = {"root": 512, "layers": [1024, 2048, 4096, 1024]}
CASES = [
    EVEN,
    UNEVEN,
    UNEVEN | {"reshard_after_forward": True},
    UNEVEN | {"reshard_after_forward": False},
    UNEVEN | {"accumulate": 2},
    UNEVEN | {"accumulate": 2, "grad_sync": False},
    EVEN | {"accumulate": 2, "grad_sync": False, "reshard_after_forward": False},
    {"root": 8192, "layers": [1024, 2048]},
]


@pytest.fixture(scope="module")
def torch_says():
    result = subprocess.run(
        [sys.executable, Path(__file__).with_name("memory_oracle.py")],
        input=json.dumps(CASES),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def memory(case):
    layers = [{"tensors": [[rows, 64]]} for rows in case["layers"]]
    root = {"tensors": [[case["root"], 64]], "wrap": False}
    dtypes = {"storage_dtype": "float32", "param_dtype": "bfloat16", "grad_dtype": "float32", "optimizer_bytes": 8}
    workload = Workload.from_dict({"layers": [*layers, root], **dtypes})
    options = Options(**{name: value for name, value in case.items() if name not in ("root", "layers")})
    return ledger(workload, STRATEGIES["fsdp"], Placement(nodes=1, ranks_per_node=8), options)


@pytest.mark.parametrize("index", range(len(CASES)))
def test_what_is_kept_and_the_peak_are_those_that_torch_counts(torch_says, index):
    ours, torchs = memory(CASES[index]), torch_says[index]
    assert ours.parameters_GB * 1e9 == pytest.approx(torchs["SHARDED_PARAM"])
    assert ours.optimizer_GB * 1e9 == pytest.approx(torchs["OPT"], rel=1e-3)  # and a step count for each tensor
    # Never less; and little more: all gradient shards are counted, while at the peak the last are not there yet.
    assert 0.9999 <= ours.peak_GB * 1e9 / torchs["Total"] < 1.08
