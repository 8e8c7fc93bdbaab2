"""A torch module -> a Workload with the collectives that torch issues for it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import prod
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from collbench.dtypes import find_dtype
from collbench.errors import InputError, one_of
from collbench.predict.capture.loading import Inputs, build, find_function
from collbench.predict.capture.recorder import Event, Ready, Recording, Sent, recording
from collbench.predict.capture.reducer import reducer_events
from collbench.predict.capture.sharding import Attribution, Sharding, shard, sharded_events
from collbench.predict.capture.spent import Spent
from collbench.predict.capture.times import counting, default_device, flops_ms, measure_ms, parse_mfu
from collbench.predict.capture.trace import trace_ms
from collbench.predict.capture.units import Part, is_sharded, split
from collbench.predict.capture.walk import Walk
from collbench.predict.captured import AS_ISSUED, STRATEGIES, Captured, Computed, Issued
from collbench.predict.captured import Event as CapturedEvent
from collbench.predict.options import Options, check_count
from collbench.predict.placement import Placement, parse_mesh, place_mesh
from collbench.predict.strategies import find_strategy
from collbench.predict.workload import Layer, Workload

DEFAULT_NRANKS = 8  # where none are asked for: the order does not depend on it


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to capture.

    nranks: with a mesh RxS (replicas x shards), R times S.  wrap: classes that are FSDP units; None: the blocks of
    every list of them.  param_dtype, reduce_dtype, reshard_after_forward: as `fully_shard` takes them.
    bucket_cap_mb, find_unused_parameters: as torch's DDP does.  mfu and peak_tflops: times from FLOPs.  device: times
    measured there; "" is this machine's GPU, or its CPU without one.  trace: times from a profiler's trace.
    tokens: per micro-batch; None: the elements of an input of whole numbers.
    """

    strategy: str = "ddp"
    nranks: int | None = None
    mesh: str | None = None
    wrap: Sequence[str] | None = None
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    reshard_after_forward: bool | int | None = None
    bucket_cap_mb: float | None = None
    find_unused_parameters: bool = False
    mfu: float | str | None = None
    peak_tflops: float | None = None
    device: str | None = None
    trace: str | None = None
    tokens: int | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise one_of("strategy", self.strategy, list(STRATEGIES))
        self._check_times()
        for key in ("bucket_cap_mb", "find_unused_parameters"):
            self._check_belongs(key, ("ddp",))
        for key in ("param_dtype", "reduce_dtype", "reshard_after_forward"):
            self._check_belongs(key, ("fsdp", "hsdp"))
        self._check_belongs("mesh", ("hsdp",))
        if self.strategy == "hsdp" and self.mesh is None:
            raise InputError("hsdp needs a mesh RxS (replicas x shards), such as 4x8")
        for key in ("nranks", "tokens"):
            if getattr(self, key) is not None:
                check_count(key, getattr(self, key))
        if self.placement.nranks == 1 or (self.mesh is not None and self.placement.shard.nranks == 1):
            raise InputError("what one rank shards or reduces alone is not sent: capture it for 2 ranks or more")

    def _check_belongs(self, key: str, strategies: Sequence[str]) -> None:
        if getattr(self, key) not in (None, False) and self.strategy not in strategies:
            raise InputError(
                f"{key} = {getattr(self, key)!r} does not belong to strategy {self.strategy}: leave it out"
            )

    def _check_times(self) -> None:
        given = [key for key in ("mfu", "device", "trace") if getattr(self, key) is not None]
        if len(given) > 1:
            raise InputError(f"{given[0]} and {given[1]} exclude each other: times come from one of them")
        if (self.mfu is None) != (self.peak_tflops is None):
            raise InputError("times from FLOPs need both: the share of the peak (mfu) and the peak (peak_tflops)")
        if self.peak_tflops is not None and not 0 < self.peak_tflops < 1e9:
            raise InputError(f"peak_tflops = {self.peak_tflops} must be above zero, in 10^12 operations a second")

    @property
    def placement(self) -> Placement:
        """The ranks, on one node: no more is said of them here."""
        if self.mesh is not None:
            return place_mesh(1, self.nranks or prod(parse_mesh(self.mesh)), self.mesh)
        return Placement(nodes=1, ranks_per_node=self.nranks or DEFAULT_NRANKS)


