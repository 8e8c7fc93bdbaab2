"""The all_reduce_bench family: means, tables over payloads, blocks of every rank."""

from __future__ import annotations

import pytest
from foreign_logs import expected, measurements, n_rows, read_handed, read_text

SHORT = """\
The average bandwidth of all_reduce with a 4.0GB payload (50 trials, 16 ranks):
 algbw: 200.000 GBps (1600.0 Gbps)
 busbw: 375.000 GBps (3000.0 Gbps)
"""


def test_the_short_form_counts_gb_in_thousands():
    (row,) = measurements(read_text(SHORT))
    assert (row["size_bytes"], row["nranks"], row["timing"]) == (4_000_000_000, 16, "isolated")
    assert row["time_us"] == pytest.approx(20000.0)
    assert row["busbw_GBps"] == 375.0


def test_a_launchers_prefix_before_every_line():
    text = "Number of nodes participating: 2\n" + "".join(f"[node01:0]:{line}\n" for line in SHORT.splitlines())
    (row,) = measurements(read_text(text))
    assert (row["size_bytes"], row["nnodes"]) == (4_000_000_000, 2)


@pytest.mark.parametrize(
    "text",
    [
        SHORT.replace("1600.0", "1700.0"),
        SHORT.replace("375.000 GBps (3000.0", "275.000 GBps (2200.0"),
        SHORT.replace("200.000 GBps (1600.0", "0.000 GBps (0.0"),
        SHORT.splitlines()[0] + "\n",
        SHORT.replace("4.0GB", "99999999999999GB"),
    ],
)
def test_means_that_contradict_themselves_are_refused(text):
    imported = read_text(text)
    assert not imported.tables
    assert imported.refused


TITLE = "The average bandwidth of all_reduce over 8 ranks (5 warmups / 20 trials):\n\n"
TABLE = """\
| payload |    busbw   |    algbw   |
| ------: | ---------: | ---------: |
|    32KB |   1.44GBps |   0.82GBps |
|     1MB |  39.93GBps |  22.82GBps |
|    16GB | 482.26GBps | 275.58GBps |
Legend: 1KB = 2**10 Bytes
"""


def test_payloads_of_the_table_are_powers_of_1024_whatever_they_are_called():
    software = (
        "- software: torch=2.9.1+cu130, cuda=13.0, nccl=(2, 27, 7)\n- hardware: _Props(name='GPU X', major=9)\n\n"
    )
    imported = read_text(software + TITLE + TABLE)
    rows = measurements(imported)
    assert [row["size_bytes"] for row in rows] == [2**15, 2**20, 2**34]
    assert rows[1]["time_us"] == pytest.approx(2**20 / 22.82e3)
    assert imported.tables[0].versions == {"torch": "2.9.1+cu130", "cuda": "13.0", "nccl": "2.27.7"}
    assert imported.tables[0].more["device"] == "GPU X"


def test_queued_calls_are_pipelined():
    imported = read_text(TITLE.replace("20 trials", "20 trials, up to 10 queued calls per trial") + TABLE)
    assert imported.tables[0].timing == "pipelined"


def test_a_table_without_title_tells_its_ranks():
    imported = read_text(TABLE)
    assert (imported.tables[0].collective, imported.tables[0].nranks) == ("all_reduce", 8)
    assert set(imported.tables[0].inferred) >= {"collective", "nranks"}


def test_columns_of_latency_are_the_times():
    text = """\
The average bandwidth and the per-call latency of all_gather over 4 ranks (20 trials, up to 10 queued calls per trial):

| payload |    busbw   |    algbw   | latency median |    p99    |    mean   | calls |
| ------: | ---------: | ---------: | -------------: | --------: | --------: | ----: |
|      8B |            |            |         10.5us |    12.0us |    11.0us |  1000 |
|    1MiB |   7.50GBps |  10.00GBps |        100.5us |   120.0us |   110.0us |   200 |
|    2MiB |   9.50GBps |  10.00GBps |        100.5us |   120.0us |   110.0us |   200 |
"""
    imported = read_text(text)
    rows = measurements(imported)
    assert [(row["size_bytes"], row["time_us"], row["iterations"]) for row in rows] == [
        (8, 10.5, 1000),
        (2**20, 100.5, 200),
    ]
    assert rows[0]["collective"] == "all_gather_into_tensor"
    assert [refusal.line for refusal in imported.refused] == [7]


