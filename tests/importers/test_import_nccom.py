"""nccom-test's tables, and tables of busbw alone."""

from __future__ import annotations

import pytest
from foreign_logs import expected, measurements, n_rows, read_handed, read_text

COMMAND = "nccom-test -r 8 -N 2 --minbytes 1kb --maxbytes 1mb --datatype fp32 --check allr\n"
HEADER = "    size(B)    count(elems)    type    time:avg(us)    algbw(GB/s)    busbw(GB/s)\n"


def row(size_bytes, time_us, unit=1e9, factor=1.75, more=""):
    algbw = size_bytes / time_us * 1e6 / unit
    return f"{size_bytes:>11}{size_bytes // 4:>16}    fp32{time_us:>16}{algbw:>15.2f}{algbw * factor:>15.2f}{more}\n"


@pytest.mark.parametrize("unit", [1e9, 2**30])
def test_the_unit_of_gb_is_what_size_and_time_say(unit):
    """Older versions divide by 2^30, newer ones by 10^9: both print GB/s."""
    rows = [row(2**10 * 8**power, 50.25 * 2**power, unit) for power in range(6)]
    imported = read_text(COMMAND + HEADER + "".join(rows) + "Avg bus bandwidth:\t1.0GB/s\n")
    got = measurements(imported)
    assert [each["size_bytes"] for each in got] == [2**10 * 8**power for power in range(6)]
    assert got[-1]["busbw_GBps"] == pytest.approx(1.75 * 2**25 / (50.25 * 32) / 1e3, rel=1e-3)
    assert {(each["collective"], each["nranks"], each["nnodes"], each["dtype"]) for each in got} == {
        ("all_reduce", 8, 2, "float32")
    }
    assert any("2^30" in note for note in imported.tables[0].notes) == (unit != 1e9)


def test_statistics_and_algorithm_are_kept():
    header = (
        HEADER.replace("time:avg(us)", "time:avg(us)    time:p50(us)    time:p99(us)").rstrip("\n") + "    algorithm\n"
    )
    text = "   1048576   262144   fp32   100.00   99   120   10.49   18.35   mesh\n"
    (got,) = measurements(read_text(COMMAND + header + text))
    assert (got["time_us"], got["time_p50_us"], got["time_p99_us"], got["algorithm"]) == (100.0, 99.0, 120.0, "mesh")


def test_rows_that_contradict_themselves_are_refused():
    rows = [row(2**20, 100.25), row(2**21, 150.25), row(2**22, 200.25).replace("36.65", "26.65"), row(2**23, 300.25)]
    failure = "   33554432    Failure running neuron-bench - log file /tmp/x.log\n"
    imported = read_text(COMMAND + HEADER + "".join(rows) + failure)
    assert [each["size_bytes"] for each in measurements(imported)] == [2**20, 2**21, 2**23]
    assert [refusal.line for refusal in imported.refused] == [5, 7]


def test_a_table_of_busbw_alone_tells_times_by_size_and_ranks():
    text = "[init] world=8 dtype=bf16 sizes=2\n\n  total_bytes per_rank_MiB   symm_ag_busbw   regular_ag_busbw\n"
    text += "    134217728      16.0000           350.0              175.0\n    268435456      31.0000      1.0   1.0\n"
    imported = read_text(text)
    got = measurements(imported)
    assert [(each["collective"], each.get("mode"), each["nranks"]) for each in got] == [
        ("all_gather_into_tensor", "symm", 8),
        ("all_gather_into_tensor", None, 8),
    ]
    assert [each["time_us"] for each in got] == pytest.approx([134217728 / 400e3, 134217728 / 200e3])
    assert "unit" in imported.tables[0].inferred["time_us"]
    assert [refusal.line for refusal in imported.refused] == [5]


@pytest.mark.parametrize("name", ["nccom001", "nccom003", "rccl006"])
def test_handed_logs_have_the_rows_of_the_index(logs, name):
    imported = read_handed(logs, name)
    assert len({row.line for table in imported.tables for row in table.rows}) == n_rows(logs, name)
    assert imported.rows == n_rows(logs, name)
    assert not imported.refused


def test_handed_log_has_the_expected_values(logs):
    want = expected(logs, "nccom001")["tables"][0]
    rows = measurements(read_handed(logs, "nccom001"))
    assert sum(row["time_us"] for row in rows) == pytest.approx(want["sum_oop_time_us"])
    for row, cells in ((rows[0], want["first"]), (rows[-1], want["last"])):
        assert (row["size_bytes"], row["count"]) == (cells["size"], cells["count"])
        assert row["time_us"] == cells["out_of_place"]["time_us"]
        assert row["busbw_GBps"] == pytest.approx(cells["out_of_place"]["busbw_GBps"] * 2**30 / 1e9)
