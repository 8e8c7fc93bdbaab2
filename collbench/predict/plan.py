"""Many ways to run one step, ranked: which strategies and knobs fit into the memory, and which of them are fastest."""

from __future__ import annotations

import os
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from collbench.errors import InputError
from collbench.predict.cost import CostModel
from collbench.predict.options import Options, check_amount, check_count
from collbench.predict.plan_result import Change, Needed, Plan, PlannedStep, Scaling
from collbench.predict.plan_space import Configuration, Mesh, Reshard, Space, configurations
from collbench.predict.plan_times import StepTimes
from collbench.predict.step import check_trains, layout_of, loaded
from collbench.predict.workload import Workload

# Micro-batches that are played at most for the strong scaling: more take longer to play than all else.
MOST_MICRO_BATCHES = 256


def plan_step(
    workload: Workload | str | os.PathLike[str],
    model: CostModel | str | os.PathLike[str],
    *,
    memory_GB: float,
    nodes: Sequence[int] = (),
    ranks_per_node: int | None = None,
    strategies: Sequence[str] = (),
    meshes: Sequence[Mesh] = (),
    bucket_caps_mb: Sequence[float | None] = (),
    reshards: Sequence[Reshard] = (),
    layers_per_unit: Sequence[int] = (),
    accumulate: int = 1,
    recompute: bool = False,
    activations_GB: float = 0.0,
    peak_TFLOPS: float | None = None,
    top: int = 10,
    timing: str | None = None,
) -> Plan:
    """The `top` fastest configurations of each number of nodes that fit into a rank's memory.

    workload, model: or the paths of their files.  nodes, ranks_per_node: the model's own by default.  strategies …
    layers_per_unit: what to choose from; empty means all that makes sense.  accumulate, recompute: as in Options, the
    same for all; with accumulation fsdp is tried without gradient sync too.  activations_GB: what one micro-batch keeps
    for its backward, which a workload does not know.  peak_TFLOPS: of one rank's device, for the MFU.
    Raises InputError for a value or a choice that does not fit, and where the model can answer no configuration.
    """
    workload, model = loaded(workload, model)
    check_trains(workload)
    check_count("top", top)
    check_amount("memory_GB", memory_GB)
    check_amount("activations_GB", activations_GB, or_zero=True)
    if peak_TFLOPS is not None:
        check_amount("peak_TFLOPS", peak_TFLOPS)
    own_nodes, ranks_per_node = layout_of(model, None, ranks_per_node)
    space = Space(
        nodes=tuple(sorted(set(nodes))) or (own_nodes,),
        ranks_per_node=ranks_per_node,
        strategies=tuple(strategies),
        meshes=tuple(meshes),
        bucket_caps_mb=tuple(bucket_caps_mb),
        reshards=tuple(reshards),
        grad_syncs=(True,) if accumulate == 1 else (True, False),
        layers_per_unit=tuple(layers_per_unit),
    )
    tried = configurations(workload, space)
    times = StepTimes(workload, model, timing, Options(accumulate=accumulate, recompute=recompute))
    total_GB = {each: times.memory(each).peak_GB + activations_GB for each in tried}
    fitting = [each for each in tried if total_GB[each] <= memory_GB]
    least_ms, refused = times.least_ms(fitting)
    if fitting and not least_ms:
        raise InputError(refused[0].reason)
    search = _Search(times, least_ms, total_GB)
    steps = [
        _planned(each, times, model, search, total_GB[each], peak_TFLOPS)
        for count in space.nodes
        for each in search.fastest(search.of_nodes(count), top)
    ]
    steps.sort(key=lambda step: (_nanoseconds(step.prediction.step_ms), step.total_GB))
    nearest = min(tried, key=lambda each: total_GB[each])
    return Plan(
        workload=workload.name,
        memory_GB=memory_GB,
        activations_GB=activations_GB,
        accumulate=accumulate,
        tried=len(tried),
        fitting=len(fitting),
        steps=tuple(steps),
        scaling=_scaling(steps, times, accumulate),
        nearest=None if fitting else Needed(configuration=nearest, total_GB=total_GB[nearest]),
        refused=refused,
        notes=_notes(workload, activations_GB, peak_TFLOPS, space.nodes, steps, tried),
    )


def _nanoseconds(step_ms: float) -> int:
    """Steps that agree to a nanosecond are as fast as one another: the one that needs less memory is better."""
    return round(step_ms * 1e6)


