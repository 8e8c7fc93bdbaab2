from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.collectives import COLLECTIVES, REDOPS, bandwidths_GBps, check_redop, find_collective, message
from collbench.errors import InputError

FOUR = ["broadcast", "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"]
DIVIDED = ["all_gather_into_tensor", "reduce_scatter_tensor"]


def test_the_four_of_the_card_are_there_in_its_order():
    assert list(COLLECTIVES)[:4] == FOUR


# collective, requested bytes, ranks, bytes an element -> size and count columns of nccl-tests
@pytest.mark.parametrize(
    ("name", "requested", "nranks", "itemsize", "size", "count"),
    [
        ("all_reduce", 8, 8, 4, 8, 2),
        ("all_reduce", 1048576, 8, 4, 1048576, 262144),
        ("all_reduce", 8589934592, 8, 4, 8589934592, 2147483648),
        ("all_reduce", 1000000, 8, 4, 1000000, 250000),
        ("all_reduce", 1000001, 8, 4, 1000000, 250000),
        ("all_reduce", 7, 8, 4, 4, 1),
        ("all_reduce", 3, 8, 4, 0, 0),
        ("broadcast", 1048576, 8, 2, 1048576, 524288),
        ("broadcast", 15, 3, 8, 8, 1),
        ("all_gather_into_tensor", 1048576, 8, 4, 1048576, 32768),
        ("all_gather_into_tensor", 1000000, 8, 4, 999936, 31248),
        ("reduce_scatter_tensor", 1000000, 8, 4, 999936, 31248),
        ("reduce_scatter_tensor", 1048576, 8, 2, 1048576, 65536),
        ("all_gather_into_tensor", 128, 8, 4, 128, 4),
        ("all_gather_into_tensor", 127, 8, 4, 0, 0),
        ("reduce_scatter_tensor", 8, 2, 4, 0, 0),
        ("reduce_scatter_tensor", 32, 2, 4, 32, 4),
        ("all_gather_into_tensor", 1000000, 3, 4, 999984, 83332),
        ("all_gather_into_tensor", 1000000, 3, 8, 999984, 41666),
        ("all_gather_into_tensor", 1000000, 7, 1, 999936, 142848),
        ("all_gather_into_tensor", 100, 1, 4, 96, 24),
    ],
)
def test_sizes_and_counts_are_those_of_nccl_tests(name, requested, nranks, itemsize, size, count):
    sent = message(COLLECTIVES[name], requested, nranks, itemsize)
    assert (sent.size_bytes, sent.count) == (size, count)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(FOUR), st.integers(0, 2**40), st.integers(1, 4096), st.sampled_from([1, 2, 4, 8]))
def test_a_message_is_no_more_than_asked_and_aligned(name, requested, nranks, itemsize):
    sent = message(COLLECTIVES[name], requested, nranks, itemsize)
    if name in DIVIDED:
        assert sent.size_bytes == sent.count * nranks * itemsize
        assert sent.count * itemsize % 16 == 0
        lost = 16 * nranks  # less than one aligned block a rank is cut
    else:
        assert sent.size_bytes == sent.count * itemsize
        lost = itemsize
    assert requested - lost < sent.size_bytes <= requested


# Written from what moves: S bytes in n shares, each rank's link carries what is said here.
def bus_bytes(name, nranks):
    share = Fraction(1, nranks)
    if nranks == 1:
        return Fraction(0)
    if name == "broadcast":
        return Fraction(1)
    hops = sum(share for _ in range(nranks - 1))  # a share passes every link but one
    return 2 * hops if name == "all_reduce" else hops


@pytest.mark.parametrize("name", FOUR)
@pytest.mark.parametrize("nranks", range(1, 65))
def test_the_bus_factor_is_what_one_link_carries(name, nranks):
    assert COLLECTIVES[name].bus_factor(nranks) == pytest.approx(float(bus_bytes(name, nranks)), rel=1e-15)
    assert COLLECTIVES[name].sent_fraction(nranks) == pytest.approx(float(bus_bytes(name, nranks)), rel=1e-15)


