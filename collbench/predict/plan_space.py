"""What a plan chooses between: strategies, meshes, bucket caps, resharding and the size of FSDP's units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isqrt

from collbench.errors import InputError
from collbench.predict.buckets import ddp_buckets
from collbench.predict.options import Options, check_count
from collbench.predict.placement import Placement
from collbench.predict.strategies import STRATEGIES, find_strategy
from collbench.predict.workload import Workload

# Tried unless others are asked for: zero3's schedule is fsdp's, and fsdp1 is what fsdp replaced.
ALL_STRATEGIES = ("ddp", "zero1", "zero2", "fsdp", "hsdp")  # of equals the first is listed first
ALL_CAPS_MB = (None, 1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 400.0)  # None: torch's, 25 MiB behind a first one of 1
ALL_RESHARDS = (None, True, False)

_OPTIONS = ("mesh", "bucket_cap_mb", "reshard_after_forward", "grad_sync")  # the fields of Options that are knobs

Mesh = tuple[int, int]
Reshard = bool | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One way to run the step. layers_per_unit: how many repeats of a wrapped layer form one FSDP unit."""

    strategy: str
    nodes: int
    ranks_per_node: int
    mesh: Mesh | None = None
    bucket_cap_mb: float | None = None
    reshard_after_forward: Reshard = None
    grad_sync: bool = True
    layers_per_unit: int = 1

    @property
    def placement(self) -> Placement:
        """Its ranks and the mesh over them."""
        replicas = 1 if self.mesh is None else self.mesh[0]
        return Placement(nodes=self.nodes, ranks_per_node=self.ranks_per_node, replicas=replicas)

    @property
    def knobs(self) -> tuple[str, ...]:
        """The names of the fields that matter to its strategy."""
        takes = STRATEGIES[self.strategy].options
        names = tuple(name for name in _OPTIONS if name in takes)
        return (*names, "layers_per_unit") if _has_units(self.strategy) else names

    def options(self, fixed: Options) -> Options:
        """As a schedule takes them, those that are `fixed` among them."""
        return replace(fixed, **{name: getattr(self, name) for name in _OPTIONS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What to choose from; an empty tuple means everything that makes sense.

    reshards: whole numbers are left out where they do not divide the shard degree.  grad_syncs: for accumulation.
    """

    nodes: tuple[int, ...]
    ranks_per_node: int
    strategies: tuple[str, ...] = ()
    meshes: tuple[Mesh, ...] = ()
    bucket_caps_mb: tuple[float | None, ...] = ()
    reshards: tuple[Reshard, ...] = ()
    grad_syncs: tuple[bool, ...] = (True,)
    layers_per_unit: tuple[int, ...] = ()


def configurations(workload: Workload, space: Space) -> list[Configuration]:
    """All of them, each once: choices that lead to the same buckets or units are one.

    Raises InputError for a choice that no strategy takes, for a mesh that fits no number of ranks, and where nothing
    is left to choose from.
    """
    strategies = space.strategies or ALL_STRATEGIES
    _check(space, strategies)
    caps = _distinct_caps(workload, space.bucket_caps_mb or ALL_CAPS_MB)
    sizes = _distinct_sizes(workload, space.layers_per_unit)
    found: list[Configuration] = []
    for nodes in space.nodes:
        flat = Placement(nodes=nodes, ranks_per_node=space.ranks_per_node)
        for strategy in strategies:
            meshes: Sequence[Mesh | None] = _meshes_of(flat, space) if _takes(strategy, "mesh") else (None,)
            for mesh in meshes:
                base = Configuration(strategy=strategy, nodes=nodes, ranks_per_node=space.ranks_per_node, mesh=mesh)
                if _has_units(strategy):
                    reshards = _reshards(workload, space.reshards, base)
                    syncs = space.grad_syncs if _takes(strategy, "grad_sync") else (True,)
                    found += [
                        replace(base, reshard_after_forward=reshard, grad_sync=sync, layers_per_unit=size)
                        for size in sizes
                        for reshard in reshards
                        for sync in syncs
                    ]
                else:
                    found += [replace(base, bucket_cap_mb=cap) for cap in caps]
    taken = {each.reshard_after_forward for each in found if _is_number(each.reshard_after_forward)}
    for reshard in space.reshards:
        if _is_number(reshard) and reshard not in taken:
            raise InputError(
                f"reshard_after_forward = {reshard} must be above 1 and a divisor of the shard degree, below it, and "
                "none of these strategies, meshes and numbers of nodes has such a degree: leave it out"
            )
    if not found:
        raise InputError("no configuration is left: these strategies, meshes and numbers of nodes do not go together")
    return found


def meshes_of(placement: Placement) -> list[Mesh]:
    """Every RxS, both above 1, whose shard groups are whole nodes or divide a node: others straddle its border.

    1xS is fsdp, and Rx1 is ddp.
    """
    nranks, per_node = placement.nranks, placement.ranks_per_node
    low = [shards for shards in range(2, isqrt(nranks) + 1) if nranks % shards == 0]
    degrees = sorted({*low, *(nranks // shards for shards in low)})
    return [(nranks // shards, shards) for shards in degrees if per_node % shards == 0 or shards % per_node == 0]


def merged(workload: Workload, layers_per_unit: int) -> Workload:
    """The workload with as many consecutive repeats of each wrapped layer as one, as `fully_shard` on a list of them.

    Repeats left over form a smaller unit. What torch issued holds for one layer a unit only, and is dropped.
    """
    if layers_per_unit == 1:
        return workload
    layers = []
    for layer in workload.layers:
        together = min(layers_per_unit, layer.repeat) if layer.wrap else 1
        whole, rest = divmod(layer.repeat, together)
        for count, repeat in ((together, whole), (rest, 1)):
            if count:
                layers.append(
                    replace(
                        layer,
                        name=layer.name if count == together else f"{layer.name}.rest",
                        repeat=repeat,
                        tensors=layer.tensors * count,
                        frozen_tensors=layer.frozen_tensors * count,
                        forward_ms=layer.forward_ms * count,
                        backward_ms=layer.backward_ms * count,
                    )
                )
    return replace(workload, layers=tuple(layers), captured=None)


def _has_units(strategy: str) -> bool:
    return _takes(strategy, "reshard_after_forward")


def _takes(strategy: str, option: str) -> bool:
    return option in STRATEGIES[strategy].options


def _check(space: Space, strategies: Sequence[str]) -> None:
    for strategy in strategies:
        find_strategy(strategy, Options())
    for count in (*space.nodes, space.ranks_per_node, *space.layers_per_unit):
        check_count("each number of nodes, of ranks per node and of layers per unit", count)
    choices: tuple[tuple[str, str, Sequence[object]], ...] = (
        ("bucket_cap_mb", "bucket_cap_mb", space.bucket_caps_mb),
        ("reshard_after_forward", "reshard_after_forward", space.reshards),
        ("layers_per_unit", "reshard_after_forward", space.layers_per_unit),
        ("mesh", "mesh", [f"{replicas}x{shards}" for replicas, shards in space.meshes]),
    )
    for name, option, chosen in choices:
        if chosen and not any(_takes(strategy, option) for strategy in strategies):
            takers = [taker for taker, entry in STRATEGIES.items() if option in entry.options]
            raise InputError(
                f"{name} {', '.join(map(str, chosen))}: no use to {', '.join(strategies)}: "
                f"leave it out, or add {', '.join(takers)}"
            )
    for replicas, shards in space.meshes:
        if all(replicas * shards != nodes * space.ranks_per_node for nodes in space.nodes):
            counts = ", ".join(str(nodes * space.ranks_per_node) for nodes in space.nodes)
            raise InputError(
                f"mesh {replicas}x{shards} has {replicas * shards} ranks, but the layouts have {counts}: "
                "change --mesh, --nodes or --ranks-per-node"
            )


def _meshes_of(placement: Placement, space: Space) -> list[Mesh]:
    if space.meshes:
        return [mesh for mesh in space.meshes if mesh[0] * mesh[1] == placement.nranks]
    return meshes_of(placement)


def _distinct_caps(workload: Workload, caps_mb: Sequence[float | None]) -> list[float | None]:
    """Those caps that make different buckets; what torch issued for a cap is never what the others' plan makes."""
    found: dict[object, float | None] = {}
    for cap_mb in caps_mb:
        captured = workload.captured is not None and workload.captured.is_ddp_of(Options(bucket_cap_mb=cap_mb))
        found.setdefault((captured, tuple(ddp_buckets(workload, cap_mb))), cap_mb)
    return list(found.values())


def _distinct_sizes(workload: Workload, sizes: Sequence[int]) -> list[int]:
    """Layers per unit that make different units; by default 1, 2, 4 … up to all repeats of a layer."""
    most = max((layer.repeat for layer in workload.layers if layer.wrap), default=1)
    if not sizes:
        doubled = [2**power for power in range(most.bit_length())]
        sizes = doubled if doubled[-1] == most else [*doubled, most]
    return list(dict.fromkeys(min(size, most) for size in sizes))


def _reshards(workload: Workload, chosen: Sequence[Reshard], base: Configuration) -> list[Reshard]:
    """Those that this strategy and shard degree take, by default a node's ranks too."""
    shards = base.placement.shard.nranks
    reshards = list(chosen or ALL_RESHARDS)
    if not chosen and shards % base.ranks_per_node == 0:
        reshards.append(base.ranks_per_node)
    flat = base.strategy == "fsdp1"  # FULL_SHARD (none or true) and SHARD_GRAD_OP (false) alone
    has_root = any(not layer.wrap and layer.numel for layer in workload.layers)
    if None in reshards and (flat or (not has_root and workload.captured is None)):
        reshards = [reshard for reshard in reshards if reshard is not True]  # differs in the root alone
    return [reshard for reshard in reshards if not _is_number(reshard) or (_divides(reshard, shards) and not flat)]


def _is_number(reshard: Reshard) -> bool:
    return isinstance(reshard, int) and not isinstance(reshard, bool)


def _divides(reshard: Reshard, shards: int) -> bool:
    """Whether units can be gathered again over so many ranks, fewer than all."""
    return reshard is not None and 1 < reshard < shards and shards % reshard == 0
