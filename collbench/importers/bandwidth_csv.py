"""CSV of what nccl-tests measures: rccl-tests' own (-Z csv), and what scripts make of its tables.

Commas, semicolons or tabs keep columns apart; beside semicolons a comma is a point. Columns go by their names.
rccl-tests built with MPI wrote one name fewer than values until 2026 (ROCm/rocm-systems#6004): `nodes` has no name, so
that all names after `collective` stand one column early.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass

from collbench.importers.digits import plain_numbers
from collbench.importers.half_rows import Where, half_row, where
from collbench.importers.json_text import integer
from collbench.importers.nccl_layout import read_header
from collbench.importers.source import Log
from collbench.importers.table import Format, Refusal, Table

_NAME = "nccl-csv"

# What scripts call the columns, bare of case, blanks and units.
_NAMES = {
    "sizebytes": "size", "sizeb": "size", "bytes": "size", "messagesize": "size", "messagesizebytes": "size",
    "msgsize": "size", "countelements": "count", "elements": "count", "dtype": "type", "datatype": "type",
    "op": "redop", "test": "collective", "operation": "collective", "name": "collective", "nranks": "ranks",
    "nnodes": "nodes", "timeus": "time", "latencyus": "time", "algbwgbs": "algbw", "algbwgbps": "algbw",
    "busbwgbs": "busbw", "busbwgbps": "busbw", "errors": "wrong", "nwrong": "wrong",
}  # fmt: skip
_OF_HALVES = ("time", "algbw", "busbw", "wrong")
_HALF = re.compile(r"(oop|outofplace|ip|inplace)(?=.)|(?<=.)(oop|outofplace|ip|inplace)\Z")
_SUMMARY = re.compile(r"(?:avg|average|mean|peak|max)_?(?:bus|alg)")
_MOST_COLUMNS = 64
_SEPARATORS = (",", ";", "\t")


@dataclass(frozen=True, slots=True)
class _Header:
    separator: str
    names: tuple[str, ...]  # `time` of an in-place half is `inplace:time`, of an out-of-place one `outofplace:time`

    @property
    def halves(self) -> tuple[str, ...]:
        """ "" where a line is one half, else the sides that a line has."""
        sides = tuple(side for side in ("outofplace", "inplace") if f"{side}:time" in self.names)
        return sides or ("",)

    def values(self, line: str) -> dict[str, str] | str:
        """The cells of a line by name, or why they cannot be told apart."""
        cells = plain_numbers(_cells(line, self.separator), comma_is_point=self.separator == ";")
        names = self.names
        if len(cells) == len(names) + 1 and "nodes" not in names and "ranks" in names:
            at = names.index("ranks")
            names = (*names[:at], "nodes", *names[at:])
            found = dict(zip(names, cells, strict=True))
            nodes, per_node = integer(found["nodes"]), integer(found.get("rankspernode"))
            if nodes is None or per_node is None or integer(found["ranks"]) != nodes * per_node:
                return f"{len(cells)} values under {len(self.names)} names, and the first is not the nodes"
            return found
        if len(cells) != len(names):
            return f"{len(cells)} values under {len(names)} names"
        return dict(zip(names, cells, strict=True))


def _header(line: str) -> _Header | None:
    """The names of a line that names size, time and a bandwidth; None for every other line."""
    if "bw" not in line.lower():
        return None
    for separator in _SEPARATORS:
        if line.count(separator) >= 2:
            cells = _cells(line, separator)
            names = _sided([_column(cell) for cell in cells]) if len(cells) <= _MOST_COLUMNS else ()
            bare = {name.rpartition(":")[2] for name in names}
            if {"size", "time"} <= bare and bare & {"algbw", "busbw"}:
                is_of_text = separator == "\t" and read_header(line) is not None  # nccl-tests' own, copied with tabs
                return None if is_of_text else _Header(separator, names)
    return None


def _sided(names: list[str]) -> tuple[str, ...]:
    """Both halves' columns as nccl-tests' table has them, under the same names: out of place first."""
    if any(names.count(name) != 2 for name in ("time", "algbw", "busbw")):
        return tuple(names)
    second = len(names) - names[::-1].index("time") - 1
    return tuple(
        f"{'inplace' if at >= second else 'outofplace'}:{name}" if name in _OF_HALVES else name
        for at, name in enumerate(names)
    )


def _column(cell: str) -> str:
    bare = "".join(letter for letter in cell.lower() if letter.isalnum())
    side = ""
    if bare not in ("inplace", "outofplace") and (match := _HALF.search(bare)):
        rest = bare[: match.start()] + bare[match.end() :]
        rest = rest if "Gb" in cell else _NAMES.get(rest, rest)
        if rest in _OF_HALVES:
            side = "outofplace" if (match[1] or match[2]).startswith("o") else "inplace"
            return f"{side}:{rest}"
    return bare if "Gb" in cell else _NAMES.get(bare, bare)  # Gb/s is no GB/s


def _cells(line: str, separator: str = ",") -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])]
    except csv.Error:
        return []


def _beside(name: str) -> tuple[str, ...]:
    """A column's name as it stands in a header of columns kept apart."""
    inside = (mark for each in _SEPARATORS for mark in (f"{each}{name}", f"{each} {name}", f"_{name}{each}"))
    return *inside, f"_{name}\n", f"_{name}\r"


