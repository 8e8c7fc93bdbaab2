"""The registry of strategies. A new one is one entry: its schedule, the options it takes, and what it divides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from collbench.errors import InputError, one_of
from collbench.predict.ddp import ddp, zero1, zero2
from collbench.predict.deepspeed import DeepSpeed
from collbench.predict.fsdp1 import FLAT, fsdp1
from collbench.predict.fsdp_copies import fsdp
from collbench.predict.options import Options
from collbench.predict.placement import Placement
from collbench.predict.timeline import Schedule
from collbench.predict.units import ROWS, Division
from collbench.predict.workload import Workload
from collbench.predict.zero import replicated, sharded

_Plan = Callable[[Workload, Placement, Options], Schedule]
_Configured = Callable[[Workload, Placement, Options, DeepSpeed], Schedule]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One way to share a training step between ranks.

    schedule: the tasks of one step.  options: the names of the Options it takes, beside those of every strategy.
    divides: which of parameters, gradients and optimizer each rank keeps only its share of.  division: how parameters
    are padded for it.  captures: whether it plays what was captured, where that is of its options.
    """

    schedule: _Plan
    options: frozenset[str]
    divides: frozenset[str] = frozenset()
    division: Division = ROWS
    captures: bool = False


EVERY = frozenset({"accumulate", "recompute"})  # options of every strategy
_BUCKETS = frozenset({"bucket_cap_mb", "first_bucket_mb"})
_COPIES = frozenset({"copy_GBps", "host_us"})
_REDUCER = frozenset({"comm_hook", "find_unused_parameters", "static_graph", "gradient_as_bucket_view"})
_UNITS = _COPIES | {"reshard_after_forward", "prefetch"}
_FSDP2 = frozenset({"grad_sync", "prefetch_ahead"})
_FSDP1 = frozenset({"reshard_after_forward", "grad_sync", "backward_prefetch", "forward_prefetch", "limit_all_gathers"})
_ALL = frozenset({"parameters", "gradients", "optimizer"})


def _either(plain: _Plan, configured: _Configured) -> _Plan:
    """The strategy as torch has it, or as a DeepSpeed config does."""

    def schedule(workload: Workload, placement: Placement, options: Options) -> Schedule:
        if options.deepspeed is None:
            return plain(workload, placement, options)
        return configured(workload, placement, options, options.deepspeed)

    return schedule


STRATEGIES: dict[str, Strategy] = {
    "ddp": Strategy(
        schedule=_either(ddp, replicated), options=_BUCKETS | _REDUCER | _COPIES | {"deepspeed"}, captures=True
    ),
    "zero1": Strategy(
        schedule=_either(zero1, replicated), options=_BUCKETS | {"deepspeed"}, divides=frozenset({"optimizer"})
    ),
    "zero2": Strategy(
        schedule=_either(zero2, replicated),
        options=_BUCKETS | {"deepspeed"},
        divides=frozenset({"optimizer", "gradients"}),
    ),
    "zero3": Strategy(schedule=_either(fsdp, sharded), options=_UNITS | {"deepspeed"}, divides=_ALL, captures=True),
    "fsdp": Strategy(schedule=fsdp, options=_UNITS | _FSDP2, divides=_ALL, captures=True),
    "hsdp": Strategy(schedule=fsdp, options=_UNITS | _FSDP2 | {"mesh"}, divides=_ALL, captures=True),
    "fsdp1": Strategy(schedule=fsdp1, options=_FSDP1, divides=_ALL, division=FLAT),
}


def find_strategy(name: str, options: Options) -> Strategy:
    """The strategy of that name; InputError for an unknown one, or for an option that is not its own."""
    if name not in STRATEGIES:
        raise one_of("strategy", name, list(STRATEGIES))
    strategy = STRATEGIES[name]
    for field in fields(options):
        if field.name in EVERY | strategy.options:
            continue
        value = getattr(options, field.name)
        if value != field.default:
            takers = [other for other, entry in STRATEGIES.items() if field.name in entry.options]
            raise InputError(
                f"{field.name} = {value!r} does not belong to strategy {name}: "
                f"leave it out, or choose {', '.join(takers)}"
            )
    return strategy
