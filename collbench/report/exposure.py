"""Which part of a stream's work stands outside another's: the communication that no computation hides."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

Span = tuple[float, float]  # from, to


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same stretches in order, those that touch or overlap as one; empty ones are left out."""
    whole: list[Span] = []
    for start, end in sorted(span for span in spans if span[1] > span[0]):
        if whole and start <= whole[-1][1]:
            whole[-1] = whole[-1][0], max(end, whole[-1][1])
        else:
            whole.append((start, end))
    return whole


def outside(span: Span, busy: Sequence[Span]) -> list[Span]:
    """The parts of `span` that none of `busy` covers; `busy` as `merged` gives it."""
    at, end = span
    parts = []
    for start, until in busy[max(0, bisect_right(busy, (at,)) - 1) :]:
        if start >= end:
            break
        if start > at:
            parts.append((at, start))
        at = max(at, until)
    return [*parts, (at, end)] if at < end else parts


def length(spans: Iterable[Span]) -> float:
    """How long they are altogether."""
    return sum(end - start for start, end in spans)
