"""DDP's gradient buckets, as torch's reducer makes them from its second step on.

Rule (torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size and rebuild_buckets): gradients are
taken in the order they become ready; a bucket closes after the parameter that brings it to its limit, so parameters
are never split and buckets overshoot; the first bucket has a limit of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from collbench.dtypes import find_dtype
from collbench.errors import InputError
from collbench.predict.captured import Captured, Computed
from collbench.predict.order import ROOT
from collbench.predict.workload import Layer, Workload, expanded

Cap = float | tuple[float, ...]
MIB = 1024**2
DEFAULT_CAP_MB = 25.0
DEFAULT_FIRST_MB = 1.0  # torch.distributed._DEFAULT_FIRST_BUCKET_BYTES; only while no cap is given


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """`numel` gradients, ready when the backward of `Workload.expanded[layer]` ends; bytes in their type.

    layer: ROOT where they are ready with the backward outside the layers.
    """

    numel: int
    size_bytes: int
    layer: int
    dtype: str


def bucket_limits_bytes(bucket_cap_mb: Cap | None, first_bucket_mb: float | None) -> tuple[int, ...]:
    """(first, cap) in bytes from MiB, with torch's defaults: 25 with a first of 1; a given cap is the first's too.

    Several caps are those of the first buckets, and the last one of all further buckets (DDP's bucket_cap_mb_list).
    Raises InputError for a negative or endless one, and for several beside a first. 0 gives every parameter its own
    bucket.
    """
    if isinstance(bucket_cap_mb, tuple):
        if first_bucket_mb is not None:
            raise InputError(f"first_bucket_mb = {first_bucket_mb}: the first of several bucket caps is the first's")
        return tuple(_limit_bytes("bucket_cap_mb", cap_mb) for cap_mb in bucket_cap_mb)
    cap_mb = DEFAULT_CAP_MB if bucket_cap_mb is None else bucket_cap_mb
    cap_bytes = _limit_bytes("bucket_cap_mb", cap_mb)
    if first_bucket_mb is None:
        first_bucket_mb = DEFAULT_FIRST_MB if bucket_cap_mb is None else cap_mb
    return _limit_bytes("first_bucket_mb", first_bucket_mb), cap_bytes


def _limit_bytes(name: str, value_mb: float) -> int:
    if not (math.isfinite(value_mb) and value_mb >= 0):
        raise InputError(f"{name} = {value_mb} must be a finite number of MiB, 0 or more")
    return int(value_mb * MIB)


def ddp_buckets(
    workload: Workload,
    bucket_cap_mb: Cap | None = None,
    first_bucket_mb: float | None = None,
    *,
    rebuilt: bool = True,
) -> list[Bucket]:
    """The buckets in launch order; frozen layers take no part. InputError as `bucket_limits_bytes`.

    rebuilt: False where DDP looks for unused parameters, and so keeps what it made before the first step: in the
    order of the module, and launched from the last one.
    """
    limits = bucket_limits_bytes(bucket_cap_mb, first_bucket_mb)
    return list(_planned(workload.layers, workload.grad_dtype, limits, rebuilt=rebuilt))


@lru_cache(maxsize=64)  # a plan asks the same for every strategy with buckets and for their memory
def _planned(layers: tuple[Layer, ...], dtype: str, limits: tuple[int, ...], *, rebuilt: bool) -> tuple[Bucket, ...]:
    itemsize = find_dtype(dtype).itemsize
    tensors = [
        (position, math.prod(shape))
        for position, (_, layer) in enumerate(expanded(layers))
        if layer.trainable
        for shape in layer.tensors
    ]
    buckets: list[Bucket] = []
    numel, positions = 0, set[int]()

    def close() -> None:
        size_bytes = numel * itemsize
        buckets.append(Bucket(numel=numel, size_bytes=size_bytes, layer=min(positions), dtype=dtype))

    for position, size in reversed(tensors) if rebuilt else tensors:
        numel += size
        positions.add(position)
        if numel * itemsize >= limits[0]:
            close()
            numel, positions = 0, set()
            limits = limits[1:] or limits
    if numel:
        close()
    return tuple(buckets if rebuilt else reversed(buckets))


def captured_buckets(workload: Workload, captured: Captured) -> list[Bucket]:
    """The all_reduces that torch's reducer issued, each ready with the backward it followed."""
    positions = {name: position for position, (name, _) in enumerate(workload.expanded)} | {"": ROOT}
    buckets = []
    layer = ROOT
    for event in captured.calls:
        if isinstance(event, Computed):
            layer = positions[event.layer] if event.direction == "backward" else ROOT
        elif event.collective == "all_reduce":
            numel = event.size_bytes // find_dtype(event.dtype).itemsize
            buckets.append(Bucket(numel=numel, size_bytes=event.size_bytes, layer=layer, dtype=event.dtype))
    return buckets


def compressed(bucket: Bucket, dtype: str) -> Bucket:
    """As a compression hook sends it; buckets are made by the bytes of the gradients, before it."""
    return replace(bucket, dtype=dtype, size_bytes=bucket.numel * find_dtype(dtype).itemsize)
