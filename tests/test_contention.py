"""What groups cost one another, and what they carry together: pure arithmetic over records."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_samples import half

from collbench.aggregates import aggregate_lines
from collbench.contention import contention_lines, contentions

AR, AG = "all_reduce", "all_gather_into_tensor"


def cell(ranks, time_us, concurrent, size=1048576, collective=AR, right=False, **changes):
    changes = {"group": "inter", "nranks": 2, **changes}
    return half(collective, size, size // 4, "float32", time_us, right,
                group_ranks=list(ranks), concurrent=concurrent, **changes)  # fmt: skip


BOTH = [
    cell((0, 2), 100.0, True), cell((1, 3), 150.0, True),
    cell((0, 2), 80.0, False), cell((1, 3), 60.0, False),
]  # fmt: skip


def test_the_group_that_is_slowed_most_counts():
    [found] = contentions(BOTH)
    assert (found.collective, found.group, found.group_ranks) == (AR, "inter", (1, 3))
    assert (found.together_us, found.alone_us, found.ratio) == (150.0, 60.0, 2.5)


def test_it_is_shown_as_a_table():
    lines = contention_lines(
        [*BOTH, *(cell(ranks, 10.0, now, size=8) for ranks in ((0, 2), (1, 3)) for now in (True, False))]
    )
    assert lines[0].startswith("contention: ")
    assert lines[1].split()[4:] == ["size", "together", "us", "alone", "us", "ratio", "slowed", "most"]
    assert [line.split()[4:] for line in lines[2:]] == [
        ["8", "B", "10.00", "10.00", "1.00", "ranks", "1", "3"],
        ["1", "MiB", "150.00", "60.00", "2.50", "ranks", "1", "3"],
    ]
    for line in lines:  # they may stand below nccl-tests' header
        assert "out-of-place" not in line and not ("time" in line and "busbw" in line)


@pytest.mark.parametrize(
    "records",
    [
        [],
        BOTH[:2],
        BOTH[2:],
        [BOTH[0], BOTH[2]],  # a kind of one group
        [BOTH[0], BOTH[3]],  # another group alone
        [*BOTH[:2], *({**record, "timing": "isolated"} for record in BOTH[2:])],
        [*BOTH[:2], *({**record, "size_bytes": 8} for record in BOTH[2:])],
        [*BOTH[:2], *({**record, "mode": "hot"} for record in BOTH[2:])],
        [{**record, "group_ranks": None} for record in BOTH],
        [{**record, "concurrent": None} for record in BOTH],
    ],
)
def test_what_was_not_measured_both_ways_is_not_compared(records):
    assert contentions(records) == [] and contention_lines(records) == []


def test_halves_and_passes_are_compared_with_their_own_kind_and_their_median_counts():
    forms = [
        cell((0, 2), time_us, now, collective=AG, right=right, **{"pass": number})
        for now, times in ((True, (30.0, 50.0, 10.0)), (False, (10.0, 20.0, 10.0)))
        for (right, number), time_us in zip(((False, 0), (True, 0), (False, 1)), times, strict=True)
    ]
    lone = cell(
        (0, 2), 999.0, True, collective=AG, right=True, **{"pass": 1}
    )  # the run was killed before its other half
    other = [cell((1, 3), 5.0, now, collective=AG) for now in (True, False)]
    [found] = contentions([*forms, lone, *other])
    assert (found.together_us, found.alone_us) == (30.0, 10.0)


def test_the_last_of_a_repeated_measurement_counts():
    [found] = contentions([*BOTH, cell((1, 3), 90.0, True)])
    assert found.ratio == 1.5


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)), min_size=2, max_size=6), st.randoms())
def test_the_ratio_is_the_largest_of_the_groups_whatever_the_order(times, random):
    records = [
        cell((2 * index, 2 * index + 1), time_us, now)
        for index, pair in enumerate(times) for time_us, now in zip(pair, (True, False), strict=True)
    ]  # fmt: skip
    random.shuffle(records)
    [found] = contentions(records)
    assert found.ratio == max(together / alone for together, alone in times)


# --- aggregates ------------------------------------------------------------------------------------------------------


def aggregate(size=1048576, **changes):
    return {
        "kind": "aggregate", "run_id": "r1", "collective": AR, "group": "inter", "dtype": "float32", "redop": "sum",
        "root": None, "in_place": True, "pass": 0, "size_bytes": size, "timing": "pipelined", "concurrent": True,
        "groups": 2, "time_us": 128.4, "slowest_group": [1, 3], "algbw_GBps_sum": 24.0, "busbw_GBps_sum": 24.6,
        "common_window_us": 120.0, "overlap": 0.954, **changes,
    }  # fmt: skip


def test_the_slowest_group_and_the_sum_are_told_at_the_largest_size():
    lines = aggregate_lines([aggregate(8, time_us=1.0), aggregate(), aggregate(time_us=100.0, **{"pass": 1})])
    assert lines[0].startswith("groups of a kind: ")
    assert lines[2:] == [
        "all_reduce  inter  float32  pipelined  1 MiB       2      128.40          24.600       95 %  ranks 1 3"
    ]
    for line in lines:
        assert "out-of-place" not in line and not ("time" in line and "busbw" in line)


def test_each_collective_kind_regime_and_type_has_its_line():
    records = [aggregate(), aggregate(group="intra"), aggregate(timing="isolated"), aggregate(redop="max"),
               aggregate(concurrent=False, busbw_GBps_sum=None, overlap=None)]  # fmt: skip
    lines = aggregate_lines(records)[2:]
    assert len(lines) == 5
    assert "float32 max" in lines[3]
    assert "pipelined, one at a time" in lines[4] and lines[4].split()[-5:] == ["-", "-", "ranks", "1", "3"]


def test_without_aggregates_there_is_no_line():
    assert aggregate_lines([]) == []
