"""PARAM comms (facebookresearch/param, comms.py), all generations: `COMMS-RES` rows under a header of the same mark.

    COMMS-RES  size (B)  num-elements  Latency(us):p50  p75  p95  algBW(GB/s)  busBW(GB/s)                2020, 2021
    COMMS-RES  size (B)  nElementsPerRank  Latency(us):p50  p75  p95  Min  Max  AlgBW(GB/s) BusBW(GB/s)   2022, 2023
    COMMS-RES-all_reduce-float32  ...                                                                     2023 on

Definitions: a rank's figure is the mean of its iterations; the columns are percentiles over the ranks. With `args.z: 1`
(the default) a barrier stands before every iteration, with 0 they are issued back to back. Sizes are those of all
shares, but for old all_gather and reduce_scatter, whose element count tells. GB is 10^9 bytes. Until 2024 the
bandwidths are of one rank's own time, which is none of the columns; since then of p50.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from collbench.collectives import COLLECTIVES, Collective
from collbench.dtypes import DTYPES
from collbench.importers.derived import MOST_BYTES, agree, ranks_in, rate_GBps, time_us, whole
from collbench.importers.source import Log
from collbench.importers.table import Format, Printed, Refusal, Row, Table
from collbench.importers.words import collective_named, dtype_named, is_uneven

_LONGEST_LINE = 1000
_MARK = "COMMS-RES"
_LABEL = re.compile(r"COMMS-RES(-[\w.-]{1,80})?(?=\s)")
_WORLD = re.compile(r"'world_size': ?([0-9]{1,7})\b")
_LOCAL = re.compile(r"'local_size': ?([0-9]{1,7})\b")
_BACKEND = re.compile(r"\bbackend: ?(\w{2,16})\b")
_BLOCKING = re.compile(r"\bargs\.z: ?([01])\b")
_GROUP = re.compile(r"\bgroupSize ([0-9]{1,7})\b")
_ELEMENT_SIZE = re.compile(r"\belement_size: ?([0-9]{1,2})\b")
_COLLECTIVE = re.compile(r"\bcollective=(\w{2,40})\b")

_COLUMNS = {
    "size": "size",
    "totalsize": "size",
    "numelements": "elements",
    "nelementsperrank": "elements",
    "latency:p50": "p50",
    "p75": "p75",
    "p95": "p95",
    "min": "min",
    "max": "max",
    "algbw": "algbw",
    "busbw": "busbw",
    "tflops": "tflops",
    "totallatency:p50": "total",
    "complatency:p50": "compute",
    "op0": "op",
}
_UNITS = re.compile(r"\((?:b|us|gb/s)\)")
_OF_ONE_RANK = "bandwidths are of one rank's own time, as they were before 2024: not those of the median"
_ORDERED = ("min", "p50", "p75", "p95", "max")  # of the columns, those that cannot fall


@dataclass(slots=True)
class _Setting:
    """What the lines so far say about the run."""

    nranks: int | None = None
    local_size: int | None = None
    backend: str | None = None
    is_blocking: bool | None = None
    itemsize: int | None = None
    collective: str | None = None
    columns: list[str] = field(default_factory=list)


def _recognises(log: Log) -> bool:
    return log.holds(_MARK)


def _read(log: Log) -> Iterator[Table | Refusal]:
    setting = _Setting()
    table: Table | None = None
    key: object = None
    found: list[Table | Refusal] = []
    for number, _, line in log.pieces(without_nccl=True):
        if len(line) > _LONGEST_LINE:
            continue
        if _MARK not in line:
            _read_setting(line, setting)
            continue
        label = _LABEL.search(line)
        cells = line[label.end() :].split() if label else []
        if label is None or not cells:
            continue
        if not cells[0][0].isdigit():
            setting.columns, table = _columns(" ".join(cells)), None
            if not setting.columns:
                found.append(
                    Refusal(number, "a PARAM table of another kind (point to point, quantised, pairs): not read")
                )
            continue
        named, dtype = _named((label[1] or "").removeprefix("-"))
        if label[1] and label[1].startswith("-QUANT"):
            found.append(Refusal(number, "times with quantisation are no collective's"))
            continue
        if not setting.columns:
            if len(cells) == 3 and named:
                setting.columns = ["size", "algbw", "busbw"]
            else:
                found.append(Refusal(number, "a row without a header that says what its columns are"))
                continue
        collective = named or setting.collective
        if table is None or key != (collective, dtype):
            key, table = (collective, dtype), _table(number, collective, setting)
            found.append(table)
        outcome = _row(number, cells, dtype, setting, table)
        if isinstance(outcome, Row):
            table.rows.append(outcome)
        else:
            found.append(outcome)
    yield from (each for each in found if isinstance(each, Refusal) or each.rows)


def _read_setting(line: str, setting: _Setting) -> None:
    if "'world_size':" in line and (match := _WORLD.search(line)):
        local = _LOCAL.search(line)
        setting.nranks, setting.local_size = ranks_in(match[1]), ranks_in(local[1]) if local else None
        setting.columns, setting.collective = [], None  # another run
    if "backend:" in line and (match := _BACKEND.search(line)):
        setting.backend = match[1].lower()
        blocking = _BLOCKING.search(line)
        setting.is_blocking = None if blocking is None else blocking[1] == "1"
    if "element_size:" in line and (match := _ELEMENT_SIZE.search(line)):
        setting.itemsize = int(match[1])
        group = _GROUP.search(line)
        if group is not None:
            setting.nranks = ranks_in(group[1])
    if "collective=" in line and (match := _COLLECTIVE.search(line)):
        setting.collective = match[1]


def _columns(header: str) -> list[str]:
    """The header's columns in this file's words; empty for a header that is not only of those."""
    text = _UNITS.sub(" ", header.lower()).replace(" :", ":").replace("latency p50", "latency:p50")
    words = ["".join(letter for letter in word if letter.isalnum() or letter == ":") for word in text.split()]
    words = ["latency:p50" if word == "latency::p50" else word for word in words]
    if any(word not in _COLUMNS for word in words) or "size" not in [_COLUMNS[word] for word in words]:
        return []
    return [_COLUMNS[word] for word in words]


def _named(label: str) -> tuple[str | None, str | None]:
    """(PARAM's collective, torch's dtype) of a row's label `all_reduce-float32`, a tag at its end or not."""
    parts = label.split("-")
    return parts[0] or None, dtype_named(parts[1]) if len(parts) > 1 else None


