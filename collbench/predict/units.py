"""The units that sharded strategies gather and reduce, and how each pads what it divides between ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal

from collbench.dtypes import find_dtype
from collbench.predict.workload import Layer, Workload, expanded

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How parameters are divided between ranks.

    padded: what is filled up to a multiple of the ranks. Dimension 0 of every tensor ("rows": torch's `fully_shard`,
    FSDPParam._init_sharded_param), the elements of every tensor ("tensors": DeepSpeed, Init._partition_param), or
    those of the unit ("units": FullyShardedDataParallel's flat parameter). A flat parameter's gradient is reduced
    whole, frozen tensors in it included.
    whole_numel: tensors of at most so many elements are not divided, nor gathered with the others.
    """

    padded: Literal["rows", "tensors", "units"] = "rows"
    whole_numel: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What is gathered together: elements and bytes of a gather and of a reduce-scatter, padding included.

    whole_numel: elements that every rank keeps, of those trained: whole_trained_numel.
    """

    name: str
    gather_numel: int
    reduce_numel: int
    gather_bytes: int
    reduce_bytes: int
    whole_numel: int
    whole_trained_numel: int


ROWS = Division()


def split_units(
    workload: Workload, shards: int, division: Division = ROWS
) -> tuple[Unit | None, tuple[Unit | None, ...]]:
    """(root, one per position of `workload.expanded`); None where a layer is the root's or has no tensors."""
    itemsizes = tuple(find_dtype(dtype).itemsize for dtype in (workload.param_dtype, workload.reduce_dtype))
    return _split(workload.layers, itemsizes, shards, division)


@lru_cache(maxsize=512)  # a plan asks the same for every way to reshard, for the schedule and for the memory
def _split(
    layers: tuple[Layer, ...], itemsizes: tuple[int, ...], shards: int, division: Division
) -> tuple[Unit | None, tuple[Unit | None, ...]]:
    repeats = expanded(layers)
    root = _sizes(tuple(layer for _, layer in repeats if not layer.wrap), itemsizes, shards, division)
    sizes = {layer: _sizes((layer,), itemsizes, shards, division) for layer in layers if layer.wrap}
    units = [Unit(name=name, **found) if (found := sizes.get(layer)) else None for name, layer in repeats]
    return Unit(name="root", **root) if root else None, tuple(units)


def _sizes(
    layers: tuple[Layer, ...], itemsizes: tuple[int, ...], shards: int, division: Division
) -> dict[str, int] | None:
    """The fields of a unit but for its name; None where it has no tensors."""
    gathered, reduced = _numbers(layers, shards, division)
    kept = [shape for layer in layers for shape in _all(layer) if prod(shape) <= division.whole_numel]
    trained = [shape for layer in layers for shape in _trained(layer) if prod(shape) <= division.whole_numel]
    if not gathered and not kept:
        return None
    gather_size, reduce_size = itemsizes
    return {
        "gather_numel": gathered,
        "reduce_numel": reduced,
        "gather_bytes": gathered * gather_size,
        "reduce_bytes": reduced * reduce_size,
        "whole_numel": sum(map(prod, kept)),
        "whole_trained_numel": sum(map(prod, trained)),
    }


def _numbers(layers: tuple[Layer, ...], shards: int, division: Division) -> tuple[int, int]:
    """Elements of a gather and of a reduce-scatter."""
    shapes = tuple(shape for layer in layers for shape in _all(layer) if prod(shape) > division.whole_numel)
    trained = tuple(shape for layer in layers for shape in _trained(layer))
    if division.padded == "rows":
        return padded_rows(shapes, shards), padded_rows(trained, shards)
    if division.padded == "tensors":
        return _tensors(shapes, shards), _tensors(trained, shards)
    flat = rounded_up(sum(map(prod, shapes)), shards)
    return flat, flat if trained else 0


def padded_rows(shapes: Shapes, multiple: int) -> int:
    """Elements of all, every dimension 0 rounded up to a multiple."""
    return sum(rounded_up(shape[0], multiple) * prod(shape[1:]) for shape in shapes)


def _tensors(shapes: Shapes, multiple: int) -> int:
    """Elements of all, every tensor's rounded up to a multiple."""
    return sum(rounded_up(prod(shape), multiple) for shape in shapes)


def rounded_up(count: int, multiple: int) -> int:
    """To the next multiple: what is divided into equal shares."""
    return -(-count // multiple) * multiple


def _all(layer: Layer) -> Shapes:
    return (*layer.tensors, *layer.frozen_tensors)


def _trained(layer: Layer) -> Shapes:
    return layer.tensors if layer.trainable else ()
