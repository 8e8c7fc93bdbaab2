"""The columns of nccl-tests' tables, as a header line says they are.

They differ by generation (error or #wrong), collective (redop, root), option (-I, -S, -A, -C) and by what people cut
out or put in front.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from collbench.errors import InputError
from collbench.importers.clean import cells
from collbench.units import parse_rate

MOST_TOKENS = 64

_NAMES = {
    **dict.fromkeys(("size", "bytes", "msgsize", "message", "messagesize"), "size"),
    **dict.fromkeys(("count", "n", "elements", "elems"), "count"),
    **dict.fromkeys(("type", "dtype", "datatype"), "type"),
    **dict.fromkeys(("redop", "op", "reduction"), "redop"),
    "root": "root",
    "time": "time",
    "cputime": "cputime",
    **dict.fromkeys(("algbw", "algobw"), "algbw"),
    "busbw": "busbw",
    **dict.fromkeys(("#wrong", "wrong"), "wrong"),
    **dict.fromkeys(("error", "res", "delta", "errors"), "error"),
    **{name: name for name in ("i_min", "i_max", "i_p99", "i_cv%", "algo", "proto", "nchannels", "timestamp")},
    **dict.fromkeys(("nodes", "nnodes", "#nodes"), "nodes"),
    **dict.fromkeys(("ranks", "nranks", "gpus", "ngpus", "#gpus", "np", "nprocs"), "ranks"),
}
IN_HALVES = ("time", "cputime", "algbw", "busbw", "wrong", "error", "i_min", "i_max", "i_p99", "i_cv%")
_WORD = re.compile(r"([a-z_#%:]{1,40})\(([^()]{0,24})\)\Z")
_UNIT = re.compile(r"\(([^()]{1,24})\)\Z")
_OUT_OF_PLACE = re.compile(r"out[- ]of[- ]place|\boop\b")
_IN_PLACE = re.compile(r"in[- ]place|\bip\b")
_TIMES_US = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "μs": 1.0, "usec": 1.0, "ms": 1e3, "msec": 1e3, "s": 1e6, "sec": 1e6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns of one table.

    first: before the times.  halves: of each half.  tail: after them.  in_place: of each half, None where the header
    does not say.  Factors turn a printed number into µs and GB/s.
    """

    first: tuple[str, ...]
    halves: tuple[tuple[str, ...], ...]
    tail: tuple[str, ...] = ()
    in_place: tuple[bool | None, ...] = (False, True)
    time_factor: float = 1.0
    rate_factor: float = 1.0

    @property
    def width(self) -> int:
        """Tokens of a whole row, a time stamp's two among them."""
        return len(self.first) + sum(map(len, self.halves)) + len(self.tail) + ("timestamp" in self.tail)


def read_header(text: str, above: str = "") -> Layout | None:
    """The layout a header line names; None for what is none. above: the line over it, with the names of the halves."""
    if ("busbw" not in text.lower() and "algbw" not in text.lower()) or "(elems)" in text:
        return None  # nccom-test's has other units and counts
    named = list(_named(text))
    names = [name for name, _, _ in named]
    starts = [index for index, name in enumerate(names) if name in ("time", "cputime")]
    if not 1 <= len(starts) <= 2 or "size" not in names[: starts[0]] or len(named) > MOST_TOKENS:
        return None
    halves = [tuple(names[start:end]) for start, end in pairwise(starts)]
    last = names[starts[-1] :]
    length = (
        len(halves[0]) if halves else next((at for at, name in enumerate(last) if name not in IN_HALVES), len(last))
    )
    halves.append(tuple(last[:length]))
    if any("algbw" not in half for half in halves) and any("busbw" not in half for half in halves):
        return None
    in_place: list[bool | None] = [named[at][2] for at in starts]
    if all(place is None for place in in_place):
        in_place = _places(above, len(halves))
    units = [unit for _, unit, _ in named if unit]
    layout = Layout(
        first=tuple(names[: starts[0]]),
        halves=tuple(halves),
        tail=tuple(last[length:]),
        in_place=tuple(in_place),
    )
    if "bytes" in text.lower().split() and "N" in text.split():  # version 1 printed milliseconds and no units
        layout = replace(layout, time_factor=1e3)
    return with_units(layout, units)


def begins_header(text: str) -> bool:
    """Whether a line names the first columns and nothing else."""
    names = [name for name, _, _ in _named(text)][:MOST_TOKENS]
    return "size" in names[:2] and "count" in names[:3] and "type" in names[:4]


def read_units(text: str) -> list[str] | None:
    """The units of the line under a header; None for a line that is none."""
    tokens = text.replace("#", " ").split()
    found = [match[1] if (match := _UNIT.match(token)) else None for token in tokens]
    known = [unit for unit in found if unit is not None]
    if not known or len(known) < len([token for token in tokens if not token.startswith("%")]):
        return None
    return known


def with_units(layout: Layout, units: list[str]) -> Layout:
    """The layout with the factors of those units that are known; the first of each kind counts."""
    time_factor = next((_TIMES_US[unit.lower()] for unit in units if unit.lower() in _TIMES_US), layout.time_factor)
    rate_factor = next((rate for unit in units if (rate := _rate_GBps(unit)) is not None), layout.rate_factor)
    return replace(layout, time_factor=time_factor, rate_factor=rate_factor)


def _rate_GBps(unit: str) -> float | None:
    try:
        return parse_rate(f"1{unit.replace('Bps', 'B/s')}") if "/" in unit or unit.endswith("ps") else None
    except InputError:
        return None


def _named(text: str) -> Iterator[tuple[str, str | None, bool | None]]:
    """(name or ?, unit, in place where the cell says) of a header's columns."""
    if text.count("|") > 2:
        for cell in cells(text):
            word = cell.lower().partition("(")[0]
            known = [_NAMES[part] for part in word.replace("_", " ").split() if part in _NAMES]
            joined = word.strip().replace(" ", "")
            name = _NAMES.get(joined) or (known[-1] if known else "?")
            place = False if _OUT_OF_PLACE.search(word) else True if _IN_PLACE.search(word) else None
            yield name, cell.partition("(")[2].partition(")")[0].strip() or None, place
        return
    found: list[tuple[str, str | None, bool | None]] = []
    for token in text.split():
        word = token if token.lower() in _NAMES else token.lstrip("#*")
        match, only_unit = _WORD.match(word.lower()), _UNIT.match(word)
        if match is not None:
            found.append((_NAMES.get(match[1], "?"), word[match.start(2) : match.end(2)], None))
        elif only_unit is not None and found:
            found[-1] = (found[-1][0], only_unit[1], None)
        elif word:
            found.append((_NAMES.get(word.lower(), "?"), None, None))
    yield from found


def _places(above: str, halves: int) -> list[bool | None]:
    """Which halves are in place, by the line over the header, else by their number."""
    said = [mark == "in-place" for mark in re.findall(r"out-of-place|in-place", above)]
    if len(said) == halves:
        return list(said)
    return [False, True] if halves == 2 else [None] * halves
