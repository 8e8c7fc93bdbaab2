"""The real step with real ranks, and the net it runs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from conftest import ROOT, clean_environment

from collbench.model.fit import fit_results
from collbench.predict.buckets import ddp_buckets
from collbench.predict.workload import Workload

pytestmark = pytest.mark.workers

WORKLOAD = """
name = "tiny"
grad_dtype = "float32"
optimizer_ms = 1.0
[[layers]]
repeat = 3
tensors = [[64, 256], 64]
forward_ms = 2.0
backward_ms = 4.0
[[layers]]
name = "frozen"
tensors = [[64, 64]]
trainable = false
backward_ms = 1.0
[[layers]]
tensors = [[33, 7], 5]
wrap = false
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """(workload, model) for two ranks; the model is that of a made-up fast network."""
    import pandas

    folder = tmp_path_factory.mktemp("validate")
    (folder / "w.toml").write_text(WORKLOAD)
    rows = [
        {
            "run_id": "x", "collective": name, "group": "world", "group_ranks": [0, 1], "nranks": 2, "nnodes": 1,
            "dtype": "float32", "in_place": True, "size_bytes": 2**power, "timing": "isolated", "concurrent": True,
            "time_us": 20 + 2**power / 1e3, "wrong": 0, "backend": "gloo", "world_size": 2, "redop": None,
        }
        for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
        for power in range(3, 24)
    ]  # fmt: skip
    fit_results(pandas.DataFrame(rows)).save(folder / "m.json")
    return folder / "w.toml", folder / "m.json"


@pytest.mark.parametrize(
    ("strategy", "options", "shards"),
    [
        ("ddp", ["--bucket-cap-mb", "0.05"], 1),
        ("fsdp", [], 2),
        ("hsdp", ["--mesh", "2x2", "--nproc", "4"], 2),
    ],
)
def test_the_real_step_runs_beside_its_prediction(strategy, options, shards, files, collbench):
    arguments = [files[0], "--model", files[1], "--strategy", strategy, "--steps", "3", "--tolerance", "1000%"]
    done = collbench("validate", *arguments, *options, "--accumulate", "2", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {"measured", "predicted", "error_pct", "steps", "compute"} <= set(document)
    assert document["steps"] == 3 and document["compute"] == "sleep"
    assert set(document["measured"]) == {"step_ms", "compute_ms", "exposed_comm_ms", "exposed_tail_ms"}
    assert "memory" not in document  # torch counts it on GPUs alone
    compute = 2 * 19.0 + 1.0 / shards
    assert any("predicted without overlap" in note for note in document["notes"]) is (strategy != "ddp")
    assert document["predicted"]["compute_ms"] == pytest.approx(compute)
    # Measured here, by all ranks, and part of the prediction.
    assert document["copy_GBps"] > 0 and document["host_us"] >= 0
    assert document["predicted"]["exposed_comm_ms"] > 0
    assert not any("curves are of" in note for note in document["notes"])
    # A wait never ends early, so the real step is at least its computation.
    assert document["measured"]["compute_ms"] >= compute * 0.99
    assert document["measured"]["step_ms"] >= compute * 0.99


def test_outside_the_tolerance_is_exit_code_1(files, collbench):
    arguments = [files[0], "--model", files[1], "--steps", "2", "--tolerance", "0.0001%"]
    done = collbench("validate", *arguments)
    assert done.returncode == 1, done.stderr
    assert "outside" in done.stderr and "exposed_tail" in done.stdout


def test_refusals_start_no_ranks(files, collbench, tmp_path):
    for arguments, words in (
        ([files[0], "--model", files[1], "--strategy", "zero1"], "zero1"),
        ([files[0], "--model", tmp_path / "none.json"], "none.json"),
        ([files[0], "--model", files[1], "--first-bucket-mb", "1"], "--first-bucket-mb"),
        ([files[0], "--model", files[1], "--steps", "0"], "--steps"),
        ([files[0], "--model", files[1], "--mesh", "2x1"], "mesh"),
    ):
        done = collbench("validate", *arguments, timeout=30)
        assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


BUCKETS = """
import os, sys, torch, torch.distributed as dist
from collbench.predict.workload import Workload
from collbench.validate.compute import Wait
from collbench.validate.net import Net
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
workload = Workload.from_dict(eval(sys.argv[1]))
cap = eval(sys.argv[2])
net = Net(workload, torch.float32, torch.device("cpu"), Wait())
ddp = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=cap, gradient_as_bucket_view=True)
for _ in range(4):
    ddp(torch.zeros(1, requires_grad=True)).sum().backward()
print(ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"])
"""


@pytest.mark.parametrize("cap", [None, 0.5])
def test_the_nets_gradients_fill_the_buckets_that_are_predicted(cap):
    layer = {"tensors": [[300, 512], 300, [100, 512], 100], "backward_ms": 0.1}
    workload = {"layers": [{**layer, "repeat": 4}, {**layer, "trainable": False}, {"tensors": [[700, 512], 9]}]}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUCKETS, repr(workload), repr(cap)],
        env=clean_environment(), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    predicted = [bucket.size_bytes for bucket in ddp_buckets(Workload.from_dict(workload), cap)]
    assert [int(size) for size in done.stdout.split(",")] == predicted
