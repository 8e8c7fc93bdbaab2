"""The importers of structured formats on the handed logs, and on hostile text."""

from __future__ import annotations

import json
import random
import time

import pytest

from collbench.importers import bandwidth_csv, bandwidth_json, kineto, nccl_json, nccl_tuning, superbench
from collbench.importers.check import Asked
from collbench.importers.reading import read_log, read_together
from collbench.importers.registry import FORMATS
from collbench.importers.source import Log, read_sources

STRUCTURED = [nccl_json.FORMAT, bandwidth_json.RCCL, bandwidth_json.MSCCLPP, bandwidth_csv.FORMAT,
              bandwidth_csv.AVERAGES, superbench.FORMAT, kineto.FORMAT, nccl_tuning.FORMAT]  # fmt: skip


def read(log, formats=None, force=False):
    imported = read_log(log, formats or FORMATS.values(), Asked(), force=force)
    read_together([imported], formats or FORMATS.values())
    return imported


@pytest.fixture(scope="module")
def expected(logs):
    return json.loads((logs / "expected.json").read_text())["logs"]


def measurements(imported):
    return [record for run in imported.records() for record in run if record["kind"] == "measurement"]


def told(record, first_word):
    """What a record and an expected line say alike; keys are rccl-tests' or nccl-tests'."""
    wrong = first_word.get("wrong", first_word.get("nwrong"))
    assert record["size_bytes"] == first_word["size"]
    assert record["time_us"] == first_word["time"]
    assert record["algbw_GBps"] == first_word.get("algBw", first_word.get("alg_bw"))
    assert record["busbw_GBps"] == first_word.get("busBw", first_word.get("bus_bw"))
    assert record["wrong"] == (None if wrong == "N/A" else int(float(wrong)))


@pytest.mark.parametrize("name", ["rcclj001", "rcclj003"])
def test_handed_rccl_json(logs, expected, name):
    [log] = read_sources([str(logs / "raw" / f"{name}.txt")])
    imported, right = read(log), expected[name]
    records = measurements(imported)
    assert imported.refused == [] and imported.rows == len(records) == right["n_lines"]
    for record, line in ((records[0], right["first"]), (records[-1], right["last"])):
        told(record, line)
        assert record["in_place"] == bool(line["inPlace"]) and record["nranks"] == line["ranks"]
    assert len({row.line for table in imported.tables for row in table.rows if row.wrong}) == right["wrong_lines"]


def test_handed_nccl_json(logs, expected):
    [log] = read_sources([str(logs / "raw" / "drv010.txt")])
    imported, right = read(log), expected["drv010"]
    records = measurements(imported)
    assert imported.refused == [] and imported.rows == right["n_rows"]
    assert {(record["nranks"], record["nnodes"]) for record in records} == {(right["nranks"], 2)}
    for pair, line in ((records[:2], right["first"]), (records[-2:], right["last"])):
        for record, side in zip(pair, ("out_of_place", "in_place"), strict=True):
            told(record, {"size": line["size"], **line[side]})
            assert (record["count"], record["redop"]) == (line["count"], line["redop"])
    mean = sum(record["busbw_GBps"] for record in records) / len(records)
    assert mean == pytest.approx(right["avg_busbw"], abs=1e-3)


def test_handed_superbench(logs, expected):
    [log] = read_sources([str(logs / "raw" / "sb001.txt")])
    imported, right = read(log), expected["sb001"]
    records = measurements(imported)
    assert imported.refused == [] and imported.rows == len(records) == right["n_sizes"]
    assert {record["nranks"] for record in records} == {8}
    for record, line in ((records[0], right["first"]), (records[-1], right["last"])):
        assert (record["size_bytes"], record["time_us"]) == (line["size"], line["time_us"])
        assert (record["algbw_GBps"], record["busbw_GBps"]) == (line["algbw"], line["busbw"])


@pytest.mark.parametrize(
    ("name", "rows", "places"),
    [("msccl002", 10, {(8, 1), (16, 2)}), ("rcclj004", 70, {(8, 1)}), ("rcclj007", 70, {(8, 1)}),
     ("rcclj008", 70, {(8, 1)})],
)  # fmt: skip
def test_handed_lines_of_json(logs, name, rows, places):
    [log] = read_sources([str(logs / "raw" / f"{name}.txt")])
    imported = read(log)
    assert (imported.refused, imported.rows) == ([], rows)
    assert {(record["nranks"], record["nnodes"]) for record in measurements(imported)} == places


def test_handed_averages_are_refused_line_by_line(logs):
    [log] = read_sources([str(logs / "raw" / "csv002.txt")])
    imported = read(log)
    assert imported.tables == [] and len(imported.refused) == 20


# --- hostile text ----------------------------------------------------------------------------------------------------

