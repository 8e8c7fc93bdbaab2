"""The one interface to the hardware a collective runs on. A new accelerator is one new class here.

torch is imported by the worker before anything here is called.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import torch

from collbench.errors import InputError


class Device(Protocol):
    """What the timed loops need of a device.

    issues_async: the collective is called with async_op=True and then waited for, so that the moment its call returns
    is the moment this rank has entered it (a CPU backend would otherwise return only when it has left).
    """

    backend: str
    name: str
    torch_device: torch.device
    issues_async: bool

    def synchronize(self) -> None:
        """Return when all work queued on the device has ended."""

    def free_bytes(self) -> int:
        """Memory this rank may still take."""


class Cpu:
    """gloo on host memory."""

    backend = "gloo"
    name = "cpu"
    issues_async = True

    def __init__(self, local_rank: int, local_world_size: int) -> None:
        self.torch_device = torch.device("cpu")
        self._ranks_sharing = local_world_size

    def synchronize(self) -> None:
        pass

    def free_bytes(self) -> int:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 // self._ranks_sharing
        return 2**62  # unknown: let the allocation itself decide


class Cuda:
    """nccl on one GPU a rank. A call only queues work, so it returns when this rank has entered the collective."""

    backend = "nccl"
    issues_async = False

    def __init__(self, local_rank: int, local_world_size: int) -> None:
        gpus = torch.cuda.device_count()
        if gpus <= local_rank:
            raise InputError(
                f"backend nccl: rank {os.environ.get('RANK', '0')} (local rank {local_rank}) has no GPU of its own, "
                f"torch sees {gpus}: start at most {gpus} ranks a node, or use --backend gloo"
            )
        self.torch_device = torch.device("cuda", local_rank)
        torch.cuda.set_device(self.torch_device)
        self.name = torch.cuda.get_device_name(self.torch_device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def free_bytes(self) -> int:
        return int(torch.cuda.mem_get_info(self.torch_device)[0])


_DEVICES: dict[str, Any] = {"gloo": Cpu, "nccl": Cuda}


def default_backend() -> str:
    """nccl where torch sees a GPU, else gloo."""
    return "nccl" if torch.cuda.is_available() else "gloo"


def open_device(backend: str, local_rank: int, local_world_size: int) -> Device:
    """The device of this rank. Raises InputError where the backend has none here."""
    device: Device = _DEVICES[backend](local_rank, local_world_size)
    return device
