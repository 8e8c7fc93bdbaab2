"""nccl-tests' JSON report read back: its defects, its torn ends, and what this program's own report says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nccl_samples import COLLECTIVES, DIVIDED, halves, style
from sample_records import run_record

from collbench.importers.check import Asked
from collbench.importers.nccl_json import FORMAT
from collbench.importers.reading import read_log
from collbench.importers.source import Log
from collbench.importers.table import Refusal, Table
from collbench.nccl_json import write_json
from collbench.nccl_table import figures


def result(size=1024, time="35.460000", **changes):
    """A result as nccl-tests writes it: doubles with six decimals, the root as text."""
    half = f'{{"time": {time}, "alg_bw": 0.028878, "bus_bw": 0.043316, "nwrong": 0.000000}}'
    fields = {"size": size, "count": size // 4, "type": '"float"', "redop": '"sum"', "root": '"    -1"',
              "out_of_place": half, "in_place": half, "actual_iterations": 20, "experiment_name": '""'}  # fmt: skip
    fields |= changes
    return "{" + ",\n  ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"


DEVICE = '{{"rank": {0}, "group": {2}, "pid": {1}, "hostname": "n{3}", "device": 0, "device_info": "H100"}}'


def devices(*places):
    """(rank, pid, group, host) of each listed device."""
    return ", ".join(DEVICE.format(*place) for place in places)


FOUR = devices((0, 10, 0, 0), (1, 11, 0, 0), (2, 12, 0, 1), (3, 13, 0, 1))


def report(*results, program="/opt/nccl-tests/build/all_reduce_perf", config="", listed=FOUR, tail=None, **members):
    more = "".join(f'"{name}": {value}, ' for name, value in members.items())
    end = '], "out_of_bounds": {"count": 0, "okay": "true"}, "average_bus_bandwidith": {"bandwidith": 1.0}}'
    return (
        f'{{"version": 1, "start_time": "2026-01-02 03:04:05", "args": ["{program}", "-b", "8"], {more}\n'
        '"env": ["NCCL_DEBUG=WARN", "HF_TOKEN=hunter2"], "nccl_version": 22703, "config": {"nthreads": 1, "ngpus": 1, '
        f'"iterations": 20, {config} "devices": [{listed}]}},\n"results": [\n' + ",\n".join(results)
    ) + (end if tail is None else tail)


def read(text):
    log = Log.of_text("out.json", text)
    assert FORMAT.recognises(log)
    found = list(FORMAT.read(log))
    return [each for each in found if isinstance(each, Table)], [each for each in found if isinstance(each, Refusal)]


def test_a_report_is_a_table_of_halves():
    [table], refused = read(report(result(), result(2048, "40.000000")))
    assert refused == []
    assert (table.collective, table.nranks, table.nnodes, table.backend) == ("all_reduce", 4, 2, "nccl")
    assert (table.timing, table.versions) == ("pipelined", {"nccl": "2.27.3"})
    assert table.nodes[1] == {"host": "n1", "ranks": [2, 3], "devices": ["H100", "H100"]}
    assert table.more["started"] == "2026-01-02T03:04:05"
    assert [(row.size_bytes, row.in_place, row.time_us.value) for row in table.rows] == [
        (1024, False, 35.46), (1024, True, 35.46), (2048, False, 40.0), (2048, True, 40.0),
    ]  # fmt: skip
    row = table.rows[0]
    assert (row.count, row.dtype, row.redop, row.root, row.wrong) == (256, "float32", "sum", None, 0)
    assert (row.algbw_GBps.value, row.busbw_GBps.value, row.more) == (0.028878, 0.043316, {"iterations": 20})
    assert [row.line for row in table.rows] == [4, 4, 13, 13]


def test_records_can_be_asked_for_again():
    imported = read_log(Log.of_text("out.json", report(result())), [FORMAT], Asked())
    first = imported.records()
    assert first[0][0]["started"] == "2026-01-02T03:04:05"
    assert imported.records() == first


def test_an_uneven_exchange_is_known_by_its_program():
    [table], _ = read(report(result(), program="/opt/rccl-tests/build/alltoallv_perf"))
    assert table.collective == "all_to_all_single" and table.notes[0].startswith("an uneven")
    assert {row.more["mode"] for row in table.rows} == {"uneven"}


def test_the_environment_is_not_taken_but_for_what_changes_a_measurement():
    [table], _ = read(report(result()))
    assert table.environment == {"NCCL_DEBUG": "WARN"} and "hunter2" not in repr(table)


def test_a_root_is_text_and_may_be_a_number():
    [table], _ = read(report(result(root='"     3"'), result(root="2"), program="broadcast_perf_mpi"))
    assert table.collective == "broadcast" and [row.root for row in table.rows[::2]] == [3, 2]


@pytest.mark.parametrize("value", ["inf", "-nan", "nan", '"nan"', "null", "NaN", "1e999", '"N/A"', "true", "[1]", "{}"])
def test_a_rate_that_is_no_number_is_unknown_and_a_time_that_is_none_is_refused(value):
    half = f'{{"time": 35.46, "alg_bw": {value}, "bus_bw": {value}, "nwrong": {value}}}'
    [table], refused = read(report(result(in_place=half), result(2048, value), result(4096)))
    assert [row.size_bytes for row in table.rows] == [1024, 1024, 4096, 4096]
    assert (table.rows[1].algbw_GBps, table.rows[1].busbw_GBps, table.rows[1].wrong) == (None, None, None)
    assert [refusal.line for refusal in refused] == [13, 13] and "result 2" in refused[0].reason


def test_inf_inside_a_string_stays_what_it_is():
    [table], _ = read(report(result(), env2='["A=inf, nan,"]', program="/inf/nan/all_gather_perf"))
    assert table.more["arguments"][0] == "/inf/nan/all_gather_perf"


WHOLE = report(result(), result(2048), result(4096))


def test_of_a_file_cut_anywhere_the_whole_results_are_read():
    for cut in range(WHOLE.index('"alg_bw"') + 8, len(WHOLE), 3):
        text = WHOLE[:cut]
        tables, refused = read(text)
        whole, begun = text.count('"experiment_name": ""}'), text.count("\n{")
        assert sum(len(table.rows) for table in tables) == 2 * whole
        for table in tables:
            assert table.notes == [
                f"the file has no end: nccl-tests was killed or still ran; {whole} results are whole"
            ]
        torn = [Refusal(text[: text.rindex("\n{") + 1].count("\n") + 1, f"the file is cut in result {begun}")]
        assert refused == (torn if begun > whole else [])


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ('"blocking_collectives": "false", "graph": 0,', None),
        ('"blocking_collectives": "true",', "blocking"),
        ('"blocking_collectives": true, "aggregated_iterations": 4, "graph": 2,', "agg_iters=4 blocking cudagraph=2"),
    ],
)
def test_what_is_timed_in_another_way_is_marked(config, mode):
    [table], _ = read(report(result(), config=config))
    assert {row.more.get("mode") for row in table.rows} == {mode}


def test_the_time_of_the_cpu_alone_is_refused():
    half = '{"cpu_time": 3.5, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": null}'
    tables, refused = read(report(result(out_of_place=half, in_place=half)))
    assert tables == [] and len(refused) == 2 and "-C" in refused[0].reason


def test_the_iterations_one_by_one_are_kept():
    each = '{"skipped_iterations": 1, "min_us": 12.0, "avg_us": "nan", "times_us": [12.0, "nan", 13.5]}'
    [table], _ = read(report(result(in_place_per_iter=each)))
    assert table.rows[0].more == {"iterations": 20}
    assert table.rows[1].more["per_iter"] == {"skipped_iterations": 1, "min_us": 12.0, "times_us": [12.0, 13.5]}


# --- ranks ----------------------------------------------------------------------------------------------------------


def test_a_device_listed_for_each_process_stands_for_all_of_its_gpus():
    [table], _ = read(report(result(), config='"ngpus": 4,', listed=devices((0, 10, 0, 0), (4, 11, 0, 1))))
    assert (table.nranks, table.nnodes) == (8, 2) and "2 processes" in table.inferred["nranks"]
    assert [node["ranks"] for node in table.nodes] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_ranks_are_those_of_a_group():
    listed = devices((0, 10, 0, 0), (1, 11, 1, 0), (2, 12, 0, 1), (3, 13, 1, 1))
    [table], _ = read(report(result(), listed=listed))
    assert (table.nranks, table.nnodes) == (2, 2)


@pytest.mark.parametrize("listed", ["", '{"rank": "x"}', "3", devices((0, 1, 0, 0), (0, 2, 0, 0))])
def test_without_devices_the_ranks_follow_from_the_rates(listed):
    half = '{"time": 100.000000, "alg_bw": 10.485760, "bus_bw": 15.728640, "nwrong": 0.0}'
    log = Log.of_text("out.json", report(result(1048576, out_of_place=half, in_place=half), listed=listed))
    [table] = read_log(log, [FORMAT], Asked()).tables
    assert table.nranks == 4 and table.inferred["nranks"] == "busbw / algbw" and table.nodes == []


# --- this program's own report ----------------------------------------------------------------------------------------

KINDS = st.sampled_from(sorted(COLLECTIVES))
TIMES = st.floats(0.01, 1e7)


@given(
    rows=st.lists(
        st.tuples(KINDS, st.integers(0, 2**20), TIMES, TIMES, st.sampled_from([None, 0, 3])),
        min_size=1,
        max_size=6,
        unique_by=lambda row: row[:2],
    ),
    group=st.sampled_from(["world", "inter"]),
    timing=st.sampled_from(["pipelined", "isolated"]),
    sweep_pass=st.integers(0, 2),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_written_report_reads_back_as_it_was(tmp_path_factory, rows, group, timing, sweep_pass):
    records = []
    for kind, count, left, right, wrong in rows:
        size = count * 4 * (8 if kind in DIVIDED else 1)
        for side in halves(kind, size, count, "float32", left, right, wrong=wrong, group=group, timing=timing):
            one_form = COLLECTIVES[kind][0] != "both"
            records += [{**half, "pass": half["pass"] + sweep_pass * (2 if one_form else 1)} for half in side]
    folder = tmp_path_factory.mktemp("report")
    run = run_record(nodes=[{"host": "n0", "ranks": list(range(8)), "devices": ["cpu"] * 8}],
                     groups={group: [list(range(8))]})  # fmt: skip
    path = write_json(folder / "out.json", [run], records, argv=["collbench", "run"])
    imported = read_log(Log("out.json", path.read_bytes()), [FORMAT], Asked(nranks=8))
    assert imported.refused == []
    read_back = [record for run in imported.records() for record in run if record["kind"] == "measurement"]
    names = ("collective", "group", "nranks", "dtype", "redop", "root", "in_place", "pass", "size_bytes", "count",
             "timing", "iterations", "time_us", "wrong", "algbw_GBps", "busbw_GBps")  # fmt: skip

    def told(record):
        return tuple(record.get(name) for name in names)

    assert sorted(map(told, read_back), key=repr) == sorted(map(told, records), key=repr)


def test_the_iterations_of_a_written_report_read_back(tmp_path: Path):
    each = {"skipped_iterations": 1, "min_us": 12.0, "max_us": 140.25, "avg_us": 20.0, "p50_us": 15.0, "p95_us": 99.0,
            "p99_us": 139.5, "stdev_us": 5.0, "cv_pct": 25.125, "times_us": [12.0, 15.0, 140.25]}  # fmt: skip
    pair = halves("all_reduce", 1024, 256, "float32", 30.0, 40.0, per_iter=each)
    like = style(per_iter=True)
    path = write_json(tmp_path / "out.json", [run_record()], [half for side in pair for half in side], style=like)
    [table], _ = read(path.read_text())
    assert [row.more["per_iter"] for row in table.rows] == [each, each]
    assert [row.time_us.value for row in table.rows] == [figures(side, like).time_us for side in pair]


@pytest.mark.parametrize("indent", [None, 1])
def test_the_layout_of_the_json_does_not_matter(indent):
    text = json.dumps(json.loads(report(result(), result(2048))), indent=indent, sort_keys=indent is not None)
    [table], refused = read(f"+ cat out.json {{x}}\n{text}\n{text}"[: -len(text)])
    assert refused == [] and [row.size_bytes for row in table.rows] == [1024, 1024, 2048, 2048]


def test_several_reports_in_one_file_are_several_tables():
    tables, _ = read(report(result()) + "\n" + report(result(), program="alltoall_perf"))
    assert [table.collective for table in tables] == ["all_reduce", "all_to_all_single"]
    assert tables[1].line > tables[0].line
