"""What a user may choose about a step, beside the strategy."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf

from collbench.errors import InputError, one_of
from collbench.predict.deepspeed import DeepSpeed

COMM_HOOKS = ("fp16", "bf16")  # torch's compression hooks, named as the type of what is sent
BACKWARD_PREFETCHES = ("pre", "post", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A step's options; each strategy lists those it takes (strategies.py).

    bucket_cap_mb, first_bucket_mb: MiB, as torch's DDP; None is its default, several caps are one a bucket and the last
    for all further ones.  comm_hook: fp16 or bf16, torch's compression hooks.  find_unused_parameters, static_graph,
    gradient_as_bucket_view: as torch's DDP; a static graph has nothing to find.  accumulate: micro-batches per
    optimizer step.  grad_sync: False reduces no gradients but in the last of them.  recompute: checkpointed layers
    compute their forward again in backward.  reshard_after_forward: as torch's `fully_shard`.  prefetch: gather the
    next unit while one computes.  prefetch_ahead: units that are gathered ahead of the one that computes, as
    set_modules_to_forward_prefetch and set_modules_to_backward_prefetch have it; None is torch's own.
    backward_prefetch (pre, post or none), forward_prefetch, limit_all_gathers: as FullyShardedDataParallel.  mesh:
    replicas x shards, as "2x8" or (2, 8).  copy_GBps: the rate, of bytes read and written, of torch's own copies into
    and out of what it sends; None counts none.  host_us: what the host takes around each collective beside them, where
    it does not run ahead of its device.  deepspeed: what a DeepSpeed config says instead of the other options.
    """

    bucket_cap_mb: float | tuple[float, ...] | None = None
    first_bucket_mb: float | None = None
    comm_hook: str | None = None
    find_unused_parameters: bool = False
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    accumulate: int = 1
    grad_sync: bool = True
    recompute: bool = False
    reshard_after_forward: bool | int | None = None
    prefetch: bool = True
    prefetch_ahead: int | None = None
    backward_prefetch: str = "pre"
    forward_prefetch: bool = False
    limit_all_gathers: bool = True
    mesh: str | tuple[int, int] | None = None
    copy_GBps: float | None = None
    host_us: float = 0.0
    deepspeed: DeepSpeed | None = None

    def __post_init__(self) -> None:
        check_count("accumulate", self.accumulate)
        if self.comm_hook is not None and self.comm_hook not in COMM_HOOKS:
            raise one_of("comm_hook", self.comm_hook, list(COMM_HOOKS))
        if self.backward_prefetch not in BACKWARD_PREFETCHES:
            raise one_of("backward_prefetch", self.backward_prefetch, list(BACKWARD_PREFETCHES))
        if self.copy_GBps is not None:
            check_amount("copy_GBps", self.copy_GBps)
        check_amount("host_us", self.host_us, or_zero=True)
        if self.deepspeed is not None:
            self._check_alone()
        if self.prefetch_ahead is not None:
            check_count("prefetch_ahead", self.prefetch_ahead)
            if not self.prefetch:
                raise InputError(f"prefetch_ahead = {self.prefetch_ahead} and prefetch = False exclude one another")
        if isinstance(self.bucket_cap_mb, list | tuple):  # one cap in a list is that cap
            caps = tuple(self.bucket_cap_mb)
            object.__setattr__(self, "bucket_cap_mb", caps[0] if len(caps) == 1 else caps)

    def _check_alone(self) -> None:
        """InputError for an option that a DeepSpeed config has words of its own for."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("deepspeed", "accumulate", "recompute") and value != field.default:
                raise InputError(f"{field.name} = {value!r} and a DeepSpeed config exclude one another: leave one out")

    @property
    def finds_unused(self) -> bool:
        """Whether DDP looks for unused parameters in every backward, and never makes its buckets anew."""
        return self.find_unused_parameters and not self.static_graph

    @property
    def forward_ahead(self) -> int:
        """Units whose gathers are issued before the one that computes, in forward."""
        return int(self.forward_prefetch) if self.prefetch_ahead is None else self.prefetch_ahead

    @property
    def backward_ahead(self) -> int:
        """The same in backward."""
        if self.prefetch_ahead is not None:
            return self.prefetch_ahead
        return int(self.prefetch and self.backward_prefetch == "pre")

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


def check_amount(name: str, value: float, *, or_zero: bool = False) -> None:
    """InputError where `value` is not a finite number above zero, or zero where that will do."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (0 < value < inf or (or_zero and value == 0)):
        raise InputError(f"{name} = {value!r} must be a finite number{', 0 or more' if or_zero else ' above 0'}")
