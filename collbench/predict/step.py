"""Workload + strategy + model -> one optimizer step: its time, what of the communication it cannot hide, its memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from collbench.errors import InputError
from collbench.model.store import load_model
from collbench.predict.channels import GLOO, NCCL, play_sharing, shares_links
from collbench.predict.copies import Copying, copies_ms, without_copies
from collbench.predict.cost import CostModel, Costs
from collbench.predict.deepspeed import DeepSpeed
from collbench.predict.interval import Play, plain_intervals, shared_intervals, tail_ms
from collbench.predict.memory import ledger
from collbench.predict.options import Options, check_count
from collbench.predict.placement import Placement, place, place_mesh
from collbench.predict.prediction import CallCount, StepPrediction
from collbench.predict.strategies import STRATEGIES, find_strategy
from collbench.predict.timeline import Call, Placed, Task, last_end_ms, play
from collbench.predict.workload import Workload
from collbench.predict.zero import in_its_types

__all__ = ["StepPrediction", "predict_step"]


def predict_step(
    workload: Workload | str | os.PathLike[str],
    model: CostModel | str | os.PathLike[str],
    strategy: str | None = None,
    *,
    nodes: int | None = None,
    ranks_per_node: int | None = None,
    deepspeed: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    micro_batches: int | None = None,
    overlap: bool = True,
    timing: str | None = None,
    slowdown: bool = True,
    **choices: Any,
) -> StepPrediction:
    """Predict one optimizer step of `accumulate` micro-batches on `nodes` x `ranks_per_node` (default: the model's).

    workload, model: or the paths of their files.  micro_batches: how many there are altogether; the answer then has
    their windows and total time.  overlap: False runs computation and communication one after the other.  timing: the
    regime to ask the model for.  slowdown: False leaves out what computation and communication cost one another, where
    the model knows it.  deepspeed: a DeepSpeed config or its file; the strategy is then its
    stage's.  choices: the fields of `Options`, such as bucket_cap_mb and accumulate.
    Raises InputError for a value or an option that does not fit, and for what the model cannot answer.
    """
    workload, model = loaded(workload, model)
    nodes, ranks_per_node = layout_of(model, nodes, ranks_per_node)
    if deepspeed is not None:
        config = DeepSpeed.from_dict(deepspeed) if isinstance(deepspeed, Mapping) else DeepSpeed.read(deepspeed)
        strategy, choices = _configured(config, strategy, choices, place(nodes, ranks_per_node).nranks)
        workload = in_its_types(workload, config)
    strategy = strategy or "ddp"
    options = Options(**choices)
    chosen = find_strategy(strategy, options)
    check_trains(workload)
    flat = "mesh" not in chosen.options
    placement = place(nodes, ranks_per_node) if flat else place_mesh(nodes, ranks_per_node, options.mesh)
    costs = Costs(model, timing, slowdown=slowdown)

    schedule = chosen.schedule(workload, placement, options)
    calls = Counter(schedule.calls())
    slows = overlap and any(costs.measured_slowdown(call) for call in calls)
    play_exactly = shared_play(schedule.tasks, costs, slows=slows) if overlap else None

    def placed(tasks: Sequence[Task]) -> list[Placed]:
        if play_exactly is not None:
            return play_exactly(tasks, costs.time_ms)
        return play(tasks, costs.time_ms, overlap=overlap)

    timeline = placed(schedule.tasks)
    step, tail = last_end_ms(timeline), tail_ms(timeline)
    copies = Copying.of(options).counted
    computation = without_copies(schedule.tasks) if copies else schedule.tasks
    compute_ms = last_end_ms(play(computation, lambda call: 0.0, overlap=overlap))

    windows = None if micro_batches is None else _windows(micro_batches, options.accumulate)
    steps = []
    for size, count in Counter(windows or ()).items():
        same = size == options.accumulate
        window = schedule if same else chosen.schedule(workload, placement, replace(options, accumulate=size))
        steps.append((window.tasks, count))
    total_ms = sum((step if tasks is schedule.tasks else last_end_ms(placed(tasks))) * count for tasks, count in steps)
    comm_ms = sum(costs.time_ms(call) * count for call, count in calls.items())
    intervals = None
    if costs.have_intervals:
        intervals = (
            plain_intervals(schedule.tasks, costs, steps, overlap=overlap)
            if play_exactly is None
            else shared_intervals(schedule.tasks, costs, play_exactly, steps)
        )
    return StepPrediction(
        workload=workload.name,
        strategy=strategy,
        placement=placement,
        step_ms=step,
        step_ms_interval=None if intervals is None else _around(step, intervals.step_ms),
        compute_ms=compute_ms,
        comm_ms=comm_ms,
        comm_ms_interval=None if intervals is None else _around(comm_ms, intervals.comm_ms),
        copies_ms=sum(copies_ms(timeline)) if copies else None,
        exposed_tail_ms=tail,
        exposed_tail_ms_interval=None if intervals is None else _around(tail, intervals.exposed_tail_ms),
        collectives=tuple(CallCount(call=call, count=n, time_ms=costs.time_ms(call)) for call, n in calls.items()),
        memory=ledger(workload, chosen, placement, options),
        timeline=tuple(sorted(timeline, key=lambda bar: bar.start_ms)),
        windows=windows,
        total_ms=None if windows is None else total_ms,
        total_ms_interval=None if not (intervals and intervals.total_ms) else _around(total_ms, intervals.total_ms),
        micro_batches_per_step=options.accumulate,
        tokens_per_micro_batch=workload.tokens_per_micro_batch,
        flops_per_token=workload.flops_per_token,
        times=_times(workload),
        order=_order(workload, strategy, options),
        backends=tuple(sorted(name for name in costs.backends(calls) if name is not None)),
        notes=(*_notes(workload, placement), *_slowdown_notes(costs, calls, slows=slows), *costs.notes),
        extrapolated=costs.extrapolated,
    )


def _configured(
    config: DeepSpeed, strategy: str | None, choices: dict[str, Any], nranks: int
) -> tuple[str, dict[str, Any]]:
    """Strategy and options as a config has them; InputError where they were given otherwise."""
    if strategy not in (None, config.strategy):
        raise InputError(f"strategy {strategy}, but the DeepSpeed config has stage {config.stage}: leave one out")
    accumulate = config.accumulates(nranks)
    if choices.get("accumulate", 1) not in (1, accumulate):
        raise InputError(
            f"accumulate = {choices['accumulate']}, but the DeepSpeed config has gradient_accumulation_steps = "
            f"{accumulate}: leave one out"
        )
    return config.strategy, choices | {"accumulate": accumulate, "deepspeed": config}


def shared_play(tasks: Sequence[Task], costs: Costs, *, slows: bool) -> Play | None:
    """How this step is played where what runs at a time slows one another; None where streams just run in turn.

    By the channel rule of the backend that was measured; link figures have nccl's.
    """
    gloo = GLOO in costs.backends(task.work for task in tasks if isinstance(task.work, Call))
    if not (gloo or slows or shares_links(tasks)):
        return None

    def play_exactly(tasks: Sequence[Task], cost_ms: Callable[[Call], float]) -> list[Placed]:
        rule, factors = GLOO if gloo else NCCL, costs.slowdown if slows else None
        return play_sharing(tasks, cost_ms, costs.latency_share, rule=rule, slowdown=factors)

    return play_exactly


def _around(value: float, interval: tuple[float, float]) -> tuple[float, float]:
    """The interval, with the value in it: where many things must all be in time, most draws are later than it."""
    return min(value, interval[0]), max(value, interval[1])


def loaded(
    workload: Workload | str | os.PathLike[str], model: CostModel | str | os.PathLike[str]
) -> tuple[Workload, CostModel]:
    """Both as they are, or read from the files of which they are the paths."""
    if isinstance(workload, (str, os.PathLike)):
        workload = Workload.from_toml(Path(workload))
    if isinstance(model, (str, os.PathLike)):
        model = load_model(model)
    return workload, model


def check_trains(workload: Workload) -> None:
    """InputError where nothing trains."""
    if not workload.trainable_numel:
        raise InputError(
            f"workload {workload.name} trains nothing, and torch refuses a module without trainable parameters: "
            "give a layer tensors and trainable = true"
        )


def layout_of(model: CostModel, nodes: int | None, ranks_per_node: int | None) -> tuple[int, int]:
    """(nodes, ranks per node): as asked, else the model's own; one node where neither says."""
    nodes = model.nodes if nodes is None else nodes
    ranks_per_node = model.ranks_per_node if ranks_per_node is None else ranks_per_node
    if ranks_per_node is None:
        raise InputError("link figures have no layout of their own: give --ranks-per-node, and --nodes for several")
    return (1 if nodes is None else nodes), ranks_per_node


def _windows(micro_batches: int, accumulate: int) -> tuple[int, ...]:
    """Micro-batches of each optimizer step: 10 by 4 is 4, 4, 2."""
    check_count("micro_batches", micro_batches)
    full, rest = divmod(micro_batches, accumulate)
    return (accumulate,) * full + ((rest,) if rest else ())


def _times(workload: Workload) -> str:
    if not workload.has_times:
        return "none"
    return workload.times or "as the workload has them, which does not say where from"


def _order(workload: Workload, strategy: str, options: Options) -> str:
    """Whether torch itself was asked, or a plan was made."""
    captured = workload.captured
    if captured is not None:
        fits = captured.is_ddp_of if strategy == "ddp" else captured.is_fsdp_of
        if STRATEGIES[strategy].captures and fits(options):
            return f"captured: {captured.source}"
    return f"planned, by the rules of {'torch' if options.deepspeed is None else 'DeepSpeed'}"


def _notes(workload: Workload, placement: Placement) -> list[str]:
    notes = []
    if not workload.has_times:
        notes.append("the workload has no times: this is its communication alone, with nothing to hide it behind")
    if placement.nranks == 1:
        notes.append("one rank: no communication")
    return notes


def _slowdown_notes(costs: Costs, calls: Iterable[Call], *, slows: bool) -> list[str]:
    """Which factors the step was played with."""
    if not slows:
        return []
    factors = {call: costs.measured_slowdown(call) for call in calls}
    names = {call: f"{call.collective} ({call.group.name})" for call in calls}
    words = []
    for name in dict.fromkeys(names.values()):
        found = [factors[call] for call in calls if names[call] == name]
        known = [each for each in found if each is not None]
        if known:
            comm, compute = (max(getattr(each, which) for each in known) for which in ("comm", "compute"))
            words.append(f"{name} x{comm:.2f}, computation beside it x{compute:.2f}")
        else:
            words.append(f"{name} not measured, taken to cost nothing")
    return [f"what runs at the same time is slower, as beside a matrix product: {'; '.join(words)}"]
