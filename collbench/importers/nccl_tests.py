"""The tables of nccl-tests and rccl-tests, of every generation, as people keep and post them.

A log is walked once, line by line; where launchers' prefixes name who wrote a line, each writer's lines are read for
themselves. A row that others' lines broke into, or a terminal wrapped, is put together again from what follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from collbench.importers.clean import NCCL_LINE, ROOT_CELL
from collbench.importers.nccl_comments import Run, begins_run, ends_run, is_of_interest, read_comment, read_title
from collbench.importers.nccl_layout import Layout, begins_header, read_header, read_units, with_units
from collbench.importers.nccl_row import (
    RowText,
    cut_at_noise,
    guess_layouts,
    is_rest_of_row,
    is_rule,
    looks_like_row,
    read_row,
    tokens_of,
    why_no_row,
)
from collbench.importers.nccl_runs import ReadRow, tables_of
from collbench.importers.source import Log
from collbench.importers.table import Format, Refusal, Table

NAME = "nccl-tests"
_MOST_LINES_INSIDE_A_ROW = 5000  # of others; a row torn for longer is lost


class _Torn(NamedTuple):
    """A row's first part. may_go_on: a number at its end may go on where the row does."""

    line: int
    text: str
    may_go_on: bool


class _Header(NamedTuple):
    """What may be a header's first part. layout: if it is one by itself."""

    line: int
    text: str
    layout: Layout | None


class _Reader:
    """What one writer's lines have said so far."""

    def __init__(self, run: Run) -> None:
        self.found: list[Table | Refusal] = []
        self.run = run
        self._layout: Layout | None = None
        self._layout_line = 0
        self._rows: list[ReadRow] = []
        self._above = ""  # the words over a header: which half is which
        self._header: _Header | None = None  # while the next line may go on with it
        self._torn: _Torn | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the next line may be the rest of what this one began."""
        return self._torn is not None or self._header is not None

    def end(self) -> None:
        self._end_torn()
        self._end_tables()

    def feed(self, number: int, text: str) -> None:
        if self._torn is not None and number - self._torn.line > _MOST_LINES_INSIDE_A_ROW:
            self._end_torn()
        stripped = text.strip()
        if not stripped or stripped == "#" or is_rule(stripped):
            self._header = None
            return
        noise = NCCL_LINE.search(text) if "NCCL " in text else None
        if noise is not None:
            row = _ROW_INSIDE.search(text, noise.end()) if ROOT_CELL in text else None
            self._noise(number, text[: row.start()] if row is not None else text, noise.start())
            if row is not None:  # a line of NCCL's that lost its end, and the row printed after it
                self.feed(number, row[0])
            return
        is_comment = stripped[0] == "#"
        may_be_header = "bw" in text or "BW" in text or "count" in text or self._header is not None
        if may_be_header and self._read_header(number, text):
            return
        if "-place" in text and ("out-of-place" in text or "in-place" in text):
            self._above += text
            return
        self._above = ""
        if self._layout is not None and not self._rows and (units := read_units(text)) is not None:
            self._layout = with_units(self._layout, units)
            return
        tokens = [] if is_comment else tokens_of(text)
        if tokens and (tokens[0][0].isdigit() or self._torn is not None) and self._read_tokens(number, text, tokens):
            return
        self._read_comment(number, text, stripped)

    # --- lines of others ---------------------------------------------------------------------------------------------

    def _noise(self, number: int, text: str, start: int) -> None:
        """A line of NCCL's own; what stands before it may be the beginning of a row."""
        glued = _GLUED.match(text, start)  # `-1node01:1905512:...`: a row's number, then a host
        before = text[: start if glued is None else glued.end()]
        tokens = tokens_of(before)
        if tokens and looks_like_row(tokens):
            self._end_torn()
            self._torn = _Torn(number, before, not before[-1:].isspace())
        elif tokens and self._torn is not None and is_rest_of_row(tokens):
            self._torn = _Torn(self._torn.line, f"{self._torn.text} {before}", False)
        else:
            if before.strip().startswith("#"):
                self.feed(number, before)
            if "NCCL version" in text:
                read_comment(self.run, number, text[start:])

    def _read_comment(self, number: int, text: str, stripped: str) -> None:
        title = read_title(stripped)
        if title is None and not is_of_interest(text):
            return
        begins = title is not None or begins_run(text)
        if begins or ends_run(text):
            self._end_torn()
        if (begins and self._rows) or (self.run.is_over and not ends_run(text)):
            self._new_run(number)
        if title is not None:
            what, value = title
            self.run.hint(what, value, f"'{stripped.strip('#=*-_ ')}' on line {number}")
        elif "concluded" not in text:
            read_comment(self.run, number, text)

    def _new_run(self, number: int) -> None:
        self._end_tables()
        self._layout = None
        self.run = Run(number)

    # --- headers -----------------------------------------------------------------------------------------------------

    def _read_header(self, number: int, text: str) -> bool:
        """Whether this line is a header, the beginning of one, or the rest of one that began on the line before."""
        begun, self._header = self._header, None
        if begun is not None and self._goes_on(begun, text):
            return True
        layout = read_header(text, self._above)
        if layout is not None:
            self._begin_table(number, layout)
        if layout is not None or begins_header(text):
            self._header = _Header(number, text, layout)
        return layout is not None

    def _goes_on(self, begun: _Header, text: str) -> bool:
        """Whether a line makes a header wider that the line before began."""
        for joined in (f"{begun.text.rstrip()}{text}", f"{begun.text} {text}"):
            layout = read_header(joined, self._above)
            if layout is None or "?" in (*layout.first, *layout.tail):
                continue
            if begun.layout is None or layout.width > begun.layout.width:
                self._begin_table(begun.line, layout)
                self._header = _Header(begun.line, joined, layout)
                return True
        return False

    def _begin_table(self, number: int, layout: Layout) -> None:
        self._end_torn()
        if self._rows:
            self._end_tables()
            if self.run.is_over:
                self.run = Run(number)
        self._layout, self._layout_line = layout, number

    # --- rows --------------------------------------------------------------------------------------------------------

    def _read_tokens(self, number: int, text: str, tokens: list[str]) -> bool:
        """Whether this line is a row, the rest of one, or what a row's rest would be."""
        if looks_like_row(tokens):
            self._end_torn()
            self._add(number, text, tokens)
            return True
        if self._torn is not None and is_rest_of_row(tokens):
            self._join(text)
            return True
        if self._layout is None:
            return False
        if (reason := why_no_row(tokens, self._layout)) is not None:
            self.found.append(Refusal(number, reason))
            return True
        if "type" not in self._layout.first and isinstance(row := read_row(tokens, self._layout), RowText):
            self._rows.append(ReadRow(number, row, self._layout, tuple(tokens)))
            return True
        if is_rest_of_row(tokens) and len(tokens) >= len(self._layout.halves[0]) > 2 and not self.run.is_over:
            self.found.append(Refusal(number, "the first part of this row is lost"))
            return True
        return False

    def _add(self, number: int, text: str, tokens: list[str]) -> None:
        row, layout = self._row(tokens)
        whole = tokens
        if row is None or isinstance(row, str) or row.missing:
            tokens = cut_at_noise(tokens)
            row, layout = self._row(tokens)
        if isinstance(row, RowText) and not row.missing:
            self._rows.append(ReadRow(number, row, layout, tuple(tokens)))
        elif isinstance(row, str) and row != _TORN:
            self.found.append(Refusal(number, row))
        elif row is not None:
            self._torn = _Torn(number, text, True) if tokens == whole else _Torn(number, " ".join(tokens), False)

    def _row(self, tokens: list[str]) -> tuple[RowText | str | None, Layout]:
        if self._layout is not None:
            return read_row(tokens, self._layout), self._layout
        first: tuple[RowText | str | None, Layout] | None = None
        for layout in guess_layouts(tokens):
            row = read_row(tokens, layout)
            first = first or (row, layout)
            if isinstance(row, RowText) and ReadRow(0, row, layout, ()).agrees:
                return row, layout
        return first or (None, _NO_LAYOUT)

    def _join(self, text: str) -> None:
        """Go on with a torn row. A wrap may fall between numbers or within one."""
        if self._torn is None:
            return
        number, begun, may_go_on = self._torn
        self._torn = None
        apart = f"{begun} {text}"
        for candidate in (apart, begun + text) if may_go_on else (apart,):
            tokens = tokens_of(candidate)
            row, layout = self._row(tokens)
            if isinstance(row, RowText) and not row.missing and ReadRow(0, row, layout, ()).agrees:
                self._rows.append(ReadRow(number, row, layout, tuple(tokens)))
                return
        row, _ = self._row(tokens_of(apart))
        if isinstance(row, RowText) or row == _TORN:
            self._torn = _Torn(number, apart, False)
        else:
            self.found.append(Refusal(number, f"{row or 'the row is torn'} (joined with what follows it)"))

    def _end_torn(self) -> None:
        """Give up waiting for the rest of a row: what is whole of it counts."""
        if self._torn is None:
            return
        number, text, _ = self._torn
        self._torn = None
        tokens = tokens_of(text)
        row, layout = self._row(tokens)
        if isinstance(row, RowText):
            self._rows.append(ReadRow(number, row, layout, tuple(tokens)))
            side = "in-place" if row.halves[0].in_place is False else "second"
            self.found.append(Refusal(number, f"the row is cut: its {side} half is left out"))
        else:
            self.found.append(Refusal(number, "the row is torn"))

    def _end_tables(self) -> None:
        self._end_torn()
        rows, self._rows = self._rows, []
        if rows:
            line = self._layout_line if self._layout is not None and self._layout_line < rows[0].line else rows[0].line
            self.found += tables_of(NAME, line, rows, self.run)