REPORT = json.dumps({"version": 3, "args": ["all_reduce_perf"], "config": {"devices": [
    {"rank": 0, "group": 0, "pid": 1, "hostname": "n0"}]}, "results": [
    {"size": 8 << n, "count": 2 << n, "type": "float", "redop": "sum", "root": "    -1",
     "out_of_place": {"time": 10.0, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 0.0},
     "in_place": {"time": 10.0, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": None}, "experiment_name": ""}
    for n in range(8)]})  # fmt: skip
LINE = json.dumps({"name": "AllReduce", "nodes": 1, "ranks": 8, "ranksPerNode": 8, "gpusPerRank": 1, "size": 8,
                   "type": "int8", "redop": "sum", "inPlace": 0, "time": 10.0, "algBw": 0.0, "busBw": 0.0,
                   "wrong": "0"})  # fmt: skip
CSV = "numCycle,collective,ranks,rankspernode,gpusperrank,size,type,redop,inplace,time,algbw,busbw,#wrong\n" + (
    '0,"AllReduce",1,8,8,1,1024,"float","sum",0,50.0,0.020480,0.035840,"0"\n' * 8
)
METRICS = json.dumps(
    {f"nccl-bw/allreduce_{8 << n}_{what}:0": 9.5 for n in range(8) for what in ("time", "algbw", "busbw")}
)
TRACE = json.dumps({"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2, "pg_config": [
    {"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}]}, "traceEvents": [
    {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32", "ts": 10.5 * n, "dur": 3.25, "args": {
        "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8, "Group size": 2,
        "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Seq": n, "External id": n}}
    for n in range(8)]})  # fmt: skip
TUNING = (
    "n0:1:1 [0] NCCL INFO   Algorithm   |    Tree   |    Ring   |\n"
    "n0:1:1 [0] NCCL INFO   Protocol    |  LL | LL128 | Simple |  LL | LL128 | Simple |\n"
    "n0:1:1 [0] NCCL INFO  Max NThreads | 512 | 512 | 512 | 512 | 512 | 512 |\n"
    "n0:1:1 [0] NCCL INFO     AllReduce |  1.0/ 2.0 | 1.0/ 2.0 | 1.0/ 2.0 | 1.0/ 2.0 | 1.0/ 2.0 | 1.0/ 2.0 |\n"
    "n0:1:1 [0] NCCL INFO AllReduce: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}\n"
)
SPECIMENS = [REPORT, "\n".join([LINE] * 8), CSV, METRICS, TRACE, TUNING]
BITS = ["{", "}", "[", "]", '"', ",", ":", "null", "true", "1e999", "-1", "NaN", "inf", "\\u0000", "\x00", "9" * 400,
        "[[[", '{"a":', "é", "\n", "|", "...", '"results"', '"traceEvents"', "Infinity", "-0", "0.0"]  # fmt: skip


def mutated(text, dice):
    """The text with a few bits cut, put in, doubled or swapped for bits of other specimens."""
    for _ in range(dice.randint(1, 6)):
        at, length = dice.randrange(len(text) + 1), dice.choice((0, 1, 4, 40, 400))
        put = dice.choice([*BITS, text[at : at + 30], dice.choice(SPECIMENS)[: dice.choice((20, 300, 3000))], ""])
        text = text[:at] + put + text[at + length :]
    return text


def test_no_mutation_of_a_file_crashes_a_reader():
    dice = random.Random(20260102)
    rows = 0
    for turn in range(900):
        log = Log.of_text("log", mutated(SPECIMENS[turn % len(SPECIMENS)], dice))
        imported = read(log, STRUCTURED, force=turn % 5 == 0)
        rows += imported.rows
        for record in measurements(imported):
            assert record["time_us"] > 0 and 0 <= record["size_bytes"] < 2**63
        json.dumps(imported.records(), allow_nan=False)
    assert rows > 600


LONG = 300_000  # characters
HOSTILE = {
    "braces": "{" * LONG,
    "open objects": '{"a":' * (LONG // 5),
    "open objects in lines": '{"a":[\n' * (LONG // 7),
    "open lists": "[" * LONG,
    "results without end": '{"results":[' + "{}," * (LONG // 3),
    "results in results": '{"results":[' * (LONG // 12),
    "reports that are none": '{"alg_bw":1}' * (LONG // 20) + '"results"',
    "a string without end": '{"results":"' + "\\" * LONG,
    "quotes": '"' * LONG,
    "quoted quotes": '\\"inf' * (LONG // 5),
    "one number": '{"size":' + "9" * LONG + "}",
    "commas": "a,busbw,algbw,size,time\n" + "," * LONG,
    "pipes": "NCCL INFO   Algorithm   |" + "|" * LONG,
    "tables": "  Algorithm   | Tree |\n" * (LONG // 25),
    "keys": json.dumps({f"nccl-bw/{'a_' * 40}{n}_busbw": n for n in range(5000)}),
    "events": '{"traceEvents":[' + '{"ph":"X","cat":"kernel","name":"nccl","args":{}},' * (LONG // 50),
    "ranks": '{"traceEvents":[{"ph":"X","cat":"kernel","name":"nccl","ts":1,"dur":1,"args":'
    '{"Collective name":"allreduce","dtype":"Float","In msg nelems":8,"Out msg nelems":8,"Group size":9999999,'
    '"Process Group Ranks":"' + "[" * 100_000 + '"}}]}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_takes_long(name):
    log = Log.of_text("log", HOSTILE[name])
    for format in STRUCTURED:
        begun = time.process_time()
        list(format.read(log))
        assert time.process_time() - begun < 2.0, format.name


@pytest.mark.parametrize("value", ["null", "true", "3", '"x"', "[]", "{}", "[[]]", '{"a": 1}', "1e400"])
def test_any_value_of_any_key_may_be_of_any_type(value):
    for specimen in (REPORT, LINE, METRICS, TRACE):
        document = json.loads(specimen)
        for path in paths_of(document):
            text = json.dumps(replaced(document, path, "@")).replace('"@"', value)
            json.dumps(read(Log.of_text("log", text), STRUCTURED, force=True).records(), allow_nan=False)


def paths_of(value, depth=0):
    """Where the values of a document stand: of a list the first."""
    if isinstance(value, dict):
        steps = list(value)[:16]
    elif isinstance(value, list):
        steps = [0] if value else []
    else:
        return
    for step in steps:
        yield (step,)
        yield from ((step, *rest) for rest in paths_of(value[step], depth + 1))


def replaced(value, path, new):
    if not path:
        return new
    items = dict(value) if isinstance(value, dict) else list(value)
    items[path[0]] = replaced(items[path[0]], path[1:], new)
    return items
