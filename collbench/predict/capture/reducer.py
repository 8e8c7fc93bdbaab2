"""DDP's buckets, from torch's own reducer: it is run on a stand-in with the module's parameters and their order.

The stand-in's backward completes gradients in the order in which the module's does (walk.py), with zeros: the reducer
needs real tensors, but what it does depends on nothing else. Where the gradients are too large to be held, torch's
function that assigns parameters to buckets is called as its reducer calls it.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from collbench.errors import InputError
from collbench.predict.buckets import bucket_limits_bytes
from collbench.predict.capture.recorder import Event, Ready, Recording, Sent, sent_dtype
from collbench.predict.captured import Computed

LARGEST_REAL_BYTES = 2**30  # of gradients: held twice, as gradients and in buckets
_WARMUP_STEPS = 2  # buckets are rebuilt in the second


def reducer_events(
    recording: Recording,
    module: nn.Module,
    walked: Sequence[Event],
    bucket_cap_mb: float | None,
    find_unused_parameters: bool,
) -> tuple[list[Event], str]:
    """(a steady step's marks and collectives in order, where they are from). InputError where DDP would stop."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    _check_used(module, trained, walked, find_unused_parameters)
    if sum(parameter.numel() * parameter.element_size() for parameter in trained) > LARGEST_REAL_BYTES:
        events = _assigned(module, trained, walked, bucket_cap_mb, find_unused_parameters)
        return events, "by the function with which torch's reducer assigns buckets"
    stand_in = _StandIn(module, trained, walked, recording.events)
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        ddp = DistributedDataParallel(
            stand_in,
            bucket_cap_mb=bucket_cap_mb,
            find_unused_parameters=find_unused_parameters,
            gradient_as_bucket_view=True,
        )
        for _ in range(_WARMUP_STEPS + 1):
            recording.events.clear()
            ddp(torch.zeros(1, requires_grad=True)).backward()
    return list(recording.events), "recorded from torch's reducer"


def _check_used(
    module: nn.Module, trained: Sequence[nn.Parameter], walked: Sequence[Event], find_unused_parameters: bool
) -> None:
    used = {id(trained[event.parameter]) for event in walked if isinstance(event, Ready)}
    unused = [name for name, p in module.named_parameters() if p.requires_grad and id(p) not in used]
    if unused and not find_unused_parameters:
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        raise InputError(
            f"{unused[0]}{more} took no part in backward: torch's DDP stops at that in its second step: freeze what is "
            "not used, or give --find-unused-parameters, as the training script would"
        )


class _Touch(torch.autograd.Function):
    """Passes its input on; its backward gives the parameter a gradient of zeros."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        ctx.like = (parameter.shape, parameter.dtype)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        shape, dtype = ctx.like
        return gradient, torch.zeros((), dtype=dtype).expand(shape)


class _Mark(torch.autograd.Function):
    """Passes its input on; its backward notes an event."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, event: Event, events: list[Event]) -> torch.Tensor:
        ctx.event, ctx.events = event, events
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.events.append(ctx.event)
        return gradient, None, None


class _StandIn(nn.Module):
    """Real parameters and buffers of the module's shapes; a forward and backward with the module's marks and order."""

    def __init__(
        self, module: nn.Module, trained: Sequence[nn.Parameter], walked: Sequence[Event], events: list[Event]
    ) -> None:
        super().__init__()
        self._walked, self._events = walked, events
        self.trained = nn.ParameterList(
            nn.Parameter(torch.zeros(parameter.shape, dtype=parameter.dtype)) for parameter in trained
        )
        for number, buffer in enumerate(module.buffers()):
            self.register_buffer(f"buffer{number}", torch.zeros(buffer.shape, dtype=buffer.dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._events += [event for event in self._walked if _is_forward(event)]
        for event in reversed(self._walked):  # the last in the chain is the first in backward
            if isinstance(event, Ready):
                x = _Touch.apply(x, self.trained[event.parameter])  # type: ignore[no-untyped-call]
            elif not _is_forward(event):
                x = _Mark.apply(x, event, self._events)  # type: ignore[no-untyped-call]
        return x


def _is_forward(event: Event) -> bool:
    return isinstance(event, Computed) and event.direction == "forward"


def _assigned(
    module: nn.Module,
    trained: Sequence[nn.Parameter],
    walked: Sequence[Event],
    bucket_cap_mb: float | None,
    find_unused_parameters: bool,
) -> list[Event]:
    """As Reducer::rebuild_buckets: by the order of readiness. With unused parameters, by definition, and reversed."""
    limits = list(bucket_limits_bytes(bucket_cap_mb, None))
    order = [event.parameter for event in walked if isinstance(event, Ready)]
    assign: Any = dist._compute_bucket_assignment_by_size  # type: ignore[attr-defined]
    if find_unused_parameters:
        buckets = assign(list(trained), limits)[0][::-1]
    else:
        buckets = assign([trained[number] for number in order], limits, [], order)[0]
    nranks = dist.get_world_size()
    by_type: Counter[str] = Counter()
    for buffer in module.buffers():
        by_type[sent_dtype(buffer)] += buffer.numel() * buffer.element_size()
    events: list[Event] = [Sent("broadcast", size, dtype, nranks) for dtype, size in by_type.items()]
    waiting = [set(bucket).intersection(order) for bucket in buckets]
    for event in walked:
        if not isinstance(event, Ready):
            events.append(event)
            continue
        for missing in waiting:
            missing.discard(event.parameter)
        while waiting and not waiting[0]:  # in order: a bucket waits for those before it
            waiting.pop(0)
            bucket = [trained[number] for number in buckets[len(buckets) - len(waiting) - 1]]
            size_bytes = sum(parameter.numel() * parameter.element_size() for parameter in bucket)
            events.append(Sent("all_reduce", size_bytes, sent_dtype(bucket[0]), nranks))
    if find_unused_parameters:
        events.append(Sent("all_reduce", 4 * len(trained), "int32", nranks))
    return events
