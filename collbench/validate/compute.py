"""The computation of a validated step: a workload's milliseconds, without its arithmetic."""

from __future__ import annotations

import time
from typing import Protocol

import torch

from collbench.measure.device import Device

_SIDE = 2048  # of the matrices: a product takes longer than its launch, and is still a fine unit of time
_TRIALS = 200
_LAUNCH_S = 1e-3  # between two layers more than this is no launch overhead but a wait for communication


class Compute(Protocol):
    """Spends time as computation would. `name` goes into the answer."""

    name: str

    def begin(self) -> None:
        """A step begins: what comes next follows on nothing."""

    def spend_ms(self, duration_ms: float, since_s: float) -> None:
        """Compute until `duration_ms` after `since_s` (time.perf_counter), or queue that much work."""


class Wait:
    """On a CPU: a wait. The cores stay free for the communication, as a GPU's host's do.

    What Python needs between two layers is taken off the second's wait: on a GPU the host runs ahead of the kernels.
    """

    name = "sleep"

    def __init__(self) -> None:
        self._until_s = 0.0

    def begin(self) -> None:
        self._until_s = 0.0

    def spend_ms(self, duration_ms: float, since_s: float) -> None:
        follows = since_s - self._until_s < _LAUNCH_S
        self._until_s = (self._until_s if follows else since_s) + duration_ms / 1e3
        remaining_s = self._until_s - time.perf_counter()
        if remaining_s > 0:
            time.sleep(remaining_s)


class Matmul:
    """On a GPU: matrix products, as many as take the time; how long one takes is measured first.

    What a layer's time is not a whole number of products is owed to the next one.
    """

    name = "matmul"

    def __init__(self, device: Device) -> None:
        self._matrix = torch.ones(_SIDE, _SIDE, dtype=torch.bfloat16, device=device.torch_device)
        self._product = torch.empty_like(self._matrix)
        self._run(_TRIALS)
        device.synchronize()
        begun = time.perf_counter()
        self._run(_TRIALS)
        device.synchronize()
        self._one_ms = (time.perf_counter() - begun) * 1e3 / _TRIALS
        self._owed_ms = 0.0

    def begin(self) -> None:
        self._owed_ms = 0.0

    def spend_ms(self, duration_ms: float, since_s: float) -> None:
        self._owed_ms += duration_ms
        products = round(self._owed_ms / self._one_ms)
        self._owed_ms -= products * self._one_ms
        self._run(products)

    def _run(self, products: int) -> None:
        for _ in range(products):
            torch.mm(self._matrix, self._matrix, out=self._product)


def compute_on(device: Device) -> Compute:
    """A wait on a CPU, matrix products on a GPU."""
    return Wait() if device.torch_device.type == "cpu" else Matmul(device)