def _table(number: int, named: str | None, setting: _Setting) -> Table:
    table = Table(
        format=FORMAT.name,
        line=number,
        timing="pipelined" if setting.is_blocking is False else "isolated",
        collective=None if named is None else collective_named(named.removesuffix("_v")),
        nranks=setting.nranks,
        backend=setting.backend,
        more={} if named is None else {"operation": named},
    )
    if setting.nranks and setting.local_size and setting.nranks % setting.local_size == 0:
        table.nnodes = setting.nranks // setting.local_size
    if "p50" in setting.columns:
        table.notes.append("time is the median over the ranks of their means")
    else:
        table.notes.append("times are size / algbw, as fine as its digits")
    if setting.is_blocking is None:
        table.inferred["timing"] = "a barrier before every iteration is PARAM's default"
    if named is None:
        table.hints["collective"] = [("all_reduce", "PARAM's default: the log names none")]
    elif table.collective is None:
        table.notes.append(f"{named} is no collective that is known here")
        table.collective = f"param_{named}"
    if named is not None and (is_uneven(named) or named.endswith("_v")):
        table.notes.append(f"{named}: ranks may have sent different amounts")
    return table


def _row(number: int, cells: list[str], dtype: str | None, setting: _Setting, table: Table) -> Row | Refusal:
    columns = setting.columns
    if len(cells) != len(columns):
        return Refusal(number, f"{len(cells)} cells under {len(columns)} columns ({', '.join(columns)})")
    values = {name: Printed.read(cell) for name, cell in zip(columns, cells, strict=True) if name != "op"}
    numbers = {name: value for name, value in values.items() if value is not None}
    if len(numbers) < len(values):
        return Refusal(number, "a cell that is no number")
    size_bytes, elements = (
        whole(cells[columns.index(name)]) if name in columns else None for name in ("size", "elements")
    )
    if size_bytes is None or size_bytes > MOST_BYTES or (elements is None and "elements" in columns):
        return Refusal(number, f"a size of {cells[columns.index('size')][:20]} bytes")
    times = [numbers[name] for name in _ORDERED if name in numbers]
    if any(low.value > high.value for low, high in pairwise(times)):
        return Refusal(number, "percentiles that fall")
    collective = COLLECTIVES.get(table.collective or "")
    itemsize = DTYPES[dtype].itemsize if dtype else setting.itemsize
    size_bytes = _whole_size(size_bytes, elements, itemsize, collective, table.nranks)
    algbw, busbw = numbers.get("algbw"), numbers.get("busbw")
    if collective is not None and table.nranks and algbw and busbw:
        factor = collective.bus_factor(table.nranks)
        if not agree(algbw.times(factor), busbw):
            return Refusal(number, f"busbw {busbw.value:g} is not {factor:.4g} times algbw {algbw.value:g}")
    if "p50" in numbers:
        time = numbers["p50"]
        is_of_p50 = algbw is not None and (rate := rate_GBps(size_bytes, time)) is not None and agree(rate, algbw)
        if algbw is not None and not is_of_p50 and not _is_of_some_rank(algbw, size_bytes, numbers):
            return Refusal(number, f"algbw {algbw.value:g} GB/s is of no time between the least and the largest")
        if algbw is not None and not is_of_p50:
            algbw = busbw = None
            if _OF_ONE_RANK not in table.notes:
                table.notes.append(_OF_ONE_RANK)
    elif algbw is not None and (derived := time_us(size_bytes, algbw)) is not None:
        time = derived
    else:
        return Refusal(number, "neither a time nor a bandwidth that tells one")
    if time.value <= 0:
        return Refusal(number, "a time of 0")
    more = {
        field_name: numbers[name].value
        for name, field_name in (("min", "time_rank_min_us"), ("max", "time_rank_max_us"))
        if name in numbers
    }
    return Row(
        line=number,
        size_bytes=size_bytes,
        time_us=time,
        count=elements,
        dtype=dtype,
        redop="sum" if collective is not None and collective.reduces else None,
        algbw_GBps=algbw,
        busbw_GBps=busbw,
        more=more,
    )


def _whole_size(
    size_bytes: int, elements: int | None, itemsize: int | None, collective: Collective | None, nranks: int | None
) -> int:
    """nccl-tests' size: of all shares. Where size is no more than one rank's elements, it is one share's."""
    is_gather_like = collective is not None and collective.sends_shares != collective.receives_shares
    if not is_gather_like or not nranks or not itemsize or not elements:
        return size_bytes
    return size_bytes * nranks if size_bytes == elements * itemsize else size_bytes


def _is_of_some_rank(algbw: Printed, size_bytes: int, numbers: dict[str, Printed]) -> bool:
    """Whether this bandwidth is of a time between the ranks' least and largest, as far as the columns tell them."""
    slowest, fastest = algbw.value - algbw.half_step, algbw.value + algbw.half_step
    longest = size_bytes / 1e3 / slowest if slowest > 0 else math.inf
    shortest = size_bytes / 1e3 / fastest if fastest > 0 else math.inf
    least, largest = numbers.get("min"), numbers.get("max")
    is_above = least is None or longest >= least.value - least.half_step
    return is_above and (largest is None or shortest <= largest.value + largest.half_step)


FORMAT = Format(
    name="param",
    title="PARAM comms benchmark tables",
    recognises=_recognises,
    read=_read,
)
