"""What several passes say of a cell: by hand, and on simulated sweeps of a machine whose state changes meanwhile."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from sample_records import measurement

from collbench.measure.repeats import repeat_lines, repeated
from collbench.measure.samples import interval_of_median, median


def passes(times_us, **changes):
    return [measurement(time_us=time_us, **{"pass": number, **changes}) for number, time_us in enumerate(times_us)]


SIX = passes([104.0, 100.0, 99.0, 101.0, 98.0, 102.0])


def test_six_passes_have_a_median_and_an_interval_whatever_their_own_intervals_say():
    [found] = repeated(
        [{**record, "time_us_interval": [record["time_us"] - 1, record["time_us"] + 1]} for record in SIX]
    )
    assert (found.measured, found.time_us, found.interval_us) == (6, 100.5, (98.0, 104.0))
    assert found.reach == pytest.approx(3.5 / 100.5)
    assert found.own_reach == pytest.approx(1 / 100.5, rel=1e-3)
    assert (found.cell["collective"], found.cell["size_bytes"], found.group_ranks) == ("all_reduce", 1024, (0, 1))


def test_passes_without_intervals_of_their_own_count_too():
    [found] = repeated(SIX)
    assert found.own_reach is None and found.interval_us == (98.0, 104.0)


@pytest.mark.parametrize(
    "records",
    [
        [],
        SIX[:5],  # too few for an interval
        *(
            [*SIX[:3], *({**record, **other} for record in SIX[3:])]
            for other in (
                {"size_bytes": 8}, {"in_place": False}, {"timing": "isolated"}, {"group": "intra"}, {"dtype": "int8"},
                {"group_ranks": [2, 3]}, {"concurrent": False}, {"mode": "hot"}, {"redop": "max"}, {"root": 1},
            )
        ),
        [{**record, "time_us": 0.0} for record in SIX],
    ],
)  # fmt: skip
def test_what_was_not_measured_six_times_alike_has_none(records):
    assert repeated(records) == [] and repeat_lines(records) == []


def test_a_table_has_a_line_for_each_cell_of_its_slowest_group():
    inter = [
        record
        for number, (low, high) in enumerate([(10, 20), (11, 21), (12, 22), (13, 23), (14, 24), (15, 25)])
        for record in (
            measurement(time_us=float(low), group="inter", group_ranks=[0, 2], **{"pass": number}),
            measurement(time_us=float(high), group="inter", group_ranks=[1, 3], **{"pass": number}),
        )
    ]
    lines = repeat_lines([*SIX, *inter])
    assert lines[0].startswith("what was measured 6 times or more: ")
    assert [line.split() for line in lines[2:]] == [
        ["all_reduce", "world", "float32", "pipelined", "yes", "1", "KiB", "6", "100.50", "3.5", "-", "0", "1"],
        ["all_reduce", "inter", "float32", "pipelined", "yes", "1", "KiB", "6", "22.50", "11.1", "-", "1", "3"],
    ]
    for line in lines:  # they may stand below nccl-tests' header
        assert "out-of-place" not in line and not ("time" in line and "busbw" in line)


def test_sweeps_agree_within_the_intervals_over_passes_where_those_of_single_passes_are_too_narrow():
    """A machine whose state, another every pass, is worth 2 % of a time, and samples that differ by 1 % beside it."""
    random = np.random.default_rng(1)

    def sweep():
        levels = 100 * np.exp(random.normal(0, 0.02, 6))
        samples = [list(level * np.exp(random.normal(0, 0.01, 20))) for level in levels]
        return [
            {**record, "time_us_interval": interval_of_median(of_pass)}
            for record, of_pass in zip(passes(map(median, samples)), samples, strict=True)
        ]

    def apart(one, other):
        return one[0] > other[1] or other[0] > one[1]

    sweeps = [sweep() for _ in range(400)]
    over_passes = [each.interval_us for records in sweeps for each in repeated(records)]
    of_one_pass = [records[0]["time_us_interval"] for records in sweeps]
    assert sum(apart(*both) for both in pairwise(over_passes)) < 0.01 * len(sweeps)
    assert sum(apart(*both) for both in pairwise(of_one_pass)) > 0.5 * len(sweeps)


def test_whoever_reads_a_file_needs_no_torch():
    code = "import sys, collbench.measure.repeats; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
