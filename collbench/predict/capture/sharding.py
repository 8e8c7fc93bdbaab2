"""What `fully_shard` issues for a module, with the user's calls of it or one for every unit, at any number of ranks."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from collbench.dtypes import find_dtype
from collbench.errors import InputError
from collbench.predict.capture.loading import Inputs, reason
from collbench.predict.capture.recorder import Event, Recording, Sent
from collbench.predict.capture.spent import Spent
from collbench.predict.capture.times import counting
from collbench.predict.capture.units import Part
from collbench.predict.capture.walk import Walk
from collbench.predict.captured import Computed
from collbench.predict.captured import Event as CapturedEvent
from collbench.predict.units import padded_rows

OTHER = "other"  # the unit of a collective that is no unit's


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """How a module is sharded that the user did not shard."""

    replicas: int
    shards: int
    reshard_after_forward: bool | int | None
    param_dtype: str | None
    reduce_dtype: str | None


def shard(module: nn.Module, parts: Sequence[Part], sharding: Sharding) -> None:
    """`fully_shard` on every unit, the innermost first, and on the whole. InputError where torch refuses."""
    names = ("replicate", "shard")
    shape = (sharding.replicas, sharding.shards)[-1 if sharding.replicas == 1 else -2 :]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names[-len(shape) :])
    policy = MixedPrecisionPolicy(param_dtype=_type(sharding.param_dtype), reduce_dtype=_type(sharding.reduce_dtype))
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
    if sharding.reshard_after_forward is not None:
        options["reshard_after_forward"] = sharding.reshard_after_forward
    units = {id(each) for part in parts if part.wrapped for each in part.modules}
    try:
        for each in reversed(list(module.modules())):
            if id(each) in units and each is not module:
                fully_shard(each, **options)
        fully_shard(module, **options)
    except Exception as error:
        raise InputError(f"torch's fully_shard refuses the module: {reason(error)}") from error


def _type(name: str | None) -> torch.dtype | None:
    return None if name is None else getattr(torch, find_dtype(name).name)


def sharded_events(
    recording: Recording, module: nn.Module, parts: Sequence[Part], inputs: Inputs, *, count: bool
) -> tuple[list[Event], Spent]:
    """(marks and collectives of a forward and backward on tensors without data, in order; operations if counted)."""
    sharded = next((p for p in module.parameters() if isinstance(p, DTensor)), None)
    device = "cpu" if sharded is None else sharded.device_mesh.device_type
    counter = counting() if count else None
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        module.to_empty(device=device)
        made = inputs.made(lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype, device=device))
        if counter is not None:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # attention as products, which are counted
            stack.enter_context(counter)
        walk = Walk(module, parts, recording.events, counter.get_total_flops if counter else None)
        recording.events.clear()
        walk.run(made)
        walk.close()
    return list(recording.events), walk.spent(lambda before, after: after - before)


class Attribution:
    """Tells whose tensors each collective of `fully_shard` carries, from its size and the computation it comes with.

    Units are gathered before they compute, some ahead of others, and reduced after; of equal ones the next is taken.
    """

    def __init__(self, parts: Sequence[Part], shards: int) -> None:
        self._shards = shards
        self._unit_of = {part.name: part.name if part.wrapped else "root" for part in parts} | {"": "root"}
        self._parameters: dict[str, list[nn.Parameter]] = {}
        for part in parts:
            self._parameters.setdefault(self._unit_of[part.name], []).extend(part.parameters)

    def __call__(self, events: Sequence[Event]) -> list[CapturedEvent]:
        marks = [event for event in events if isinstance(event, Computed)]
        passed = 0
        gathered: set[tuple[str, str]] = set()
        unreduced = dict.fromkeys(self._parameters)
        reduced = OTHER
        attributed: list[CapturedEvent] = []
        for event in events:
            if isinstance(event, Computed):
                passed += 1
                attributed.append(event)
            if not isinstance(event, Sent):
                continue
            unit = OTHER
            if event.collective == "all_gather_into_tensor":
                direction = marks[min(passed, len(marks) - 1)].direction
                units = [unit for unit in self._ahead(marks, passed) if self._gathers(unit, event)]
                unit = next((unit for unit in units if (direction, unit) not in gathered), next(iter(units), OTHER))
                gathered.add((direction, unit))
            elif event.collective == "reduce_scatter_tensor":
                units = [unit for unit in self._behind(marks, passed) if unit in unreduced]
                unit = next((unit for unit in units if self._reduces(unit, event)), next(iter(units), OTHER))
                unreduced.pop(unit, None)
                reduced = unit
            elif event.collective == "all_reduce" and event.nranks != self._shards:
                unit = reduced  # HSDP's, of what was just scattered
            place = len(attributed)
            last = attributed[-1] if attributed else None
            if event.collective == "all_gather_into_tensor" and isinstance(last, Computed) and passed > 1:
                # torch gathers the root when its output's gradient is there: so are those of its last layer.
                place -= self._unit_of.get(last.layer) == unit
            attributed.insert(place, event.of(unit))
        return attributed

    def _ahead(self, marks: Sequence[Computed], passed: int) -> list[str]:
        """Units by when they compute next in this direction; then those that do not, the last of forward first."""
        direction = marks[min(passed, len(marks) - 1)].direction
        coming = [mark.layer for mark in marks[passed:] if mark.direction == direction]
        forward = [mark.layer for mark in marks if mark.direction == "forward"]
        return self._units([*coming, *reversed(forward)])

    def _behind(self, marks: Sequence[Computed], passed: int) -> list[str]:
        """Units whose backward has begun, the last first."""
        return self._units([mark.layer for mark in reversed(marks[:passed]) if mark.direction == "backward"])

    def _units(self, layers: Sequence[str]) -> list[str]:
        units = dict.fromkeys(self._unit_of[layer] for layer in layers if layer in self._unit_of)
        return [unit for unit in units if unit in self._parameters]

    def _gathers(self, unit: str, event: Sent) -> bool:
        sizes = [(self._padded(parameter), parameter) for parameter in self._parameters[unit]]
        if event.dtype == "uint8":  # parameters of several types travel as bytes
            return event.size_bytes == sum(numel * parameter.element_size() for numel, parameter in sizes)
        return event.size_bytes == sum(numel for numel, _ in sizes) * find_dtype(event.dtype).itemsize

    def _reduces(self, unit: str, event: Sent) -> bool:
        trained = [parameter for parameter in self._parameters[unit] if parameter.requires_grad]
        return event.size_bytes == sum(map(self._padded, trained)) * find_dtype(event.dtype).itemsize

    def _padded(self, parameter: nn.Parameter) -> int:
        return padded_rows((tuple(parameter.shape) or (1,),), self._shards)
