"""Files with one time a line: rccl-tests' JSON and CSV, MSCCL++'s records, SuperBench's metrics, averages."""

from __future__ import annotations

import json

import pytest

from collbench.importers import bandwidth_csv, bandwidth_json, superbench
from collbench.importers.check import Asked
from collbench.importers.reading import read_log, rows_in
from collbench.importers.registry import FORMATS
from collbench.importers.source import Log


def imported(text, formats=None):
    return read_log(Log.of_text("log", text), formats or FORMATS.values(), Asked())


def half(size=1024, time="50.000000", side=0, name="AllReduce", ranks=8, wrong='"0"', **more):
    factor = {"AllReduce": 2 * (ranks - 1) / ranks, "AlltoAllv": (ranks - 1) / ranks}[name]
    rate = size / float(time) / 1e3
    extra = "".join(f'"{key}":{value}, ' for key, value in more.items())
    return (
        f'{{{extra}"name":"{name}", "nodes":1, "ranks":{ranks}, "ranksPerNode":{ranks}, "gpusPerRank":1, '
        f'"size":{size}, "type":"fp8_e4m3", "redop":"sum", "inPlace":{side}, "time":{time}, '
        f'"algBw":{rate:.6f}, "busBw":{rate * factor:.6f}, "wrong":{wrong}}}'
    )


LINES = [half(), half(side=1, wrong='"N/A"'), half(2048, wrong='"17"')]


@pytest.mark.parametrize(
    "text",
    ["\n".join(LINES), "[\n" + ",\n".join(LINES) + "\n]\n", json.dumps([json.loads(line) for line in LINES], indent=2)],
)
def test_rccl_tests_json_in_all_its_layouts(text):
    found = imported(text)
    [table] = found.tables
    assert (table.format, found.refused, found.rows) == ("rccl-json", [], 3)
    assert (table.collective, table.nranks, table.nnodes, table.backend) == ("all_reduce", 8, 1, "rccl")
    assert [(row.in_place, row.wrong) for row in table.rows] == [(False, 0), (True, None), (False, 17)]
    assert table.rows[0].dtype == "float8_e4m3fn"


def test_a_torn_line_is_refused_and_the_others_read():
    found = imported("\n".join([LINES[0], LINES[1][:150], LINES[2], LINES[0][:90]]))
    assert [row.line for row in found.tables[0].rows] == [1, 3]
    assert [(refusal.line, "torn" in refusal.reason) for refusal in found.refused] == [(2, True), (4, True)]


def test_the_sweeps_of_a_stress_test_are_passes():
    found = imported(half(numCycle=0) + "\n" + half(numCycle=1))
    measurements = [record for record in found.records()[0] if record["kind"] == "measurement"]
    assert len({record["pass"] for record in measurements}) == 2


def test_an_uneven_exchange_is_set_apart_from_an_even_one():
    [table] = imported(half(name="AlltoAllv")).tables
    assert table.collective == "all_to_all_single" and table.rows[0].more["mode"] == "uneven" and table.notes


def test_processes_of_several_gpus():
    [table] = imported(
        half(1 << 20).replace('"ranks":8', '"ranks":2').replace('"gpusPerRank":1', '"gpusPerRank":4')
    ).tables
    assert table.nranks == 8 and "2 processes" in table.inferred["nranks"]


@pytest.mark.parametrize("time", ["0.0", '"nan"', "-1.0"])
@pytest.mark.parametrize("size", ["1024", "-8", "1e400", 5000 * "9", "[1]", "null", "true"])
def test_a_line_without_a_size_or_a_time_is_refused(size, time):
    found = imported(half().replace('"size":1024', f'"size":{size}').replace('"time":50.000000', f'"time":{time}'))
    assert found.tables == [] and [refusal.line for refusal in found.refused] == [1]


# --- MSCCL++ ---------------------------------------------------------------------------------------------------------


def record(size=1048576, time=100.0, ranks=16, algbw=None, **more):
    rate = size / time / 1e3 if algbw is None else algbw
    fields = {"name": "allreduce", "kernel": 4, "ranks": ranks, "ranksPerNode": 8, "algBw": round(rate, 2),
              "busBw": round(round(rate, 2) * 2 * (ranks - 1) / ranks, 2), "size": size, "time": time,
              "target": "latency"}  # fmt: skip
    return json.dumps(fields | more)


