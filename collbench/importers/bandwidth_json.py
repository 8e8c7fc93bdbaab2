"""Files with one JSON object for each measured time: rccl-tests' (-Z json) and MSCCL++'s performance records.

rccl-tests (src/common.cu, Reporter) writes a list with an object a line, or bare lines; MSCCL++ appends lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from collbench.importers.half_rows import Where, half_row, where
from collbench.importers.json_text import Lines, flat_objects
from collbench.importers.source import Log
from collbench.importers.table import Format, Printed, Refusal, Row, Table

_LONGEST_OBJECT = 2048


def _reader(
    name: str, backend: str, is_row: Callable[[dict[str, Any]], bool], adjust: Callable[[Row], Row] = lambda row: row
) -> Callable[[Log], Iterator[Table | Refusal]]:
    def read(log: Log) -> Iterator[Table | Refusal]:
        text = log.text()
        lines = Lines(text)
        tables: dict[Where, Table] = {}
        refusals = []
        for at, found in flat_objects(text, _LONGEST_OBJECT):
            line = lines.at(at)
            if found is None:
                if '"name"' in text[at : at + 64]:
                    refusals.append(Refusal(line, "a torn line: expected one whole JSON object"))
                continue
            values = {key.lower(): value for key, value in found.items()}
            if not is_row(values):
                continue
            row, place = half_row(values, line), where(values)
            if isinstance(row, Row):
                if place not in tables:
                    tables[place] = place.table(name, line, backend, is_document=True)
                tables[place].rows.append(adjust(row))
            else:
                refusals.append(Refusal(line, row))
        yield from tables.values()
        yield from refusals

    return read


def _is_rccl(values: dict[str, Any]) -> bool:
    return "busbw" in values and "inplace" in values


def _is_mscclpp(values: dict[str, Any]) -> bool:
    return "busbw" in values and "inplace" not in values and "size" in values


def _as_baseline(row: Row) -> Row:
    """MSCCL++'s records are baselines put together from several runs: their rates agree to a few of the last digits."""
    algbw, busbw = row.algbw_GBps, row.busbw_GBps
    step = algbw.half_step if algbw else 0.0
    return replace(
        row,
        algbw_GBps=algbw and Printed(algbw.value, step + 2e-4 * algbw.value),
        busbw_GBps=busbw and Printed(busbw.value, busbw.half_step + 2 * step + 2e-4 * busbw.value),
    )


RCCL = Format(
    name="rccl-json",
    title="rccl-tests -Z json",
    recognises=lambda log: log.holds('"inPlace"') and log.holds('"busBw"'),
    read=_reader("rccl-json", "rccl", _is_rccl),
)
MSCCLPP = Format(
    name="mscclpp",
    title="MSCCL++ performance records (JSON lines)",
    recognises=lambda log: log.holds('"busBw"') and log.holds('"kernel"'),
    read=_reader("mscclpp", "mscclpp", _is_mscclpp, _as_baseline),
)
