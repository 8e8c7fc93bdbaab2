"""What groups of one kind make together, by hand."""

from __future__ import annotations

import pytest
from one_process import cell_of

from collbench.measure.aggregate import aggregate


def record(ranks, time_us, algbw, busbw):
    return {"group_ranks": ranks, "time_us": time_us, "algbw_GBps": algbw, "busbw_GBps": busbw}


def test_the_slowest_group_and_the_sum_of_bandwidths():
    records = [record([0, 2], 100.0, 8.0, 12.0), record([1, 3], 125.0, 6.4, 9.6), record([4, 6], 110.0, 7.0, 10.5)]
    assert aggregate(cell_of("all_reduce", requested=1024), records) == {
        "collective": "all_reduce",
        "group": "world",
        "dtype": "float32",
        "redop": "sum",
        "root": None,
        "in_place": True,
        "pass": 0,
        "size_bytes": 1024,
        "timing": "isolated",
        "concurrent": True,
        "groups": 3,
        "kind": "aggregate",
        "time_us": 125.0,
        "slowest_group": [1, 3],
        "algbw_GBps_sum": pytest.approx(21.4),
        "busbw_GBps_sum": pytest.approx(32.1),
        "common_window_us": 100.0,
        "overlap": pytest.approx(0.8),
    }


def test_groups_that_end_together_are_at_work_together_all_the_time():
    found = aggregate(cell_of("gather", root=1), [record([0, 1], 50.0, 1.0, 0.5), record([2, 3], 50.0, 1.0, 0.5)])
    assert (found["overlap"], found["slowest_group"], found["root"]) == (1.0, [0, 1], 1)


def test_the_size_is_that_of_the_slowest_group():
    # Nodes of two and of three ranks: 1000 bytes round to another size in each.
    records = [record([0, 1], 50.0, 1.0, 0.5), record([2, 3, 4], 60.0, 1.0, 0.5)]
    found = aggregate(cell_of("all_gather_into_tensor", requested=1000), records)
    assert found["size_bytes"] == 960  # 1000 B / 3 ranks, 16 B blocks: 320 a rank
    assert "requests" not in found and "count" not in found and "nranks" not in found