def test_mscclpp_records():
    found = imported("\n".join([record(), record(2097152, 150.0, kernel=2), record(ranks=8)]))
    assert found.refused == [] and {table.format for table in found.tables} == {"mscclpp"}
    assert [(table.nranks, table.nnodes, len(table.rows)) for table in found.tables] == [(16, 2, 2), (8, 1, 1)]
    assert [row.more for row in found.tables[0].rows] == [{"kernel": 4}, {"kernel": 2}]
    assert found.tables[0].rows[0].dtype is None and found.tables[0].backend == "mscclpp"


def test_a_rate_of_a_baseline_may_differ_by_a_little_and_not_by_more():
    assert imported(record(algbw=10.487)).rows == 1
    assert imported("\n".join([record(), record(2097152, 150.0, algbw=14.2), record(4194304, 250.0)])).rows == 2


# --- CSV -------------------------------------------------------------------------------------------------------------

NAMES = "numCycle,collective,{}size,type,redop,inplace,time,algbw,busbw,#wrong"
VALUES = '0,"AllReduce",{},1048576,"float","sum",{},100.0,10.48576,19.66080,"{}"'


@pytest.mark.parametrize(
    ("names", "values"),
    [
        ("nodes,ranks,ranksPerNode,gpusPerRank,", "2,16,8,1"),
        ("ranks,rankspernode,gpusperrank,", "2,16,8,1"),  # the build with MPI: one name fewer
        ("gpus,", "16"),
    ],
)
def test_rccl_tests_csv_and_its_shifted_header(names, values):
    lines = [NAMES.format(names), VALUES.format(values, 0, 0), VALUES.format(values, 1, "N/A")]
    found = imported("\r\n".join(lines))
    [table] = found.tables
    assert found.refused == [] and table.format == "nccl-csv"
    assert (table.collective, table.nranks, table.backend) == ("all_reduce", 16, "rccl")
    assert [(row.line, row.in_place, row.wrong, row.time_us.value) for row in table.rows] == [
        (2, False, 0, 100.0), (3, True, None, 100.0),
    ]  # fmt: skip


def test_a_csv_whose_columns_do_not_fit_its_header_is_refused():
    lines = [NAMES.format("ranks,rankspernode,gpusperrank,"), VALUES.format("3,16,8,1", 0, 0)]
    found = imported("\n".join(lines))
    assert found.tables == [] and [(each.line, "under" in each.reason) for each in found.refused] == [(2, True)]


def test_a_csv_made_of_a_table_has_both_halves_in_a_line():
    text = (
        "size_bytes,oop_time_us,oop_algbw (GB/s),oop_busbw,ip_time_us,ip_algbw,ip_busbw\n"
        "1048576,100.0,10.49,18.35,110.0,9.53,16.68\n4194304,200.0,20.97,36.70,210.0,19.97,34.95\n"
    )
    found = read_log(Log.of_text("all_reduce.csv", text), [bandwidth_csv.FORMAT], Asked())
    [table] = found.tables
    assert (found.refused, rows_in(table), table.nranks) == ([], 2, 8)
    assert [(row.in_place, row.time_us.value) for row in table.rows[:2]] == [(False, 100.0), (True, 110.0)]


@pytest.mark.parametrize(
    "lines",
    [
        ["size;time;algbw;busbw", "1048576;100,125;10,473;18,327", "4 194 304;1200,5;3,494;6,114"],
        ["size_bytes\ttime_us\talgbw\tbusbw", "1048576\t100.125\t10.473\t18.327", "4 194 304\t1 200.5\t3.494\t6.114"],
        ["size,time,algbw,busbw", "1048576,100.125,10.473,18.327", '"4,194,304","1,200.5",3.494,6.114'],
        ["size; time; algbw; busbw", "1048576; 100.125; 10.473; 18.327", "4194304; 1200.5; 3.494; 6.114"],
    ],
    ids=["semicolons", "tabs", "thousands", "semicolons and points"],
)
def test_what_keeps_columns_and_thousands_apart(lines):
    found = imported("\n".join(lines))
    [table] = found.tables
    assert (table.format, found.refused, table.nranks) == ("nccl-csv", [], 8)
    assert [(row.size_bytes, row.time_us.value) for row in table.rows] == [(1048576, 100.125), (4194304, 1200.5)]
    assert [row.busbw_GBps.value for row in table.rows] == [18.327, 6.114]


