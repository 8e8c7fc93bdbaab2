"""How long each layer takes: from its floating-point operations at a stated utilisation, or measured on a device."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from collbench.errors import InputError
from collbench.predict.capture.loading import Inputs
from collbench.predict.capture.spent import Spent, medians
from collbench.predict.capture.units import Part
from collbench.predict.capture.walk import Walk

_WARMUP_STEPS = 2
_STEPS = 5


def parse_mfu(value: object) -> float:
    """A fraction from `40%`, 0.4, or 40: a bare number above 1 is per cent. InputError for anything else."""
    text = str(value)
    try:
        number = float(text.removesuffix("%"))
        share = number / 100 if text.endswith("%") or number > 1 else number
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise InputError(f"--mfu {text!r}: expected a share of the peak such as 40% or 0.4")
    return share


def flops_ms(flops: Spent, mfu: float, peak_tflops: float) -> Spent:
    """Milliseconds from operations."""
    return Counter({key: count / (mfu * peak_tflops * 1e9) for key, count in flops.items()})


def counting() -> FlopCounterMode:
    """Counts matrix products, convolutions and attention while it is entered; a multiplication and an addition is 2."""
    return FlopCounterMode(display=False)


def default_device() -> str:
    """This machine's accelerator, or its CPU without one."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if accelerator is None else accelerator.type


def measure_ms(module: nn.Module, parts: Sequence[Part], inputs: Inputs, name: str) -> tuple[Spent, str]:
    """(ms of each layer, in words what they are): medians of a few real forwards and backwards on the device."""
    device = torch.device(name)
    on_cpu = device.type == "cpu"

    def read() -> Any:
        if on_cpu:
            return time.perf_counter()
        event = torch.Event(device, enable_timing=True)
        event.record()
        return event

    def between(before: Any, after: Any) -> float:
        return float((after - before) * 1e3 if on_cpu else before.elapsed_time(after))

    walk = Walk(module, parts, [], read)
    made = inputs.made(lambda tensor: _sample(tensor, device))
    runs = []
    for _ in range(_WARMUP_STEPS + _STEPS):
        module.zero_grad()
        walk.run(made)
        if not on_cpu:
            torch.accelerator.synchronize()
        runs.append(walk.spent(between))
    return medians(runs[_WARMUP_STEPS:]), f"measured on {_kind(device)}, medians of {_STEPS}"


def _kind(device: torch.device) -> str:
    threads = torch.get_num_threads()
    plural = "s" if threads > 1 else ""
    return f"{threads} CPU thread{plural}" if device.type == "cpu" else torch.cuda.get_device_name(device)


def _sample(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if tensor.is_floating_point():
        return torch.rand(tensor.shape, dtype=torch.float32, device=device).to(tensor.dtype)
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)
