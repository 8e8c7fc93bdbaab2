"""What one rank keeps, and the most it holds at once. GB = 10^9 bytes.

Sources: ZeRO (arXiv 1910.02054), section 5, for what is kept; for what comes and goes torch/distributed/fsdp
(FSDPParamGroup, foreach_all_gather, foreach_reduce), torch's reducer.cpp, and DeepSpeed's setup_buckets. Compared with
torch's own FSDPMemTracker in tests/predict/test_memory_torch.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from collbench.dtypes import find_dtype
from collbench.predict.ddp import reduced_buckets
from collbench.predict.fsdp import regather_group
from collbench.predict.options import Options
from collbench.predict.order import captured_order, gathered_once
from collbench.predict.placement import Placement
from collbench.predict.strategies import Strategy
from collbench.predict.units import Unit, split_units
from collbench.predict.workload import Workload
from collbench.predict.zero import division_of, reused_units

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
        root, found = split_units(workload, placement.shard.nranks, division)
        units = {position: unit for position, unit in enumerate(found) if unit}
        some = [*([root] if root else []), *units.values()]
        numel = sum(unit.gather_numel / share["parameters"] + unit.whole_numel for unit in some)
        trained = sum(unit.reduce_numel for unit in some)
        stay = _staying(workload, strategy, units, options)
        moving = _sharded(workload, root, units, stay, placement, options)
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


def _staying(workload: Workload, strategy: Strategy, units: Mapping[int, Unit], options: Options) -> set[int]:
    """The positions of units that stay gathered from their forward to their backward.

    Where the strategy plays what was captured, each unit may have been given its own way to reshard.
    """
    if options.deepspeed is not None:
        return reused_units(units, options.deepspeed)
    if strategy.captures and workload.captured is not None and workload.captured.is_fsdp_of(options):
        return gathered_once(captured_order(workload, workload.captured))
    return set(units) if options.reshard_after_forward is False else set()


def _sharded(
    workload: Workload,
    root: Unit | None,
    by_position: Mapping[int, Unit],
    stay: set[int],
    placement: Placement,
    options: Options,
) -> _Moving:
    """Of units in a row, in three moments of each: its gather is copied out; it computes backward; it is reduced.

    In backward the next gather waits for nothing, so its output is there already. Gradients are whole in the type of
    parameters, and once more where they are sent. The root's wait for the end of backward. Units that `stay` are there
    from their forward to their backward.
    """
    regather, shards = regather_group(options, placement), placement.shard.nranks
    ahead = max(1, options.forward_ahead), options.backward_ahead
    units, root_bytes = list(by_position.values()), (root.gather_bytes if root else 0)
    sizes = [unit.gather_bytes for unit in units]
    freed = [0 if position in stay else size for position, size in zip(by_position, sizes, strict=True)]
    param_size, reduce_size = (find_dtype(dtype).itemsize for dtype in (workload.param_dtype, workload.reduce_dtype))
    waiting = not options.grad_sync and options.accumulate > 1  # unsharded gradients of all micro-batches
    root_gradients = root.reduce_numel * (reduce_size if waiting else param_size) if root else 0
    sent = [unit.reduce_bytes for unit in units]
    root_sent, bucket = (root.reduce_bytes if root else 0), 0
    if options.deepspeed is not None:  # gradients go into one bucket, made once (_setup_for_real_optimizer)
        sent, root_sent = [0] * len(units), 0
        bucket = options.deepspeed.reduce_bucket_numel * find_dtype(workload.grad_dtype).itemsize

    gathered: list[float] = [root_bytes]
    held: list[float] = [root_gradients + root_sent]  # when the root is reduced
    buffers: list[float] = [root_gradients + root_sent]
    staying = sum(sizes) - sum(freed)
    summed = sum(unit.reduce_numel for unit in units) * reduce_size if waiting else 0
    reducing = 0.0  # the reduce-scatter before this one
    for index in reversed(range(len(units))):
        unit = units[index]
        staying -= sizes[index] - freed[index]  # of the units before this one
        prefetched = staying + sum(freed[max(0, index - ahead[1]) : index])
        copied_out = sizes[index] + staying + sum(freed[max(0, index - ahead[0]) : index])
        whole = unit.reduce_numel * param_size + root_gradients + summed
        shard = sent[index] / shards if options.accumulate > 1 and not waiting else 0  # added to the others
        gathered.append(root_bytes + sizes[index] + prefetched)
        buffers += [whole + reducing, whole + sent[index] + shard]
        held += [
            root_bytes + sizes[index] + copied_out,
            root_bytes + sizes[index] + prefetched + whole + reducing,
            root_bytes + prefetched + whole + sent[index] + shard,
        ]
        summed -= unit.reduce_numel * reduce_size if waiting else 0
        reducing = sent[index]
    kept = 0.0
    if regather is not None and regather != placement.shard:
        kept = (root_bytes + sum(sizes)) / regather.nranks
    return _Moving(gathered=max(gathered), kept=kept, buffers=bucket + max(buffers), peak=kept + bucket + max(held))
