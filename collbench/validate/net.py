"""A torch module with a workload's tensors and times: real parameters and gradients, waited-for computation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from collbench.predict.workload import Layer, Workload
from collbench.validate.compute import Compute

Mark = Callable[[], None]
Make = Callable[[tuple[int, ...]], torch.Tensor]


class _Spend(torch.autograd.Function):
    """Takes a layer's time in forward and in backward, where it hands every parameter a gradient of zeros.

    They become ready together, at the end of backward.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: _Timed, *parameters: torch.Tensor) -> torch.Tensor:
        begun = time.perf_counter()
        ctx.layer = layer
        ctx.shapes = [(p.shape, p.dtype, p.device) if p.requires_grad else None for p in parameters]
        layer.compute.spend_ms(layer.forward_ms, begun)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        begun = time.perf_counter()
        # Written in the layer's own time, as a backward does, and kept by autograd as they are: no further pass.
        gradients = [
            None if known is None else torch.zeros(known[0], dtype=known[1], device=known[2]) for known in ctx.shapes
        ]
        ctx.layer.compute.spend_ms(ctx.layer.backward_ms, begun)
        ctx.layer.backward_ended()
        return gradient, None, *gradients


def _no_mark() -> None:
    pass


class _Timed(nn.Module):
    """A module that takes time, and calls `backward_ended` when its backward is over."""

    def __init__(
        self, forward_ms: float, backward_ms: float, compute: Compute, backward_ended: Mark = _no_mark
    ) -> None:
        super().__init__()
        self.forward_ms, self.backward_ms, self.compute = forward_ms, backward_ms, compute
        self.backward_ended = backward_ended

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # A view a parameter, made in registration order: backward goes through the latest first, so that gradients
        # become ready in reverse registration order, as those of torch's layers do. Autograd alone keeps no order.
        views = [parameter.view_as(parameter) for parameter in self.parameters(recurse=False)]
        spent: torch.Tensor = _Spend.apply(x, self, *views)  # type: ignore[no-untyped-call]
        return spent


class TimedLayer(_Timed):
    """One repeat of one layer of the workload, its tensors as `make` makes them from their shapes."""

    def __init__(self, layer: Layer, make: Make, compute: Compute, backward_ended: Mark) -> None:
        super().__init__(layer.forward_ms, layer.backward_ms, compute, backward_ended)
        trained = [(shape, layer.trainable) for shape in layer.tensors]
        for index, (shape, trains) in enumerate([*trained, *((shape, False) for shape in layer.frozen_tensors)]):
            self.register_parameter(f"tensor{index}", nn.Parameter(make(shape), requires_grad=trains))


class Net(nn.Module):
    """The whole workload. `backward_ended`: the mark of the last backward computation's end in the latest step."""

    def __init__(
        self,
        workload: Workload,
        dtype: torch.dtype,
        device: torch.device,
        compute: Compute,
        mark: Callable[[], Any] = time.perf_counter,
        make: Make | None = None,
    ) -> None:
        super().__init__()
        self.backward_ended: Any = None
        self._new_mark = mark
        make = make or (lambda shape: torch.zeros(shape, dtype=dtype, device=device))
        layers = [layer for _, layer in workload.expanded]
        self.outside = _Timed(workload.forward_ms, 0.0, compute)
        self.layers = nn.ModuleList(TimedLayer(layer, make, compute, self._mark) for layer in layers)
        self.wrapped = [layer.wrap and bool(layer.numel) for layer in layers]
        # Frozen layers before it without a backward of their own are never entered by autograd.
        self._first = next((at for at, layer in enumerate(layers) if layer.trainable_numel or layer.backward_ms), 0)
        # Loss and head: after the last layer in forward order, so their backward is the first.
        self.head = _Timed(0.0, workload.backward_ms, compute)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.outside(x)
        for position, layer in enumerate(self.layers):
            x = layer(x.detach().requires_grad_() if position == self._first else x)
        out: torch.Tensor = self.head(x)
        return out

    def _mark(self) -> None:
        self.backward_ended = self._new_mark()


def twin_of(
    workload: Workload, dtype: torch.dtype, device: torch.device, compute: Compute, mark: Callable[[], Any]
) -> Net:
    """The same net on one rank without communication, in the memory of its largest tensor and one layer's gradients.

    All tensors share one memory, and a gradient is dropped as soon as it is there: what is sharded need not fit whole.
    """
    largest = max(math.prod(shape) for layer in workload.layers for shape in (*layer.tensors, *layer.frozen_tensors))
    memory = torch.zeros(largest, dtype=dtype, device=device)
    net = Net(workload, dtype, device, compute, mark, lambda shape: memory[: math.prod(shape)].view(shape))
    for parameter in net.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_drop_gradient)  # type: ignore[no-untyped-call]
    return net


def _drop_gradient(parameter: torch.Tensor) -> None:
    parameter.grad = None
