"""Rows are believed where size, time and bandwidth agree; tables of another kind are converted, the rest refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from foreign_logs import measurements, read_text
from nccl_texts import FOOT, NEW, devices, log, rates, row, rows, time_us

from collbench.collectives import COLLECTIVES
from collbench.importers.check import Asked, judge
from collbench.importers.evidence import Evidence
from collbench.importers.table import Printed, Row, Table

GIB = 2**30 / 1e9


def printed(value, decimals=2):
    return Printed.read(f"{value:.{decimals}f}")


def table(collective="all_reduce", n=8, powers=range(20, 28), change=lambda **of: of, **of):
    """A table of one half, whose printed numbers `change` may make another tool's."""
    made = []
    for line, power in enumerate(powers, start=1):
        size = 2**power
        algbw, busbw = rates(collective, size, time_us(size), n)
        made.append((line, change(size=size, time=time_us(size), algbw=algbw, busbw=busbw)))
    return Table(
        format="x",
        line=1,
        timing="pipelined",
        rows=[
            Row(line=line, size_bytes=it["size"], time_us=printed(it["time"], 3), dtype="float32",
                algbw_GBps=printed(it["algbw"]), busbw_GBps=printed(it["busbw"]))
            for line, it in made
        ],
        **{"collective": collective, "nranks": n, **of},
    )  # fmt: skip


def judged(tested, **asked):
    return judge(tested, Asked(**asked), "log.txt")


def scaled(size=1, time=1.0, rate=1.0):
    def change(**of):
        return {
            "size": of["size"] // size,
            "time": of["time"] / time,
            "algbw": of["algbw"] / rate,
            "busbw": of["busbw"] / rate,
        }

    return change


def test_rows_that_agree_are_kept_as_they_are():
    tested = table()
    before = list(tested.rows)
    assert judged(tested) == []
    assert (tested.rows, tested.notes) == (before, [])


@pytest.mark.parametrize(
    ("factors", "says"),
    [
        ({"rate": GIB}, "GiB/s"),
        ({"rate": 1 / 8}, "Gbit/s"),
        ({"rate": 1e-3}, "MB/s"),
        ({"time": 1e3}, "ms"),
        ({"time": 1e6}, "times in this table are s"),
    ],
)
def test_another_unit_is_found_and_converted(factors, says):
    tested = table(powers=range(30, 38) if "time" in factors else range(20, 28), change=scaled(**factors))
    assert judged(tested) == []
    assert says in tested.notes[0]
    for row_ in tested.rows:
        assert row_.algbw_GBps.value == pytest.approx(row_.size_bytes / row_.time_us.value / 1e3, rel=0.05)


def test_sizes_of_one_rank_are_multiplied():
    tested = table("all_gather_into_tensor", 16, change=scaled(size=16))
    assert judged(tested) == []
    assert [row_.size_bytes for row_ in tested.rows] == [2**power for power in range(20, 28)]
    assert "16 ranks" in tested.notes[0]


