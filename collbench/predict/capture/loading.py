"""MODULE:FUNCTION -> the module that it builds, without memory for its parameters."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from collbench.dtypes import find_dtype
from collbench.errors import InputError


@dataclass(frozen=True)
class Inputs:
    """What a module's forward is called with."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def made(self, make: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
        """The same with every tensor made anew."""

        def each(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return make(value)
            if isinstance(value, list | tuple):
                return type(value)(each(item) for item in value)
            if isinstance(value, dict):
                return {key: each(item) for key, item in value.items()}
            return value

        return Inputs(tuple(each(value) for value in self.args), {key: each(v) for key, v in self.kwargs.items()})

    @property
    def tokens(self) -> int | None:
        """Elements of the first tensor of whole numbers, as token ids are; None without one."""
        for value in (*self.args, *self.kwargs.values()):
            if isinstance(value, torch.Tensor) and not value.is_floating_point() and value.dtype != torch.bool:
                return value.numel()
        return None


def reason(error: BaseException) -> str:
    """An exception in one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def find_function(spec: str) -> Callable[[], Any]:
    """The function that `spec` names, `package.module:function` or `file.py:function`. InputError where there is none.

    The current directory is searched too, as `python -m` does.
    """
    place, colon, name = spec.rpartition(":")
    if not (colon and place and name):
        raise InputError(f"{spec!r}: expected MODULE:FUNCTION, such as train:build or models/gpt.py:build")
    module = _import(place)
    function = getattr(module, name, None)
    if function is None:
        near = difflib.get_close_matches(name, [each for each in vars(module) if callable(vars(module)[each])], n=1)
        raise InputError(f"{place} has no {name!r}" + (f" (did you mean {near[0]}?)" if near else ""))
    if not callable(function):
        raise InputError(f"{spec}: is a {type(function).__name__}: expected a function that returns a torch.nn.Module")
    needed = _needed(function)
    if needed:
        raise InputError(f"{spec} takes {', '.join(needed)}: expected a function that is called without arguments")
    return function  # type: ignore[no-any-return]


def _needed(function: Callable[..., Any]) -> list[str]:
    """The parameters that it cannot be called without."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some that are written in C have none
        return []
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in open_ended]


def _import(place: str) -> Any:
    if place.endswith(".py") and not Path(place).is_file():
        raise InputError(f"{place}: no such file: expected MODULE:FUNCTION, such as train:build or models/gpt.py:build")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with redirect_stdout(sys.stderr):
            if not place.endswith(".py"):
                return importlib.import_module(place)
            found = importlib.util.spec_from_file_location(Path(place).stem, place)
            if found is None or found.loader is None:
                raise InputError(f"{place}: is no Python file")
            module = importlib.util.module_from_spec(found)
            sys.modules[found.name] = module  # as dataclasses and pickle expect of what they find in it
            found.loader.exec_module(module)
            return module
    except (Exception, SystemExit) as error:
        raise InputError(f"{place}: cannot be imported: {reason(error)}") from error


def build(function: Callable[[], Any], spec: str, device: str = "meta") -> tuple[nn.Module, Inputs | None]:
    """What the function returns, built on the device: (its module, its inputs where it returns them too).

    InputError where it fails, or returns something else.
    """
    try:
        with redirect_stdout(sys.stderr), torch.device(device):
            built = function()
    except (Exception, SystemExit) as error:
        advice = ", where tensors have shapes and no values" if device == "meta" else ""
        raise InputError(
            f"{spec} cannot be built on the {device} device{advice}: {reason(error)} (--debug shows where)"
        ) from error
    inputs = None
    if isinstance(built, tuple) and len(built) == 2:
        built, inputs = built[0], _inputs(built[1])
    if not isinstance(built, nn.Module):
        raise InputError(
            f"{spec} returned {_what(built)}: expected a torch.nn.Module, or (module, inputs of its forward)"
        )
    return built, inputs


def _what(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _inputs(value: Any) -> Inputs:
    if isinstance(value, Mapping):
        return Inputs(kwargs=value)
    return Inputs(args=tuple(value) if isinstance(value, list | tuple) else (value,))


def parse_inputs(texts: Sequence[str]) -> Inputs:
    """Tensors without data from `8x2048:int64`, `32x3x224x224` (float32); InputError for anything else."""
    tensors = []
    for text in texts:
        shape, _, dtype = text.partition(":")
        try:
            sizes = [int(size) for size in shape.split("x")]
        except ValueError:
            sizes = []
        if not sizes or min(sizes) < 1:
            raise InputError(f"--input {text!r}: expected a shape and a type, such as 8x2048:int64 or 32x3x224x224")
        name = find_dtype(dtype or "float32").name
        tensors.append(torch.empty(sizes, dtype=getattr(torch, name), device="meta"))
    return Inputs(args=tuple(tensors))
