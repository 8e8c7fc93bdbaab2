"""The handed logs of nccl-tests and rccl-tests: values where they are known, counts and consistency for all."""

from __future__ import annotations

import csv
import json

import pytest
from conftest import LOGS

from collbench.collectives import COLLECTIVES
from collbench.dtypes import DTYPES
from collbench.importers.check import Asked
from collbench.importers.reading import read_log
from collbench.importers.registry import FORMATS
from collbench.importers.source import read_sources
from collbench.importers.words import collective_named

# What the index says of a log against what its numbers say: README.md of the logs, "Traps known".
_BY_THE_NUMBERS = {"nccl048": (128, 32), "nccl046": (96, None), "nccl055": (96, None)}
_NO_ROWS = ("csv002",)  # a summary without one row of a table


def _index():
    if not (LOGS / "index.csv").is_file():
        return []
    with (LOGS / "index.csv").open() as file:
        return [row for row in csv.DictReader(file) if _is_mine(row)]


def _is_mine(row):
    tool = row["tool"]
    return ("nccl-tests" in tool or "rccl-tests" in tool) and not any(word in tool for word in ("JSON", "csv", "CSV"))


def _expected():
    path = LOGS / "expected.json"
    if not path.is_file():
        return {}
    logs = json.loads(path.read_text())["logs"]
    mine = {row["id"] for row in _index()}
    return {name: log for name, log in logs.items() if name in mine}


INDEX = _index()
EXPECTED = _expected()
_IDS = [row["id"] for row in INDEX] or ["none"]


@pytest.fixture(scope="module")
def read(logs):
    known = {}

    def read(name):
        if name not in known:
            (log,) = read_sources([str(logs / "raw" / f"{name}.txt")])
            known[name] = read_log(log, FORMATS.values(), Asked())
        return known[name]

    return read


@pytest.mark.parametrize("name", _IDS)
def test_every_row_is_read(read, name):
    row = next(row for row in INDEX if row["id"] == name)
    assert read(name).rows == int(row["n_rows"])


@pytest.mark.parametrize("name", _IDS)
def test_collective_ranks_and_nodes_are_those_of_the_index(read, name):
    row = next(row for row in INDEX if row["id"] == name)
    tables = read(name).tables
    collectives = {collective_named(word) for word in row["collective"].split(";")}
    for table in tables:
        assert set(table.collective.split("/")) & collectives
    ranks, nodes = ([int(word.rstrip("?")) for word in row[column].split(";")] for column in ("ranks", "nodes"))
    expected = _BY_THE_NUMBERS.get(name)
    if expected is not None:
        assert {(table.nranks, table.nnodes) for table in tables} == {expected}
    else:
        assert {table.nranks for table in tables} == set(ranks)
        assert {table.nnodes for table in tables} <= {*nodes, None}


@pytest.mark.parametrize("name", _IDS)
def test_every_row_agrees_with_itself(read, name):
    for table in read(name).tables:
        collective = COLLECTIVES[table.collective.split("/")[0]]
        for row in table.rows:
            algbw = row.size_bytes / row.time_us.value / 1e3
            factor = collective.bus_factor(table.nranks) if table.nranks is not None else None
            for printed, times in ((row.algbw_GBps, 1.0), (row.busbw_GBps, factor)):
                if printed is not None and times is not None:
                    off = algbw * times * row.time_us.half_step / max(row.time_us.value - row.time_us.half_step, 1e-9)
                    assert abs(printed.value - algbw * times) <= (off + printed.half_step) * (1 + 1e-6)


@pytest.mark.parametrize("name", list(EXPECTED) or ["none"])
def test_the_known_values_come_out(read, name):
    log = EXPECTED.get(name) or pytest.skip("no logs")
    lines = [
        (table, [row for row in table.rows if row.line == line])
        for table in read(name).tables
        for line in dict.fromkeys(row.line for row in table.rows)
    ]
    assert len(lines) == sum(table["n_rows"] for table in log["tables"])
    start = 0
    for expected in log["tables"]:
        mine = lines[start : start + expected["n_rows"]]
        start += expected["n_rows"]
        _check_row(*mine[0], expected["first"])
        _check_row(*mine[-1], expected["last"])
        if expected["nranks_stated"] is not None:
            assert mine[0][0].nranks == expected["nranks_stated"]
        if expected["collective_stated"] is not None:
            assert mine[0][0].collective == collective_named(expected["collective_stated"])
        times = sum(rows[0].time_us.value for _, rows in mine)
        assert times == pytest.approx(expected["sum_oop_time_us"], rel=1e-6)


def _check_row(table, rows, expected):
    for row in rows:
        half = expected["in_place" if row.in_place else "out_of_place"]
        assert (row.size_bytes, row.count) == (expected["size"], expected["count"])
        assert DTYPES[row.dtype].nccl_name == expected["dtype"]
        assert row.time_us.value == half["time_us"]
        for value, name in ((row.algbw_GBps, "algbw_GBps"), (row.busbw_GBps, "busbw_GBps")):
            assert (value and value.value) == half[name]
        if table.collective != "send_recv" and expected.get("redop") is not None:
            assert row.redop == (None if expected["redop"] == "none" else expected["redop"])
        if "#wrong" in half.get("wrong_column", "#wrong") and half.get("wrong") is not None and row.wrong is not None:
            assert row.wrong == int(float(half["wrong"]))
    assert len(rows) == sum(expected.get(name) is not None for name in ("out_of_place", "in_place"))


def test_wrong_data_are_kept_and_marked(read):
    (table,) = read("nccl085").tables
    assert {(row.size_bytes, row.wrong) for row in table.rows if row.wrong} == {(1048576, 96), (1048576, 32)}
    (table,) = read("nccl084").tables
    assert max(row.wrong for row in table.rows) > 1e8


def test_a_torn_and_a_cut_row_are_refused_with_their_lines(read):
    assert [(each.line, each.reason) for each in read("nccl091").refused] == [
        (17, "the first part of this row is lost")
    ]
    (cut,) = read("drv022").refused
    assert "in-place half is left out" in cut.reason


def test_a_redacted_bandwidth_is_missing_and_the_row_is_not(read):
    (table,) = read("drv025").tables
    assert sum(row.busbw_GBps is None for row in table.rows) == 10


def test_one_half_is_not_two(read):
    (table,) = read("nccl077").tables
    assert {row.in_place for row in table.rows} == {False}