def test_a_table_of_several_collectives():
    text = """\
The average bandwidth and the per-call latency of 2 collectives over 4 ranks (20 trials):

| payload | all_reduce busbw | all_reduce median | broadcast busbw | broadcast median |
| ------: | ---------------: | ----------------: | --------------: | ---------------: |
|      8B |                  |              10.5 |                 |              5.5 |
|    1MiB |             7.50 |             100.5 |                 |                  |
"""
    rows = measurements(read_text(text))
    assert [(row["collective"], row["size_bytes"], row["time_us"]) for row in rows] == [
        ("all_reduce", 8, 10.5),
        ("all_reduce", 2**20, 100.5),
        ("broadcast", 8, 5.5),
    ]


def block(rank, duration_s, size_bytes=4e9, nranks=4):
    bits = 2 * size_bytes * 8 / duration_s
    return [
        f"{rank}:",
        f" duration: {duration_s:.4f} sec",
        f" algo throughput: {bits:.4f} bps, {bits / 1e9:.4f} Gbps",
        f" busbw: {bits / 1e9 * (nranks - 1) / nranks:.4f}  Gbps",
    ]


def test_blocks_of_ranks_that_stand_in_each_other():
    first, second = block(0, 0.04812), block(3, 0.05234)
    mixed = [*first[:2], "ignore me 7", *second[:2], first[2], second[2], second[3], first[3]]
    imported = read_text("\n".join(["0 data size: 4.0 GB", "3 data size: 4.0 GB", *mixed]) + "\n")
    rows = measurements(imported)
    assert [(row["rank"], row["nranks"]) for row in rows] == [(0, 4), (3, 4)]
    assert [row["time_us"] for row in rows] == pytest.approx([48120.0, 52340.0])
    assert rows[1]["busbw_GBps"] == pytest.approx(1.5 * 4e9 / 52340e3, rel=1e-5)
    assert not imported.refused


def test_lines_of_no_block_are_refused():
    lines = block(0, 0.0481)
    alien = block(1, 0.09)[2]
    imported = read_text("\n".join(["0 data size: 4.0 GB", *lines, alien, " busbw: 1.0000  Gbps"]) + "\n")
    assert [refusal.line for refusal in imported.refused] == [6, 7]
    assert len(measurements(imported)) == 1


def test_blocks_without_a_payload_are_refused():
    imported = read_text("\n".join(block(0, 0.0481)) + "\n")
    assert not imported.tables
    assert "payload" in imported.refused[0].reason


def test_a_line_of_means_tells_its_ranks_in_single_precision():
    text = "NUM_NODES=2\n0 data size: 6.0 GB\n"
    text += "tput_avg (Gbps): 1499.183349609375 busbw_avg (Gbps): 1405.484375\n"
    (row,) = measurements(read_text(text))
    assert (row["nranks"], row["nnodes"], row["size_bytes"]) == (16, 2, 6_000_000_000)
    assert row["time_us"] == pytest.approx(2 * 6e9 * 8 / 1499.183349609375e3)


@pytest.mark.parametrize("name", ["ds001", "ds003", "ds004", "mle002", "mle004"])
def test_handed_logs_have_the_rows_of_the_index(logs, name):
    imported = read_handed(logs, name)
    assert imported.rows == n_rows(logs, name)
    assert not imported.refused


@pytest.mark.parametrize("name", ["ds001", "ds003"])
def test_handed_logs_have_the_expected_values(logs, name):
    rows, want = measurements(read_handed(logs, name)), expected(logs, name)
    assert {row["nranks"] for row in rows} == {want["nranks"]}
    assert {row["size_bytes"] for row in rows} == {want["payload_GB"] * 1e9}
    assert sum(2 * 8 * row["algbw_GBps"] for row in rows) == pytest.approx(want["algbw_Gbps_sum"])
    assert sum(8 * row["busbw_GBps"] for row in rows) == pytest.approx(want["busbw_Gbps_sum"])
    assert 8 * rows[-1]["busbw_GBps"] == pytest.approx(want["busbw_Gbps_last"])