_MARKS = {name: _beside(name) for name in ("busbw", "busBw", "BusBW", "bus_bw")}


def _recognises(log: Log) -> bool:
    return any(log.holds(name) and log.holds(*marks) for name, marks in _MARKS.items())


def _read(log: Log) -> Iterator[Table | Refusal]:
    header: _Header | None = None
    tables: dict[Where, Table] = {}
    refusals = []
    for number, line in log.lines():
        if "NCCL INFO" in line:
            continue
        if (found := _header(line)) is not None:
            yield from tables.values()
            header, tables = found, {}
            continue
        if header is None or line.count(header.separator) < len(header.names) - 2:
            continue
        row = header.values(line)
        if isinstance(row, str):
            refusals.append(Refusal(number, row))
            continue
        for side in header.halves:
            half = _half(row, side)
            place, made = where(half), half_row(half, number)
            if isinstance(made, str):
                refusals.append(Refusal(number, made))
                continue
            if place not in tables:
                tables[place] = place.table(_NAME, number, "rccl" if "numcycle" in header.names else None)
            tables[place].rows.append(made)
    yield from tables.values()
    yield from refusals


def _half(row: dict[str, str], side: str) -> dict[str, str]:
    """The values of one half of a line that has both; of a line that is a half itself, all."""
    if not side:
        return row
    common = {name: value for name, value in row.items() if ":" not in name}
    own = {name.partition(":")[2]: value for name, value in row.items() if name.startswith(f"{side}:")}
    return common | own | {"inplace": "1" if side == "inplace" else "0"}


FORMAT = Format(name=_NAME, title="rccl-tests -Z csv, CSV of nccl-tests' columns", recognises=_recognises, read=_read)


# --- averages --------------------------------------------------------------------------------------------------------


def _recognises_averages(log: Log) -> bool:
    return log.holds(",avg_bus", ",avg_busbw", ",average_bus", ",peak_bus", ",mean_bus", ",max_bus")


def _read_averages(log: Log) -> Iterator[Table | Refusal]:
    """Refuses every line: an average over sizes is no time of any size."""
    names: list[str] = []
    for number, line in log.lines():
        cells = _cells(line) if "," in line else []
        if any(_SUMMARY.match(cell.lower()) for cell in cells[:_MOST_COLUMNS]):
            names = [] if _header(line) else cells
        elif names and len(cells) == len(names):
            yield Refusal(number, "a bus bandwidth over all sizes: no size has its time here; import the log it is of")


AVERAGES = Format(
    name="nccl-summary",
    title="CSV with one average a test (nothing in it is a time)",
    recognises=_recognises_averages,
    read=_read_averages,
)
