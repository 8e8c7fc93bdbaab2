"""What `show --nccl-tests` prints is read back to the same records, in every generation of the table."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_samples import COLLECTIVES, DIVIDED, VERSIONS, half, style, table
from sample_records import run_record

from collbench.collectives import COLLECTIVES as OURS
from collbench.dtypes import DTYPES
from collbench.importers.check import Asked
from collbench.importers.nccl_tests import FORMAT
from collbench.importers.reading import read_log
from collbench.importers.source import Log
from collbench.nccl_style import BANDWIDTH_WIDTH, TIME_WIDTH

_SAME = (
    "collective",
    "nranks",
    "nnodes",
    "dtype",
    "redop",
    "root",
    "size_bytes",
    "count",
    "timing",
    "pass",
    "iterations",
)


def _run(nodes, each, **changes):
    return run_record(
        world_size=nodes * each,
        backend="nccl",
        groups={"world": [list(range(nodes * each))]},
        nodes=[
            {
                "host": f"n{node}",
                "ranks": list(range(node * each, (node + 1) * each)),
                "devices": ["NVIDIA H200"] * each,
                "pids": [100 * node + rank + 1 for rank in range(each)],
            }
            for node in range(nodes)
        ],
        **changes,
    )


def _row(collective, dtype, elements, times_us, nodes, each, wrong, **changes):
    nranks = nodes * each
    share = OURS[collective].divided
    count = elements if not share else elements // 16 * 16
    size = count * DTYPES[dtype].itemsize * (nranks if share else 1)
    of_all = {"nranks": nranks, "group_ranks": list(range(nranks)), "nnodes": nodes}
    return tuple(
        [half(collective, size, count, dtype, time_us, right, **of_all, wrong=bad, **changes)]
        for time_us, right, bad in zip(times_us, (False, True), wrong, strict=True)
    )


_SHAPES = st.sampled_from([(1, 2), (1, 8), (2, 4), (2, 8), (4, 2), (3, 4), (8, 8)])
_TIMES = st.floats(0.5, 5e6)
_ROWS = st.lists(
    st.tuples(st.integers(1, 2**24), st.tuples(_TIMES, _TIMES), st.tuples(st.integers(0, 99), st.integers(0, 2**20))),
    min_size=1,
    max_size=6,
    unique_by=lambda row: row[0] // 16,
)


@settings(deadline=None, max_examples=120)
@given(
    collective=st.sampled_from(sorted(COLLECTIVES)),
    version=st.sampled_from(VERSIONS),
    dtype=st.sampled_from(sorted(DTYPES)),
    shape=_SHAPES,
    rows=_ROWS,
    with_stamps=st.booleans(),
    per_iter=st.booleans(),
)
def test_a_printed_table_is_read_back(collective, version, dtype, shape, rows, with_stamps, per_iter):
    nodes, each = (1, 8) if collective == "hypercube" else shape
    new = tuple(int(part) for part in version.split("."))
    like = style(version, timestamps=with_stamps and new >= (2, 17, 6), per_iter=per_iter and new >= (2, 19, 2))
    statistics = {"min_us": 1.25, "max_us": 99.5, "p99_us": 98.25, "cv_pct": 3.5}
    more = {"measured": "2026-01-02T03:04:05", "per_iter": statistics}
    printed = [
        _row(collective, dtype, elements, times, nodes, each, wrong, **more) for elements, times, wrong in sorted(rows)
    ]
    text = table(*printed, like=like, run=_run(nodes, each))
    imported = read_log(Log.of_text("log", text), [FORMAT], Asked(collective=collective))
    assert imported.refused == []
    ((run, *measured, _),) = imported.records()
    assert run["world_size"] == nodes * each
    assert [(node["host"], node["ranks"], node["devices"]) for node in run["nodes"]] == [
        (node["host"], node["ranks"], node["devices"]) for node in _run(nodes, each)["nodes"]
    ]
    assert len(measured) == 2 * len(printed)
    halves = [(left[0], False) if side == 0 else (right[0], True) for left, right in printed for side in (0, 1)]
    for mine, (theirs, in_place) in zip(measured, halves, strict=True):
        assert {name: mine[name] for name in _SAME} == {name: theirs[name] for name in _SAME}
        assert mine["in_place"] is in_place  # torch's one form fills both halves of nccl-tests' table
        for name, width in (("time_us", TIME_WIDTH), ("algbw_GBps", BANDWIDTH_WIDTH), ("busbw_GBps", BANDWIDTH_WIDTH)):
            assert mine[name] == float(like.generation.number(theirs[name], width))
        unchecked = in_place and not OURS[collective].in_place and not theirs["wrong"]
        # Six digits at most, and then an exponent, as nccl-tests' %g has them.
        assert mine["wrong"] == (None if unchecked else pytest.approx(theirs["wrong"], rel=1e-5))
        if like.timestamps:
            assert mine["measured"] == "2026-01-02T03:04:05"
        if like.per_iter:
            assert mine["per_iter"] == statistics


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("collective", sorted(COLLECTIVES))
def test_the_collective_is_told_by_the_table_alone(collective, version):
    """From 2.16.7 on it is stated; before, columns and numbers leave one or two."""
    rows = [_row(collective, "float32", 2**power, (20.0 + 2**power / 900, 21.0 + 2**power / 900), 2, 4, (0, 0))
            for power in range(12, 24)]  # fmt: skip
    text = table(*rows, like=style(version), run=_run(2, 4))
    (found,) = read_log(Log.of_text("log", text), [FORMAT], Asked()).tables
    assert collective in found.collective.split("/")
    assert "/" not in found.collective or collective in ("gather", "scatter")
    assert (found.nranks, found.nnodes) == (8, 2)


def test_options_that_are_not_training_s_keep_the_rows_apart():
    rows = [_row("all_reduce", "float32", 2**power, (50.0, 51.0), 1, 8, (0, 0)) for power in (10, 12)]
    sweep = {"agg_iters": 4, "cudagraph": 1, "blocking": 1, "iters": 30, "check": 1}
    text = table(*rows, like=style(), run=_run(1, 8, sweep=sweep))
    ((_, *measured, _),) = read_log(Log.of_text("log", text), [FORMAT], Asked()).records()
    assert {(record["mode"], record["iterations"]) for record in measured} == {
        ("agg_iters=4 blocking=1 cudagraph=1", 30)
    }


def test_times_of_the_host_s_calls_are_no_times_of_operations():
    rows = [_row("all_reduce", "float32", 1024, (50.0, 51.0), 1, 8, (0, 0), cpu_time_us=3.0)]
    text = table(*rows, like=style(cpu_time=True), run=_run(1, 8))
    imported = read_log(Log.of_text("log", text), [FORMAT], Asked())
    assert imported.tables == []
    assert "cputime" in imported.refused[0].reason


def test_a_size_that_was_asked_for_twice_is_one_record():
    twice = [_row("all_gather_into_tensor", "float32", 1024, (50.0, 51.0), 1, 8, (0, 0), requests=3)]
    text = table(*twice, like=style(), run=_run(1, 8))
    imported = read_log(Log.of_text("log", text), [FORMAT], Asked())
    ((_, *measured, _),) = imported.records()
    assert [record["requests"] for record in measured] == [3, 3]
    assert imported.rows == 3


def test_divided_sizes_are_those_of_all_ranks():
    for collective in DIVIDED:
        text = table(_row(collective, "float32", 1024, (50.0, 51.0), 1, 8, (0, 0)), like=style(), run=_run(1, 8))
        (found,) = read_log(Log.of_text("log", text), [FORMAT], Asked()).tables
        assert {(row.size_bytes, row.count) for row in found.rows} == {(32768, 1024)}
