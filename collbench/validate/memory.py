"""The most memory that a step takes on a device, as torch's caching allocator counts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from collbench.measure.device import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Since `begin`: bytes in tensors, and bytes the allocator held for them."""

    allocated_bytes: int
    reserved_bytes: int


class PeakMemory(Protocol):
    """Counts from `begin` to `peak`."""

    def begin(self) -> None: ...

    def peak(self) -> Peak: ...


class CudaPeak:
    """Of one GPU. What NCCL and the context take is not the allocator's and not in it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def begin(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> Peak:
        return Peak(
            allocated_bytes=torch.cuda.max_memory_allocated(self._device),
            reserved_bytes=torch.cuda.max_memory_reserved(self._device),
        )


def peak_memory_on(device: Device) -> PeakMemory | None:
    """None on a CPU: torch does not count there."""
    return CudaPeak(device.torch_device) if device.torch_device.type == "cuda" else None
