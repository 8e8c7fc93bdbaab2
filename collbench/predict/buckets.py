"""DDP's gradient buckets, as torch's reducer makes them from its second step on.

Rule (torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size and rebuild_buckets): gradients are
taken in the order they become ready; a bucket closes after the parameter that brings it to its limit, so parameters
are never split and buckets overshoot; the first bucket has a limit of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from collbench.dtypes import find_dtype
from collbench.errors import InputError
from collbench.predict.workload import Workload

MIB = 1024**2
DEFAULT_CAP_MB = 25.0
DEFAULT_FIRST_MB = 1.0  # torch.distributed._DEFAULT_FIRST_BUCKET_BYTES; only while no cap is given


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """`numel` gradients, ready when the backward of `Workload.expanded[layer]` ends; bytes in the gradients' type."""

    numel: int
    size_bytes: int
    layer: int


def bucket_limits_bytes(bucket_cap_mb: float | None, first_bucket_mb: float | None) -> tuple[int, int]:
    """(first, cap) in bytes from MiB, with torch's defaults: 25 with a first of 1; a given cap is the first's too.

    Raises InputError for a negative or endless one. 0 gives every parameter its own bucket.
    """
    cap_mb = DEFAULT_CAP_MB if bucket_cap_mb is None else bucket_cap_mb
    first_mb = first_bucket_mb
    if first_mb is None:
        first_mb = DEFAULT_FIRST_MB if bucket_cap_mb is None else cap_mb
    for name, value in (("bucket_cap_mb", cap_mb), ("first_bucket_mb", first_mb)):
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"{name} = {value} must be a finite number of MiB, 0 or more")
    return int(first_mb * MIB), int(cap_mb * MIB)


def ddp_buckets(
    workload: Workload, bucket_cap_mb: float | None = None, first_bucket_mb: float | None = None
) -> list[Bucket]:
    """The buckets in launch order; frozen layers take no part. InputError as `bucket_limits_bytes`."""
    limit, cap = bucket_limits_bytes(bucket_cap_mb, first_bucket_mb)
    itemsize = find_dtype(workload.grad_dtype).itemsize
    buckets: list[Bucket] = []
    numel = last = 0
    for position, (_, layer) in reversed(list(enumerate(workload.expanded))):
        if not layer.trainable:
            continue
        for shape in reversed(layer.tensors):
            numel += math.prod(shape)
            if numel * itemsize >= limit:
                buckets.append(Bucket(numel=numel, size_bytes=numel * itemsize, layer=position))
                numel, limit = 0, cap
            last = position
    if numel:
        buckets.append(Bucket(numel=numel, size_bytes=numel * itemsize, layer=last))
    return buckets
