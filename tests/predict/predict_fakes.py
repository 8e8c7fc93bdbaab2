"""A model whose answers are easy to compute by hand: every collective takes alpha_ms + size / rate."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Answer:
    time_us: float
    low_us: float | None
    high_us: float | None
    source: str = "fit"
    extrapolated: bool = False
    notes: tuple[str, ...] = ()
    latency_us: float = 0.0
    backend: str | None = None
    regime: int | None = None


@dataclass
class FakeModel:
    """`ms_per_MB` of nccl-tests' size (10^6 bytes) plus `alpha_ms`; `spread` makes the interval time x (1 ± spread)."""

    ms_per_MB: float = 1.0
    alpha_ms: float = 0.0
    spread: float | None = None
    nodes: int | None = 1
    ranks_per_node: int | None = 2
    notes: tuple[str, ...] = ()
    extrapolated_above: float = float("inf")
    backend: str | None = None
    asked: list[tuple] = field(default_factory=list)

    def time(self, collective, size_bytes, group="world", nranks=None, nnodes=None, dtype=None, timing=None):
        self.asked.append((collective, size_bytes, group, nranks, nnodes, dtype, timing))
        time_us = 1000 * (self.alpha_ms + self.ms_per_MB * size_bytes / 1e6)
        low_us = high_us = None
        if self.spread is not None:
            low_us, high_us = time_us * (1 - self.spread), time_us * (1 + self.spread)
        return Answer(
            time_us, low_us, high_us, extrapolated=size_bytes > self.extrapolated_above, notes=self.notes,
            latency_us=1000 * self.alpha_ms, backend=self.backend,
        )  # fmt: skip


def bars(prediction) -> dict[str, tuple[float, float]]:
    """name -> (start_ms, end_ms)"""
    return {bar["name"]: (bar["start_ms"], bar["end_ms"]) for bar in prediction.to_dict()["timeline"]}


def calls(prediction) -> list[str]:
    """Names of the collectives of the first communication channel, in the order they run."""
    return [bar["name"] for bar in prediction.to_dict()["timeline"] if bar["channel"] == "comm"]
