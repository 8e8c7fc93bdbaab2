"""What stands before every line of one log, learned from the log itself: line numbers, and prefixes no one foresaw.

`clean` knows the launchers' and terminals' prefixes. Any other is told by what it stands before: the same words and
marks, whatever its numbers, before several comment lines (`#`), or before nearly all lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

LINES_LOOKED_AT = 200
_LONGEST = 120  # characters of a prefix
_FEWEST_COMMENTS = 3
_FEWEST_LINES = 6
_MOST_SHAPES = 8
_MOST_ENDS = 20
_NEARLY_ALL = 0.8
_FILE = r"(?:(?!\d{1,7}[:-])[^\s:]{1,100}?[:-])?"
_NUMBERED = re.compile(rf"{_FILE}\s{{0,8}}(\d{{1,7}})(?:([:-])|[.)](?=\s)|\s{{0,2}}\||(?=\s)) ?")
_COMMENT = re.compile(r"([^#]{1,120})#(?=\s|\Z)")
_WORD = re.compile(r"(?<=\d)T(?=\d\d:)|[A-Za-z][\w-]{0,80}|\d{1,20}|\s{1,40}|.", re.DOTALL)
_BLANKS = r"\s{1,40}"
_DIGITS = r"\d{1,20}"
_ENDS = (_BLANKS, *map(re.escape, ":>|)]+\"'`"))
_OPENING = "'\"`|\u2502\u2503\u2551"
_CLOSING = f" \t\\,{_OPENING}"


class Affix:
    """A prefix to take off, and with it what closes a line that it opens: a quote, a box's side."""

    def __init__(self, shapes: Sequence[str]) -> None:
        self._pattern = re.compile("|".join(f"(?:{shape})" for shape in shapes))

    def strip(self, text: str) -> str | None:
        """The line without it; None for a line that does not have it."""
        match = self._pattern.match(text)
        if match is None or not match.end():
            return None
        rest = text[match.end() :]
        return rest.rstrip(_CLOSING) if match[0].lstrip()[:1] in _OPENING else rest


def numbering(lines: Iterable[str]) -> Affix | None:
    """Of lines that all begin with their number, alone (`12:`, `12. `) or after their file's name (`log.txt:12:`)."""
    numbers, seen = [], 0
    is_grep = True
    for line in lines:
        if not line.strip():
            continue
        seen += 1
        match = _NUMBERED.match(line)
        if match is not None:
            numbers.append(int(match[1]))
            is_grep = is_grep and match[2] is not None
    if seen < _FEWEST_LINES or len(numbers) < _NEARLY_ALL * seen:
        return None
    steps = [after - before for before, after in pairwise(numbers)]
    if min(steps) < 1 or (sum(step <= 2 for step in steps) < _NEARLY_ALL * len(steps) and not is_grep):
        return None  # grep leaves lines out; others number all, also the blank ones
    return Affix([_NUMBERED.pattern])


def before_comments(lines: Iterable[str]) -> Affix | None:
    """Of lines with a comment behind a prefix that several such lines share."""
    shapes = Counter(_shape(match[1]) for line in lines if (match := _COMMENT.match(line)) is not None)
    common = [shape for shape, count in shapes.most_common(_MOST_SHAPES) if count >= _FEWEST_COMMENTS and shape]
    return Affix(common) if common else None


def before_all(lines: Iterable[str]) -> list[Affix]:
    """What nearly all lines begin with, up to each blank, colon or bracket in it, the shortest first."""
    shapes = [
        [_generalised(word, inside=True) for word in _WORD.findall(line[:_LONGEST])] for line in lines if line.strip()
    ]
    common: tuple[str, ...] = ()
    while len(shapes) >= _FEWEST_LINES:
        begun = Counter(tuple(shape[: len(common) + 1]) for shape in shapes if len(shape) > len(common))
        longer, count = begun.most_common(1)[0] if begun else ((), 0)
        if count < _NEARLY_ALL * len(shapes):
            break
        common = longer
    ends = [end for end, word in enumerate(common, 1) if word in _ENDS]
    found = [common[:end] for end in ends if any(word not in (_BLANKS, _DIGITS) for word in common[:end])]
    return [Affix(["".join(words)]) for words in found[:_MOST_ENDS]]


def _shape(prefix: str) -> str:
    """An expression for prefixes of the same words and marks, with other numbers; "" for one of numbers alone."""
    if not re.search(r"[^\d\s]", prefix):
        return ""
    return "".join(map(_generalised, _WORD.findall(prefix)))


def _generalised(word: str, inside: bool = False) -> str:
    """inside: a word's own digits may differ too (`node01`)."""
    if word[0].isdigit():
        return _DIGITS
    if word.isspace():
        return _BLANKS
    return re.sub(r"\d{1,20}", r"\\d{1,20}", re.escape(word)) if inside else re.escape(word)
