"""The step time and the memory of many configurations of one workload: as `predict_step`, but for what it may share.

The model is asked once for all sizes of a collective, a group and a type: Model.time takes arrays, and finding the
curve that answers costs more than reading it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from collbench.errors import InputError
from collbench.predict.channels import GLOO
from collbench.predict.cost import CostModel, Costs, Estimate, Question, SlowdownModel
from collbench.predict.memory import Memory, ledger
from collbench.predict.options import Options
from collbench.predict.plan_bounds import Chains, roles_of
from collbench.predict.plan_space import Configuration, merged
from collbench.predict.step import StepPrediction, predict_step, shared_play
from collbench.predict.strategies import STRATEGIES
from collbench.predict.timeline import Call
from collbench.predict.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A collective on a kind of group that the model cannot answer, and how many configurations need it first."""

    what: str
    reason: str
    count: int


class Answers:
    """A model that has been asked for what it will be asked: a `CostModel` that answers from `learn`."""

    def __init__(self, model: CostModel, timing: str | None) -> None:
        self._model, self._timing = model, timing
        self._known: dict[Question, dict[float, Estimate]] = {}  # by size
        self._refused: dict[Question, str] = {}
        self._reasons: dict[str, str] = {}
        if isinstance(model, SlowdownModel):
            self.slowdown = model.slowdown

    @property
    def nodes(self) -> int | None:
        """As the model has it."""
        return self._model.nodes

    @property
    def ranks_per_node(self) -> int | None:
        """As the model has it."""
        return self._model.ranks_per_node

    def learn(self, calls: Iterable[Call]) -> None:
        """Ask the model for these calls; `refusal` tells what it cannot answer."""
        sizes: dict[Question, set[int]] = {}
        for call in calls:
            question = Question.about(call, self._timing)
            if question not in self._refused and call.size_bytes not in self._known.get(question, ()):
                sizes.setdefault(question, set()).add(call.size_bytes)
        for question, asked in sizes.items():
            try:
                self._ask(question, sorted(asked))
            except InputError as error:
                self._refused[question] = str(error)

    def refusal(self, calls: Iterable[Call]) -> tuple[str, str] | None:
        """What the first of these calls is that the model cannot answer, and why; None where it can answer all.

        The first reason for a collective and a kind of group stands for others like it: meshes are many.
        """
        if not self._refused:
            return None
        for call in calls:
            reason = self._refused.get(Question.about(call, self._timing))
            if reason is not None:
                what = f"{call.collective} on {call.group.name.partition(':')[0]}"
                return what, self._reasons.setdefault(what, reason)
        return None

    def time(self, collective: str, size_bytes: Any, **others: Any) -> Estimate:
        """As the model answers it, but without an interval."""
        question = Question(collective, **others)
        if size_bytes not in self._known.get(question, ()):
            self._ask(question, [size_bytes])
        return self._known[question][size_bytes]

    def _ask(self, question: Question, sizes: Sequence[float]) -> None:
        together: Any = np.array(sizes, dtype=np.float64)  # models take arrays, though a prediction asks one by one
        estimate = question.ask(self._model, together)
        answers = {size: _at(estimate, index) for index, size in enumerate(sizes)}
        self._known.setdefault(question, {}).update(answers)


def _at(estimate: Any, index: int) -> Estimate:
    """The estimate of one size out of many. Without its interval: a ranking has none, and it takes long to play."""
    values = {field.name: getattr(estimate, field.name) for field in fields(estimate)}
    one: dict[str, Any] = {
        name: value[index].item() for name, value in values.items() if isinstance(value, np.ndarray) and value.ndim
    }
    answer: Estimate = replace(estimate, **one | {"low_us": None, "high_us": None})
    return answer


