"""The table of collectives against a second one, written here from nccl-tests' src/<name>.cu and doc/PERFORMANCE.md."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.collectives import (
    COLLECTIVES,
    DEFAULT_COLLECTIVES,
    REDOPS,
    bandwidths_GBps,
    check_redop,
    find_collective,
    known_collective,
    message,
)
from collbench.errors import InputError

FOUR = ["broadcast", "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"]
SENDS_SHARES = ["reduce_scatter_tensor", "all_to_all_single", "scatter"]
RECEIVES_SHARES = ["all_gather_into_tensor", "all_to_all_single", "gather", "hypercube"]
DIVIDED = sorted({*SENDS_SHARES, *RECEIVES_SHARES})
IN_PLACE_ALONE = ["broadcast", "all_reduce", "reduce"]
OUT_OF_PLACE_ALONE = ["all_to_all_single", "send_recv"]
BOTH_FORMS = ["all_gather_into_tensor", "reduce_scatter_tensor", "gather", "scatter", "hypercube"]


def test_nccl_tests_ten_are_there_with_the_four_of_the_card_first():
    assert list(COLLECTIVES) == [
        *FOUR, "all_to_all_single", "reduce", "gather", "scatter", "send_recv", "hypercube",
    ]  # fmt: skip
    assert list(DEFAULT_COLLECTIVES) == FOUR


# --- sizes -----------------------------------------------------------------------------------------------------------


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
        ("reduce", 1000001, 8, 4, 1000000, 250000),
        ("send_recv", 1000001, 8, 4, 1000000, 250000),
        ("send_recv", 15, 2, 8, 8, 1),
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
        ("all_to_all_single", 1048576, 8, 4, 1048576, 32768),
        ("all_to_all_single", 1000000, 8, 4, 999936, 31248),
        ("gather", 1000000, 8, 4, 999936, 31248),
        ("scatter", 1000000, 7, 1, 999936, 142848),
        ("hypercube", 1000000, 8, 4, 999936, 31248),
        ("hypercube", 64, 4, 4, 64, 4),
        ("hypercube", 63, 4, 4, 0, 0),
    ],
)
def test_sizes_and_counts_are_those_of_nccl_tests(name, requested, nranks, itemsize, size, count):
    sent = message(COLLECTIVES[name], requested, nranks, itemsize)
    assert (sent.size_bytes, sent.count) == (size, count)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(list(COLLECTIVES)), st.integers(0, 2**40), st.integers(1, 4096), st.sampled_from([1, 2, 4, 8]))
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


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(list(COLLECTIVES)), st.integers(0, 2**40), st.integers(1, 4096), st.sampled_from([1, 2, 4, 8]))
def test_the_size_is_the_larger_of_the_two_buffers(name, requested, nranks, itemsize):
    sent = message(COLLECTIVES[name], requested, nranks, itemsize)
    elements = COLLECTIVES[name].elements(sent.count, nranks)
    assert elements == (
        sent.count * (nranks if name in SENDS_SHARES else 1),
        sent.count * (nranks if name in RECEIVES_SHARES else 1),
    )
    assert max(elements) * itemsize == sent.size_bytes


# --- bandwidths ------------------------------------------------------------------------------------------------------


# Written from what moves: S bytes in n shares, each rank's link carries what is said here. One rank moves nothing.
def bus_bytes(name, nranks):
    share = Fraction(1, nranks)
    if nranks == 1:
        return Fraction(0)
    if name in ("broadcast", "reduce", "send_recv"):
        return Fraction(1)
    hops = sum(share for _ in range(nranks - 1))  # a share passes every link but one
    return 2 * hops if name == "all_reduce" else hops


@pytest.mark.parametrize("name", COLLECTIVES)
def test_busbw_is_what_one_link_carries(name):
    for nranks in range(1, 65):
        assert COLLECTIVES[name].sent_fraction(nranks) == pytest.approx(float(bus_bytes(name, nranks)), rel=1e-15)
        _, busbw = bandwidths_GBps(COLLECTIVES[name], 3e9, 1e6, nranks)
        assert busbw == pytest.approx(3 * float(bus_bytes(name, nranks)), rel=1e-15), nranks


@pytest.mark.parametrize("name", COLLECTIVES)
def test_algbw_is_size_over_time_but_for_the_own_share_of_hypercube(name):
    for nranks in range(1, 65):
        algbw, busbw = bandwidths_GBps(COLLECTIVES[name], 3e9, 1e6, nranks)
        if name == "hypercube":
            assert algbw == busbw == pytest.approx(3 * (nranks - 1) / nranks, rel=1e-15)
        else:
            assert algbw == 3.0
            assert COLLECTIVES[name].algbw_factor(nranks) == 1


# facts of nccl-tests' columns for eight ranks, a second per operation and 8 GB: algbw, busbw
@pytest.mark.parametrize(
    ("name", "algbw", "busbw"),
    [
        ("broadcast", 8, 8),
        ("all_reduce", 8, 14),
        ("all_gather_into_tensor", 8, 7),
        ("reduce_scatter_tensor", 8, 7),
        ("all_to_all_single", 8, 7),
        ("reduce", 8, 8),
        ("gather", 8, 7),
        ("scatter", 8, 7),
        ("send_recv", 8, 8),
        ("hypercube", 7, 7),
    ],
)
def test_bandwidths_by_hand(name, algbw, busbw):
    assert bandwidths_GBps(COLLECTIVES[name], 8e9, 1e6, 8) == (algbw, busbw)


@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name != "hypercube"])
def test_one_rank_has_no_bus_bandwidth(name):
    assert bandwidths_GBps(COLLECTIVES[name], 1e9, 1000.0, 1) == (1000.0, 0.0)


def test_one_rank_of_a_hypercube_has_no_bandwidth_at_all():
    assert bandwidths_GBps(COLLECTIVES["hypercube"], 1e9, 1000.0, 1) == (0.0, 0.0)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_nothing_in_some_time_is_no_bandwidth(name):
    assert bandwidths_GBps(COLLECTIVES[name], 0, 12.5, 8) == (0.0, 0.0)


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
        ("all_to_all_single", 1048576, 40.50, 25.89, 22.65),
    ],
)
def test_bandwidths_equal_a_printed_row(name, size, time_us, algbw, busbw):
    got = bandwidths_GBps(COLLECTIVES[name], size, time_us, 8)
    assert [f"{value:.2f}" for value in got] == [f"{algbw:.2f}", f"{busbw:.2f}"]


@pytest.mark.parametrize(
    ("name", "steps"),  # of 1, 2, 8 ranks
    [
        ("broadcast", (1, 1, 1)),
        ("all_reduce", (0, 2, 14)),
        ("all_gather_into_tensor", (0, 1, 7)),
        ("reduce_scatter_tensor", (0, 1, 7)),
        ("all_to_all_single", (0, 1, 7)),
        ("reduce", (1, 1, 1)),
        ("gather", (0, 1, 7)),
        ("scatter", (0, 1, 7)),
        ("send_recv", (1, 1, 1)),
        ("hypercube", (0, 1, 3)),
    ],
)
def test_ring_steps(name, steps):
    assert tuple(COLLECTIVES[name].ring_steps(nranks) for nranks in (1, 2, 8)) == steps


def test_a_hypercube_needs_a_power_of_two():
    refusal = COLLECTIVES["hypercube"].refusal
    assert [nranks for nranks in range(1, 130) if refusal(nranks) is None] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert refusal(6) == "6 ranks are not a power of 2"


@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name != "hypercube"])
def test_all_others_run_on_any_number_of_ranks(name):
    assert {COLLECTIVES[name].refusal(nranks) for nranks in range(1, 70)} == {None}


# --- what each is ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "program", "reduces", "rooted", "redop"),
    [
        ("broadcast", "broadcast_perf", False, True, "none"),
        ("all_reduce", "all_reduce_perf", True, False, None),
        ("all_gather_into_tensor", "all_gather_perf", False, False, "none"),
        ("reduce_scatter_tensor", "reduce_scatter_perf", True, False, None),
        ("all_to_all_single", "alltoall_perf", False, False, "none"),
        ("reduce", "reduce_perf", True, True, None),
        ("gather", "gather_perf", False, True, "none"),
        ("scatter", "scatter_perf", False, True, "none"),
        ("send_recv", "sendrecv_perf", False, False, "sum"),
        ("hypercube", "hypercube_perf", False, False, ""),
    ],
)
def test_the_table_says_what_each_collective_is(name, program, reduces, rooted, redop):
    entry = COLLECTIVES[name]
    assert entry.program == program
    assert (entry.divided, entry.reduces, entry.rooted) == (name in DIVIDED, reduces, rooted)
    assert (entry.sends_shares, entry.receives_shares) == (name in SENDS_SHARES, name in RECEIVES_SHARES)
    if not reduces:  # else the operator itself is printed
        assert entry.table_redop == redop


def test_the_forms_are_those_torch_has():
    forms = {name: (entry.in_place, entry.out_of_place) for name, entry in COLLECTIVES.items()}
    assert forms == {
        **dict.fromkeys(IN_PLACE_ALONE, (True, False)),
        **dict.fromkeys(OUT_OF_PLACE_ALONE, (False, True)),
        **dict.fromkeys(BOTH_FORMS, (True, True)),
    }


@pytest.mark.parametrize(
    ("names", "sweep_pass", "halves"),
    [
        (BOTH_FORMS, 0, ((False, 0), (True, 0))),
        (BOTH_FORMS, 3, ((False, 3), (True, 3))),
        (IN_PLACE_ALONE, 0, ((True, 0), (True, 1))),
        (IN_PLACE_ALONE, 3, ((True, 6), (True, 7))),
        (OUT_OF_PLACE_ALONE, 0, ((False, 0), (False, 1))),
        (OUT_OF_PLACE_ALONE, 3, ((False, 6), (False, 7))),
    ],
)
def test_a_row_has_two_halves_of_the_forms_that_torch_has(names, sweep_pass, halves):
    for name in names:
        assert COLLECTIVES[name].halves(sweep_pass) == halves


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_record_knows_its_half_and_its_pass_over_the_sweep(name):
    entry = COLLECTIVES[name]
    seen = [half for sweep_pass in range(50) for half in entry.halves(sweep_pass)]
    assert len(set(seen)) == 100  # no two halves share what tells records apart
    assert [entry.half_of(*half) for half in seen] == [(number, half) for number in range(50) for half in (0, 1)]


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("all_gather", "all_gather_into_tensor"),
        ("all_gather_single", "all_gather_into_tensor"),
        ("reduce_scatter", "reduce_scatter_tensor"),
        ("reduce_scatter_single", "reduce_scatter_tensor"),
        ("all_to_all", "all_to_all_single"),
        ("alltoall", "all_to_all_single"),
        ("sendrecv", "send_recv"),
        *((name, name) for name in COLLECTIVES),
    ],
)
def test_short_names_are_accepted(text, name):
    assert find_collective(text).name == name
    assert known_collective(text) is COLLECTIVES[name]


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("allreduce", "all_reduce"),
        ("brodcast", "broadcast"),
        ("all_to_al_single", "all_to_all_single"),
        ("hypercub", "hypercube"),
    ],
)
def test_an_unknown_collective_is_refused_with_the_nearest(text, near):
    with pytest.raises(InputError, match=rf"unknown collective '{text}' \(did you mean {near}\?\): one of broadcast, "):
        find_collective(text)
    assert known_collective(text) is None


@pytest.mark.parametrize("text", ["", None, 3, "ALL_REDUCE"])
def test_what_is_no_collective_is_refused(text):
    with pytest.raises(InputError, match="unknown collective"):
        find_collective(text)


def test_reduction_operators_are_nccl_tests_own():
    assert REDOPS == ("sum", "prod", "max", "min", "avg", "mulsum")
    assert [check_redop(name) for name in REDOPS] == list(REDOPS)
    with pytest.raises(InputError, match=r"unknown reduction operator 'summ' \(did you mean sum\?\)"):
        check_redop("summ")
    for text in (None, 3, "SUM", ["sum"]):
        with pytest.raises(InputError, match="unknown reduction operator"):
            check_redop(text)