def test_a_table_of_nccl_tests_with_tabs_is_not_taken_for_a_csv():
    text = "#\tsize\tcount\ttype\tredop\troot\ttime\talgbw\tbusbw\t#wrong\n"
    found = imported(text + "1 048 576\t262 144\tfloat\tsum\t-1\t100.0\t10.49\t18.35\t0\n")
    assert [(table.format, table.rows[0].size_bytes) for table in found.tables] == [("nccl-tests", 1048576)]


def test_averages_are_no_times():
    text = "file,test,N,G,minBytes,maxBytes,avg_bus_bw_GBs,peak_busbw_GBs\na.log,all_gather_perf,10,8,8,64,46.7,48.7\n"
    found = imported(text)
    assert found.tables == [] and [refusal.line for refusal in found.refused] == [2]


# --- SuperBench ------------------------------------------------------------------------------------------------------


def metrics(prefix="nccl-bw/allreduce_", suffix=":0", ranks=8):
    found = {"node": "n0", "kernel-launch/wall_overhead:0": 0.01, "ib-loopback/IB_write_8_Avg_1:0": 1.0}
    for size, time_us in ((1024, 20.0), (16777216, 12345.0)):
        rate = size / time_us / 1e3
        values = {"time": time_us, "algbw": round(rate, 2), "busbw": round(rate * 2 * (ranks - 1) / ranks, 2)}
        found |= {f"{prefix}{size}_{name}{suffix}": value for name, value in values.items()}
    return found


def test_superbench_metrics_are_rows():
    found = imported(json.dumps(metrics()))
    [table] = found.tables
    assert (table.format, found.refused, found.rows) == ("superbench", [], 2)
    assert (table.collective, table.nranks, table.nnodes) == ("all_reduce", 8, None)
    assert [(row.size_bytes, row.time_us.value) for row in table.rows] == [(1024, 20.0), (16777216, 12345.0)]
    assert table.more["node"] == "n0"


def test_superbench_repeats_stay_apart():
    lines = [metrics(), metrics("nccl-bw:nvlink/alltoall_"), metrics("rccl-bw/allreduce_0_1:", "")]
    assert [
        (table.collective, table.backend, table.more.get("pattern"))
        for table in superbench.FORMAT.read(Log.of_text("log", "\n".join(map(json.dumps, lines))))
    ] == [("all_reduce", "nccl", None), ("all_to_all_single", "nccl", None), ("all_reduce", "rccl", "0_1")]


def test_a_ranks_own_result_of_superbench():
    own = {
        "allreduce_1024_time": [20.0],
        "allreduce_1024_busbw": [0.09],
        "allreduce_1024_algbw": [0.05],
        "return_code": [0],
    }
    found = imported(json.dumps([{"name": "nccl-bw", "result": own}, {"name": "mem-bw", "result": {}}]))
    assert [row.size_bytes for row in found.tables[0].rows] == [1024]


def test_a_size_without_a_time_is_refused():
    found = imported(json.dumps({"nccl-bw/allreduce_8_busbw:0": 1.0, "nccl-bw/allreduce_8_algbw:0": 1.0}))
    assert found.tables == [] and "no time" in found.refused[0].reason


def test_none_of_these_takes_the_others_files():
    texts = [half(), record(), NAMES.format("gpus,") + "\n" + VALUES.format(16, 0, 0), json.dumps(metrics())]
    formats = [bandwidth_json.RCCL, bandwidth_json.MSCCLPP, bandwidth_csv.FORMAT, superbench.FORMAT]
    for own, text in enumerate(texts):
        log = Log.of_text("log", text)
        found = [format for format in formats if format.recognises(log) and list(format.read(log))]
        assert found == [formats[own]]
