"""The one question that a prediction asks a model: how long does this collective take, and how sure are you?"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from collbench.model.slowdown import Slowdown
from collbench.predict.draws import Floats, drawn_ms
from collbench.predict.timeline import Call

_NO_SLOWDOWN = Slowdown(comm=1.0, compute=1.0)


class Estimate(Protocol):
    """One collective's time and its 90 % interval (None where the model has none), in µs, above 0 as the time is."""

    @property
    def time_us(self) -> Any: ...
    @property
    def low_us(self) -> Any: ...
    @property
    def high_us(self) -> Any: ...
    @property
    def latency_us(self) -> Any:
        """The part of `time_us` that loads no link, where known: the same for a message of no bytes."""
        ...

    @property
    def backend(self) -> str | None:
        """torch's name of whose time it is; None for link figures."""
        ...

    @property
    def regime(self) -> Any:
        """A number for the sizes whose errors go together; None where that is not known."""
        ...

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
        size_bytes: Any,
        *,
        group: str,
        nranks: int,
        nnodes: int,
        dtype: str,
        timing: str | None,
    ) -> Estimate:
        """Raises InputError for what it cannot answer."""
        ...


@runtime_checkable
class SlowdownModel(Protocol):
    """A model that may know what a collective and computation cost one another; link figures do not."""

    def slowdown(
        self, collective: str, size_bytes: float, group: str, nranks: int, nnodes: int, backend: str | None
    ) -> Slowdown | None:
        """None where it was not measured."""
        ...


class Question(NamedTuple):
    """What a model is asked, but for the size."""

    collective: str
    group: str
    nranks: int
    nnodes: int
    dtype: str
    timing: str | None

    @classmethod
    def about(cls, call: Call, timing: str | None) -> Question:
        """The question that a call puts."""
        group = call.group
        return cls(call.collective, group.name, group.nranks, group.nnodes, call.dtype, timing)

    def ask(self, model: CostModel, size_bytes: Any) -> Estimate:
        """The model's answer for a size, or for an array of them."""
        return model.time(size_bytes=size_bytes, **self._asdict())


class Costs:
    """A model's answers in ms, each distinct call asked once. `slowdown`: False leaves its slowdowns out."""

    def __init__(self, model: CostModel, timing: str | None, *, slowdown: bool = True) -> None:
        self._model, self._timing = model, timing
        self._slows = model if slowdown and isinstance(model, SlowdownModel) else None
        self._answers: dict[Call, Estimate] = {}
        self._drawn: dict[Call, Floats] = {}
        self._slowdowns: dict[Call, Slowdown | None] = {}

    def _answer(self, call: Call) -> Estimate:
        if call not in self._answers:
            self._answers[call] = Question.about(call, self._timing).ask(self._model, call.size_bytes)
        return self._answers[call]

    def time_ms(self, call: Call) -> float:
        """The call's expected duration."""
        return float(self._answer(call).time_us) / 1000

    def drawn_ms(self, call: Call) -> Floats:
        """Its duration in every draw of the model's errors, of shape [DRAWS]; the model must have intervals."""
        if call not in self._drawn:
            answer, group = self._answer(call), call.group
            regime = f"decade {int(math.log10(max(call.size_bytes, 1)))}" if answer.regime is None else answer.regime
            name = f"{call.collective} {group.name} {group.nranks} {group.nnodes} {regime}"
            time_us, low_us, high_us = float(answer.time_us), float(answer.low_us), float(answer.high_us)
            self._drawn[call] = drawn_ms(time_us / 1000, low_us / 1000, high_us / 1000, name)
        return self._drawn[call]

    def latency_share(self, call: Call) -> float:
        """The part of the call's time, 0 to 1, that loads no link."""
        answer = self._answer(call)
        return min(1.0, float(answer.latency_us) / float(answer.time_us)) if answer.time_us else 0.0

    def slowdown(self, call: Call) -> Slowdown:
        """What it and computation cost one another; nothing where that was not measured."""
        return self.measured_slowdown(call) or _NO_SLOWDOWN

    def measured_slowdown(self, call: Call) -> Slowdown | None:
        """The same; None where it was not measured."""
        if call not in self._slowdowns:
            found, group = None, call.group
            if self._slows is not None:
                asked = (call.collective, call.size_bytes, group.name, group.nranks, group.nnodes)
                found = self._slows.slowdown(*asked, self._answer(call).backend)
            self._slowdowns[call] = found
        return self._slowdowns[call]

    def backends(self, calls: Iterable[Call]) -> set[str | None]:
        """Whose times the answers are."""
        return {self._answer(call).backend for call in calls}

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