@pytest.mark.parametrize("name", FOUR)
def test_one_rank_has_no_bus_bandwidth(name):
    assert bandwidths_GBps(COLLECTIVES[name], 1e9, 1000.0, 1) == (1000.0, 0.0)


def test_two_gigabytes_over_eight_ranks():
    algbw, busbw = bandwidths_GBps(COLLECTIVES["all_reduce"], 2e9, 140000.0, 8)
    assert algbw == pytest.approx(14.2857142857, rel=1e-9)
    assert busbw == pytest.approx(25.0, rel=1e-12)
    assert COLLECTIVES["all_reduce"].sent_fraction(8) * 2e9 == pytest.approx(3.5e9, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "size", "time_us", "algbw", "busbw"),
    [
        ("all_reduce", 1048576, 35.46, 29.57, 51.75),
        ("all_gather_into_tensor", 999936, 28.00, 35.71, 31.25),
        ("reduce_scatter_tensor", 1048576, 29.50, 35.54, 31.10),
        ("broadcast", 1048576, 35.46, 29.57, 29.57),
    ],
)
def test_bandwidths_equal_a_printed_row(name, size, time_us, algbw, busbw):
    got = bandwidths_GBps(COLLECTIVES[name], size, time_us, 8)
    assert [f"{value:.2f}" for value in got] == [f"{algbw:.2f}", f"{busbw:.2f}"]


@pytest.mark.parametrize(
    ("name", "nranks", "steps"),
    [
        ("all_reduce", 8, 14),
        ("all_reduce", 1, 0),
        ("all_gather_into_tensor", 8, 7),
        ("reduce_scatter_tensor", 2, 1),
        ("broadcast", 8, 1),
    ],
)
def test_ring_steps(name, nranks, steps):
    assert COLLECTIVES[name].ring_steps(nranks) == steps


@pytest.mark.parametrize(
    ("name", "program", "divided", "reduces", "rooted", "out_of_place"),
    [
        ("broadcast", "broadcast_perf", False, False, True, False),
        ("all_reduce", "all_reduce_perf", False, True, False, False),
        ("all_gather_into_tensor", "all_gather_perf", True, False, False, True),
        ("reduce_scatter_tensor", "reduce_scatter_perf", True, True, False, True),
    ],
)
def test_the_table_says_what_each_collective_is(name, program, divided, reduces, rooted, out_of_place):
    entry = COLLECTIVES[name]
    assert entry.program == program
    assert (entry.divided, entry.reduces, entry.rooted) == (divided, reduces, rooted)
    assert entry.out_of_place is out_of_place


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("all_gather", "all_gather_into_tensor"),
        ("all_gather_into_tensor", "all_gather_into_tensor"),
        ("all_gather_single", "all_gather_into_tensor"),
        ("reduce_scatter", "reduce_scatter_tensor"),
        ("reduce_scatter_tensor", "reduce_scatter_tensor"),
        ("all_reduce", "all_reduce"),
        ("broadcast", "broadcast"),
    ],
)
def test_short_names_are_accepted(text, name):
    assert find_collective(text).name == name


@pytest.mark.parametrize(("text", "near"), [("allreduce", "all_reduce"), ("brodcast", "broadcast")])
def test_an_unknown_collective_is_refused_with_the_nearest(text, near):
    with pytest.raises(InputError, match=rf"unknown collective '{text}' \(did you mean {near}\?\): one of broadcast, "):
        find_collective(text)


@pytest.mark.parametrize("text", ["", None, 3, "ALL_REDUCE"])
def test_what_is_no_collective_is_refused(text):
    with pytest.raises(InputError, match="unknown collective"):
        find_collective(text)


def test_reduction_operators_are_nccl_tests_own():
    assert REDOPS == ("sum", "prod", "max", "min", "avg")
    assert [check_redop(name) for name in REDOPS] == list(REDOPS)
    with pytest.raises(InputError, match=r"unknown reduction operator 'summ' \(did you mean sum\?\)"):
        check_redop("summ")
