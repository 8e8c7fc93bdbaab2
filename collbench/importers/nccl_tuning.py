"""What NCCL's own cost model believes, as NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING prints it. No measurement.

Rank 0 of each communicator prints a latency (us) and a bandwidth (GB/s, in algbw's sense) for every collective,
algorithm and protocol; 0 means that it cannot be chosen. Then, call by call, what it chose: the estimated time in
2.18 to 2.22, the channels since. The time it expects is latency + bytes / bandwidth (NCCL src/graph/tuning.cc).

Nothing of this becomes a measurement: it is kept in the run record, under `estimates`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from collbench.importers.json_text import integer, number
from collbench.importers.source import Log
from collbench.importers.table import Format, Refusal, Table
from collbench.importers.words import collective_named

_NAME = "nccl-tuning"
_INFO = "NCCL INFO"
_FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
_ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
_PROTOCOLS = ("LL", "LL128", "Simple")

_ESTIMATE = re.compile(r"(\d{1,9}\.\d{1,3})/ {0,8}(\d{1,9}\.\d{1,3})\Z")
_CHOICE = re.compile(
    r"(?:(\w{1,20}): {1,12})?(\d{1,18}) Bytes -> Algo (\w{1,20}) {1,4}proto (\w{1,10})"
    r"(?: {1,8}time (-?\d{1,15}(?:\.\d{1,9})?)| {1,8}channel\{Lo\.\.Hi\}=\{(\d{1,5})\.\.(\d{1,5})\})?"
)
_COMMUNICATOR = re.compile(r"\bnRanks (\d{1,8})(?: nNodes (\d{1,7}))?")
_VERSION = re.compile(r"\bNCCL version (\d{1,3}\.\d{1,3}\.\d{1,3})")
_LONGEST_LINE = 4096
_MOST_CHOICES = 100_000
_MOST_WRITERS = 10_000


@dataclass(slots=True)
class _Writer:
    """One process's lines. columns: (algorithm, protocol) of the block of the table that is being read."""

    algorithms: list[str] = field(default_factory=list)
    columns: list[tuple[str, str]] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)
    size: tuple[int | None, int | None] = (None, None)  # ranks and nodes of its last communicator
    table: Table | None = None


