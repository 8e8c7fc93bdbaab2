"""What one rank keeps: parameters, gradients, optimizer state, and the most it gathers at once. GB = 10^9 bytes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from collbench.dtypes import find_dtype
from collbench.predict.fsdp import regather_group
from collbench.predict.options import Options
from collbench.predict.placement import Placement
from collbench.predict.strategies import Strategy
from collbench.predict.units import split_units
from collbench.predict.workload import Workload

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Per rank. gathered_peak_GB: the most unsharded bytes alive at once (current, prefetched and root unit).

    post_forward_shards_GB: what `reshard_after_forward = K` keeps of every unit from its forward to its backward.
    Activations, buffers and the allocator's own are not in it.
    """

    parameters_GB: float
    gradients_GB: float
    optimizer_GB: float
    gathered_peak_GB: float
    post_forward_shards_GB: float

    @property
    def persistent_GB(self) -> float:
        """What stays for the whole run."""
        return self.parameters_GB + self.gradients_GB + self.optimizer_GB


def ledger(workload: Workload, strategy: Strategy, placement: Placement, options: Options) -> Memory:
    """The bytes one rank keeps. Frozen layers take neither gradients nor optimizer state.

    Sources: ZeRO (arXiv 1910.02054), section 5. FSDP's shares are padded on dimension 0, as torch allocates them.
    """
    shards = placement.shard.nranks
    padded = "parameters" in strategy.divides
    numel: float = workload.numel
    trained: float = workload.trainable_numel
    if padded:
        root, units = split_units(workload, shards, strategy.division)
        numel = sum(unit.gather_numel for unit in (root, *units) if unit)
        trained = sum(unit.reduce_numel for unit in (root, *units) if unit)
    share = {kind: shards if kind in strategy.divides else 1 for kind in ("parameters", "gradients", "optimizer")}
    peak, kept = _gathered(workload, placement, options) if padded else (0.0, 0.0)
    return Memory(
        parameters_GB=numel * find_dtype(workload.storage_dtype).itemsize / share["parameters"] / GB,
        gradients_GB=trained * find_dtype(workload.grad_dtype).itemsize / share["gradients"] / GB,
        optimizer_GB=trained * workload.optimizer_bytes_per_parameter / share["optimizer"] / GB,
        gathered_peak_GB=peak / GB,
        post_forward_shards_GB=kept / GB,
    )


def _gathered(workload: Workload, placement: Placement, options: Options) -> tuple[float, float]:
    """(most unsharded bytes at once, bytes of the K-way shards kept between forward and backward)."""
    root, units = split_units(workload, placement.shard.nranks)
    root_bytes = root.gather_bytes if root else 0
    sizes = [unit.gather_bytes for unit in units if unit]
    regather = regather_group(options, placement)
    if regather is None:
        return root_bytes + sum(sizes), 0.0
    alive = [first + second for first, second in pairwise(sizes)] if options.prefetch else []
    peak = root_bytes + max([*alive, *sizes], default=0)
    if regather == placement.shard:
        return peak, 0.0
    return peak, (root_bytes + sum(sizes)) / regather.nranks
