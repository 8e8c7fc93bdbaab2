"""The units that sharded strategies gather and reduce, and how each pads what it divides between ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Literal

from collbench.dtypes import find_dtype
from collbench.predict.workload import Layer, Workload

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


def split_units(workload: Workload, shards: int, division: Division = ROWS) -> tuple[Unit | None, list[Unit | None]]:
    """(root, one per position of `workload.expanded`); None where a layer is the root's or has no tensors."""

    @cache
    def numbers(layer: Layer) -> tuple[int, int]:
        return _numbers((layer,), shards, division)

    layers = workload.expanded
    root_layers = tuple(layer for _, layer in layers if not layer.wrap)
    root = _unit("root", root_layers, _numbers(root_layers, shards, division), workload, division)
    units = [
        _unit(name, (layer,), numbers(layer), workload, division) if layer.wrap else None for name, layer in layers
    ]
    return root, units


def _unit(
    name: str, layers: tuple[Layer, ...], numbers: tuple[int, int], workload: Workload, division: Division
) -> Unit | None:
    gathered, reduced = numbers
    kept = [shape for layer in layers for shape in _all(layer) if prod(shape) <= division.whole_numel]
    trained = [shape for layer in layers for shape in _trained(layer) if prod(shape) <= division.whole_numel]
    if not gathered and not kept:
        return None
    return Unit(
        name=name,
        gather_numel=gathered,
        reduce_numel=reduced,
        gather_bytes=gathered * find_dtype(workload.param_dtype).itemsize,
        reduce_bytes=reduced * find_dtype(workload.reduce_dtype).itemsize,
        whole_numel=sum(map(prod, kept)),
        whole_trained_numel=sum(map(prod, trained)),
    )


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
