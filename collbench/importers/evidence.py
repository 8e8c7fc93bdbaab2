"""What a table's rows tell of the collective and its ranks: size / count, and busbw / algbw within their digits."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from collbench.collectives import Collective
from collbench.dtypes import DTYPES
from collbench.importers.spans import Span, quotient, rate_GBps
from collbench.importers.table import Row

MOST_RANKS = 10_000_000
_ENOUGH = 0.8  # of the rows must allow a number of ranks, for it to be the table's


class Ranks(NamedTuple):
    """The numbers of ranks that a table's rows allow, what told, and how many rows did."""

    least: int
    most: int
    source: str
    rows: int = 0

    @property
    def one(self) -> int | None:
        return self.least if self.least == self.most else None

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and self.least <= value <= self.most

    def __str__(self) -> str:
        if self.one is not None:
            return str(self.one)
        return f"{self.least} to {self.most}" if self.most < MOST_RANKS else f"at least {self.least}"


ANY = Ranks(1, MOST_RANKS, "")


def share(size_bytes: int, count: int | None, dtype: str | None) -> float | None:
    """size / (count x itemsize): by how many ranks a message is shared out."""
    return size_bytes / (count * DTYPES[dtype].itemsize) if count and dtype in DTYPES else None


def share_of(row: Row) -> float | None:
    """Likewise, of a row."""
    return share(row.size_bytes, row.count, row.dtype)


class Evidence:
    """Of the rows of one table."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows
        self._known: dict[tuple[bool, float, float], Ranks | None] = {}

    @cached_property
    def shares(self) -> set[float]:
        """size / (count x itemsize) of the rows that have them."""
        return {found for row in self._rows if (found := share_of(row)) is not None}

    def ranks(self, collective: Collective) -> Ranks | None:
        """The numbers of ranks with which this collective has these rows; None where it cannot have them."""
        key = collective.divided, collective.bus_factor(3), collective.algbw_factor(3)
        if key not in self._known:
            self._known[key] = self._ranks(collective)
        return self._known[key]

    def _ranks(self, collective: Collective) -> Ranks | None:
        ranks = ANY
        if len(self.shares) == 1:
            parts = next(iter(self.shares))
            if not collective.divided and parts != 1:
                return None
            if collective.divided:
                if parts != int(parts) or not 1 <= parts <= MOST_RANKS:
                    return None
                ranks = Ranks(int(parts), int(parts), "size / count", len(self._rows))
        ratios = self._ratios if collective.algbw_factor(2) == 1 else self._ratios_as_printed
        if not ratios:
            return ranks
        least, most, votes = _most_agreed([_ranks_of(ratio, collective) for ratio in ratios])
        least, most = max(least, ranks.least), min(most, ranks.most)
        if votes < _ENOUGH * len(ratios) or least > most:
            return None
        return ranks if ranks.one else Ranks(least, most, "busbw / algbw", len(ratios))

    @cached_property
    def _ratios(self) -> list[Span]:
        """busbw / algbw of each row that has one, algbw being what its print, size and time leave open together."""
        found = []
        for row in self._rows:
            if row.busbw_GBps is None:
                continue
            algbw = rate_GBps(row)
            if row.algbw_GBps is not None:
                printed = Span.of(row.algbw_GBps)
                algbw = printed.meet(algbw) if printed.meets(algbw) else printed
            ratio = quotient(Span.of(row.busbw_GBps), algbw)
            if ratio is not None:
                found.append(ratio)
        return found

    @cached_property
    def _ratios_as_printed(self) -> list[Span]:
        """Likewise, of the printed alone: for a collective whose algbw is not size / time."""
        both = ((row.busbw_GBps, row.algbw_GBps) for row in self._rows)
        ratios = (quotient(Span.of(busbw), Span.of(algbw)) for busbw, algbw in both if busbw and algbw)
        return [ratio for ratio in ratios if ratio is not None]


def _ranks_of(ratio: Span, collective: Collective) -> tuple[int, int]:
    """The least and most ranks that have this busbw / algbw; (1, 0) where no number has."""
    limit = round(collective.bus_factor(MOST_RANKS))
    if collective.bus_factor(2) == limit:  # it is the same for all
        return (1, MOST_RANKS) if ratio.low <= limit <= ratio.high else (1, 0)
    # factor = limit (n - 1) / n, so n = limit / (limit - factor)
    least = max(1, -int(-(limit / (limit - ratio.low) - 1e-9) // 1)) if ratio.low < limit else MOST_RANKS + 1
    most = int(limit / (limit - ratio.high) + 1e-9) if ratio.high < limit else MOST_RANKS
    return least, min(most, MOST_RANKS)


def _most_agreed(spans: list[tuple[int, int]]) -> tuple[int, int, int]:
    """(least, most, how many) of the numbers that the most spans hold."""
    edges = sorted((edge, is_end) for span in spans if span[0] <= span[1] for is_end, edge in enumerate(span))
    held = best = least = most = 0
    for place, (value, is_end) in enumerate(edges):
        held += -1 if is_end else 1
        if held > best:
            best, least = held, value
            most = next(edge for edge, ends in edges[place:] if ends)
    return least, most, best
