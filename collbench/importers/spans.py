"""Intervals: what the digits of a printed number leave open, carried through quotients."""

from __future__ import annotations

from typing import NamedTuple

from collbench.importers.table import Printed, Row

_SLACK = 1e-6  # relative: the arithmetic of whoever printed


class Span(NamedTuple):
    """From `low` to `high`, both at least 0."""

    low: float
    high: float

    @staticmethod
    def of(number: Printed) -> Span:
        return Span(max(0.0, number.value - number.half_step), number.value + number.half_step)

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    def times(self, factor: float) -> Span:
        return Span(self.low * factor, self.high * factor)

    def meets(self, other: Span) -> bool:
        return self.low <= other.high * (1 + _SLACK) and other.low <= self.high * (1 + _SLACK)

    def meet(self, other: Span) -> Span:
        """What both hold; a point where they barely touch. They must meet."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Span(min(low, high), max(low, high))

    def holds(self, value: float) -> bool:
        return self.low * (1 - _SLACK) <= value <= self.high * (1 + _SLACK)


def rate_GBps(row: Row) -> Span:
    """size / time."""
    slowest = row.time_us.value + row.time_us.half_step
    fastest = row.time_us.value - row.time_us.half_step
    size = row.size_bytes / 1e3
    return Span(size / slowest, size / fastest if fastest > 0 else (1e300 if size else 0.0))


def quotient(above: Span, below: Span) -> Span | None:
    """above / below; None where below may be 0."""
    if below.low <= 0:
        return None
    return Span(above.low / below.high * (1 - _SLACK), above.high / below.low * (1 + _SLACK))
