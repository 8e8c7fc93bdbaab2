"""One forward and backward of a module, with a mark wherever a layer begins to compute, in either direction."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils.hooks import RemovableHandle

from collbench.errors import InputError
from collbench.predict.capture.loading import Inputs, reason
from collbench.predict.capture.recorder import Event, Ready
from collbench.predict.capture.spent import Spent
from collbench.predict.capture.units import Part
from collbench.predict.captured import Computed

Reading = Any


class Walk:
    """Hooks on the layers of a module; `run` as often as needed, then `spent` of the last run; `close` at the end.

    events: where marks, and trained parameters whose gradient is complete, are appended to.
    read: what passes meanwhile is charged to the layer that computes: time, or operations.
    """

    def __init__(
        self, module: nn.Module, parts: Sequence[Part], events: list[Event], read: Callable[[], Reading] | None = None
    ) -> None:
        self._module, self._events, self._read = module, events, read
        self._readings: list[tuple[tuple[str, str], Reading]] = []  # who computed until then
        self._computing: list[tuple[str, str]] = []  # the innermost last
        self._backward = False
        self._begun: set[str] = set()  # layers whose backward has begun
        self._hooks: list[RemovableHandle] = []
        self._hook(module, "")
        for part in parts:
            for each in part.modules:
                self._hook(each, part.name)
        owner = {id(parameter): part.name for part in parts for parameter in part.parameters}
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        for number, parameter in enumerate(trained):
            if id(parameter) in owner:  # not a shard: gradients are those of the gathered parameter
                self._hook_parameter(parameter, number, owner[id(parameter)])

    def run(self, inputs: Inputs) -> None:
        """Forward and backward. InputError where the module cannot."""
        self._computing, self._begun, self._backward = [("forward", "")], set(), False
        self._note()
        try:
            with redirect_stdout(sys.stderr):
                loss = _loss(self._module(*inputs.args, **inputs.kwargs))
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"the module's forward fails: {reason(error)}: are the inputs right? Shapes alone must be enough: "
                "tensors on the meta device have no values (--debug shows where)"
            ) from error
        self._note()
        self._computing, self._backward = [("backward", "")], True
        self._mark_backward("")  # the loss, then what is in no layer
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            raise InputError(f"the module's backward fails: {reason(error)} (--debug shows where)") from error
        self._note()

    def spent(self, between: Callable[[Reading, Reading], float]) -> Spent:
        """What each layer took in the last run, by direction; the layer "" is what is outside all."""
        spent: Spent = Counter()
        for (_, before), (key, after) in zip(self._readings, self._readings[1:], strict=False):
            spent[key] += between(before, after)  # type: ignore[assignment]
        self._readings.clear()
        return spent

    def close(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()

    def _note(self) -> None:
        if self._read is not None:
            self._readings.append((self._computing[-1], self._read()))

    def _hook(self, module: nn.Module, name: str) -> None:
        self._hooks += [
            module.register_forward_pre_hook(
                lambda _, args, kwargs: self._forward_begins(name, args, kwargs), with_kwargs=True
            ),
            module.register_forward_hook(lambda _, args, output: self._forward_ends(name, output)),
        ]

    def _hook_parameter(self, parameter: nn.Parameter, number: int, layer: str) -> None:
        def ready(_: torch.Tensor) -> None:
            self._mark_backward(layer)
            self._events.append(Ready(number))

        self._hooks.append(parameter.register_post_accumulate_grad_hook(ready))  # type: ignore[no-untyped-call]

    def _forward_begins(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._note()
        if self._backward:  # computed once more, for activation checkpointing
            self._computing.append(("backward", name))
            return
        self._computing.append(("forward", name))
        self._events.append(Computed(direction="forward", layer=name))
        inputs = _needing_gradients((args, kwargs))
        if name and inputs:
            register_multi_grad_hook(inputs, lambda _: self._backward_ends(name))

    def _forward_ends(self, name: str, output: Any) -> None:
        self._note()
        self._computing.pop()
        outputs = _needing_gradients(output)
        if name and outputs and not self._backward:
            register_multi_grad_hook(outputs, lambda _: self._backward_begins(name), mode="any")

    def _backward_begins(self, name: str) -> None:
        self._note()
        self._computing.append(("backward", name))
        self._mark_backward(name)

    def _mark_backward(self, name: str) -> None:
        if name not in self._begun:
            self._begun.add(name)
            self._events.append(Computed(direction="backward", layer=name))

    def _backward_ends(self, name: str) -> None:
        self._note()
        if ("backward", name) in self._computing[1:]:
            self._computing.reverse()
            self._computing.remove(("backward", name))
            self._computing.reverse()


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    """All tensors in nested containers, also in records with fields (as many libraries' outputs are)."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple | set):
        for each in value:
            yield from _tensors(each)
    elif hasattr(value, "__dataclass_fields__"):
        yield from _tensors(vars(value))


def _needing_gradients(value: Any) -> list[torch.Tensor]:
    return [tensor for tensor in _tensors(value) if tensor.requires_grad]


def _loss(output: Any) -> torch.Tensor:
    """A scalar to go backward from: the first one in the output, else the sum of all of it."""
    tensors = _needing_gradients(output)
    if not tensors:
        raise InputError("nothing that the module returns needs a gradient: does it train anything?")
    scalars = [tensor for tensor in tensors if tensor.numel() == 1]
    return scalars[0].sum() if scalars else torch.stack([tensor.float().sum() for tensor in tensors]).sum()
