"""What one rank keeps, and the most it holds at once. GB = 10^9 bytes.

Sources: ZeRO (arXiv 1910.02054), section 5, for what is kept; for what comes and goes torch/distributed/fsdp
(FSDPParamGroup, foreach_all_gather, foreach_reduce), torch's reducer.cpp, and DeepSpeed's setup_buckets. Compared with
torch's own FSDPMemTracker in tests/predict/test_memory_torch.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from collbench.dtypes import find_dtype
from collbench.predict.ddp import reduced_buckets
from collbench.predict.fsdp import regather_group
from collbench.predict.options import Options
from collbench.predict.placement import Placement
from collbench.predict.strategies import Strategy
from collbench.predict.units import Unit, split_units
from collbench.predict.workload import Workload
from collbench.predict.zero import division_of

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Per rank. gathered_peak_GB: the most unsharded bytes alive at once (current, prefetched and root unit).

    post_forward_shards_GB: what `reshard_after_forward = K` keeps of every unit from its forward to its backward.
    buffers_GB: the most that unsharded gradients and the buffers of collectives take at once.
    peak_GB: the most of everything at one time, which need not be the sum: units are gathered at another time than
    most gradients are whole. Activations, a module's buffers and the allocator's own are not in it.
    """

    parameters_GB: float
    gradients_GB: float
    optimizer_GB: float
    gathered_peak_GB: float
    post_forward_shards_GB: float
    buffers_GB: float
    peak_GB: float

    @property
    def persistent_GB(self) -> float:
        """What stays for the whole run."""
        return self.parameters_GB + self.gradients_GB + self.optimizer_GB

    def to_dict(self) -> dict[str, float]:
        """The JSON object."""
        return asdict(self) | {"persistent_GB": self.persistent_GB}


def ledger(workload: Workload, strategy: Strategy, placement: Placement, options: Options) -> Memory:
    """The bytes one rank keeps, and the most it holds. Frozen layers take neither gradients nor optimizer state.

    FSDP's shares are padded, as torch allocates them; what every rank keeps whole (DeepSpeed) is divided nowhere but
    in gradients and optimizer.
    """
    share = {
        kind: placement.shard.nranks if kind in strategy.divides else 1
        for kind in ("parameters", "gradients", "optimizer")
    }
    numel, trained = workload.numel / share["parameters"], float(workload.trainable_numel)
    if "parameters" in strategy.divides:
        config = options.deepspeed
        division = strategy.division if config is None else division_of(config)
        root, units = split_units(workload, placement.shard.nranks, division)
        some = [unit for unit in (root, *units) if unit]
        numel = sum(unit.gather_numel / share["parameters"] + unit.whole_numel for unit in some)
        trained = sum(unit.reduce_numel for unit in some)
        moving = _sharded(workload, root, [unit for unit in units if unit], placement, options)
    else:
        buffers = _bucket_bytes(workload, strategy, options)
        moving = _Moving(gathered=0, kept=0, buffers=buffers, peak=buffers)
    parameters = numel * find_dtype(workload.storage_dtype).itemsize
    gradients = trained * find_dtype(workload.grad_dtype).itemsize / share["gradients"]
    optimizer = trained * workload.optimizer_bytes_per_parameter / share["optimizer"]
    return Memory(
        parameters_GB=parameters / GB,
        gradients_GB=gradients / GB,
        optimizer_GB=optimizer / GB,
        gathered_peak_GB=moving.gathered / GB,
        post_forward_shards_GB=moving.kept / GB,
        buffers_GB=moving.buffers / GB,
        peak_GB=(parameters + gradients + optimizer + moving.peak) / GB,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moving:
    """Bytes that come and go: as in Memory, and the most of them at one time."""

    gathered: float
    kept: float
    buffers: float
    peak: float


def _bucket_bytes(workload: Workload, strategy: Strategy, options: Options) -> float:
    """Buckets of replicated parameters.

    DDP keeps a copy of all gradients, unless they are views of it; a compression hook copies a bucket once more. ZeRO
    fills one bucket, with DeepSpeed's overlap_comm two of all that it may hold.
    """
    config = options.deepspeed
    if config is not None:
        itemsize = find_dtype(workload.reduce_dtype).itemsize
        return config.reduce_bucket_numel * itemsize * (2 if config.overlaps else 1) if config.stage else 0
    buckets = reduced_buckets(workload, options)
    largest = max((bucket.numel * find_dtype(bucket.dtype).itemsize for bucket in buckets), default=0)
    if strategy.divides:
        return largest
    copies = 0 if options.gradient_as_bucket_view else sum(bucket.numel for bucket in buckets)
    return copies * find_dtype(workload.grad_dtype).itemsize + (largest if options.comm_hook else 0)


def _sharded(
    workload: Workload, root: Unit | None, units: list[Unit], placement: Placement, options: Options
) -> _Moving:
    """Of units in a row, in three moments of each: its gather is copied out; it computes backward; it is reduced.

    In backward the next gather waits for nothing, so its output is there already. Gradients are whole in the type of
    parameters, and once more where they are sent. The root's wait for the end of backward.
    """
    regather, shards = regather_group(options, placement), placement.shard.nranks
    ahead = max(1, options.forward_ahead), options.backward_ahead
    root_bytes, sizes = (root.gather_bytes if root else 0), [unit.gather_bytes for unit in units]
    param_size, reduce_size = (find_dtype(dtype).itemsize for dtype in (workload.param_dtype, workload.reduce_dtype))
    waiting = not options.grad_sync and options.accumulate > 1  # unsharded gradients of all micro-batches
    root_gradients = root.reduce_numel * (reduce_size if waiting else param_size) if root else 0

    gathered: list[float] = [root_bytes]
    held: list[float] = [root_gradients + (root.reduce_bytes if root else 0)]  # when the root is reduced
    buffers: list[float] = [root_gradients + (root.reduce_bytes if root else 0)]
    before = sum(sizes)
    summed = sum(unit.reduce_numel for unit in units) * reduce_size if waiting else 0
    reducing = 0.0  # the reduce-scatter before this one
    for index in reversed(range(len(units))):
        unit = units[index]
        before -= sizes[index]  # of the units before this one
        prefetched = sum(sizes[max(0, index - ahead[1]) : index]) if regather else before
        copied_out = sizes[index] + (sum(sizes[max(0, index - ahead[0]) : index]) if regather else 0)
        whole = unit.reduce_numel * param_size + root_gradients + summed
        shard = unit.reduce_bytes / shards if options.accumulate > 1 and not waiting else 0  # added to the others
        gathered.append(root_bytes + sizes[index] + prefetched)
        buffers += [whole + reducing, whole + unit.reduce_bytes + shard]
        held += [
            root_bytes + sizes[index] + copied_out + (0 if regather else before),
            root_bytes + sizes[index] + prefetched + whole + reducing,
            root_bytes + prefetched + whole + unit.reduce_bytes + shard,
        ]
        summed -= unit.reduce_numel * reduce_size if waiting else 0
        reducing = unit.reduce_bytes
    kept = 0.0
    if regather is not None and regather != placement.shard:
        kept = (root_bytes + sum(sizes)) / regather.nranks
    return _Moving(gathered=max(gathered), kept=kept, buffers=max(buffers), peak=kept + max(held))
