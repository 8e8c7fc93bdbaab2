"""Tables whose numbers are not what their header says, found by the rows' own arithmetic and converted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from collbench.collectives import COLLECTIVES, Collective
from collbench.importers.derived import GIB_PER_GB
from collbench.importers.evidence import share_of
from collbench.importers.spans import Span, quotient, rate_GBps
from collbench.importers.table import Row

_TELLING = 1.02  # high / low of a row's algbw x time / size, for it to tell one reading from all others
_MOST = 0.9  # of the rows must agree, for a table to be read in another way
_HALF = 0.5  # likewise, for it to be read as it stands, and the others refused
_FEWEST = 2


@dataclass(frozen=True, slots=True)
class Reading:
    """How to convert. own_algbw: the printed one is of another definition, and is left to be computed."""

    note: str = ""
    rate_factor: float = 1.0
    time_factor: float = 1.0
    size_factor: int = 1
    own_algbw: bool = False


def readings(
    rows: list[Row], counts: list[int], collective: Collective | None, possible: tuple[str, ...]
) -> Reading | None:
    """The reading under which the rows agree; None for none, and for several. counts: of ranks, the likelier first."""
    measured = [
        (row, span)
        for row in rows
        if row.algbw_GBps is not None and row.algbw_GBps.value > 0 and row.size_bytes > 0
        if (span := quotient(Span.of(row.algbw_GBps), rate_GBps(row))) is not None
    ]
    measured = [(row, span) for row, span in measured if span.low > 0]
    plain = _agreeing(measured, 1.0)
    if plain == 1 or _is_hypercube(measured, counts, collective, possible):
        return Reading()
    telling = [(row, span) for row, span in measured if span.high / span.low < _TELLING]
    if plain < _MOST and len(measured) >= _FEWEST and telling:
        fitting = [
            reading
            for ratio, reading in _known(counts, collective, possible)
            if _agreeing(measured, ratio) >= _MOST and _agreeing(telling, ratio) >= _MOST
        ]
        if len(fitting) > 1:  # 8 ranks, or 8 bits: where a size is its count's, it is one rank's
            are_whole = {share_of(row) for row, _ in measured} == {1.0}
            fitting = [reading for reading in fitting if are_whole and reading.size_factor > 1]
        if fitting or plain < _HALF:
            return fitting[0] if len(fitting) == 1 else None
    return Reading() if plain >= _HALF or len(measured) < _FEWEST else None


def read_as(row: Row, reading: Reading) -> Row:
    """The row in this program's units."""
    algbw, busbw = row.algbw_GBps, row.busbw_GBps
    return replace(
        row,
        size_bytes=row.size_bytes * reading.size_factor,
        time_us=row.time_us.times(reading.time_factor),
        algbw_GBps=None if algbw is None or reading.own_algbw else algbw.times(reading.rate_factor),
        busbw_GBps=None if busbw is None else busbw.times(reading.rate_factor),
    )


def _agreeing(measured: list[tuple[Row, Span]], ratio: float) -> float:
    return sum(span.holds(ratio) for _, span in measured) / len(measured) if measured else 1.0


def _is_hypercube(
    measured: list[tuple[Row, Span]], counts: list[int], collective: Collective | None, possible: tuple[str, ...]
) -> bool:
    """Whether algbw leaves the own share out, as this one collective's does by definition."""
    named = collective.name == "hypercube" if collective is not None else "hypercube" in possible
    return named and any(_agreeing(measured, (n - 1) / n) > _HALF for n in counts)


def _known(
    counts: list[int], collective: Collective | None, possible: tuple[str, ...]
) -> Iterator[tuple[float, Reading]]:
    """(algbw x time / size as printed, what that means)."""
    yield 1 / GIB_PER_GB, Reading("GB/s in this table are GiB/s (2^30): converted", rate_factor=GIB_PER_GB)
    yield 8.0, Reading("bandwidths in this table are Gbit/s: converted", rate_factor=1 / 8)
    yield 8 / GIB_PER_GB, Reading("bandwidths in this table are Gibit/s: converted", rate_factor=GIB_PER_GB / 8)
    yield 1e3, Reading("bandwidths in this table are MB/s: converted", rate_factor=1e-3)
    yield 1e-3, Reading("times in this table are ms: converted", time_factor=1e3)
    yield 1e-6, Reading("times in this table are s: converted", time_factor=1e6)
    names = [collective.name] if collective is not None else possible or COLLECTIVES
    divided = any(COLLECTIVES[name].divided for name in names)
    if not divided:
        return
    for n in dict.fromkeys(counts):
        if n < 2:
            continue
        yield (
            (n - 1) / n,
            Reading(
                "algbw in this table is of nccl-tests before 2020, (n-1)/n x size / time: computed anew", own_algbw=True
            ),
        )
        yield float(n), Reading(f"sizes in this table are one rank's: multiplied by {n} ranks", size_factor=n)
