"""The program of a rank: an FSDP step as a GPU runs it, rolled by hand with asynchronous collectives of gloo.

torch's own `fully_shard` blocks on a CPU, so that nothing of its schedule overlaps there. Here the same schedule is
written out: the next unit is gathered while one computes, a unit's gradients are reduced while the next one computes,
each after the one before; units are gathered again for backward, the root is not. Computation is a wait.

    python async_fsdp.py '{"layers": [[elements, forward_ms, backward_ms, wrapped], …], "steps": 5}'

Rank 0 prints medians over the steps, each the slowest rank's: {"step_ms": …, "compute_ms": …}.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from collbench.validate.compute import Wait

WARMUP_STEPS = 2
START_S = 0.02  # from a rank's word to the start: ranks wait for it together
# torch 2.13 has new names for two, and warns of the old ones.
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Unit:
    """Tensors that are gathered and reduced together, their elements padded to equal shares."""

    def __init__(self, elements: int) -> None:
        share = -(-elements // dist.get_world_size())
        self._shard, self._whole = torch.zeros(share), torch.zeros(share * dist.get_world_size())
        self._gradients, self._reduced = torch.zeros_like(self._whole), torch.zeros_like(self._shard)

    def gather(self) -> Any:
        return ALL_GATHER(self._whole, self._shard, async_op=True)

    def reduce(self) -> Any:
        return REDUCE_SCATTER(self._reduced, self._gradients, async_op=True)


class Silent:
    """A unit, and the work of its collectives, which send nothing: for the step without communication."""

    def gather(self) -> Silent:
        return self

    def reduce(self) -> Silent:
        return self

    def wait(self) -> None:
        pass


class Layer:
    """Its times, and its unit: None where its tensors are the root's."""

    def __init__(self, forward_ms: float, backward_ms: float, unit: Unit | Silent | None) -> None:
        self.forward_ms, self.backward_ms, self.unit = forward_ms, backward_ms, unit


class Model:
    """Layers in forward order and the root unit. `compute` is shared with the model that sends nothing."""

    def __init__(
        self, layers: Sequence[Sequence[Any]], compute: Wait, make: Callable[[int], Unit | Silent] | None = None
    ) -> None:
        self._compute, self._syncs = compute, make is not None
        make = make or (lambda _: Silent())
        of_root = sum(elements for elements, _, _, wrapped in layers if not wrapped)
        self._root = make(of_root) if of_root else Silent()
        self._layers = [
            Layer(forward_ms, backward_ms, make(elements) if wrapped else None)
            for elements, forward_ms, backward_ms, wrapped in layers
        ]

    def step(self) -> None:
        self._compute.begin(syncs=self._syncs)
        self._root.gather().wait()
        for layer in self._gathered(self._layers):
            self._spend(layer.forward_ms)
        reduced: Any = Silent()
        for layer in self._gathered(self._layers[::-1]):
            self._spend(layer.backward_ms)
            if layer.unit is not None:
                reduced.wait()
                reduced = layer.unit.reduce()
        reduced.wait()
        self._root.reduce().wait()

    def _gathered(self, layers: list[Layer]) -> Any:
        """The layers, each when its unit is there, and the next one's is on its way."""
        units = iter([layer.unit for layer in layers if layer.unit is not None])
        coming = next(units, Silent()).gather()
        for layer in layers:
            if layer.unit is not None:
                coming.wait()
                coming = next(units, Silent()).gather()
            yield layer

    def _spend(self, duration_ms: float) -> None:
        self._compute.spend_ms(duration_ms, time.perf_counter())


def time_ms(model: Model) -> float:
    """One step from a start common to all ranks, whose hosts have one clock; the slowest rank's."""
    start = torch.tensor([time.monotonic() + START_S], dtype=torch.float64)
    dist.all_reduce(start, op=dist.ReduceOp.MAX)
    time.sleep(max(0.0, start.item() - time.monotonic()))
    model.step()
    took = torch.tensor([time.monotonic() - start.item()], dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return 1e3 * float(took.item())


def main() -> None:
    request = json.loads(sys.argv[1])
    dist.init_process_group("gloo")
    compute = Wait()
    real, silent = Model(request["layers"], compute, Unit), Model(request["layers"], compute)
    samples = [(time_ms(real), time_ms(silent)) for _ in range(WARMUP_STEPS + request["steps"])][WARMUP_STEPS:]
    step_ms, compute_ms = (statistics.median(times) for times in zip(*samples, strict=True))
    if dist.get_rank() == 0:
        print(json.dumps({"step_ms": step_ms, "compute_ms": compute_ms}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