class _Reader:
    def __init__(self) -> None:
        self.tables: list[Table] = []
        self._choices: dict[int, Counter[tuple[Any, ...]]] = {}
        self._writers: dict[str, _Writer] = {}
        self.version: str | None = None

    def take(self, number_of_line: int, source: str, text: str) -> None:
        """One line. source: what stands before NCCL INFO (host, process, device)."""
        writer = self._writers.get(source)
        if writer is None:
            if len(self._writers) >= _MOST_WRITERS:
                return
            writer = self._writers[source] = _Writer()
        if "|" in text:
            self._take_block(number_of_line, writer, [cell.strip() for cell in text.split("|")])
        elif match := _CHOICE.search(text):
            table = writer.table or self._begin(number_of_line, writer)
            chosen = self._choices.setdefault(id(table), Counter())
            if len(chosen) < _MOST_CHOICES:
                chosen[_choice(match)] += 1
        elif match := _COMMUNICATOR.search(text):
            writer.size = int(match[1]) or None, integer(match[2]) or None
            writer.table = None

    def _begin(self, line: int, writer: _Writer) -> Table:
        nranks, nnodes = writer.size
        table = Table(format=_NAME, line=line, timing="isolated", backend="nccl", nranks=nranks, nnodes=nnodes)
        table.estimates = {"costs": [], "choices": []}
        writer.table = table
        self.tables.append(table)
        return table

    def _take_block(self, line: int, writer: _Writer, cells: list[str]) -> None:
        first, rest = cells[0].split()[-1:] or [""], [cell for cell in cells[1:] if cell not in ("", "…", "...")]
        if first[0] == "Algorithm":
            writer.algorithms, writer.columns, writer.threads = rest, [], []
        elif first[0] == "Protocol" and writer.algorithms and len(rest) % len(writer.algorithms) == 0:
            each = len(rest) // len(writer.algorithms)
            writer.columns = [(writer.algorithms[at // each], protocol) for at, protocol in enumerate(rest)]
        elif first[0] == "Latency/AlgBw":
            pairs = [cell.partition("/") for cell in rest]
            writer.columns = [(algorithm.strip(), protocol.strip()) for algorithm, _, protocol in pairs]
        elif first[0] in ("NThreads", "Maxthreads"):
            writer.threads = rest
        elif first[0] in _FUNCTIONS and writer.columns:
            self._take_costs(line, writer, first[0], rest)

    def _take_costs(self, line: int, writer: _Writer, function: str, cells: list[str]) -> None:
        collective, found = collective_named(function), []
        for at, ((algorithm, protocol), cell) in enumerate(zip(writer.columns, cells, strict=False)):
            match = _ESTIMATE.match(cell)
            latency, bandwidth = (number(match[1]), number(match[2])) if match else (None, None)
            if latency and bandwidth and bandwidth.value > 0:
                found.append(
                    {
                        "collective": collective,
                        "algorithm": algorithm,
                        "protocol": protocol,
                        "latency_us": latency.value,
                        "bandwidth_GBps": bandwidth.value,
                        "max_threads": integer(writer.threads[at]) if at < len(writer.threads) else None,
                    }
                )
        table = writer.table
        known = [_which(cost) for cost in table.estimates["costs"]] if table else []
        if table is None or any(_which(cost) in known for cost in found):
            table = self._begin(line, writer)
        table.estimates["costs"] += found

    def finished(self) -> Iterator[Table]:
        """The tables, each once however many communicators printed the same."""
        seen = set()
        for table in self.tables:
            estimates = table.estimates
            chosen = self._choices.get(id(table), Counter())
            estimates["choices"] = [dict(choice) | {"calls": calls} for choice, calls in chosen.items()]
            if not (estimates["costs"] or estimates["choices"]):
                continue
            what = repr((table.nranks, table.nnodes, estimates))
            if what in seen:
                continue
            seen.add(what)
            if self.version is not None:
                table.versions["nccl"] = self.version
            table.notes.append(
                f"NCCL's own estimates ({len(estimates['costs'])} costs, {len(estimates['choices'])} choices), not "
                "measurements: kept in the run record under estimates; nothing is fitted to them"
            )
            yield table


def _which(cost: dict[str, Any]) -> tuple[Any, ...]:
    return cost["collective"], cost["algorithm"], cost["protocol"]


def _choice(match: re.Match[str]) -> tuple[tuple[str, Any], ...]:
    function, size, algorithm, protocol, time_us, low, high = match.groups()
    expected = number(time_us)
    return (
        ("collective", collective_named(function) if function else None),
        ("size_bytes", integer(size)),
        ("algorithm", _of_index(algorithm, _ALGORITHMS)),
        ("protocol", _of_index(protocol, _PROTOCOLS)),
        ("estimated_us", expected.value if expected and expected.value >= 0 else None),
        ("channels", int(high) - int(low) + 1 if low is not None and int(high) >= int(low) else None),
    )


def _of_index(word: str, names: tuple[str, ...]) -> str:
    """NCCL printed the index until 2.22, the name since: `RING`, `COLLNET_DIRECT`, `Simple`."""
    if word.isdecimal():
        return names[int(word)] if int(word) < len(names) else word
    bare = word.replace("_", "").lower()
    return next((name for name in names if name.lower() == bare), word)


def _recognises(log: Log) -> bool:
    return log.holds(" Bytes -> Algo ", "Max NThreads |", "Latency/AlgBw |", "  Algorithm   |")


def _read(log: Log) -> Iterator[Table | Refusal]:
    reader = _Reader()
    for line, raw in log.raw_lines():
        if "|" not in raw and "-> Algo" not in raw and "nRanks " not in raw and "NCCL version" not in raw:
            continue
        source, found, text = raw[:_LONGEST_LINE].partition(_INFO)
        if not found:
            source, text = "", source
        if (match := _VERSION.search(text)) and reader.version is None:
            reader.version = match[1]
        reader.take(line, source[-200:], text)
    yield from reader.finished()


FORMAT = Format(name=_NAME, title="NCCL_DEBUG_SUBSYS=TUNING: NCCL's own estimates", recognises=_recognises, read=_read)
