"""JSON as logs hold it: numbers kept as they are printed, and what is whole of a document that is cut or damaged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from collbench.importers.table import Printed

_LARGEST_INTEGER = 2**63 - 1


class Number(str):
    """A number of a JSON document, as its text (`NaN` and `Infinity` too); a JSON string is a plain str."""

    __slots__ = ()


_DECODER = json.JSONDecoder(parse_float=Number, parse_int=Number, parse_constant=Number, strict=False)
_BLANK = re.compile(r"[ \t\r\n]*")
# C prints nan and inf, which JSON has not. A string is taken whole, so that its text is left alone.
_NOT_FINITE = re.compile(
    r'"(?:[^"\\]|\\.)*"?|[-+]?\b(?:nan|inf|infinity)\b(?:\([a-z0-9]{0,20}\))?', re.IGNORECASE | re.DOTALL
)


def with_json_numbers(text: str) -> str:
    """The same document, lines and all, with `inf` and `nan` as Python's JSON reads them."""
    if "nan" not in text and "inf" not in text:
        return text
    return _NOT_FINITE.sub(lambda match: match[0] if match[0].startswith('"') else "NaN", text)


def parsed(text: str) -> Any:
    """A whole document; None where it is none, or nested beyond reason."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def _value(text: str, start: int) -> tuple[Any, int] | None:
    """(value, where it ends) of the value that begins at or after `start`; None where it is cut or damaged."""
    try:
        return _DECODER.raw_decode(text, _after_blanks(text, start))
    except (ValueError, RecursionError):
        return None


def _after_blanks(text: str, start: int) -> int:
    match = _BLANK.match(text, start)
    return match.end() if match else start


class Walk:
    """The members of an object, one after another, as far as they are whole.

    end: where the walk stopped.  whole: whether the object has its end there.
    torn_at: where an element of the list began that is cut or damaged.
    """

    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self.end = start
        self.whole = False
        self.torn_at: int | None = None

    def members(self, listed: str = "") -> Iterator[tuple[str, int, Any]]:
        """(key, where its value begins, value). The list under `listed` comes element by element, or not at all."""
        text, self.end = self._text, self.end + 1
        while True:
            key = _value(text, self.end)
            if key is None or type(key[0]) is not str:
                self.whole = self._ends("}")
                return
            colon = _after_blanks(text, key[1])
            if text[colon : colon + 1] != ":":
                return
            start = _after_blanks(text, colon + 1)
            if key[0] == listed and text[start : start + 1] == "[":
                self.end = start
                yield from ((listed, at, element) for at, element in self._elements())
                if not self.whole:
                    return
                self.whole = False
            else:
                value = _value(text, start)
                if value is None:
                    return
                self.end = value[1]
                if key[0] != listed:
                    yield key[0], start, value[0]
            if not self._ends(","):
                self.whole = self._ends("}")
                return

    def _elements(self) -> Iterator[tuple[int, Any]]:
        """(where it begins, element) of the list that begins at `end`; `whole` says whether the list has its end."""
        text, self.end = self._text, self.end + 1
        self.whole = self._ends("]")
        while not self.whole:
            start = _after_blanks(text, self.end)
            element = _value(text, start)
            if element is None:
                self.torn_at = start if start < len(text) else None
                return
            self.end = element[1]
            yield start, element[0]
            if not self._ends(","):
                self.whole = self._ends("]")
                return

    def _ends(self, mark: str) -> bool:
        """Step over `mark` where it comes next."""
        start = _after_blanks(self._text, self.end)
        found = self._text[start : start + 1] == mark
        if found:
            self.end = start + 1
        return found


def flat_objects(text: str, longest: int) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """(where it begins, object) of all objects without others in them, of at most `longest` characters, in a text.

    None for a brace that begins none: around others, torn, or no JSON.
    """
    start = text.find("{")
    while start >= 0:
        end = text.find("}", start, start + longest)
        inner = text.find("{", start + 1, end if end >= 0 else start + longest)
        found = parsed(text[start : end + 1]) if end >= 0 and inner < 0 else None
        yield start, found if isinstance(found, dict) else None
        start = text.find("{", start + 1)


class Lines:
    """Line numbers of rising offsets, counted once over."""

    def __init__(self, text: str) -> None:
        self._text, self._offset, self._line = text, 0, 1

    def at(self, offset: int) -> int:
        self._line += self._text.count("\n", self._offset, offset)
        self._offset = max(offset, self._offset)
        return self._line


def shown(value: Any) -> str:
    """A value for a message, in few words."""
    return repr(str(value))[:40]


def number(value: Any) -> Printed | None:
    """A finite number, be it one of JSON or the text of one; None for all else."""
    return Printed.read(value.strip()) if isinstance(value, str) and len(value) <= 64 else None


def time_us_of(value: Any) -> Printed | None:
    """As `number`; a long time that Python wrote as 16207.0 may have been printed as 16207 before."""
    known = number(value)
    if known is not None and known.value >= 10_000 and value.strip().endswith(".0"):
        return Printed(known.value, 0.5)
    return known


def integer(value: Any) -> int | None:
    """A whole number from 0 to 2^63 - 1, `8`, `"     8"` or `8.0`; None for all else."""
    known = number(value)
    if known is None or not 0 <= known.value <= _LARGEST_INTEGER or known.value != int(known.value):
        return None
    text = value.strip()
    exact = int(text) if text.isdecimal() else int(known.value)
    return exact if exact <= _LARGEST_INTEGER else None


def text_of(value: Any) -> str:
    """A JSON string; "" for all else."""
    return value if type(value) is str else ""
