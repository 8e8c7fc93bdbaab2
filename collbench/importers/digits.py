"""Numbers as people and spreadsheets write them, in thousands or with a comma for the point -> as C prints them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_IN_THOUSANDS = re.compile(r"[1-9]\d{0,2}([,'_\u2019 ])\d{3}(?:\1\d{3}){0,5}(?:\.\d{1,9})?\Z")
_WITH_BLANKS = re.compile(r"[1-9]\d{0,2}(?: \d{3}){1,6}(?:[.,]\d{1,9})?\Z")
_DECIMAL_COMMA = re.compile(r"(?:\d{1,15}|\d{1,3}(?:[. ]\d{3}){1,5}),\d{1,9}\Z")
_WITH_POINTS = re.compile(r"\d{1,3}(?:[. ]\d{3}){1,6}\Z")


def words_of(cells: Iterable[str]) -> list[str]:
    """The words of all cells; a number whose thousands blanks keep apart is one."""
    return [
        word
        for cell in cells
        for word in ([cell.replace(" ", "")] if " " in cell and _WITH_BLANKS.match(cell) else cell.split())
    ]


def plain_numbers(words: Sequence[str], comma_is_point: bool = False) -> list[str]:
    """The words of one line, numbers as C prints them. A comma that cannot part thousands says that all are points.

    comma_is_point: also one that could (`12,345`).
    """
    if any(_DECIMAL_COMMA.match(word) and (comma_is_point or not _IN_THOUSANDS.match(word)) for word in words):
        return [_with_point(word) for word in words]
    return [word.replace(match[1], "") if (match := _IN_THOUSANDS.match(word)) else word for word in words]


def _with_point(word: str) -> str:
    """`1.024` and `20,28` of a language with a decimal comma."""
    if _DECIMAL_COMMA.match(word) or _WITH_POINTS.match(word):
        return word.replace(".", "").replace(" ", "").replace(",", ".")
    return word
