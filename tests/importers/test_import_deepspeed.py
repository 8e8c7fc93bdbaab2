"""DeepSpeed: ds_bench's tables, the comms logger's lines and summary, and summaries with a column a size."""

from __future__ import annotations

import pytest
from foreign_logs import expected, measurements, n_rows, read_handed, read_text

HEAD = "Size (Bytes)         Description               Duration             Throughput (Gbps)    BusBW (Gbps)        \n"
RAW = "Size (Bytes)         Description               Duration (us)        Throughput (GBps)    BusBW (GBps)        \n"


def bench(operation, rows, head=HEAD, nranks=4):
    return (
        f"\n---- Performance of {operation} on {nranks} devices ------------\n{head}{'-' * 100}\n"
        + "\n".join(rows)
        + "\n"
    )


def test_all_reduce_throughput_is_twice_algbw():
    rows = ["16.0 MB              4194304x4                 1.250 ms             214.748              161.061"]
    (row,) = measurements(read_text(bench("all_reduce", rows)))
    assert (row["size_bytes"], row["time_us"], row["nranks"], row["timing"]) == (2**24, 1250.0, 4, "pipelined")
    assert row["algbw_GBps"] == pytest.approx(2**24 / 1250e3, rel=1e-5)
    assert row["busbw_GBps"] == pytest.approx(1.5 * 2**24 / 1250e3, rel=1e-5)


def test_all_gather_sizes_are_one_ranks_and_kb_is_1024():
    rows = ["1.0 KB               256x4                     20.000 us            1.638                1.229"]
    (row,) = measurements(read_text(bench("all_gather", rows)))
    assert (row["collective"], row["size_bytes"]) == ("all_gather_into_tensor", 4096)


def test_raw_rows_are_in_us_and_their_own_unit():
    rows = ["4194304              1048576x4                 172.352              48.671               36.504"]
    (row,) = measurements(read_text(bench("allreduce", rows, RAW)))
    assert (row["time_us"], row["busbw_GBps"]) == (172.352, 36.504)


def test_pt2pt_is_no_collective():
    rows = ["1.0 KB               256x4                     2.000 us             4.096                4.096"]
    imported = read_text(bench("pt2pt", rows, nranks=2), collective="all_reduce", nranks=8)
    assert [(table.collective, table.nranks) for table in imported.tables] == [("ds_bench_pt2pt", 2)]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("16.0 MB  4294305x4  1.250 ms  214.748  161.061", "is not 4294305x4"),
        ("16.0 MB  4194304x4  1.250 ms  429.497  161.061", "algbw"),
        ("16.0 MB  4194304x4  1.250 ms  214.748  214.748", "busbw"),
        ("16.0 MB  4194304x4  1.250  214.748  161.061", "cells"),
        ("16.0 MB  4194304x4  0.000 ms  214.748  161.061", "0"),
        ("16.0 MB  4194304x4  1.250 h  214.748  161.061", "expected a duration"),
        ("9.0 TB  999999999999999x9  1.250 ms  214.748  161.061", "bytes"),
    ],
)
def test_rows_that_contradict_themselves_are_refused(row, reason):
    good = "32.0 MB  8388608x4  2.500 ms  214.748  161.061"
    imported = read_text(bench("all_reduce", [good, row]))
    assert [each["size_bytes"] for each in measurements(imported)] == [2**25]
    assert reason in imported.refused[0].reason


def call(operation, time_ms, size, algbw, busbw, rank=0):
    return (
        f"[2024-06-26 01:39:55,722] [INFO] [logging.py:69:log_dist] [Rank 0] rank={rank} | comm op: {operation} | "
        f"time (ms): {time_ms} | msg size: {size} | algbw (Gbps): {algbw}  | busbw (Gbps): {busbw} \n"
    )


def rates(size_bytes, time_ms, algbw_factor, busbw_factor):
    """As printed: Gbps with two decimals."""
    rate = size_bytes * 8 / time_ms / 1e6
    return f"{rate * algbw_factor:.2f}", f"{rate * busbw_factor:.2f}"


MIB = 2**20


