"""A workload: the layers of a model in forward order, their tensors, and how long each computes.

Read from TOML (`Workload.from_toml`), from a mapping (`Workload.from_dict`), from a torch module
(`Workload.from_module`), or built in Python, always under the same checks. A layer's gradients all become ready at
the end of its backward, in reverse registration order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from collbench.dtypes import find_dtype
from collbench.errors import InputError, one_of
from collbench.predict.captured import Captured, Computed
from collbench.tomlfile import TomlFile

MOST_REPEATS = 100_000
_LARGEST = 10**18  # far above any time, size or rate; refuses inf and, as every comparison does, NaN


class _BadKey(InputError):
    """A value that does not fit; `key` lets the reader of a file find its line."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}{message}")
        self.key, self.message = key, message


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _BadKey(key, f" = {value!r} must be a text in quotes")
    return value


def _any_text(key: str, value: Any) -> str:
    return value if value == "" else _text(key, value)


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _BadKey(key, f" = {value!r} must be true or false")
    return value


def _amount(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LARGEST:
        raise _BadKey(key, f" = {value!r} must be a finite number, 0 or more")
    return float(value)


def _amount_or_none(key: str, value: Any) -> float | None:
    return None if value is None else _amount(key, value)


def _dtype(key: str, value: Any) -> str:
    try:
        return find_dtype(value).name
    except InputError as error:
        raise _BadKey(key, f": {error}") from None


def _is_whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _repeat(key: str, value: Any) -> int:
    if not _is_whole(value, 1, MOST_REPEATS):
        raise _BadKey(key, f" = {value!r} must be a whole number from 1 to {MOST_REPEATS}")
    return int(value)


def _tensors(key: str, value: Any) -> tuple[tuple[int, ...], ...]:
    """Shapes; a whole number n is the shape (n,)."""
    if not isinstance(value, list | tuple):
        raise _BadKey(key, f" = {value!r} must be a list of shapes such as [[1024, 1024], 1024]")
    shapes = tuple(tuple(item) if isinstance(item, list | tuple) else (item,) for item in value)
    for shape, item in zip(shapes, value, strict=True):
        if not shape or not all(_is_whole(dimension, 1, _LARGEST) for dimension in shape):
            raise _BadKey(key, f" has {item!r}: a tensor is a number of elements or a shape of whole numbers above 0")
    return shapes


def _layers(key: str, value: Any) -> tuple[Layer, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(layer, Layer) for layer in value):
        raise _BadKey(key, " must be a list of layers: one [[layers]] table each")
    if not value:
        raise _BadKey(key, ": the workload has no layers: add at least one [[layers]] table")
    return tuple(value)


def _check(record: Layer | Workload, checks: Mapping[str, Callable[[str, Any], object]]) -> None:
    """Put every checked and normalised value back into a frozen record; raises _BadKey."""
    for key, check in checks.items():
        object.__setattr__(record, key, check(key, getattr(record, key)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer, `repeat` times in a row; times are of one repeat and one micro-batch.

    tensors: shapes in registration order.  trainable: false takes no gradient and no optimizer state.
    frozen_tensors: further shapes of the same unit that take neither, whatever `trainable` says (a LoRA's base).
    wrap: each repeat is one FSDP unit; false puts its tensors into the root unit.
    Raises InputError for a value that does not fit, and for a layer without tensors and without times.
    """

    name: str = "layer"
    repeat: int = 1
    tensors: tuple[tuple[int, ...], ...] = ()
    frozen_tensors: tuple[tuple[int, ...], ...] = ()
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    trainable: bool = True
    wrap: bool = True

    def __post_init__(self) -> None:
        _check(self, _LAYER_CHECKS)
        if not (self.tensors or self.frozen_tensors or self.forward_ms or self.backward_ms):
            raise _BadKey("tensors", ": the layer has neither tensors nor times: give it tensors, or forward_ms")

    @property
    def numel(self) -> int:
        """Elements of one repeat."""
        return _numel((*self.tensors, *self.frozen_tensors))

    @property
    def trainable_numel(self) -> int:
        """Elements of one repeat that take a gradient."""
        return _numel(self.tensors) if self.trainable else 0


def backward_ms(layer: Layer, *, recompute: bool) -> float:
    """One repeat's backward. Checkpointed layers, those that are wrapped, compute their forward once more before it."""
    return layer.backward_ms + (layer.forward_ms if recompute and layer.wrap else 0.0)


def expanded(layers: tuple[Layer, ...]) -> list[tuple[str, Layer]]:
    """Every repeat with its own name, in forward order."""
    return [
        (layer.name if layer.repeat == 1 else f"{layer.name}.{index}", layer)
        for layer in layers
        for index in range(layer.repeat)
    ]


def _numel(shapes: tuple[tuple[int, ...], ...]) -> int:
    return sum(map(prod, shapes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one rank computes for one micro-batch, and the parameters it trains.

    storage_dtype: parameters as kept (default: param_dtype).  param_dtype: computed with and gathered.
    grad_dtype: stored gradients, what DDP reduces (default: param_dtype).  reduce_dtype: what FSDP's reductions carry
    (default: grad_dtype).  Empty means the default; after construction every one is torch's name of a type.
    optimizer_bytes: state per trained parameter; None is Adam's (see `optimizer_bytes_per_parameter`).
    forward_ms, backward_ms: outside the layers, before the first in forward and before the last layer's backward.
    optimizer_ms: for all parameters on one rank; sharded optimizers divide it.
    tokens_per_micro_batch: per rank.  times: where the milliseconds come from, in words.  captured: what torch itself
    issued for this module.  Raises InputError for a value that does not fit.
    """

    name: str = "workload"
    layers: tuple[Layer, ...]
    storage_dtype: str = ""
    param_dtype: str = "float32"
    grad_dtype: str = ""
    reduce_dtype: str = ""
    optimizer_bytes: float | None = None
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    optimizer_ms: float = 0.0
    tokens_per_micro_batch: float | None = None
    flops_per_token: float | None = None
    times: str = ""
    captured: Captured | None = None

    def __post_init__(self) -> None:
        for key, like in (
            ("storage_dtype", "param_dtype"),
            ("grad_dtype", "param_dtype"),
            ("reduce_dtype", "grad_dtype"),
        ):
            if getattr(self, key) == "":
                object.__setattr__(self, key, getattr(self, like))
        _check(self, _WORKLOAD_CHECKS)
        if self.captured is not None:
            known = {"", *(name for name, _ in self.expanded)}
            for event in self.captured.calls:
                if isinstance(event, Computed) and event.layer not in known:
                    raise _BadKey("captured", f": calls has the layer {event.layer!r}, which the workload has not")

    @property
    def optimizer_bytes_per_parameter(self) -> float:
        """As given; else Adam's: 8 (m and v in fp32), and 4 for an fp32 master copy of parameters stored narrower.

        Source: ZeRO (arXiv 1910.02054), section 3.1. Zero would make every forgotten key look like free memory.
        """
        if self.optimizer_bytes is not None:
            return self.optimizer_bytes
        return 8.0 if find_dtype(self.storage_dtype).itemsize >= 4 else 12.0

    @property
    def expanded(self) -> list[tuple[str, Layer]]:
        """Every repeat with its own name (`block.0`, `block.1`, …), in forward order."""
        return expanded(self.layers)

    @property
    def numel(self) -> int:
        """All parameters."""
        return sum(layer.numel * layer.repeat for layer in self.layers)

    @property
    def trainable_numel(self) -> int:
        """Parameters that train."""
        return sum(layer.trainable_numel * layer.repeat for layer in self.layers)

    @property
    def has_times(self) -> bool:
        """Whether forward or backward takes any time."""
        times = (layer.forward_ms + layer.backward_ms for layer in self.layers)
        return bool(self.forward_ms + self.backward_ms + sum(times))

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any], where: str = "workload") -> Workload:
        """The workload that a mapping with the TOML file's keys describes; InputError names `where` and the key."""

        def at(layer: int | None, key: str) -> str:
            return f"{where}: {key}" if layer is None else f"{where}: layers[{layer}]: {key}"

        return _build_workload(mapping, at)

    @classmethod
    def from_toml(cls, path: str | Path) -> Workload:
        """The workload in a TOML file; InputError names file and line. `name` defaults to the file's."""
        file = TomlFile(path, "a workload with [[layers]]")

        def at(layer: int | None, key: str) -> str:
            return file.where(key) if layer is None else file.where(key, "layers", layer)

        return _build_workload({"name": file.path.stem, **file.data}, at)

    @classmethod
    def from_module(cls, module: Any, *inputs: Any, **options: Any) -> Workload:
        """The workload of a torch.nn.Module, with what torch issues for it; `options` are those of capture's Request.

        inputs: of its forward; their values do not matter. The module stays as it is.
        """
        from collbench.predict.capture.module import from_module

        return from_module(module, inputs, **options)

    def save(self, path: str | Path) -> None:
        """Write the TOML file that `from_toml` reads. InputError where it cannot be written."""
        from collbench.predict.workload_file import as_toml

        try:
            Path(path).write_text(as_toml(self), encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror})") from None


def _captured(key: str, value: Any) -> Captured | None:
    if value is None or isinstance(value, Captured):
        return value
    if not isinstance(value, Mapping):
        raise _BadKey(key, f" = {value!r} must be a table")
    try:
        return Captured.from_dict(value)
    except InputError as error:
        raise _BadKey(key, f": {error}") from None


_LAYER_CHECKS: dict[str, Callable[[str, Any], object]] = {
    "name": _text,
    "repeat": _repeat,
    "tensors": _tensors,
    "frozen_tensors": _tensors,
    "forward_ms": _amount,
    "backward_ms": _amount,
    "trainable": _flag,
    "wrap": _flag,
}
_WORKLOAD_CHECKS: dict[str, Callable[[str, Any], object]] = {
    "name": _text,
    "layers": _layers,
    "param_dtype": _dtype,  # before those that default to it, so that an error names the one that was written
    "grad_dtype": _dtype,
    "reduce_dtype": _dtype,
    "storage_dtype": _dtype,
    "optimizer_bytes": _amount_or_none,
    "forward_ms": _amount,
    "backward_ms": _amount,
    "optimizer_ms": _amount,
    "tokens_per_micro_batch": _amount_or_none,
    "flops_per_token": _amount_or_none,
    "times": _any_text,
    "captured": _captured,
}

_Record = TypeVar("_Record", Layer, Workload)
_At = Callable[[int | None, str], str]  # (layer's index or None, key) -> where that is and the key, for an error


def _build_workload(mapping: Mapping[str, Any], at: _At) -> Workload:
    tables = mapping.get("layers", [])
    if isinstance(tables, list | tuple) and all(isinstance(table, Mapping) for table in tables):
        layers: Any = [
            _build(Layer, {"name": f"layer{index}", **table}, index, at) for index, table in enumerate(tables)
        ]
    else:
        layers = tables  # for Workload's own check to refuse
    return _build(Workload, {**mapping, "layers": layers}, None, at)


def _build(cls: type[_Record], mapping: Mapping[str, Any], layer: int | None, at: _At) -> _Record:
    known = [field.name for field in fields(cls)]
    for key in mapping:
        if key not in known:
            misplaced = layer is not None and key in _WORKLOAD_CHECKS
            advice = "; this one is the workload's: move it above the first [[layers]]" if misplaced else ""
            raise InputError(f"{at(layer, key)}: {one_of('key', key, known)}{advice}")
    try:
        return cls(**mapping)
    except _BadKey as error:
        raise InputError(f"{at(layer, error.key)}{error.message}") from None
