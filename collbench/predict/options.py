"""What a user may choose about a step, beside the strategy."""

from __future__ import annotations

from dataclasses import dataclass

from collbench.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A step's options; each strategy lists those it takes (strategies.py).

    bucket_cap_mb, first_bucket_mb: MiB, as torch's DDP; None is its default.  accumulate: micro-batches per optimizer
    step.  reshard_after_forward: as torch's `fully_shard`.  prefetch: gather the next unit while one computes.
    mesh: replicas x shards, as "2x8" or (2, 8).
    """

    bucket_cap_mb: float | None = None
    first_bucket_mb: float | None = None
    accumulate: int = 1
    reshard_after_forward: bool | int | None = None
    prefetch: bool = True
    mesh: str | tuple[int, int] | None = None

    def __post_init__(self) -> None:
        check_count("accumulate", self.accumulate)

    @property
    def micro_batch_marks(self) -> list[str]:
        """What tells the tasks of one micro-batch from another's: nothing where there is one."""
        if self.accumulate == 1:
            return [""]
        return [f" #{number}" for number in range(1, self.accumulate + 1)]


def check_count(name: str, value: int) -> None:
    """InputError where `value` is not a whole number above zero."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} = {value!r} must be a whole number above zero")
