"""The registry of strategies. A new one is one entry: its schedule, the options it takes, and what it divides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from collbench.errors import InputError, one_of
from collbench.predict.ddp import ddp, zero1, zero2
from collbench.predict.fsdp import fsdp
from collbench.predict.options import Options
from collbench.predict.placement import Placement
from collbench.predict.timeline import Schedule
from collbench.predict.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One way to share a training step between ranks.

    schedule: the tasks of one step.  options: the names of the Options it takes (all take accumulate).
    divides: which of parameters, gradients and optimizer each rank keeps only its share of.
    """

    schedule: Callable[[Workload, Placement, Options], Schedule]
    options: frozenset[str]
    divides: frozenset[str] = frozenset()


_BUCKETS = frozenset({"bucket_cap_mb", "first_bucket_mb"})
_UNITS = frozenset({"reshard_after_forward", "prefetch"})
_ALL = frozenset({"parameters", "gradients", "optimizer"})

STRATEGIES: dict[str, Strategy] = {
    "ddp": Strategy(schedule=ddp, options=_BUCKETS),
    "zero1": Strategy(schedule=zero1, options=_BUCKETS, divides=frozenset({"optimizer"})),
    "zero2": Strategy(schedule=zero2, options=_BUCKETS, divides=frozenset({"optimizer", "gradients"})),
    "zero3": Strategy(schedule=fsdp, options=_UNITS, divides=_ALL),
    "fsdp": Strategy(schedule=fsdp, options=_UNITS, divides=_ALL),
    "hsdp": Strategy(schedule=fsdp, options=_UNITS | {"mesh"}, divides=_ALL),
}


def find_strategy(name: str, options: Options) -> Strategy:
    """The strategy of that name; InputError for an unknown one, or for an option that is not its own."""
    if name not in STRATEGIES:
        raise one_of("strategy", name, list(STRATEGIES))
    strategy = STRATEGIES[name]
    for field in fields(options):
        if field.name == "accumulate" or field.name in strategy.options:
            continue
        value = getattr(options, field.name)
        if value != field.default:
            takers = [other for other, entry in STRATEGIES.items() if field.name in entry.options]
            raise InputError(
                f"{field.name} = {value!r} does not belong to strategy {name}: "
                f"leave it out, or choose {', '.join(takers)}"
            )
    return strategy
