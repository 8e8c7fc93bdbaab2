"""Layer times from a profiler's trace: a real one of a CPU, and a written one as a GPU's looks."""

from __future__ import annotations

import json
import time

import pytest
import torch
from torch import nn

from collbench.errors import InputError
from collbench.predict.capture.trace import trace_ms
from collbench.predict.workload import Workload


class _Busy(torch.autograd.Function):
    """A sleeping operation of the profiler's own kind: `record_function` shows it as one."""

    @staticmethod
    def forward(ctx, x, forward_s, backward_s):
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.backward_s)
        return gradient, None, None


class Layer(nn.Module):
    def __init__(self, forward_s, backward_s):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.times = forward_s, backward_s

    def forward(self, x):
        x = x * self.weight
        return x if x.device.type == "meta" else _Busy.apply(x, *self.times)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Linear(4, 4)
        self.layers = nn.ModuleList([Layer(0.01, 0.02), Layer(0.03, 0.06)])
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


@pytest.mark.workers
def test_the_times_of_a_real_trace(tmp_path):
    model, x = Model(), torch.ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as profiler:
        for _ in range(3):
            model(x).sum().backward()
            optimizer.step()
    profiler.export_chrome_trace(str(tmp_path / "t.json"))
    workload = Workload.from_module(model, x, trace=str(tmp_path / "t.json"))
    layers = dict(workload.expanded)
    assert list(layers) == ["embedding", "layers.0", "layers.1", "norm"]
    assert workload.times == "from the trace t.json, medians of 3 steps"
    # A sleep never ends early; what a busy machine adds is in the first steps and in no median of mine.
    assert 20 <= layers["layers.0"].backward_ms < layers["layers.1"].backward_ms
    assert layers["layers.1"].backward_ms >= 60


def gpu_trace(steps=2):
    """Two layers called A, then a root's own operation; every kernel is launched 1 µs into what launches it."""
    events = []
    kernels = 0

    def span(name, start, duration, category="cpu_op", thread=1, **args):
        events.append({"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "pid": 1,
                       "tid": thread, "args": args})  # fmt: skip

    def launch(at, duration, thread, name="gemm"):
        nonlocal kernels
        kernels += 1
        span("cudaLaunchKernel", at, 1, "cuda_runtime", thread, correlation=kernels)
        # on the device much later, in its own order
        span(name, at + 5000, duration, "kernel", 7, correlation=kernels)

    for step in range(steps):
        start, first = 100_000 * step, 10 * step
        span("nn.Module: Root_0", start, 1000, "python_function")
        for number in (0, 1):
            begin = start + 100 + 300 * number
            span(f"nn.Module: FSDPA_{number}", begin, 200, "python_function")
            span("nn.Module: A_9", begin + 10, 50, "python_function")  # inside: not the next layer
            span("aten::mm", begin + 20, 20, **{"Sequence number": first + number})
            launch(begin + 21, 1000 * (number + 1), 1)
            launch(begin + 41, 50_000, 1, "ncclDevKernel_AllGather")
        span("aten::sum", start + 800, 20, **{"Sequence number": first + 2})
        launch(start + 801, 300, 1)
        for place, number in enumerate((2, 1, 0)):
            begin = start + 2000 + 100 * place
            name = "autograd::engine::evaluate_function: MmBackward0"
            span(name, begin, 60, thread=2, **{"Sequence number": first + number})
            launch(begin + 1, 4000 * (number + 1), 2)
        span("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", start + 2300, 20, thread=2)
        launch(start + 2301, 7, 2)
        launch(start + 5000, 99_999, 1)  # the optimizer's
    return {"traceEvents": events}


def test_the_times_of_a_gpus_trace(tmp_path):
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(gpu_trace()))
    spent, words = trace_ms(path, ["a.0", "a.1"], {"a.0": ["A"], "a.1": ["A"]})
    assert spent == {
        ("forward", "a.0"): 1.0,
        ("forward", "a.1"): 2.0,
        ("forward", ""): 0.3,
        ("backward", "a.0"): 4.007,
        ("backward", "a.1"): 8.0,
        ("backward", ""): 12.0,
    }
    assert words == "from the trace gpu.json, medians of 2 steps"


def test_traces_that_do_not_fit(tmp_path):
    path = tmp_path / "t.json"
    with pytest.raises(InputError, match=r"t\.json: cannot be read"):
        trace_ms(path, ["a"], {"a": ["A"]})
    for text in ("{}", "[]", "no"):
        path.write_text(text)
        with pytest.raises(InputError, match="no trace of torch"):
            trace_ms(path, ["a"], {"a": ["A"]})
    path.write_text(json.dumps({"traceEvents": []}))
    with pytest.raises(InputError, match="no calls of modules: profile this model with_stack=True"):
        trace_ms(path, ["a"], {"a": ["A"]})
    path.write_text(json.dumps(gpu_trace()))
    with pytest.raises(InputError, match=r"no call of b \(B\)"):
        trace_ms(path, ["a.0", "b"], {"a.0": ["A"], "b": ["B"]})
