"""all_reduce_bench and torch-dist-bench (stas00/ml-engineering): a line of means, or a pipe table over payloads.

    The average bandwidth of all_reduce with a 4.0GB payload (50 trials, 16 ranks):
     algbw: 239.742 GBps (1917.9 Gbps)
     busbw: 449.515 GBps (3596.1 Gbps)

    The average bandwidth of all_reduce over 8 ranks (5 warmups / 20 trials):
    | payload |    busbw   |    algbw   |
    |   32KiB |   1.44GBps |   0.82GBps |

Definitions: GBps is 10^9 bytes, in the first form a payload's GB too; in the tables payloads are powers of 1024,
whatever the unit is called. algbw is the mean over ranks and trials of size / time, a barrier before each trial, of one
call or, in later versions, of up to 10 queued ones. `latency` columns are of trials of their own: times of single
calls, the slowest rank's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from collbench.collectives import COLLECTIVES
from collbench.importers.clean import PIPE_RULE, cells
from collbench.importers.derived import GBPS_PER_GBITPS, MOST_BYTES, agree, ranks_in, time_us
from collbench.importers.source import Log
from collbench.importers.table import Format, Printed, Refusal, Row, Table
from collbench.importers.words import collective_named
from collbench.units import parse_size

_LONGEST_LINE = 600
_SHORT = re.compile(
    r"The average bandwidth of (\w{2,32}) with a ([0-9.]{1,16}(?:e[+-]?[0-9]{1,2})?)GB payload "
    r"\(([0-9]{1,7}) trials, ([0-9]{1,7}) ranks\)"
)
_LONG = re.compile(
    r"The average bandwidth(?: and the per-call latency)? of (\w{2,32}|[0-9]{1,3} collectives) over ([0-9]{1,7}) ranks"
    r"( \(.{0,200})?"
)
_PROFILE = re.compile(r"The ([0-9.]{1,12})GiB payload bandwidth of (\w{2,32}) over ([0-9]{1,7}) ranks( \(.{0,200})?")
_RATE = re.compile(r"\b(algbw|busbw): ([0-9.]{1,24}) GBps \(([0-9.]{1,24}) Gbps\)")
_SOFTWARE = re.compile(r"\b(torch|cuda|nccl)=`?(\([0-9, ]{3,16}\)|[\w.+]{1,40})")
_DEVICE = re.compile(r"name='([^']{1,80})'")
_NODES = re.compile(r"Number of nodes participating: ([0-9]{1,6})\b")
_PAYLOAD = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,4})?) ?([KMGT]?)i?B\Z")

_COLUMNS = {
    "payload": "payload",
    "busbw": "busbw",
    "algbw": "algbw",
    "latency median": "median",
    "p99": "p99",
    "mean": "mean",
    "calls": "calls",
}


@dataclass(slots=True)
class _Setting:
    """What stands above a table."""

    line: int | None = None
    collective: str | None = None
    nranks: int | None = None
    nnodes: int | None = None
    size_bytes: int | None = None  # of all rows
    trials: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    device: str | None = None


def _recognises(log: Log) -> bool:
    return log.holds("The average bandwidth", "payload bandwidth of") or (log.holds("payload") and log.holds("GBps"))


def _read(log: Log) -> Iterator[Table | Refusal]:
    setting = _Setting()
    short: tuple[int, dict[str, Printed]] | None = None
    columns: list[str] = []
    tables: dict[str, Table] = {}
    for number, _, line in log.pieces(without_nccl=True):
        if len(line) > _LONGEST_LINE:
            continue
        if "bandwidth" in line and (titled := _titled(number, line, setting)) is not None:
            yield from _with_rows(tables)
            if short is not None:
                yield Refusal(short[0], "a payload without its algbw and busbw")
            setting, tables, columns = titled, {}, []
            short = (number, {}) if _SHORT.search(line) else None
        elif short is not None and (rate := _RATE.search(line)) is not None:
            value, gigabits = Printed.read(rate[2]), Printed.read(rate[3])
            if value is not None and gigabits is not None and agree(gigabits.times(GBPS_PER_GBITPS), value):
                short[1][rate[1]] = value
            else:
                yield Refusal(number, f"{rate[1]} is {rate[2]} GBps and {rate[3]} Gbps, which are not the same")
                short = None
            if short is not None and len(short[1]) == 2:
                yield _of_means(short[0], short[1], setting)
                short = None
        elif found := _header(line, setting):
            yield from _with_rows(tables)
            columns, tables = found, {}
            if setting.line is None:
                setting.line = number
        elif columns and not PIPE_RULE.match(line) and line.strip():
            words = _cells(line)
            if len(words) == 1 or (not _PAYLOAD.match(words[0]) and "GBps" not in line):
                columns = []  # text below the table
                setting.line = None
            else:
                yield from _rows(number, words, columns, setting, tables)
        else:
            _read_setting(line, setting)
    yield from _with_rows(tables)
    if short is not None:
        yield Refusal(short[0], "a payload without its algbw and busbw")


def _titled(number: int, line: str, before: _Setting) -> _Setting | None:
    titled = _Setting(line=number, nnodes=before.nnodes, versions=before.versions, device=before.device)
    if (match := _SHORT.search(line)) is not None:
        payload = Printed.read(match[2])
        titled.collective, titled.nranks = match[1], ranks_in(match[4])
        titled.size_bytes = None if payload is None or payload.value > MOST_BYTES / 1e9 else round(payload.value * 1e9)
    elif (match := _PROFILE.search(line)) is not None:
        payload = Printed.read(match[1])
        titled.collective, titled.nranks, titled.trials = match[2], ranks_in(match[3]), match[4] or ""
        titled.size_bytes = None if payload is None or payload.value > 4096 else int(payload.value * 2**30)
    elif (match := _LONG.search(line)) is not None:
        titled.collective, titled.nranks, titled.trials = match[1], ranks_in(match[2]), match[3] or ""
    else:
        return None
    return titled


def _read_setting(line: str, setting: _Setting) -> None:
    if "software:" in line:
        setting.versions = {name: value.strip("()").replace(", ", ".") for name, value in _SOFTWARE.findall(line)}
    elif "hardware:" in line and (match := _DEVICE.search(line)) is not None:
        setting.device = match[1]
    elif "Number of nodes" in line and (match := _NODES.search(line)) is not None:
        setting.nnodes = ranks_in(match[1])


def _cells(line: str) -> list[str]:
    return cells(line) if "|" in line else line.split()


def _header(line: str, setting: _Setting) -> list[str]:
    """The columns of a table's header; empty for any other line. Of several collectives: `all_gather busbw` ..."""
    words = [" ".join(word.split()) for word in _cells(line)] if "busbw" in line else []
    if not words or (words[0] != "payload" and setting.size_bytes is None):
        return []
    names = []
    for word in words:
        name = _COLUMNS.get(word)
        if name is None:
            collective, _, what = word.rpartition(" ")
            name = f"{collective} {what}" if what in ("busbw", "median") and collective_named(collective) else None
        if name is None:
            return []
        names.append(name)
    return names