def from_function(spec: str, inputs: Inputs | None, request: Request) -> Workload:
    """The workload of what MODULE:FUNCTION builds. `inputs` go before its own. InputError for what cannot be captured.

    The function is called on the meta device, in a process that is rank 0 of all ranks: it may call `fully_shard`.
    """
    function = find_function(spec)
    with recording(request.placement.nranks) as record:
        module, own = build(function, spec)
        if not is_sharded(module) and not all(tensor.is_meta for tensor in [*module.parameters(), *module.buffers()]):
            module = _on_meta(module)  # the function names a device itself
        made = _Made(module, inputs or own, lambda device: build(function, spec, device)[0])
        return _capture(record, made, replace(request, name=request.name or spec.rpartition(":")[2]))


def from_module(module: nn.Module, inputs: Sequence[Any], **options: Any) -> Workload:
    """The workload of a module and the inputs of its forward; `options` are those of Request."""
    request = Request(**{"name": type(module).__name__, **options})
    if is_sharded(module):
        raise InputError("fully_shard was applied to the module: give the plain one, or use collbench capture")
    with recording(request.placement.nranks) as record:
        made = _Made(_on_meta(module), Inputs(args=tuple(inputs)), lambda device: copy.deepcopy(module).to(device))
        return _capture(record, made, request)


@dataclass(frozen=True)
class _Made:
    """A module on the meta device, its inputs, and the same module with data, on a device."""

    module: nn.Module
    inputs: Inputs | None
    on: Callable[[str], nn.Module]


def _on_meta(module: nn.Module) -> nn.Module:
    """A copy without data. Tensors that are one tensor stay one."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(module, memo)


def _capture(record: Recording, made: _Made, request: Request) -> Workload:
    module = made.module
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InputError("the module has no parameters that train")
    if made.inputs is None:
        raise InputError(
            "what is its forward called with? Let the function return (module, inputs), or give --input, such as "
            "--input 8x2048:int64"
        )
    inputs = made.inputs.made(lambda tensor: torch.empty_like(tensor, device="meta"))
    sharded = is_sharded(module)
    placement = _users_placement(module, request) if sharded else request.placement
    parts = split(module, request.wrap)
    walked: list[Event] = []
    flops: Spent = Counter()
    if not sharded:
        module.to("meta")
        walked, flops = _walk(record, module, parts, inputs)
        module.zero_grad()
    if request.strategy == "ddp":
        events, source = reducer_events(record, module, walked, request.bucket_cap_mb, request.find_unused_parameters)
        calls = _reducer_calls(events)
    else:
        if not sharded:
            shard(module, parts, _sharding(placement, request))
        events, counted = sharded_events(record, module, parts, inputs, count=sharded)
        flops = flops or counted
        calls, source = Attribution(parts, placement.shard.nranks)(events), "recorded through a process group"
    spent, times = _times(made, request, flops, parts, inputs, calls)
    tokens = request.tokens or made.inputs.tokens
    storage, gathered, reduced = _dtypes(parts, calls)
    workload = Workload(
        name=request.name or "module",
        layers=_layers(parts, walked or calls, _readiness(module, walked), spent),
        storage_dtype=storage,
        param_dtype=gathered,
        grad_dtype=storage,
        reduce_dtype=reduced,
        forward_ms=spent["forward", ""],
        backward_ms=spent["backward", ""],
        tokens_per_micro_batch=tokens,
        flops_per_token=flops.total() / tokens if tokens and flops else None,
        times=times,
    )
    captured = Captured(
        strategy=request.strategy,
        nranks=placement.nranks,
        mesh=f"{placement.replicas}x{placement.shard.nranks}" if request.strategy == "hsdp" else None,
        reshard_after_forward=request.reshard_after_forward,
        bucket_cap_mb=request.bucket_cap_mb,
        source=f"{source}, torch {torch.__version__}",
        plan=_compare(workload, request, placement, calls),
        calls=tuple(calls),
    )
    return replace(workload, captured=captured)


def _users_placement(module: nn.Module, request: Request) -> Placement:
    """The mesh of a module that the user sharded. InputError where the request says otherwise."""
    if not isinstance(module, FSDPModule):
        raise InputError("fully_shard was applied to parts of the module only: apply it to the outermost one too")
    for key in ("wrap", "param_dtype", "reduce_dtype", "reshard_after_forward"):
        if getattr(request, key) is not None:
            raise InputError(f"{key}: the function itself applies fully_shard: leave it out")
    meshes = {p.device_mesh for p in module.parameters() if isinstance(p, DTensor)}
    replicas, shards = next(((1, *mesh.shape)[-2:] for mesh in meshes), (1, 1))
    strategy = "fsdp" if replicas == 1 else "hsdp"
    if request.strategy != strategy or (replicas, shards) != _shape(request.placement):
        raise InputError(
            f"the function shards over a mesh of {replicas} x {shards} ranks: capture it with --strategy {strategy} "
            + (f"--nranks {shards}" if replicas == 1 else f"--mesh {replicas}x{shards}")
        )
    return request.placement


def _shape(placement: Placement) -> tuple[int, int]:
    return placement.replicas, placement.shard.nranks


def _sharding(placement: Placement, request: Request) -> Sharding:
    return Sharding(
        replicas=placement.replicas,
        shards=placement.shard.nranks,
        reshard_after_forward=request.reshard_after_forward,
        param_dtype=request.param_dtype,
        reduce_dtype=request.reduce_dtype,
    )


def _walk(record: Recording, module: nn.Module, parts: Sequence[Part], inputs: Inputs) -> tuple[list[Event], Spent]:
    """(marks and complete gradients in order, operations) of the module on the meta device."""
    counter = counting()
    walk = Walk(module, parts, record.events, counter.get_total_flops)
    with counter:
        walk.run(inputs)
    walk.close()
    return list(record.events), walk.spent(lambda before, after: after - before)


def _reducer_calls(events: Sequence[Event]) -> list[CapturedEvent]:
    """Buckets numbered; what else DDP sends has its own unit."""
    calls: list[CapturedEvent] = []
    buckets = 0
    for event in events:
        if isinstance(event, Sent):
            unit = "buffers" if event.collective == "broadcast" else "unused parameters"
            if event.collective == "all_reduce" and find_dtype(event.dtype).is_float:
                unit, buckets = f"bucket {buckets}", buckets + 1
            calls.append(event.of(unit))
        elif isinstance(event, Computed):
            calls.append(event)
    return calls


def _readiness(module: nn.Module, walked: Sequence[Event]) -> dict[int, int]:
    """When a trained parameter's gradient is complete: the place of the parameter (by id) among all."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    ready = [event.parameter for event in walked if isinstance(event, Ready)]
    return {id(trained[number]): place for place, number in enumerate(ready)}


