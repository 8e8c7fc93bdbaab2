"""SuperBench's results: metrics of many benchmarks in one flat JSON object, size and unit inside the key.

`nccl-bw/allreduce_1024_busbw:0` in results-summary.jsonl (a line for each node), `allreduce_1024_busbw` under "result"
in a rank's results.json. An annotation (`nccl-bw:nvlink`) and a place in a traffic pattern (`allreduce_0_1:1024_busbw`)
tell repeats apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from collbench.importers.json_text import number, parsed, text_of, time_us_of
from collbench.importers.source import Log
from collbench.importers.table import Format, Printed, Refusal, Row, Table
from collbench.importers.words import collective_named, is_uneven

_NAME = "superbench"
_BENCHMARK = re.compile(r"(nccl|rccl)-bw(?::[^/]{1,80})?\Z")
_METRIC = re.compile(r"([a-z]{3,20})_(?:(\d{1,6}_\d{1,6})[:_])?(\d{1,15})_(time|algbw|busbw)(?::(\d{1,7}))?\Z")
_LONGEST_KEY = 200

_Key = tuple[str, str, str, str]  # (benchmark, operation, place in a pattern, rank that told it)
_Sizes = dict[int, dict[str, Printed]]


def _recognises(log: Log) -> bool:
    return log.holds('"nccl-bw', '"rccl-bw') and log.holds("_busbw", "_algbw")


def _read(log: Log) -> Iterator[Table | Refusal]:
    whole = parsed(log.text())
    if whole is not None:
        yield from _tables(whole, 1)
        return
    for line, text in log.raw_lines():
        if "-bw" not in text:
            continue
        document = parsed(text)
        if document is None:
            yield Refusal(line, "a torn line: expected one whole JSON object")
        else:
            yield from _tables(document, line)


def _tables(document: Any, line: int) -> Iterator[Table | Refusal]:
    for each in document if isinstance(document, list) else [document]:
        if not isinstance(each, dict):
            continue
        found: dict[_Key, _Sizes] = {}
        for benchmark, metric, value in _metrics(each):
            match = _METRIC.match(metric)
            if match is None:
                continue
            operation, place, size, what, rank = match.groups()
            told = value[0] if isinstance(value, list) and len(value) == 1 else value
            known = time_us_of(told) if what == "time" else number(told)
            if known is not None:
                key = (benchmark, operation, place or "", rank or "")
                found.setdefault(key, {}).setdefault(int(size), {})[what] = known
        for key, sizes in found.items():
            yield from _table(key, sizes, text_of(each.get("node")), line)


def _metrics(each: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(benchmark, metric, value) of what a node's summary, or one benchmark's own result, holds."""
    name, result = text_of(each.get("name")), each.get("result")
    if isinstance(result, dict) and _BENCHMARK.match(name[:_LONGEST_KEY]):
        yield from ((name, metric, value) for metric, value in result.items() if len(metric) <= _LONGEST_KEY)
    for key, value in each.items():
        benchmark, _, metric = key.partition("/")
        if len(key) <= _LONGEST_KEY and _BENCHMARK.match(benchmark):
            yield benchmark, metric, value


def _table(key: _Key, sizes: _Sizes, node: str, line: int) -> Iterator[Table | Refusal]:
    benchmark, operation, place, _ = key
    table = Table(format=_NAME, line=line, timing="pipelined", is_document=True)
    table.collective, table.backend = collective_named(operation), benchmark[:4]
    table.more = {"benchmark": benchmark} | ({"node": node} if node else {}) | ({"pattern": place} if place else {})
    mode = {"mode": "uneven"} if is_uneven(operation) else {}
    for size, values in sizes.items():
        time_us = values.get("time")
        if time_us is None or time_us.value <= 0:
            yield Refusal(line, f"{benchmark}/{operation}_{size}: no time above zero")
            continue
        table.rows.append(
            Row(
                line=line,
                size_bytes=size,
                time_us=time_us,
                algbw_GBps=values.get("algbw"),
                busbw_GBps=values.get("busbw"),
                more=dict(mode),
            )
        )
    if table.rows:
        yield table


FORMAT = Format(name=_NAME, title="SuperBench results (nccl-bw, rccl-bw)", recognises=_recognises, read=_read)