def test_the_logger_of_2022_doubles_every_operation():
    text = call("broadcast", "2.00", "64.0 MB", *rates(64 * MIB, 2.0, 2, 2 * 7 / 8))
    text += call("reduce_scatter_tensor", "4.00", "128.0 MB", *rates(128 * MIB, 4.0, 2, 2 * 7 / 8))
    text += call("all_gather_into_tensor", "4.00", "128.0 MB", *rates(128 * MIB, 4.0, 2, 2 * 7 / 8))
    imported = read_text(text)
    assert not imported.refused
    assert [(row["collective"], row["size_bytes"], row["time_us"]) for row in measurements(imported)] == [
        ("broadcast", 64 * MIB, 2000.0),
        ("reduce_scatter_tensor", 128 * MIB, 4000.0),
        ("all_gather_into_tensor", 128 * MIB, 4000.0),
    ]
    assert {row["nranks"] for row in measurements(imported)} == {8}
    assert measurements(imported)[0]["algbw_GBps"] == pytest.approx(64 * MIB / 2e6)


def test_later_loggers_double_all_reduce_alone_and_multiply_all_gather():
    text = call("all_reduce", "2.00", "64.0 MB", *rates(64 * MIB, 2.0, 2, 2 * 7 / 8))
    text += call("all_gather_into_tensor", "4.00", "16.0 MB", *rates(16 * MIB * 8, 4.0, 1, 7 / 8))
    text += call("broadcast", "1.00", "8.0 MB", *rates(8 * MIB, 1.0, 1, 1))
    imported = read_text(text)
    assert not imported.refused
    assert [(row["collective"], row["size_bytes"]) for row in measurements(imported)] == [
        ("all_reduce", 64 * MIB),
        ("all_gather_into_tensor", 8 * 16 * MIB),
        ("broadcast", 8 * MIB),
    ]


def test_a_line_of_no_formula_is_refused_and_a_cut_one_too():
    good = call("all_reduce", "2.00", "64.0 MB", *rates(64 * MIB, 2.0, 2, 2 * 7 / 8))
    bad = call("all_reduce", "3.00", "64.0 MB", *rates(64 * MIB, 2.0, 2, 2 * 7 / 8))
    imported = read_text(good + bad + good[:120] + "\n")
    assert [refusal.line for refusal in imported.refused] == [2, 3]
    assert len(measurements(imported)) == 1


def test_what_is_no_collective_is_refused_by_name():
    imported = read_text(call("isend", "2.00", "64.0 MB", *rates(64 * MIB, 2.0, 1, 1)))
    assert "isend" in imported.refused[0].reason


def test_the_summarys_mean_rate_may_be_above_the_rate_of_its_mean_time():
    head = "Comm. Op            Message Size        Count               Total Latency(ms)   Avg Latency(ms)     "
    head += "tput_avg (Gbps)     busbw_avg (Gbps)    \n"
    algbw, busbw = rates(64 * MIB, 1.5, 2, 2 * 7 / 8)
    low, _ = rates(64 * MIB, 4.0, 2, 2 * 7 / 8)
    text = f"{head}all_reduce\n{'':20}64.0 MB  10  20.0  2.00  {algbw}  {busbw}\n"
    text += f"{'':20}64.0 MB  10  20.0  2.00  {low}  1.0\n"
    imported = read_text(text)
    (row,) = measurements(imported)
    assert (row["collective"], row["time_us"], row["iterations"]) == ("all_reduce", 2000.0, 10)
    assert [refusal.line for refusal in imported.refused] == [4]


def test_a_column_a_size_is_a_table_a_line():
    text = "| Env | World | 4 KB (us) | 1 MB (us) | Peak |\n|---|---|---|---|---|\n"
    text += "| a | 4 | 10.5 | 20.5 | 1 |\n| b | 8 | (FAIL) | -- | -- |\n| c | 8 | 30.5 |\n"
    imported = read_text(text, collective="all_reduce")
    assert [(row["nranks"], row["size_bytes"], row["time_us"]) for row in measurements(imported)] == [
        (4, 4096, 10.5),
        (4, 2**20, 20.5),
    ]
    assert [refusal.line for refusal in imported.refused] == [4, 5]
    assert imported.rows == 1  # of the log, with two times


def test_handed_summary_has_the_expected_values(logs):
    want = expected(logs, "ds006")["rows"]
    rows = measurements(read_handed(logs, "ds006"))
    assert [(row["collective"], row["iterations"]) for row in rows] == [(each["op"], each["count"]) for each in want]
    assert [row["time_us"] / 1e3 for row in rows] == pytest.approx([each["avg_ms"] for each in want])
    assert rows[0]["size_bytes"] == want[0]["size"]


def test_handed_lines_and_columns(logs):
    assert read_handed(logs, "ds005").rows == n_rows(logs, "ds005")
    columns = read_handed(logs, "ds009", collective="all_reduce")
    assert len(columns.tables) + len(columns.refused) == n_rows(logs, "ds009")
    assert columns.rows + len(columns.refused) == n_rows(logs, "ds009")
