"""The computation of a validated step: a workload's milliseconds, without its arithmetic."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from typing import Protocol

import torch

from collbench.measure.device import Device

_SIDE = 2048  # of the matrices: a product takes longer than its launch, and is still a fine unit of time
_TRIALS = 200
_RUNS = 9  # without communication, of which the median says what the host needs


class Compute(Protocol):
    """Spends time as computation would. `name` goes into the answer."""

    name: str

    def begin(self, *, syncs: bool) -> None:
        """A step begins, with or without communication: what comes next follows on nothing."""

    def spend_ms(self, duration_ms: float, since_s: float) -> None:
        """Compute until `duration_ms` after `since_s` (time.perf_counter), or queue that much work."""


class Wait:
    """On a CPU: a wait. The cores stay free for the communication, as a GPU's host's do.

    What Python needs between two layers is taken off the second's wait: on a GPU the host runs ahead of the kernels.
    How long that is, the steps without communication say; what is between two layers beyond it is communication and
    stays. What a wait overslept is taken off the next one too.
    """

    name = "sleep"

    def __init__(self) -> None:
        self._seen_s: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_RUNS))  # by their place
        self.begin(syncs=True)

    def begin(self, *, syncs: bool) -> None:
        self._syncs, self._place = syncs, 0
        self._until_s: float | None = None  # when the last wait was to end
        self._ended_s = 0.0  # when it did

    def spend_ms(self, duration_ms: float, since_s: float) -> None:
        if self._until_s is not None:
            late_s = self._ended_s - self._until_s
            since_s -= self._between_s(since_s - self._ended_s) + late_s
        self._until_s = since_s + duration_ms / 1e3
        remaining_s = self._until_s - time.perf_counter()
        if remaining_s > 0:
            time.sleep(remaining_s)
        self._ended_s = time.perf_counter()

    def _between_s(self, between_s: float) -> float:
        """How much of what lies between this layer and the one before is what Python needs."""
        seen = self._seen_s[self._place]
        self._place += 1
        if not self._syncs:
            seen.append(between_s)
            return between_s
        return min(between_s, sorted(seen)[len(seen) // 2]) if seen else 0.0


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

    def begin(self, *, syncs: bool) -> None:
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