class StepTimes:
    """Memory, step times and what they are at least, of configurations of one workload.

    fixed: the options that all of them have, such as accumulate.
    """

    def __init__(self, workload: Workload, model: CostModel, timing: str | None, fixed: Options) -> None:
        self._fixed, self._timing = fixed, timing
        self._answers = Answers(model, timing)
        self._costs = Costs(self._answers, timing)
        self._workload = cache(lambda layers_per_unit: merged(workload, layers_per_unit))
        self._memory: dict[tuple[object, ...], Memory] = {}
        self._chains: dict[tuple[object, ...], Chains] = {}
        self._steps_ms: dict[tuple[Configuration, int], float] = {}

    def memory(self, configuration: Configuration) -> Memory:
        """What one rank keeps: the same on all meshes of so many shards."""
        key = _alike(configuration)
        if key not in self._memory:
            workload = self._workload(configuration.layers_per_unit)
            strategy, options = STRATEGIES[configuration.strategy], self._options(configuration)
            self._memory[key] = ledger(workload, strategy, configuration.placement, options)
        return self._memory[key]

    def least_ms(
        self, configurations: Sequence[Configuration]
    ) -> tuple[dict[Configuration, float], tuple[Refused, ...]]:
        """(what each takes at least, what the model cannot answer of the others)."""
        chains = {each: self._chains_of(each) for each in configurations}
        calls = {each: some.placed(each.placement) for each, some in chains.items()}
        self._answers.learn(call for some in calls.values() for call in some)
        least: dict[Configuration, float] = {}
        refused: Counter[tuple[str, str]] = Counter()
        for configuration, some in calls.items():
            refusal = self._answers.refusal(some)
            if refusal is not None:
                refused[refusal] += 1
                continue
            turns = GLOO not in self._costs.backends(some)
            least[configuration] = chains[configuration].least_ms(some, self._costs.time_ms, self._transfer_ms, turns)
        return least, tuple(Refused(what=what, reason=why, count=n) for (what, why), n in refused.items())

    def step_ms(self, configuration: Configuration, accumulate: int | None = None) -> float:
        """One optimizer step, of so many micro-batches, of a configuration that the model can answer."""
        accumulate = self._fixed.accumulate if accumulate is None else accumulate
        if (configuration, accumulate) not in self._steps_ms:
            self._steps_ms[configuration, accumulate] = self._played_ms(configuration, accumulate)
        return self._steps_ms[configuration, accumulate]

    def _played_ms(self, configuration: Configuration, accumulate: int) -> float:
        """Event by event where something is shared; else the longest chain is the step."""
        chains = self._chains_of(configuration)
        calls = chains.placed(configuration.placement)
        slows = any(self._costs.measured_slowdown(call) for call in calls)
        if shared_play(chains.kinds(calls), self._costs, slows=slows) is not None:
            return self.predict(configuration, self._answers, accumulate).step_ms
        if accumulate != self._fixed.accumulate:
            chains = self._new_chains(configuration, accumulate)
            calls = chains.placed(configuration.placement)
        return chains.longest_ms(calls, self._costs.time_ms, turns=True)

    def predict(self, configuration: Configuration, model: CostModel, accumulate: int | None = None) -> StepPrediction:
        """All that `predict_step` says, by the answers of a model."""
        options = self._options(configuration, accumulate)
        return predict_step(
            self._workload(configuration.layers_per_unit),
            model,
            configuration.strategy,
            nodes=configuration.nodes,
            ranks_per_node=configuration.ranks_per_node,
            timing=self._timing,
            **{field.name: getattr(options, field.name) for field in fields(options)},
        )

    def _chains_of(self, configuration: Configuration) -> Chains:
        key = _alike(configuration)
        if key not in self._chains:
            self._chains[key] = self._new_chains(configuration)
        return self._chains[key]

    def _new_chains(self, configuration: Configuration, accumulate: int | None = None) -> Chains:
        workload, strategy = self._workload(configuration.layers_per_unit), STRATEGIES[configuration.strategy]
        options = self._options(configuration, accumulate)
        return Chains(strategy.schedule(workload, roles_of(configuration.placement), options))

    def _options(self, configuration: Configuration, accumulate: int | None = None) -> Options:
        """accumulate: as fixed where it is not given."""
        options = configuration.options(self._fixed)
        return options if accumulate is None else replace(options, accumulate=accumulate)

    def _transfer_ms(self, call: Call) -> float:
        return self._costs.time_ms(call) * (1 - self._costs.latency_share(call))


def _alike(configuration: Configuration) -> tuple[object, ...]:
    """What configurations of the same schedule, but for where their groups are, have in common."""
    placement = configuration.placement
    anywhere = replace(configuration, nodes=1, ranks_per_node=1, mesh=None)
    return anywhere, placement.shard.nranks, placement.replicas > 1