def _table(name: str | None, setting: _Setting, columns: list[str]) -> Table:
    table = Table(
        format=FORMAT.name,
        line=setting.line or 1,
        timing="pipelined" if "queued calls" in setting.trials else "isolated",
        collective=None if name is None else collective_named(name) or name,
        nranks=setting.nranks,
        nnodes=setting.nnodes,
        versions=dict(setting.versions),
        more={} if setting.device is None else {"device": setting.device},
    )
    if name is None and "median" not in columns:
        table.collective, table.inferred["collective"] = "all_reduce", "the layout is that of all_reduce_bench"
    if name == "batch_isend_irecv":
        table.collective = "send_recv"
    if "median" in columns:
        table.notes.append(
            "time is the median call's, the slowest rank's; bandwidths are of trials of their own: not read"
        )
    else:
        table.notes.append("times are size / algbw, as fine as its digits: rates are averaged, not times")
    return table


def _of_means(number: int, rates: dict[str, Printed], setting: _Setting) -> Table | Refusal:
    time = None if not setting.size_bytes else time_us(setting.size_bytes, rates["algbw"])
    if time is None or not setting.size_bytes:
        return Refusal(number, "a payload or a bandwidth of 0")
    table = _table(setting.collective, setting, [])
    table.rows.append(_row(number, setting.size_bytes, time, rates["algbw"], rates["busbw"], table.collective))
    return table