def _layers(
    parts: Sequence[Part], events: Sequence[Event | CapturedEvent], ready: dict[int, int], spent: Spent
) -> tuple[Layer, ...]:
    """The parts in forward order, equal ones in a row as one that repeats."""
    places = _places([part.name for part in parts], [event for event in events if isinstance(event, Computed)])
    ordered = sorted(parts, key=lambda part: places[part.name])
    return _merged([_layer(part, ready, spent) for part in ordered])


def _places(names: Sequence[str], marks: Sequence[Computed]) -> dict[str, float]:
    """Where each layer stands in forward, for sorting.

    One that is not called as a module stands behind the layer that is the next in backward; if there is none either,
    behind the one that it was registered after.
    """
    forward, backward = (
        list(dict.fromkeys(mark.layer for mark in marks if mark.direction == direction and mark.layer))
        for direction in ("forward", "backward")
    )
    places: dict[str, float] = {layer: place for place, layer in enumerate(forward)}
    for layer, after in zip(reversed(backward), [None, *reversed(backward)], strict=False):
        places.setdefault(layer, places[after] + 0.5 if after is not None else -1.0)
    last = -1.0
    for name in names:
        last = places.setdefault(name, last)
    return places


def _layer(part: Part, ready: dict[int, int], spent: Spent) -> Layer:
    """Trained tensors are listed so that the last one's gradient is ready first."""
    trained = [parameter for parameter in part.parameters if parameter.requires_grad]
    frozen = [parameter for parameter in part.parameters if not parameter.requires_grad]
    # The last one first; where nothing is known of it, as registered: the sort keeps the order of equals.
    order = sorted(trained, key=lambda parameter: -ready.get(id(parameter), len(ready)))
    return Layer(
        name=part.name,
        tensors=_shapes(order if trained else frozen),
        frozen_tensors=_shapes(frozen) if trained else (),
        trainable=bool(trained),
        wrap=part.wrapped,
        forward_ms=spent["forward", part.name],
        backward_ms=spent["backward", part.name],
    )


