"""The one question that a prediction asks a model: how long does this collective take, and how sure are you?"""

from __future__ import annotations

from typing import Any, Protocol

from collbench.predict.timeline import Call


class Estimate(Protocol):
    """One collective's time and its interval (None where the model has none), in µs."""

    @property
    def time_us(self) -> Any: ...
    @property
    def low_us(self) -> Any: ...
    @property
    def high_us(self) -> Any: ...
    @property
    def extrapolated(self) -> Any: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


class CostModel(Protocol):
    """A fitted model or link figures; `nodes` and `ranks_per_node` are its own layout, None for link figures."""

    @property
    def nodes(self) -> int | None: ...
    @property
    def ranks_per_node(self) -> int | None: ...
    def time(
        self,
        collective: str,
        size_bytes: float,
        group: str = "world",
        nranks: int | None = None,
        nnodes: int | None = None,
        dtype: str | None = None,
        timing: str | None = None,
    ) -> Estimate:
        """Raises InputError for what it cannot answer."""
        ...


class Costs:
    """A model's answers in ms, each distinct call asked once."""

    def __init__(self, model: CostModel, timing: str | None) -> None:
        self._model, self._timing = model, timing
        self._answers: dict[Call, Estimate] = {}

    def _answer(self, call: Call) -> Estimate:
        if call not in self._answers:
            group = call.group
            self._answers[call] = self._model.time(
                call.collective,
                call.size_bytes,
                group=group.name,
                nranks=group.nranks,
                nnodes=group.nnodes,
                dtype=call.dtype,
                timing=self._timing,
            )
        return self._answers[call]

    def time_ms(self, call: Call) -> float:
        """The call's expected duration."""
        return float(self._answer(call).time_us) / 1000

    def low_ms(self, call: Call) -> float:
        """The low end of its interval."""
        return float(self._answer(call).low_us) / 1000

    def high_ms(self, call: Call) -> float:
        """The high end of its interval."""
        return float(self._answer(call).high_us) / 1000

    @property
    def have_intervals(self) -> bool:
        """Whether every answer so far, and there is one, has an interval."""
        answers = self._answers.values()
        return bool(answers) and all(each.low_us is not None and each.high_us is not None for each in answers)

    @property
    def extrapolated(self) -> bool:
        """Whether any answer lies outside what was measured."""
        return any(bool(each.extrapolated) for each in self._answers.values())

    @property
    def notes(self) -> list[str]:
        """What the answers say about themselves, each once."""
        return list(dict.fromkeys(note for each in self._answers.values() for note in each.notes))
