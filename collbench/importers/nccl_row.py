"""A line of nccl-tests' table by its columns; and what a row without a header, or the half of one, can be told by."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from collbench.importers.clean import cells
from collbench.importers.digits import plain_numbers, words_of
from collbench.importers.nccl_layout import IN_HALVES, MOST_TOKENS, Layout
from collbench.importers.table import Printed
from collbench.importers.words import dtype_named

_LARGEST = 2**63 - 1  # a size, a count
_PER_ITER = {"i_min": "min_us", "i_max": "max_us", "i_p99": "p99_us", "i_cv%": "cv_pct"}
_NO_VALUE = re.compile(r"n/?a|-?nan|-?inf|[-–—]{1,3}|x{1,4}\.?x{0,4}|\?+|\*+", re.IGNORECASE)
_MARKED = re.compile(r"[,'_*`\u2019]")
_BETWEEN_COLUMNS = re.compile(r" {2,}")
_INTEGER = re.compile(r"-?\d{1,19}\Z")
_GLUED = re.compile(r"(-?\d{1,19}(?:\.\d{1,9})?)(?=[\[(]|[A-Za-z][\w.-]{0,100}[:\]])")
_MOST_BEFORE_TYPE = 3  # a size, a count, and a label in front
_RULE = re.compile(r"[\s|:+=-]{3,}\Z")
_REDOPS = ("sum", "prod", "max", "min", "avg", "mulsum", "none")


@dataclass(frozen=True, slots=True)
class Half:
    """One half of a row. values: by column, those that are numbers."""

    in_place: bool | None
    values: dict[str, Printed]
    texts: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowText:
    """A row, its words told apart. missing: halves of the layout that the line does not hold whole."""

    size: int
    count: int | None
    dtype: str | None
    redop: str | None
    root: int | None
    halves: tuple[Half, ...]
    label: tuple[str, str] | None = None  # (what a leading column is called, its value in this row)
    missing: int = 0
    tail: tuple[str, ...] = ()


def tokens_of(text: str) -> list[str]:
    """The words of a line, a pipe table's cells among them; without the marks of a comment."""
    if text.count("|") > 2:
        parts = words_of(cell or "N/A" for cell in cells(text))
    elif "\t" in text:
        parts = words_of(map(str.strip, text.split("\t")))
    else:
        parts = text.split()
        if any(len(part) == 3 for part in parts[1:3]) and _are_grouped(parts):
            parts = words_of(_BETWEEN_COLUMNS.split(text.strip()))
    if not _MARKED.search(text):
        return parts
    return plain_numbers([token.strip("*`") or token for token in parts])


def _are_grouped(parts: list[str]) -> bool:
    """Whether blanks part thousands: more numbers before the type than a row has there, or one with zeros before it."""
    at = next((index for index, token in enumerate(parts[:16]) if dtype_named(token) is not None), 0)
    return at > _MOST_BEFORE_TYPE or any(token[0] == "0" and len(token) == 3 for token in parts[:at])


def is_rule(text: str) -> bool:
    """Whether a line is a ruler of a table, such as `|---:|---|`."""
    return "-" in text and bool(_RULE.match(text))


def read_row(tokens: list[str], layout: Layout) -> RowText | str | None:
    """A row of this layout; the reason why a line that begins like one is none; None for a line that does not.

    A cut row counts where its first half is whole.
    """
    if not tokens or len(tokens) > MOST_TOKENS:
        return None
    tokens, label = _without_label(tokens, layout)
    head = _read_first(tokens, layout)
    if head is None:
        return None
    if isinstance(head, str):
        return head
    first, rest = head
    tail = _tail_of(rest, layout)
    if tail is None:
        return f"{len(rest)} cells after the first columns: the header has {layout.width - len(layout.first)}"
    halves, missing, at = [], 0, 0
    body = rest[: len(rest) - len(tail)]
    for columns, in_place in zip(layout.halves, layout.in_place, strict=True):
        texts = dict(zip(columns, body[at : at + len(columns)], strict=False))
        at += len(columns)
        if len(texts) < len(columns):
            missing += 1
            continue
        half = _read_half(texts, in_place)
        if isinstance(half, str):
            return half
        halves.append(half)
    if not halves:
        return "the row is torn"
    return replace(first, halves=tuple(halves), missing=missing, label=label or first.label, tail=tuple(tail))


def guess_layouts(tokens: list[str]) -> Iterator[Layout]:
    """The layouts that a row without a header may have, the likelier first."""
    at = next((index for index, token in enumerate(tokens[:8]) if index >= 2 and dtype_named(token) is not None), None)
    if at is None:
        return
    lead = ("?",) * (at - 2)
    rest = tokens[at + 1 :]
    has_redop = bool(rest) and rest[0].lower() in _REDOPS
    first = (*lead, "size", "count", "type", *(("redop",) if has_redop else ()))
    numbers = rest[has_redop:]
    if not has_redop and numbers[:1] == ["-1"]:  # hypercube's operator is printed as nothing
        first, has_redop = (*first, "redop"), True
    whole, short = ("time", "algbw", "busbw", "wrong"), ("time", "algbw", "busbw")
    forms: dict[int, tuple[tuple[bool, tuple[tuple[str, ...], ...]], ...]] = {
        3: ((False, (short,)),),
        4: ((True, (short,)), (False, (whole,))),
        5: ((True, (whole,)),),
        6: ((False, (short, short)),),
        7: ((True, (short, short)),),
        8: ((False, (whole, whole)),),
        9: ((True, (whole, whole)),),
    }
    for has_root, halves in forms.get(len(numbers), ()):
        if not has_root or _INTEGER.match(numbers[0]):
            yield Layout(
                first=(*first, "root") if has_root else first,
                halves=halves,
                in_place=(False, True) if len(halves) == 2 else (None,),
            )


