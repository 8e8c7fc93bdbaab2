"""Logs damaged at random: nothing breaks, and nothing is read that does not stand there."""

from __future__ import annotations

import json
import random
import re
import time

import pytest
from conftest import LOGS
from nccl_texts import NEW, OLD, POWERS, devices, log, old_row, row, rows

from collbench.importers.check import Asked
from collbench.importers.reading import read_log, read_together
from collbench.importers.registry import FORMATS
from collbench.importers.source import Log

_MOST_BYTES = 65536
_NUMBER = re.compile(r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_UNITS = (1.0, 1e3, 1e6, 1e-3, 1e-6)
_GATHER = log(rows(collective="all_gather_into_tensor", redop="none"), program="all_gather_perf")
_NOISE = "node01:11:22 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1]"
_OWN = [
    log(),
    log([old_row(power) for power in POWERS], head=OLD, program=None, listed=[]),
    "\n".join(f"[1,0]<stdout>:{line}" for line in log().splitlines()),
    "\n".join(f"2026-01-02T03:04:05.000Z {line}" for line in _GATHER.splitlines()),
    log([*rows(), "", _NOISE, row(25)[:60]]) + log(),
    "\n".join([*devices(4, 1), *NEW[1:], *rows(n=4), "...", *rows(range(26, 28), n=4)]),
]


def _seeds():
    """Own specimens, and the handed logs of all formats where they are."""
    handed = sorted((LOGS / "raw").glob("*.txt")) if LOGS.is_dir() else []
    contents = [path.read_bytes() for path in handed]
    return [text.encode() for text in _OWN], [content for content in contents if len(content) <= _MOST_BYTES]


def _damaged(draw, seed, other):
    """A seed cut, spliced, with bytes flipped and lines swapped, dropped and doubled."""
    content = bytearray(seed)
    for _ in range(draw.randint(1, 4)):
        kind = draw.randrange(7)
        at = draw.randrange(len(content) or 1)
        if kind == 0:
            content = content[:at] if draw.random() < 0.5 else content[at:]
        elif kind == 1:
            start = draw.randrange(len(other) or 1)
            content[at:at] = other[start : start + draw.randint(1, 400)]
        elif kind == 2:
            for _ in range(draw.randint(1, 12)):
                if content:
                    content[draw.randrange(len(content))] = draw.randrange(256)
        elif kind == 3:
            digits = [index for index, byte in enumerate(content[at : at + 300], at) if 48 <= byte < 58]
            if digits:
                content[draw.choice(digits)] = draw.choice(b"0123456789.-, eE|")
        elif kind == 4:
            lines = content.split(b"\n")
            one, two = draw.randrange(len(lines)), draw.randrange(len(lines))
            lines[one], lines[two] = lines[two], lines[one]
            content = bytearray(b"\n".join(lines))
        elif kind == 5:
            del content[at : at + draw.randint(1, 200)]
        else:
            content[at:at] = content[at : at + draw.randint(1, 300)]
    return bytes(content[:_MOST_BYTES])


def _numbers(source):
    """All numbers in a text, also those that a wrapped line breaks in two, or a colour's codes stand in."""
    text = "\n".join(line for lines in (source.raw_lines(), source.lines()) for _, line in lines)
    joined = text.replace("\n", "").replace("\r", "")
    bare = text.translate(dict.fromkeys(map(ord, ",'_*`")))
    parts = (text, bare, text.replace(",", "."), joined)
    return {float(match) for part in parts for match in _NUMBER.findall(part)}


def _read(content):
    source = Log("log.txt", content)
    imported = read_log(source, FORMATS.values(), Asked())
    read_together([imported], FORMATS.values())
    return source, imported


def _check(source, imported):
    for records in imported.records():
        for record in records:
            json.dumps(record, allow_nan=False)
    for refusal in imported.refused:
        assert refusal.line >= 1
        assert "\n" not in refusal.reason
    tables = [table for table in imported.tables if table.format == "nccl-tests"]
    if not tables:
        return len(imported.tables)
    there = _numbers(source)
    for table in tables:
        for each in table.rows:
            sizes = {float(each.size_bytes), each.size_bytes / (table.nranks or 1)}
            assert sizes & there, (each, table.notes)
            assert each.count is None or float(each.count) in there
            assert any(_close(each.time_us.value / unit, there) for unit in _UNITS), each
            if not any("converted" in note for note in table.notes):
                for rate in (each.algbw_GBps, each.busbw_GBps):
                    assert rate is None or rate.value in there, (each, rate)
    return len(imported.tables)


def _close(value, there):
    return value in there or any(abs(value - each) <= 1e-9 * abs(value) for each in there)


def _run(count, largest):
    """(logs in which something was read, seconds that reading took) of so many, of seeds of so many bytes at most."""
    draw = random.Random(20260101)
    own, handed = _seeds()
    seeds = own + [content for content in handed if len(content) <= largest]
    read, seconds = 0, 0.0
    for _ in range(count):
        content = _damaged(draw, draw.choice(seeds), draw.choice(seeds))
        try:
            start = time.process_time()
            source, imported = _read(content)
            seconds += time.process_time() - start
            read += bool(_check(source, imported))
        except Exception:
            print(content.decode(errors="replace"))
            raise
    return read, seconds


def test_damaged_logs_break_nothing_and_invent_nothing():
    assert _run(400, 6000)[0] > 100


def test_damaged_logs_of_the_largest_size():
    draw = random.Random(7)
    own, handed = _seeds()
    for seed in [content for content in (*own, *handed) if len(content) > 6000][:40]:
        _check(*_read(_damaged(draw, seed, own[0])))


@pytest.mark.study
def test_twenty_thousand_damaged_logs_in_a_minute():
    """Of this process's own time, whatever else the machine does; without the time that the checks take."""
    assert _run(20_000, _MOST_BYTES)[1] < 60


def test_no_line_takes_longer_than_its_length():
    """Hostile lines: what would make an expression with nested repeats run away."""
    lines = ["[" * 60_000, "[1,0]<stdout>:" * 4000, " " * 64_000 + "x", "a.b-" * 16_000 + ": #", "1 " * 32_000,
             "\x1b[" + "0;" * 30_000, "&lt;" * 16_000, "<pre " * 12_000, "|" * 64_000, "> " * 32_000, "1," * 32_000,
             "Rank" + " " * 60_000, "9" * 64_000 + " 1 float sum -1", "busbw algbw time size " * 3000,
             "# Avg bus bandwidth" + " " * 60_000 + ":", "mpirun " + "-n 1 " * 12_000]  # fmt: skip
    start = time.process_time()
    for line in lines:
        _check(*_read("\n".join([log(), line, log()]).encode()))
    assert time.process_time() - start < 10
