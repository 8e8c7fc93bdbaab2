"""Workload + strategy + model -> one optimizer step: its time, what of the communication it cannot hide, its memory."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

from collbench.errors import InputError
from collbench.model.store import load_model
from collbench.predict.cost import CostModel, Costs
from collbench.predict.memory import ledger
from collbench.predict.options import Options, check_count
from collbench.predict.placement import Placement, place, place_mesh
from collbench.predict.prediction import CallCount, StepPrediction
from collbench.predict.strategies import find_strategy
from collbench.predict.timeline import last_end_ms, play
from collbench.predict.workload import Workload

__all__ = ["StepPrediction", "predict_step"]


def predict_step(
    workload: Workload | str | os.PathLike[str],
    model: CostModel | str | os.PathLike[str],
    strategy: str = "ddp",
    *,
    nodes: int | None = None,
    ranks_per_node: int | None = None,
    bucket_cap_mb: float | None = None,
    first_bucket_mb: float | None = None,
    accumulate: int = 1,
    micro_batches: int | None = None,
    reshard_after_forward: bool | int | None = None,
    prefetch: bool = True,
    overlap: bool = True,
    mesh: str | tuple[int, int] | None = None,
    timing: str | None = None,
) -> StepPrediction:
    """Predict one optimizer step of `accumulate` micro-batches on `nodes` x `ranks_per_node` (default: the model's).

    workload, model: or the paths of their files.  micro_batches: how many there are altogether; the answer then has
    their windows and total time.  overlap: False runs computation and communication one after the other.  timing: the
    regime to ask the model for.  The others: Options.
    Raises InputError for a value or an option that does not fit, and for what the model cannot answer.
    """
    if isinstance(workload, (str, os.PathLike)):
        workload = Workload.from_toml(Path(workload))
    if isinstance(model, (str, os.PathLike)):
        model = load_model(model)
    options = Options(
        bucket_cap_mb=bucket_cap_mb,
        first_bucket_mb=first_bucket_mb,
        accumulate=accumulate,
        reshard_after_forward=reshard_after_forward,
        prefetch=prefetch,
        mesh=mesh,
    )
    chosen = find_strategy(strategy, options)
    _check_trains(workload)
    nodes, ranks_per_node = _layout(model, nodes, ranks_per_node)
    placement = place_mesh(nodes, ranks_per_node, mesh) if "mesh" in chosen.options else place(nodes, ranks_per_node)
    costs = Costs(model, timing)

    def step_ms(micro_batches: int) -> float:
        window = chosen.schedule(workload, placement, replace(options, accumulate=micro_batches))
        return last_end_ms(play(window.tasks, costs.time_ms, overlap=overlap))

    schedule = chosen.schedule(workload, placement, options)
    calls = Counter(schedule.calls())
    timeline = play(schedule.tasks, costs.time_ms, overlap=overlap)
    low, high = (
        last_end_ms(play(schedule.tasks, cost, overlap=overlap)) if costs.have_intervals else None
        for cost in (costs.low_ms, costs.high_ms)
    )
    windows = None if micro_batches is None else _windows(micro_batches, accumulate)
    return StepPrediction(
        workload=workload.name,
        strategy=strategy,
        placement=placement,
        step_ms=last_end_ms(timeline),
        step_ms_interval=None if low is None or high is None else (low, high),
        compute_ms=last_end_ms(play(schedule.tasks, lambda call: 0.0, overlap=overlap)),
        comm_ms=sum(costs.time_ms(call) * count for call, count in calls.items()),
        exposed_tail_ms=max(0.0, last_end_ms(timeline, "gradients") - last_end_ms(timeline, "backward")),
        collectives=tuple(CallCount(call=call, count=n, time_ms=costs.time_ms(call)) for call, n in calls.items()),
        memory=ledger(workload, chosen, placement, options),
        timeline=tuple(sorted(timeline, key=lambda placed: placed.start_ms)),
        windows=windows,
        total_ms=None if windows is None else sum(step_ms(size) * n for size, n in Counter(windows).items()),
        micro_batches_per_step=accumulate,
        tokens_per_micro_batch=workload.tokens_per_micro_batch,
        flops_per_token=workload.flops_per_token,
        notes=(*_notes(workload, placement), *costs.notes),
        extrapolated=costs.extrapolated,
    )


def _check_trains(workload: Workload) -> None:
    if not workload.trainable_numel:
        raise InputError(
            f"workload {workload.name} trains nothing, and torch refuses a module without trainable parameters: "
            "give a layer tensors and trainable = true"
        )


def _layout(model: CostModel, nodes: int | None, ranks_per_node: int | None) -> tuple[int, int]:
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


def _notes(workload: Workload, placement: Placement) -> list[str]:
    notes = []
    if not workload.has_times:
        notes.append("the workload has no times: this is its communication alone, with nothing to hide it behind")
    if placement.nranks == 1:
        notes.append("one rank: no communication")
    return notes
