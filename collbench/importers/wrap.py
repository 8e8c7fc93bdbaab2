"""Lines that a terminal or a mail broke at a column, put together again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

_NARROWEST, _WIDEST = 40, 240
_FEWEST = 3  # lines that go on in the next
_MOSTLY = 0.6
_MOST_PARTS = 20  # of a line, on average
_BEGINNING = re.compile(
    r"[#>](?!\S)|\s{0,80}\d{1,19}\s{1,80}\d{1,19}\s{1,80}[a-z]"
)  # a comment, a quote, a row: no line's rest
_LINES_LOOKED_AT = 1000


def width(lines: Iterable[tuple[int, str]]) -> int | None:
    """The column at which lines are broken: none is longer, and those of that length mostly go on; None for none."""
    looked_at = [text for (_, text), _ in zip(lines, range(_LINES_LOOKED_AT), strict=False)]
    longest = max(map(len, looked_at), default=0)
    if not _NARROWEST <= longest <= _WIDEST:
        return None
    rests = [after for before, after in pairwise(looked_at) if len(before) == longest and len(after) < longest]
    if not _FEWEST <= len(rests) >= sum(len(text) == longest for text in looked_at) / _MOST_PARTS:
        return None
    return longest if sum(map(_goes_on, rests)) >= _MOSTLY * len(rests) else None


def unwrapped(lines: Iterable[tuple[int, str]], width: int) -> Iterator[tuple[int, str]]:
    """The whole lines, each with the number of its first part."""
    begun: tuple[int, str] | None = None
    for number, text in lines:
        if begun is not None and _goes_on(text):
            whole = begun[0], begun[1] + text
        else:
            if begun is not None:
                yield begun
            whole = number, text
        begun = whole if len(text) == width else None
        if begun is None:
            yield whole
    if begun is not None:
        yield begun


def _goes_on(rest: str) -> bool:
    return bool(rest.strip()) and _BEGINNING.match(rest) is None
