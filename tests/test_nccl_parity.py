"""Parity: what is printed, computed a second time from a record's own samples, is the same to the byte.

nccl-tests' rules are written here again, as a table and in its own order of operations; the text is C's.
"""
# ruff: noqa: UP031

from __future__ import annotations

import json
from statistics import fmean, median

from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.collectives import COLLECTIVES, bandwidths_GBps, message
from collbench.dtypes import DTYPES
from collbench.nccl_style import find_generation
from collbench.nccl_table import TableStyle, row, rows_of
from collbench.results import ResultsWriter, load_results

# operation: (its count is a share of the ranks', bytes moved of n shares of b bytes, busbw / algbw, operator, rooted)
RULES = {
    "all_reduce": (False, None, lambda n: 2 * (n - 1) / n, True, False),
    "broadcast": (False, None, lambda n: 1, False, True),
    "reduce": (False, None, lambda n: 1, True, True),
    "all_gather_into_tensor": (True, lambda b, n: b * n, lambda n: (n - 1) / n, False, False),
    "reduce_scatter_tensor": (True, lambda b, n: b * n, lambda n: (n - 1) / n, True, False),
    "all_to_all_single": (True, lambda b, n: b * n, lambda n: (n - 1) / n, False, False),
    "gather": (True, lambda b, n: b * n, lambda n: (n - 1) / n, False, True),
    "scatter": (True, lambda b, n: b * n, lambda n: (n - 1) / n, False, True),
    "send_recv": (False, None, lambda n: 1, False, False),
    "hypercube": (True, lambda b, n: b * (n - 1), lambda n: 1, False, False),
}
TYPES = {"float32": ("float", 4), "float64": ("double", 8), "float16": ("half", 2), "bfloat16": ("bfloat16", 2),
         "int8": ("int8", 1), "uint8": ("uint8", 1), "int32": ("int32", 4), "int64": ("int64", 8),
         "float8_e4m3fn": ("f8e4m3", 1), "float8_e5m2": ("f8e5m2", 1)}  # fmt: skip
OPERATORS = ("sum", "prod", "max", "min", "avg")


def c_number(version, value, width):
    """The text that version writes: C's %f, as wide as it comes."""
    if version == "2.17.2":
        decimals = 2 if width == 6 or value < 100 else 1 if value < 10000 else 0
        return "%*.*f" % (width, decimals, value)
    for decimals in (2, 1, 0):
        if len("%.*f" % (decimals, value)) <= width:
            return "%*.*f" % (width, decimals, value)
    return "%*.*e" % (width, 1 if width == 7 else 0, value)


def expected_row(version, collective, dtype, requested, n, root, operator, halves):
    """The line for a requested size, from `halves` of samples: for each, batches of one time a rank in us."""
    divided, moved, factor, reduces, rooted = RULES[collective]
    name, itemsize = TYPES[dtype]
    count = requested // itemsize
    if divided:
        block = 16 // itemsize
        count = count // n // block * block
    size = count * itemsize * (n if divided else 1)
    redop = operator if reduces else {"send_recv": "sum", "hypercube": ""}.get(collective, "none")
    line = "%12d  %12d  %8s  %6s  %6s" % (size, count, name, redop, "%6d" % (root if rooted else -1))
    for batches in halves:
        time_us = median(fmean(ranks) for ranks in batches)
        seconds = time_us / 1e6
        algbw = (moved(count * itemsize, n) if divided else size) / 1e9 / seconds
        busbw = algbw * (factor(n) if n > 1 else 0)  # one rank moves nothing
        figures = (c_number(version, time_us, 7), c_number(version, algbw, 6), c_number(version, busbw, 6))
        line += "  %s  %s  %s  %s" % (*figures, "%5d" % 0 if version == "2.17.2" else "%6d" % 0)
    return line


@st.composite
def cells(draw):
    """(collective, type, requested bytes, ranks, root, operator, [[[us a rank] a batch] a half])."""
    collective = draw(st.sampled_from(sorted(RULES)))
    n = draw(st.sampled_from([1, 2, 4, 8, 16, 32, 64]) if collective == "hypercube" else st.integers(1, 64))
    requested = draw(st.one_of(st.integers(0, 4096), st.integers(0, 2**40), st.sampled_from([2**p for p in range(41)])))
    time_us = st.floats(0.5, draw(st.sampled_from([1e2, 1e4, 1e8])), exclude_min=True)
    ranks = st.lists(time_us, min_size=n, max_size=n)
    halves = [draw(st.lists(ranks, min_size=1, max_size=5)) for _ in range(2)]
    return (collective, draw(st.sampled_from(sorted(TYPES))), requested, n, draw(st.integers(0, n - 1)),
            draw(st.sampled_from(OPERATORS)), halves)  # fmt: skip


def record_of(collective, dtype, requested, n, root, operator, batches, half):
    """The record a run writes: its message, its samples, and the figures it makes of them."""
    operation = COLLECTIVES[collective]
    sent = message(operation, requested, n, DTYPES[dtype].itemsize)
    in_place, number = operation.halves(0)[half]
    time_us = median(fmean(ranks) for ranks in batches)
    algbw, busbw = bandwidths_GBps(operation, sent.size_bytes, time_us, n)
    return {
        "kind": "measurement", "run_id": "r1", "collective": collective, "group": "world",
        "group_ranks": list(range(n)), "nranks": n, "nnodes": 1, "dtype": dtype,
        "redop": operator if operation.reduces else None, "root": root if operation.rooted else None,
        "in_place": in_place, "pass": number, "size_bytes": sent.size_bytes, "count": sent.count,
        "timing": "pipelined", "concurrent": True, "time_us": time_us, "algbw_GBps": algbw, "busbw_GBps": busbw,
        "wrong": 0,
        "rank_samples_us": [list(samples) for samples in zip(*batches, strict=True)],
    }  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(cells(), st.sampled_from(["2.17.2", "2.19.6"]))
def test_a_printed_row_is_that_of_its_own_samples_to_the_byte(tmp_path_factory, cell, version):
    *what, halves = cell
    path = tmp_path_factory.mktemp("parity") / "r.jsonl"
    writer = ResultsWriter(path)
    writer.append({"kind": "run", "schema": "collbench.results/1", "run_id": "r1"})
    for half, batches in enumerate(halves):
        writer.append(record_of(*what, batches, half))
    writer.close()

    [found] = rows_of(load_results(path).measurements)
    printed = row(found, TableStyle(generation=find_generation(version)))
    kept = [json.loads(line).get("rank_samples_us") for line in path.read_text().splitlines()[1:]]
    batches = [[list(ranks) for ranks in zip(*samples, strict=True)] for samples in kept]
    assert printed == expected_row(version, *what, batches)
    path.unlink()


def test_the_table_knows_all_ten_operations_and_no_other():
    assert sorted(RULES) == sorted(COLLECTIVES)