def test_what_may_be_bits_or_sizes_of_eight_ranks_is_told_by_the_count_or_not_at_all():
    tested = table("all_gather_into_tensor", change=scaled(size=8))
    assert "no one reading" in judged(tested)[0].reason
    tested = table("all_gather_into_tensor", change=scaled(size=8))
    tested.rows = [replace(each, count=each.size_bytes // 4) for each in tested.rows]
    assert judged(tested) == []
    assert "8 ranks" in tested.notes[0]
    tested = table("all_reduce", change=scaled(rate=1 / 8))
    assert judged(tested) == []
    assert "Gbit/s" in tested.notes[0]


def test_all_gather_s_older_algbw_is_computed_anew():
    tested = table("all_gather_into_tensor", change=lambda **of: {**of, "algbw": of["busbw"]})
    assert judged(tested) == []
    assert "before 2020" in tested.notes[0]
    assert {row_.algbw_GBps for row_ in tested.rows} == {None}
    assert tested.rows[-1].busbw_GBps is not None


def test_hypercube_s_algbw_leaves_its_own_share_out():
    tested = table("hypercube")
    assert judged(tested) == []
    assert tested.notes == []


def test_a_row_that_disagrees_is_refused_with_its_line_and_reason():
    tested = table()
    tested.rows[3] = replace(tested.rows[3], time_us=printed(999.0))
    (refusal,) = judged(tested)
    assert refusal.line == 4
    assert "algbw says" in refusal.reason
    assert len(tested.rows) == 7


def test_a_busbw_of_other_ranks_in_one_row_is_refused():
    tested = table()
    bad = tested.rows[5]
    tested.rows[5] = Row(line=6, size_bytes=bad.size_bytes, time_us=bad.time_us, algbw_GBps=bad.algbw_GBps,
                         busbw_GBps=printed(bad.busbw_GBps.value * 1.2))  # fmt: skip
    (refusal,) = judged(tested)
    assert "busbw says" in refusal.reason
    assert "8 ranks" in refusal.reason


def test_a_table_that_no_reading_makes_agree_is_refused_as_a_whole():
    tested = table(change=scaled(rate=3.7))
    (refusal,) = judged(tested)
    assert "no one reading" in refusal.reason
    assert tested.rows == []


def test_a_time_of_zero_and_a_bandwidth_below_zero_are_refused():
    tested = table()
    of = {"line": 9, "size_bytes": 8, "algbw_GBps": None}
    tested.rows += [Row(time_us=printed(0.0), **of), Row(time_us=printed(5.0), busbw_GBps=printed(-1.0), **of)]
    assert [refusal.reason for refusal in judged(tested)] == ["its time is 0", "busbw -1 is below 0"]


def test_a_size_that_is_not_its_count_times_its_type_is_refused():
    body = rows()
    body[2] = body[2].replace(f"{2**20:12d}", f"{2**20 + 4:12d}")  # the count of 4 MiB of floats
    imported = read_text(log(body))
    assert [refusal.reason for refusal in imported.refused] == [f"size {2**22} is not count {2**20 + 4} x float32"]


def test_what_the_digits_leave_open_is_not_refused():
    """Times print two decimals, small bandwidths one digit."""
    assert len(measurements(read_text(log(rows(range(2, 25)))))) == 2 * 23


# --- ranks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"])
@pytest.mark.parametrize("n", [2, 3, 8, 12, 64])
def test_the_ratio_of_bandwidths_tells_the_ranks(collective, n):
    tested = table(collective, n, powers=range(26, 34))
    assert Evidence(tested.rows).ranks(COLLECTIVES[collective]).one == n


def test_the_ratio_is_no_better_than_its_digits():
    tested = table("all_reduce", 4096, powers=range(20, 24))
    ranks = Evidence(tested.rows).ranks(COLLECTIVES["all_reduce"])
    assert ranks.one is None
    assert 4096 in ranks
    assert 8 not in ranks


def test_some_wrong_rows_do_not_hide_the_ranks():
    tested = table("all_reduce", 16, powers=range(20, 30), nranks=None)
    bad = tested.rows[4]
    tested.rows[4] = Row(line=5, size_bytes=bad.size_bytes, time_us=bad.time_us, algbw_GBps=bad.algbw_GBps,
                         busbw_GBps=printed(bad.algbw_GBps.value * 1.5))  # fmt: skip
    assert len(judged(tested)) == 1
    assert (tested.nranks, tested.inferred["nranks"]) == (16, "busbw / algbw")


def test_a_collective_without_a_ratio_tells_no_ranks():
    tested = table("broadcast", nranks=None)
    assert judged(tested) == []
    assert tested.nranks is None
    assert "add" not in tested.notes[0]
    assert "--nranks" in tested.notes[0]


def test_one_rank_moves_nothing():
    imported = read_text(log(rows(n=1), listed=devices(1, 1)))
    assert {(record["nranks"], record["nnodes"], record["busbw_GBps"]) for record in measurements(imported)} == {
        (1, 1, 0.0)
    }


def test_what_the_user_says_counts_most():
    tested = table("all_reduce", nranks=8)
    refused = judged(tested, nranks=16)
    assert len(refused) == 8
    assert tested.nranks == 16
    tested = table("broadcast", nranks=None)
    assert judged(tested, nranks=16, nnodes=2) == []
    assert (tested.nranks, tested.nnodes) == (16, 2)


def test_the_type_the_user_names_is_that_of_rows_without_one():
    tested = table()
    tested.rows = [Row(line=1, size_bytes=1024, time_us=printed(5.0))]
    judged(tested, dtype="bfloat16")
    assert tested.rows[0].dtype == "bfloat16"


def test_a_row_alone_is_not_read_in_another_unit():
    """One number off by a factor is a misprint; a whole table off by it is a unit."""
    text = "\n".join([*NEW, row(24).replace("  ", " "), *FOOT])
    words = text.split("\n")
    words[3] = words[3].replace(row(24).split()[6], "1.23")
    imported = read_text("\n".join(words))
    assert all(len(table_.rows) == 1 for table_ in imported.tables)
    assert len(imported.refused) == 1