def looks_like_row(tokens: list[str]) -> bool:
    """Whether a line has what every row begins with, in any layout: whole numbers, then a type."""
    for index, token in enumerate(tokens[:6]):
        if index >= 2 and dtype_named(token) is not None:
            return True
        if not _INTEGER.match(token):
            return False
    return False


def why_no_row(tokens: list[str], layout: Layout) -> str | None:
    """The reason why a line with as many cells as a row, and a type where a row has it, is none."""
    if "type" not in layout.first or not layout.width - 1 <= len(tokens) <= layout.width:
        return None
    at = layout.first.index("type")
    if at < 2 or dtype_named(tokens[at]) is None:
        return None
    wrong = next((token for token in tokens[:at] if not _INTEGER.match(token)), None)
    return f"{wrong[:20]!r} is no whole number" if wrong is not None and wrong[0].isdigit() else None


def _without_label(tokens: list[str], layout: Layout) -> tuple[list[str], tuple[str, str] | None]:
    """A row with one cell more than its header in front (a number of nodes, of a line), without it."""
    if len(tokens) == layout.width + 1 and looks_like_row(tokens[1:]) and layout.first[0] != "?":
        type_at = layout.first.index("type") if "type" in layout.first else None
        if (
            type_at is not None
            and dtype_named(tokens[type_at]) is None
            and dtype_named(tokens[type_at + 1]) is not None
        ):
            return tokens[1:], ("?", tokens[0])
    return tokens, None


def _read_first(tokens: list[str], layout: Layout) -> tuple[RowText, list[str]] | str | None:
    """The columns before the times, and the tokens after them."""
    values: dict[str, str] = {}
    label = None
    rest = list(tokens)
    for name in layout.first:
        if not rest:
            return "the row is torn" if "type" in values or len(values) >= 2 else None
        token = rest[0]
        if name == "redop" and token == "-1":
            values[name] = ""  # hypercube's, before a root of -1
            continue
        if name == "redop" and Printed.read(token):
            return "the row is torn"
        if name in ("nodes", "ranks", "?"):
            label = label or (name, token)
            rest.pop(0)
            continue
        values[name] = rest.pop(0)
    size = _integer(values.get("size", ""))
    if size is None:
        return None
    count = _integer(values["count"]) if "count" in values else None
    dtype = dtype_named(values["type"]) if "type" in values else None
    if "count" in values and count is None and "type" in values and dtype is None:
        return None
    if "count" in values and count is None:
        return f"count {values['count'][:20]!r} is no whole number"
    if "type" in values and dtype is None:
        return f"unknown type {values['type'][:20]!r}"
    redop = values.get("redop")
    if redop and redop.lower() not in _REDOPS:
        return f"unknown operator {redop[:20]!r}"
    root = None
    if "root" in values:
        root = int(values["root"]) if _INTEGER.match(values["root"]) and len(values["root"]) < 8 else None
        if root is None or root < -1:
            return f"root {values['root'][:20]!r} is no rank"
    redop = None if redop is None or redop.lower() == "none" else redop.lower()
    row = RowText(
        size=size, count=count, dtype=dtype, redop=redop, root=None if root == -1 else root, halves=(), label=label
    )
    return row, rest


def _tail_of(rest: list[str], layout: Layout) -> list[str] | None:
    """What stands after the halves; [] where the row ends before; None for more than the header has room for."""
    room = sum(map(len, layout.halves))
    more = rest[room:]
    most = layout.width - len(layout.first) - room
    return more if len(more) <= most else None


def _read_half(texts: dict[str, str], in_place: bool | None) -> Half | str:
    values = {}
    for name, text in texts.items():
        number = Printed.read(text)
        if number is not None:
            values[name] = number
        elif name in IN_HALVES and not _NO_VALUE.fullmatch(text):
            return f"{name} {text[:20]!r} is no number"
    return Half(in_place, values, texts)


def per_iteration(half: Half, factor: float) -> dict[str, float] | None:
    """The -I columns of a half as the record has them; None without them."""
    found = {
        to: half.values[name].value * (factor if to.endswith("_us") else 1)
        for name, to in _PER_ITER.items()
        if name in half.values
    }
    return found or None


def _integer(text: str) -> int | None:
    if not _INTEGER.match(text):
        return None
    value = int(text)
    return value if 0 <= value <= _LARGEST else None


def is_rest_of_row(tokens: list[str]) -> bool:
    """Whether a line holds nothing but numbers and marks for none, behind an operator or not, as a torn row's end."""
    numbers = tokens[1:] if tokens[0].lower() in _REDOPS else tokens
    return len(tokens) <= MOST_TOKENS and all(Printed.read(token) or _NO_VALUE.fullmatch(token) for token in numbers)


def cut_at_noise(tokens: list[str]) -> list[str]:
    """The beginning of a row that other text breaks into, up to where it does (`-1[node01:123] PMIX ERROR`)."""
    at = next(
        (index for index, token in enumerate(tokens) if index >= 2 and dtype_named(token) is not None), len(tokens)
    )
    at += 1
    if at < len(tokens) and tokens[at].lower() in _REDOPS:
        at += 1
    for index in range(at, len(tokens)):
        token = tokens[index]
        if Printed.read(token) or _NO_VALUE.fullmatch(token):
            continue
        glued = _GLUED.match(token)
        return [*tokens[:index], glued[1]] if glued else tokens[:index]
    return tokens
