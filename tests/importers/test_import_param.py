"""PARAM comms tables of all generations: which time, whose bandwidth, what size."""

from __future__ import annotations

import pytest
from foreign_logs import expected, measurements, n_rows, read_handed, read_text

OLD = "\tCOMMS-RES\tsize (B)\t num-elements\t Latency(us):p50\tp75\t\tp95\t algBW(GB/s)\t busBW(GB/s)\n"
NEW = (
    "\tCOMMS-RES                size (B)  nElementsPerRank   Latency(us):p50   p75   p95   Min   Max"
    "    AlgBW(GB/s) BusBW(GB/s)\n"
)


def preamble(nranks, local=None, blocking=1, collective=None):
    text = (
        f"\t PARAM COMM environment: {{'world_size': {nranks}, 'local_size': {local or nranks}, 'global_rank': 0}} \n"
    )
    text += f"\t backend: nccl nw-stack: pytorch-dist mode: comms args.b: 8 args.z: {blocking} args.master_ip: x \n"
    text += "[Rank   0] allSizes: [4, 16] element_size: 4 local_rank: 0, num_pg 1\n"
    return text + (f"\t collective={collective}, src_ranks=None, dst_ranks=None\n" if collective else "")


def test_a_row_of_2024_is_the_median_over_the_ranks():
    row = "\tCOMMS-RES-all_reduce-float32  4000000  1000000  1000.0  1100.0  1200.0  900.0  1250.0  4.000  7.000\n"
    imported = read_text(preamble(8, 4) + NEW + row)
    (got,) = measurements(imported)
    assert (got["collective"], got["size_bytes"], got["time_us"], got["busbw_GBps"]) == (
        *("all_reduce", 4000000),
        *(1000.0, 7.0),
    )
    assert (got["nranks"], got["nnodes"], got["dtype"], got["timing"]) == (8, 2, "float32", "isolated")
    assert (got["time_rank_min_us"], got["time_rank_max_us"]) == (900.0, 1250.0)
    assert imported.tables[0].backend == "nccl"


def test_before_2024_the_bandwidth_is_of_one_ranks_time_and_not_taken():
    row = "\tCOMMS-RES  4000000  1000000  1000.0  1100.0  1200.0  900.0  1250.0  3.200  5.600\n"
    imported = read_text(preamble(8, collective="all_reduce") + NEW + row)
    (got,) = measurements(imported)
    assert got["algbw_GBps"] == pytest.approx(4.0)  # of the median
    assert any("one rank's own time" in note for note in imported.tables[0].notes)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("4000000  1000000  1000.0  1100.0  1200.0  900.0  1250.0  2.000  3.500", "no time between"),
        ("4000000  1000000  1000.0  1100.0  1200.0  900.0  1250.0  4.000  4.000", "busbw"),
        ("4000000  1000000  1000.0  1100.0  1050.0  900.0  1250.0  4.000  7.000", "fall"),
        ("4000000  1000000  1000.0  1100.0  1200.0  900.0  1250.0  4.000", "cells"),
        ("99999999999999999  1  1000.0  1100.0  1200.0  900.0  1250.0  4.000  7.000", "bytes"),
        ("4000000  1000000  x  1100.0  1200.0  900.0  1250.0  4.000  7.000", "no number"),
    ],
)
def test_rows_that_contradict_themselves_are_refused(row, reason):
    imported = read_text(preamble(8) + NEW + f"\tCOMMS-RES-all_reduce-float32  {row}\n")
    assert not imported.tables
    assert reason in imported.refused[0].reason


def test_without_blocking_it_is_pipelined():
    row = "\tCOMMS-RES\t 4000000\t 1000000\t 1000.0\t 1100.0\t 1200.0\t 4.000\t 7.000\n"
    imported = read_text(preamble(8, blocking=0) + OLD + row)
    assert imported.tables[0].timing == "pipelined"
    assert imported.tables[0].collective == "all_reduce"
    assert "collective" in imported.tables[0].inferred


@pytest.mark.parametrize(("elements", "size_bytes"), [(16, 256), (64, 1024)])
def test_the_element_count_tells_whether_a_size_is_of_one_rank(elements, size_bytes):
    """256 B are 4 x 16 floats, or, where the count says 64, one rank's share."""
    row = f"\tCOMMS-RES\t 256\t {elements}\t 1000.0\t 1100.0\t 1200.0\t 0.000\t 0.000\n"
    (got,) = measurements(read_text(preamble(4, collective="all_gather") + OLD + row))
    assert (got["collective"], got["size_bytes"]) == ("all_gather_into_tensor", size_bytes)


def test_a_single_row_cut_to_size_and_bandwidths():
    (row,) = measurements(read_text("0: \tCOMMS-RES-all_reduce-float32        1073741824         40.000      75.000\n"))
    assert (row["nranks"], row["busbw_GBps"]) == (16, 75.0)
    assert row["time_us"] == pytest.approx(2**30 / 40e3)


def test_tables_of_another_kind_are_refused():
    quantised = "\tCOMMS-RES-QUANT   size (B)   nElementsPerRank   P95 Latency(us): Quant   Comms  De-Quant  Overall\n"
    imported = read_text(preamble(8) + quantised + "\tCOMMS-RES-QUANT-all_reduce-float32  8  2  1.0  1.0  1.0  3.0\n")
    assert not imported.tables
    assert len(imported.refused) == 2


@pytest.mark.parametrize("name", ["param001", "param003", "param005", "param006", "param008"])
def test_handed_logs_have_the_rows_of_the_index(logs, name):
    imported = read_handed(logs, name)
    assert imported.rows == n_rows(logs, name)
    assert not imported.refused


@pytest.mark.parametrize("name", ["param001", "param005"])
def test_handed_logs_have_the_expected_values(logs, name):
    rows, want = measurements(read_handed(logs, name)), expected(logs, name)
    for row, cells in ((rows[0], want["first"]), (rows[-1], want["last"])):
        assert (row["size_bytes"], row["count"], row["time_us"]) == (int(cells[1]), int(cells[2]), float(cells[3]))