def _rows(
    number: int, words: list[str], columns: list[str], setting: _Setting, tables: dict[str, Table]
) -> Iterator[Refusal]:
    """The rows of one line, put into the table of their collective."""
    if len(words) != len(columns):
        yield Refusal(number, f"{len(words)} cells under {len(columns)} columns ({', '.join(columns)})")
        return
    size_bytes = setting.size_bytes
    if columns[0] == "payload":
        match = _PAYLOAD.match(words[0])
        size_bytes = None if match is None else parse_size(match[1] + match[2])
    if not size_bytes or size_bytes > MOST_BYTES:
        yield Refusal(number, f"a payload of {words[0][:20]!r}")
        return
    by_name: dict[str | None, dict[str, str]] = {}
    for column, word in zip(columns, words, strict=True):
        of_one, _, what = column.rpartition(" ")
        if what != "payload":
            by_name.setdefault(of_one or setting.collective, {})[what] = word
    for name, values in by_name.items():
        if not any(values.values()):
            continue  # this collective was not measured at this size
        table = tables.setdefault(name or "", _table(name, setting, list(values)))
        outcome = _row_of(number, size_bytes, values, table)
        if isinstance(outcome, Refusal):
            yield outcome
        else:
            table.rows.append(outcome)


def _row_of(number: int, size_bytes: int, values: dict[str, str], table: Table) -> Row | Refusal:
    numbers: dict[str, Printed] = {}
    for name, word in values.items():
        value = Printed.read(word.removesuffix("GBps").removesuffix("us").strip())
        if value is None and word:
            return Refusal(number, f"{name} is {word[:20]!r}: expected a number")
        if value is not None:
            numbers[name] = value
    algbw, busbw = numbers.get("algbw"), numbers.get("busbw")
    time = numbers.get("median") or (None if algbw is None else time_us(size_bytes, algbw))
    if time is None or time.value <= 0:
        return Refusal(number, f"a bandwidth of {values.get('algbw', '?')} for {size_bytes} bytes tells no time")
    if "median" not in numbers:
        return _row(number, size_bytes, time, algbw, busbw, table.collective)
    collective = COLLECTIVES.get(table.collective or "")
    if collective is not None and table.nranks and algbw is not None and busbw is not None:
        factor = collective.bus_factor(table.nranks)
        if not agree(algbw.times(factor), busbw):
            return Refusal(number, f"busbw {busbw.value:g} is not {factor:.4g} times algbw {algbw.value:g}")
    row = _row(number, size_bytes, time, None, None, table.collective)
    for name, record_name in (("p99", "time_p99_us"), ("mean", "time_mean_us"), ("median", "time_p50_us")):
        if name in numbers:
            row.more[record_name] = numbers[name].value
    if "calls" in numbers:
        row.more["iterations"] = int(numbers["calls"].value)
    return row


def _row(
    line: int, size_bytes: int, time: Printed, algbw: Printed | None, busbw: Printed | None, collective: str | None
) -> Row:
    known = COLLECTIVES.get(collective or "")
    return Row(
        line=line,
        size_bytes=size_bytes,
        time_us=time,
        count=size_bytes // 4 if known is not None and not known.divided and size_bytes % 4 == 0 else None,
        dtype="float32",
        redop="sum" if known is not None and known.reduces else None,
        algbw_GBps=algbw,
        busbw_GBps=busbw,
    )


def _with_rows(tables: dict[str, Table]) -> Iterator[Table]:
    return (table for table in tables.values() if table.rows)


FORMAT = Format(
    name="ml-engineering",
    title="all_reduce_bench, torch-dist-bench (ml-engineering)",
    recognises=_recognises,
    read=_read,
)
