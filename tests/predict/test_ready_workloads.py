"""The workloads of sweeps/workloads: published parameter counts, and the same tensors as the models themselves."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch_models

from collbench.predict.buckets import ddp_buckets
from collbench.predict.capture.module import Request, from_function
from collbench.predict.workload import Workload

FOLDER = Path(__file__).parents[2] / "sweeps" / "workloads"
PUBLISHED = {
    "gpt2": (124_439_808, torch_models.gpt2),
    "llama3-8b": (8_030_261_248, torch_models.llama3_8b),
    "llama3-70b": (70_553_706_496, torch_models.llama3_70b),
    "vit-l-16": (304_326_632, torch_models.vit_l_16),
    "resnet50": (25_557_032, torch_models.resnet50),
}


@pytest.fixture(params=PUBLISHED)
def name(request):
    return request.param


def workload(name):
    return Workload.from_toml(FOLDER / f"{name}.toml")


def test_the_published_number_of_parameters(name):
    assert workload(name).numel == workload(name).trainable_numel == PUBLISHED[name][0]


def test_the_tensors_are_those_of_the_module(name):
    with torch.device("meta"):
        module, _ = PUBLISHED[name][1]()
    mine = Counter(shape for _, layer in workload(name).expanded for shape in layer.tensors)
    assert mine == Counter(tuple(parameter.shape) for parameter in module.parameters())


def test_the_times_are_of_the_flops_that_they_say(name):
    """A capture counts the module's FLOPs; the file's milliseconds are they at its share of its peak."""
    read = workload(name)
    share, peak = re.match(r"from FLOPs: (\d+) % of (\d+) TFLOP/s \(MFU, assumed", read.times).groups()
    captured = from_function(
        f"torch_models:{PUBLISHED[name][1].__name__}", None, Request(mfu=f"{share}%", peak_tflops=float(peak))
    )
    for kind in ("forward_ms", "backward_ms"):
        total, counted = (
            getattr(each, kind) + sum(getattr(layer, kind) * layer.repeat for layer in each.layers)
            for each in (read, captured)
        )
        assert total == pytest.approx(counted, rel=1e-4)
    assert (read.tokens_per_micro_batch, read.flops_per_token) == (
        captured.tokens_per_micro_batch, captured.flops_per_token,
    )  # fmt: skip
    if read.grad_dtype == "float32" and captured.grad_dtype == "float32":  # and so are DDP's buckets, in the same order
        issued = [event.size_bytes for event in captured.captured.issued if event.collective == "all_reduce"]
        assert [bucket.size_bytes for bucket in ddp_buckets(read)] == issued
