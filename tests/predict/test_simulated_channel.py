"""A predicted DDP step against torch's own reducer at 1,024 ranks, in one process (simulated_channel.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, clean_environment
from predict_fakes import FakeModel

from collbench.predict.step import predict_step
from collbench.predict.workload import Workload

pytestmark = pytest.mark.workers

NRANKS = 1024
ALPHA_MS, MS_PER_MB = 2.0, 450.0  # a slow channel for small tensors: the CPU's own copies do not count


def layers(count, forward_ms, backward_ms, elements=16384):
    return [{"repeat": count, "tensors": [elements], "forward_ms": forward_ms, "backward_ms": backward_ms}]


# 64 KiB a layer takes 31.5 ms. The cap is in MiB: 1/16 is a layer.
CASES = {
    "computation hides it": {"layers": layers(8, 10, 40), "bucket_cap_mb": 1 / 16},
    "communication decides": {"layers": layers(8, 10, 15), "bucket_cap_mb": 1 / 16},
    "two layers a bucket": {"layers": layers(8, 10, 40), "bucket_cap_mb": 1 / 8},
    "everything at the end": {"layers": layers(6, 10, 30), "bucket_cap_mb": 25},
    "a large first layer": {"layers": [*layers(1, 20, 20, 65536), *layers(6, 10, 30)], "bucket_cap_mb": 1 / 16},
    "a frozen start": {
        "layers": [*({**layer, "trainable": False} for layer in layers(3, 10, 30)), *layers(5, 10, 30)],
        "bucket_cap_mb": 1 / 16,
    },
}
OVERLAPS = set(CASES) - {"everything at the end"}


def predicted(case, overlap=True):
    model = FakeModel(ms_per_MB=MS_PER_MB, alpha_ms=ALPHA_MS, nodes=128, ranks_per_node=8)
    workload = Workload.from_dict({"layers": case["layers"]})
    return predict_step(workload, model, bucket_cap_mb=case["bucket_cap_mb"], overlap=overlap)


@pytest.fixture(scope="module")
def measured():
    request = {"nranks": NRANKS, "alpha_ms": ALPHA_MS, "ms_per_MB": MS_PER_MB, "cases": list(CASES.values())}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("simulated_channel.py"))],
        input=json.dumps(request), env=clean_environment(), cwd=ROOT, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_the_step_of_torchs_reducer_is_as_predicted(measured, name):
    # A wait never ends early, so a busy machine only adds to a step: the shortest one is the undisturbed.
    assert predicted(CASES[name]).step_ms == pytest.approx(min(measured[name]["step_ms"]), rel=0.05)


@pytest.mark.parametrize("name", sorted(OVERLAPS))
def test_without_overlap_it_would_be_much_longer(measured, name):
    serial = predicted(CASES[name], overlap=False).step_ms
    assert predicted(CASES[name]).step_ms < 0.9 * serial
    assert min(measured[name]["step_ms"]) < 0.9 * serial


@pytest.mark.parametrize("name", CASES)
def test_the_tail_is_as_predicted(measured, name):
    step_ms, backward_ms = min(zip(measured[name]["step_ms"], measured[name]["backward_ms"], strict=True))
    assert predicted(CASES[name]).exposed_tail_ms == pytest.approx(step_ms - backward_ms, rel=0.1, abs=8)
