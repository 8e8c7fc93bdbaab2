"""The order in which `fully_shard` issues what it does: planned by torch's rules, or as captured from torch.

With the default resharding the communicator sees: AG root, AG L0 … L3 | AG L3, AG L2, RS L3, AG L1, RS L2, AG L0,
RS L1, RS L0, RS root. Sources: torch/distributed/fsdp/_fully_shard (FSDPParamGroup.pre_forward … post_backward), and
recorded runs. What a plan for layers in a row cannot know (units within units, a first layer whose input needs no
gradient, prefetching as the user set it) is in the captured order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from collbench.predict.captured import Captured, Computed
from collbench.predict.options import Options
from collbench.predict.workload import Workload

ROOT = -1  # the root unit; of a computation, what is outside the layers

Kind = Literal["gather", "reduce", "forward", "backward"]
_KINDS: dict[str, Kind] = {
    "all_gather_into_tensor": "gather",
    "reduce_scatter_tensor": "reduce",
    "forward": "forward",
    "backward": "backward",
}


class Item(NamedTuple):
    """A collective of a unit or a computation of a layer; `at`: its position in `Workload.expanded`, or ROOT."""

    kind: Kind
    at: int


def planned_order(workload: Workload, has_root: bool, has_unit: Sequence[bool], options: Options) -> list[Item]:
    """One micro-batch of layers in a row. has_root, has_unit (per position): what there is to gather."""
    order = [Item("gather", ROOT)] if has_root else []
    order.append(Item("forward", ROOT))
    needed = issued = 0
    units = [position for position, wrapped in enumerate(has_unit) if wrapped]

    def gather(count: int) -> None:
        nonlocal issued
        order.extend(Item("gather", position) for position in units[issued:count])
        issued = max(issued, count)

    for position, wrapped in enumerate(has_unit):
        if wrapped:
            needed += 1
            gather(needed + options.forward_ahead)
        order.append(Item("forward", position))

    gathered_again = options.reshard_after_forward is not False
    if has_root and gathered_again and options.reshard_after_forward is not None:
        order.append(Item("gather", ROOT))
    units = [position for position in reversed(range(len(has_unit))) if has_unit[position] and gathered_again]
    needed = issued = 0
    first = _first_reached(workload)
    gather(min(options.backward_ahead, 1))  # the root has the last unit gathered while it computes
    order.append(Item("backward", ROOT))
    for position in reversed(range(len(has_unit))):
        reduces = has_unit[position] and position >= first
        if reduces:  # a unit before the first may still be prefetched, but nothing waits for it
            needed += 1
            gather(needed + options.backward_ahead)
        order.append(Item("backward", position))
        if reduces and options.backward_prefetch == "post":
            gather(needed + 1)
        order += [Item("reduce", position)] if reduces else []
    return [*order, Item("reduce", ROOT)] if has_root else order


def captured_order(workload: Workload, captured: Captured) -> list[Item]:
    """One micro-batch as torch issued it. HSDP's all_reduces are left out: they follow from the reduce-scatters."""
    positions = {name: position for position, (name, _) in enumerate(workload.expanded)} | {"": ROOT, "root": ROOT}
    order = []
    for event in captured.calls:
        word, name = (event.direction, event.layer) if isinstance(event, Computed) else (event.collective, event.unit)
        if word in _KINDS and name in positions:
            order.append(Item(_KINDS[word], positions[name]))
    return order


def gathered_once(order: Sequence[Item]) -> set[int]:
    """The positions whose backward computes with what their forward gathered: `fully_shard` keeps them until then.

    A unit that backward does not reach is gathered once too, and freed behind its forward.
    """
    gathers = Counter(item.at for item in order if item.kind == "gather")
    return {item.at for item in order if item.kind == "backward" and gathers[item.at] == 1 and item.at != ROOT}


def _first_reached(workload: Workload) -> int:
    """The position in `workload.expanded` at which backward ends: the first layer that trains or has backward time.

    Frozen layers before it hold nothing that needs a gradient, so torch's autograd never enters them.
    """
    reached = (layer.trainable_numel > 0 or layer.backward_ms > 0 for _, layer in workload.expanded)
    return next(position for position, here in enumerate(reached) if here)
