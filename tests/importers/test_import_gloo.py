"""Gloo's own benchmark: elements, percentiles, GB/s of 2^30 bytes."""

from __future__ import annotations

import pytest
from foreign_logs import expected, measurements, n_rows, read_handed, read_text

HEAD = "Device:      tcp, iface=eth0\nAlgorithm:   {}\nOptions:     processes={}, inputs=1, threads=1\n\n"
COLUMNS = "   elements   min (us)   p50 (us)   p99 (us)   max (us)   avg (GB/s)    samples\n"
GIB = 2**30


def row(*cells):
    return "".join(f"{cell:>13}" for cell in cells) + "\n"


def test_time_is_the_median_and_an_element_four_bytes():
    rate = f"{4 * 1048576 / 4100e-6 / GIB:.3f}"
    imported = read_text(
        HEAD.format("allreduce_ring_chunked", 4) + COLUMNS + row(1048576, 3900, 4000, 4500, 9000, rate, 500)
    )
    (got,) = measurements(imported)
    assert (got["collective"], got["size_bytes"], got["time_us"], got["nranks"]) == ("all_reduce", 2**22, 4000.0, 4)
    assert (got["time_min_us"], got["time_p99_us"], got["time_max_us"], got["iterations"]) == (
        3900.0,
        4500.0,
        9000.0,
        500,
    )
    assert imported.tables[0].backend == "gloo"


def test_later_tables_say_their_bytes_and_may_be_in_ns():
    columns = "     size (B)   elements   min (ns)   p50 (ns)   p99 (ns)   max (ns)   bandwidth (GB/s)   iterations\n"
    text = "      ALLREDUCE_RING\n\nOptions:     processes=2, inputs=1, threads=1, verify=true\n\n" + columns
    (got,) = measurements(read_text(text + row(200, 100, 9000, 10000, 20000, 30000, 0.018, 77)))
    assert (got["size_bytes"], got["time_us"], got["dtype"], got["nranks"]) == (200, 10.0, None, 2)


def test_an_allgathers_elements_are_one_ranks():
    (got,) = measurements(read_text(HEAD.format("allgather_ring", 4) + COLUMNS + row(1024, 39, 40, 45, 90, 0.09, 5)))
    assert (got["collective"], got["size_bytes"]) == ("all_gather_into_tensor", 4 * 4096)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ((1048576, 3900, 4000, 4500, 9000, 2.0, 500), "no mean"),
        ((1048576, 3900, 4000, 4500, 9000, 0.2, 500), "no mean"),
        ((1048576, 4200, 4000, 4500, 9000, 0.953, 500), "fall"),
        ((1048576, 3900, 4000, 4500, 9000, 500), "cells"),
        ((1048576, 0, 0, 0, 0, 0.953, 500), "0"),
        ((999999999999999, 3900, 4000, 4500, 9000, 0.953, 500), "bytes"),
        ((1048576, 3900, "x", 4500, 9000, 0.953, 500), "expected a number"),
    ],
)
def test_rows_that_contradict_themselves_are_refused(cells, reason):
    imported = read_text(HEAD.format("allreduce_ring", 4) + COLUMNS + row(*cells))
    assert not imported.tables
    assert reason in imported.refused[0].reason


def test_bandwidth_of_the_mean_is_checked_where_the_mean_is_printed():
    columns = "   elements   min (us)   p50 (us)   p99 (us)  p995 (us)   max (us)   avg (us)   avg (GB/s)    samples\n"
    good = row(67108864, 300117, 325352, 359522, 370981, 543469, 325034, 0.769, 1000)
    bad = row(67108864, 300117, 325352, 359522, 370981, 543469, 325034, 0.826, 1000)  # of 10^9 bytes
    imported = read_text(HEAD.format("new_allreduce_ring", 4) + columns + good + bad)
    assert [each["time_mean_us"] for each in measurements(imported)] == [325034.0]
    assert len(imported.refused) == 1


def test_handed_logs(logs):
    imported = read_handed(logs, "gloo002")
    want = expected(logs, "gloo002")
    assert [len(table.rows) for table in imported.tables] == want["n_rows"]
    assert [table.more["algorithm"] for table in imported.tables] == want["algorithms"]
    assert {table.nranks for table in imported.tables} == {want["nranks"]}
    rows = measurements(imported)
    for got, cells in ((rows[0], want["first"]), (rows[24], want["last_of_first_table"]), (rows[-1], want["last"])):
        assert got["size_bytes"] == 4 * int(cells[0])
        assert [got["time_min_us"], got["time_us"], got["time_max_us"], got["iterations"]] == [
            *(float(cells[1]), float(cells[2]), float(cells[5])),
            int(cells[8]),
        ]
    assert read_handed(logs, "gloo001", collective="all_reduce", nranks=16).rows == n_rows(logs, "gloo001")