_GLUED = re.compile(r"-?\d{1,19}(?:\.\d{0,2})?(?=[A-Za-z])")
_ROW_INSIDE = re.compile(r"(?<=\s)\d{1,19}\s{1,12}\d{1,19}\s{1,12}[a-z]\w{2,9}\s.{0,300}")
_TORN = "the row is torn"
_TYPES = ("float", "half", "double", "int8", "int32", "int64")
_NO_LAYOUT = Layout(first=("size",), halves=())


def _recognises(log: Log) -> bool:
    """By its words; rows without a header, by those that every row has."""
    return log.holds("busbw", "algbw", "Out of bounds values") or (log.holds(*_TYPES) and log.holds("sum", "none"))


def _read(log: Log) -> Iterator[Table | Refusal]:
    readers = {"": _Reader(Run(1))}
    reader: _Reader | None = None
    for number, source, text in log.pieces(without_nccl=True):
        if not source and reader is not None and reader.is_waiting:
            reader.feed(number, text)  # a wrapped line's rest has no label of its own
            continue
        reader = readers.get(source)
        if reader is None:
            run = Run(number, hints={what: list(hints) for what, hints in readers[""].run.hints.items()})
            reader = readers[source] = _Reader(run)
        reader.feed(number, text)
    for reader in readers.values():
        reader.end()
    yield from sorted((found for reader in readers.values() for found in reader.found), key=lambda found: found.line)


FORMAT = Format(name=NAME, title="nccl-tests, rccl-tests: text", recognises=_recognises, read=_read)