class _Search:
    """Finds the fastest of some configurations, and plays no more of them than it must."""

    def __init__(
        self, times: StepTimes, least_ms: dict[Configuration, float], total_GB: dict[Configuration, float]
    ) -> None:
        self._times, self._least_ms, self._total_GB = times, least_ms, total_GB
        self._values: dict[tuple[str, str], dict[tuple[type, Any], None]] = {}  # of each strategy's knobs
        for each in least_ms:
            for knob in each.knobs:
                self._values.setdefault((each.strategy, knob), {})[_exact(getattr(each, knob))] = None

    def of_nodes(self, nodes: int) -> list[Configuration]:
        """All on so many nodes."""
        return [each for each in self._least_ms if each.nodes == nodes]

    def fastest(self, some: Iterable[Configuration], count: int) -> list[Configuration]:
        """The `count` fastest, in order: once as many are faster than what the next one takes at least, no other is."""
        order = sorted(some, key=lambda each: self._least_ms[each])
        found: list[tuple[int, float, int]] = []
        for place, each in enumerate(order):
            if len(found) == count and _nanoseconds(self._least_ms[each]) > found[-1][0]:
                break
            insort(found, (_nanoseconds(self._times.step_ms(each)), self._total_GB[each], place))
            del found[count:]
        return [order[place] for _, _, place in found]

    def changes(self, configuration: Configuration) -> tuple[Change, ...]:
        """The best other value of every knob; the least costly change first."""
        others: dict[str, list[Configuration]] = {"strategy": []}
        for each in self.of_nodes(configuration.nodes):
            if each.strategy != configuration.strategy:
                others["strategy"].append(each)
        for knob in configuration.knobs:
            values = [value for _, value in self._values[configuration.strategy, knob]]
            changed = [replace(configuration, **{knob: value}) for value in values]
            others[knob] = [each for each in changed if each in self._least_ms and each != configuration]
        found = [
            Change(knob=knob, to=each, step_ms=self._times.step_ms(each))
            for knob, some in others.items()
            for each in self.fastest(some, 1)
        ]
        return tuple(sorted(found, key=lambda change: change.step_ms))


def _exact(value: Any) -> tuple[type, Any]:
    """True is not 1."""
    return type(value), value


def _planned(
    configuration: Configuration,
    times: StepTimes,
    model: CostModel,
    search: _Search,
    total_GB: float,
    peak_TFLOPS: float | None,
) -> PlannedStep:
    prediction = times.predict(configuration, model)
    tflops = prediction.tflops_per_rank
    return PlannedStep(
        configuration=configuration,
        prediction=prediction,
        total_GB=total_GB,
        mfu=None if tflops is None or peak_TFLOPS is None else tflops / peak_TFLOPS,
        changes=search.changes(configuration),
    )


def _scaling(steps: Sequence[PlannedStep], times: StepTimes, accumulate: int) -> tuple[Scaling, ...]:
    """The best of each number of nodes, ascending; `steps` has each number's best first."""
    best: dict[int, PlannedStep] = {}
    for step in steps:
        best.setdefault(step.configuration.nodes, step)
    if not best:
        return ()
    first, most = best[min(best)], max(best)

    def rank_seconds(step: PlannedStep) -> float | None:
        """Of all ranks, until they have computed together what the most ranks do in a step."""
        micro_batches, rest = divmod(accumulate * most, step.configuration.nodes)
        if rest or micro_batches > max(MOST_MICRO_BATCHES, accumulate):
            return None
        return times.step_ms(step.configuration, micro_batches) * step.configuration.placement.nranks / 1000

    alone = rank_seconds(first)
    rows = []
    for nodes, step in sorted(best.items()):
        together = rank_seconds(step)
        rows.append(
            Scaling(
                nodes=nodes,
                configuration=step.configuration,
                step_ms=step.prediction.step_ms,
                tokens_per_s=step.prediction.tokens_per_s,
                weak=_ratio(first.prediction.step_ms, step.prediction.step_ms),
                strong=None if alone is None or together is None else _ratio(alone, together),
            )
        )
    return tuple(rows)


def _ratio(first: float, other: float) -> float:
    return first / other if other else 1.0


def _notes(
    workload: Workload,
    activations_GB: float,
    peak_TFLOPS: float | None,
    nodes: Sequence[int],
    steps: Sequence[PlannedStep],
    tried: Sequence[Configuration],
) -> tuple[str, ...]:
    kept = (
        f"{activations_GB:g} GB of activations as given" if activations_GB else "no activations: give --activations-GB"
    )
    notes = [f"memory counts parameters, gradients, optimizer state and gathered units, and {kept}"]
    if peak_TFLOPS is not None and any(step.mfu is None for step in steps):
        notes.append("no MFU: the workload has no flops_per_token, tokens_per_micro_batch or times")
    if any(step.mfu is not None and step.mfu > 1 for step in steps):
        notes.append("an MFU above 100 %: flops_per_token, the times and the peak do not go together")
    missing = sorted(set(nodes) - {step.configuration.nodes for step in steps})
    if missing and steps:
        notes.append(f"nothing fits, or can be answered, on so many nodes: {', '.join(map(str, missing))}")
    if workload.captured is not None and any(each.layers_per_unit > 1 for each in tried):
        notes.append("units of several layers are planned; those of one layer are as captured from torch")
    return tuple(notes)
