"""What torch itself issued for a workload under one strategy, as its file keeps it: every collective, in order.

    [captured]
    strategy = "fsdp"
    nranks = 1024
    source = "recorded through a process group, torch 2.13.0"
    plan = "as issued"
    calls = [
        ["all_gather_into_tensor", "root", 2101346304, "bfloat16", 1024],
        ["forward", "embedding"],
        …

A call is [collective, unit, size_bytes, dtype, ranks]; between calls stand the computations, [direction, layer], where
they begin. Layer and unit names are those of `Workload.expanded`; `root` is FSDP's root unit, the layer "" what the
model computes outside its layers. `collbench predict` plays this order for the same strategy and options, with sizes
of its own number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from collbench.collectives import find_collective
from collbench.dtypes import find_dtype
from collbench.errors import InputError, one_of
from collbench.predict.options import Options, check_count

STRATEGIES = ("ddp", "fsdp", "hsdp")
DIRECTIONS = ("forward", "backward")
AS_ISSUED = "as issued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A collective that torch issued. `unit`: whose tensors it carries; `size_bytes` is nccl-tests' size."""

    collective: str
    unit: str
    size_bytes: int
    dtype: str
    nranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """A layer's computation in one direction, where it begins."""

    direction: str
    layer: str


Event = Issued | Computed


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """The order in which torch issued collectives, and for what.

    strategy, nranks, mesh (replicas x shards), reshard_after_forward, bucket_cap_mb: what they were issued for.
    source: how they were obtained.  plan: how the schedule that `predict` plans by itself compares, AS_ISSUED or where
    it differs.  Raises InputError for a value that does not fit.
    """

    strategy: str
    nranks: int
    source: str
    plan: str
    calls: tuple[Event, ...]
    mesh: str | None = None
    reshard_after_forward: bool | int | None = None
    bucket_cap_mb: float | None = None

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise one_of("strategy", self.strategy, list(STRATEGIES))
        check_count("nranks", self.nranks)

    @property
    def issued(self) -> list[Issued]:
        """The collectives alone."""
        return [event for event in self.calls if isinstance(event, Issued)]

    def is_ddp_of(self, options: Options) -> bool:
        """Whether these are the buckets of DDP under such options."""
        cap = (options.bucket_cap_mb, options.first_bucket_mb)
        return self.strategy == "ddp" and cap == (self.bucket_cap_mb, None) and not options.finds_unused

    def is_fsdp_of(self, options: Options) -> bool:
        """Whether this is the order of `fully_shard` under such options, over whatever mesh."""
        mine, asked = self.reshard_after_forward, options.reshard_after_forward
        same = mine == asked and type(mine) is type(asked)
        own = options.prefetch and options.prefetch_ahead is None
        return self.strategy in ("fsdp", "hsdp") and same and own

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Captured:
        """From the file's table; InputError names the key."""
        known = [field.name for field in fields(cls)]
        for key in table:
            if key not in known:
                raise one_of("key", key, known)
        for key in ("strategy", "nranks", "source", "plan", "calls"):
            if key not in table:
                raise InputError(f"{key} is missing")
        for key in ("source", "plan"):
            if not isinstance(table[key], str):
                raise InputError(f"{key} = {table[key]!r} must be a text in quotes")
        if not isinstance(table["calls"], list | tuple):
            raise InputError(f"calls = {table['calls']!r} must be a list")
        return cls(**{**table, "calls": tuple(_event(row) for row in table["calls"])})

    def to_dict(self) -> dict[str, Any]:
        """The file's table, without what is not set."""
        table: dict[str, Any] = {
            "strategy": self.strategy,
            "nranks": self.nranks,
            "mesh": self.mesh,
            "reshard_after_forward": self.reshard_after_forward,
            "bucket_cap_mb": self.bucket_cap_mb,
            "source": self.source,
            "plan": self.plan,
        }
        return {key: value for key, value in table.items() if value is not None} | {
            "calls": [_row(event) for event in self.calls]
        }


def _event(row: Any) -> Event:
    if isinstance(row, list | tuple) and all(isinstance(word, str) for word in row[:2]):
        if len(row) == 2 and row[0] in DIRECTIONS:
            return Computed(direction=row[0], layer=row[1])
        if len(row) == 5 and all(isinstance(n, int) and n >= 0 for n in (row[2], row[4])):
            return Issued(
                collective=find_collective(row[0]).name,
                unit=row[1],
                size_bytes=row[2],
                dtype=find_dtype(row[3]).name,
                nranks=row[4],
            )
    raise InputError(
        f"calls has {row!r}: expected [collective, unit, size_bytes, dtype, ranks], or [forward or backward, layer]"
    )


def _row(event: Event) -> list[Any]:
    if isinstance(event, Computed):
        return [event.direction, event.layer]
    return [event.collective, event.unit, event.size_bytes, event.dtype, event.nranks]