def _shapes(parameters: Sequence[nn.Parameter]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(parameter.shape) or (1,) for parameter in parameters)


def _merged(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """`block.0`, `block.1` … that are alike as `block` with repeat: the names of the repeats are the same."""
    merged: list[Layer] = []
    for layer in layers:
        stem, _, number = layer.name.rpartition(".")
        last = merged[-1] if merged else None
        if stem and last is not None and number == str(last.repeat) and _alike(layer, last, stem):
            merged[-1] = replace(last, name=stem, repeat=last.repeat + 1)
        else:
            merged.append(layer)
    return tuple(merged)


def _alike(layer: Layer, first: Layer, stem: str) -> bool:
    return first.name in (stem, f"{stem}.0") and replace(layer, name=first.name, repeat=first.repeat) == first


def _dtypes(parts: Sequence[Part], calls: Sequence[CapturedEvent]) -> tuple[str, str, str]:
    """What most elements are stored, gathered and reduced in."""
    numel: Counter[str] = Counter()
    for part in parts:
        for parameter in part.parameters:
            numel[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    storage = numel.most_common(1)[0][0]
    sent: dict[str, Counter[str]] = {"all_gather_into_tensor": Counter(), "reduce_scatter_tensor": Counter()}
    for event in calls:
        if isinstance(event, Issued) and event.collective in sent and find_dtype(event.dtype).is_float:
            sent[event.collective][event.dtype] += event.size_bytes
    gathered, reduced = ((each.most_common(1) or [(storage, 0)])[0][0] for each in sent.values())
    return storage, gathered, reduced


def _times(
    made: _Made,
    request: Request,
    flops: Spent,
    parts: Sequence[Part],
    inputs: Inputs,
    calls: Sequence[CapturedEvent],
) -> tuple[Spent, str]:
    """(ms of each layer, in words where they come from)."""
    if request.mfu is not None and request.peak_tflops is not None:
        mfu = parse_mfu(request.mfu)
        words = f"from FLOPs: {100 * mfu:g} % of {request.peak_tflops:g} TFLOP/s (MFU, assumed)"
        return flops_ms(flops, mfu, request.peak_tflops), words
    if request.device is not None:
        device = request.device or default_device()
        module = made.on(device)
        if is_sharded(module):
            raise InputError("--time needs a function that returns the plain module: --wrap says what its units are")
        return measure_ms(module, split(module, request.wrap), inputs, device)
    if request.trace is not None:
        forward = [event.layer for event in calls if isinstance(event, Computed) and event.direction == "forward"]
        classes = {part.name: [_class(module) for module in part.modules] for part in parts}
        return trace_ms(request.trace, [layer for layer in forward if layer], classes)
    return Counter(), ""


def _class(module: nn.Module) -> str:
    """Its name before `fully_shard` put FSDP before it."""
    return type(module).__name__.removeprefix("FSDP" if isinstance(module, FSDPModule) else "")


def _compare(workload: Workload, request: Request, placement: Placement, calls: Sequence[CapturedEvent]) -> str:
    """What `predict` plans for the workload, against what was issued."""
    options = Options(bucket_cap_mb=request.bucket_cap_mb, reshard_after_forward=request.reshard_after_forward)
    schedule = find_strategy(request.strategy, options).schedule(workload, placement, options)
    planned = [(call.collective, call.size_bytes, call.dtype, call.group.nranks) for call in schedule.calls()]
    issued = [event for event in calls if isinstance(event, Issued)]
    compared = [event for event in issued if event.collective != "broadcast"]
    buffers = " (but for the broadcast of buffers)" if len(compared) < len(issued) else ""
    for number, (plan, event) in enumerate(zip_longest(planned, compared), start=1):
        real = (event.collective, event.size_bytes, event.dtype, event.nranks) if event else None
        if plan != real:
            return f"differs at collective {number} of {len(compared)}: torch {_words(real)}, planned {_words(plan)}"
    return AS_ISSUED + buffers


def _words(call: tuple[Any, ...] | None) -> str:
    return "nothing" if call is None else f"{call[0]} {call[1]} B {call[2]} on {call[3]}"
