"""The pattern of the data check: exact in every type, different from rank to rank and from place to place."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from one_process import PERIOD, buffers_of, cell_of, groups_of, reduced

from collbench.collectives import COLLECTIVES, REDOPS
from collbench.dtypes import DTYPES
from collbench.measure import pattern
from collbench.measure.groups import Group
from collbench.measure.pattern import Part

FLOATS = ["float32", "float64", "float16", "bfloat16"]


def reducing(dtype, redop):
    return cell_of("all_reduce", dtype=dtype, redop=redop)


def inputs_of(cell, nranks):
    return torch.tensor([pattern.inputs(cell, rank, nranks) for rank in range(nranks)], dtype=torch.float64)


def expected(cell, nranks):
    [part] = pattern.expect_reduced(cell, Group(None, tuple(range(nranks)), 0), 64)
    assert part.first == 0
    return part.values


@pytest.mark.parametrize("redop", REDOPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_expected_table_is_the_direct_reduction_of_the_inputs(dtype, redop):
    cell, limit = reducing(dtype, redop), DTYPES[dtype].exact_integers
    # The types differ by their limit alone, so every rank count is tried for one of each.
    every = redop == "sum" and dtype not in ("float64", "int32", "uint32", "int64", "uint64")
    for nranks in range(1, 65) if every else (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 48, 61, 64):
        inputs = inputs_of(cell, nranks)
        assert inputs.shape == (nranks, PERIOD)
        assert bool((inputs == inputs.round()).all()) and inputs.min() >= 0
        table = torch.tensor(expected(cell, nranks), dtype=torch.float64)
        assert torch.equal(table, reduced(list(inputs), redop)), nranks
        # Every partial result, in any order, is a whole number the type holds exactly.
        if redop in ("sum", "prod", "mulsum"):
            assert table.max() <= limit
        if redop in ("max", "min"):
            assert inputs.max() <= limit


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if not COLLECTIVES[name].reduces])
def test_what_is_only_moved_has_whole_numbers_that_the_type_holds(collective, dtype):
    inputs = inputs_of(cell_of(collective, dtype=dtype), 64)
    assert bool((inputs == inputs.round()).all()) and inputs.min() >= 0
    assert inputs.max() <= DTYPES[dtype].exact_integers


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_mean_is_right_whether_scaled_before_or_after_the_sum(dtype):
    cell, kind = reducing(dtype, "avg"), getattr(torch, dtype)
    for nranks in (*range(2, 34), 48, 61, 63, 64):
        sends = [row.to(kind) for row in inputs_of(cell, nranks)]
        share = torch.tensor(1 / nranks, dtype=kind).double()
        before, after = torch.zeros(PERIOD, dtype=kind), torch.zeros(PERIOD, dtype=kind)
        for send in sends:
            before = (before.double() + (send.double() * share).to(kind).double()).to(kind)
            after = (after.double() + send.double()).to(kind)
        for mean in (before, (after.double() * share).to(kind)):
            assert pattern.differing(cell, mean, Part(0, expected(cell, nranks))) == 0, nranks


@pytest.mark.parametrize("redop", ["sum", "mulsum"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_exact_in_the_type_itself_in_any_order(dtype, redop):
    cell, kind = reducing(dtype, redop), getattr(torch, dtype)
    factor = pattern.MULTIPLIER if redop == "mulsum" else 1
    for nranks in (2, 3, 8, 48, 64):
        sends = [(row * factor).to(kind) for row in inputs_of(cell, nranks)]
        table = torch.tensor(expected(cell, nranks), dtype=torch.float64)
        for order in (range(nranks), range(nranks - 1, -1, -1), sorted(range(nranks), key=lambda r: r * 37 % 65)):
            total = torch.zeros(PERIOD, dtype=kind)
            for rank in order:  # rounded to the type after every step, as a ring does
                total = (total.double() + sends[rank].double()).to(kind)
            assert torch.equal(total.double(), table), nranks


@pytest.mark.parametrize("redop", ["sum", "prod", "avg", "mulsum"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint64", "float8_e4m3fn", "float8_e5m2"])
def test_no_rank_count_makes_the_result_the_same_everywhere(dtype, redop):
    cell = reducing(dtype, redop)
    same_everywhere = [n for n in (*range(2, 20), 24, 32, 48, 63, 64) if len(set(expected(cell, n))) == 1]
    assert same_everywhere == []


@pytest.mark.parametrize("redop", ["max", "min"])
def test_maxima_and_minima_differ_from_place_to_place(redop):
    cell = reducing("float32", redop)
    assert [n for n in (*range(2, 17), 24, 32, 59, 60, 61, 64, 128) if len(set(expected(cell, n))) == 1] == []


# Of all operators but max and min, where one rank alone decides at a place. NCCL multiplies no float8.
@pytest.mark.parametrize(
    ("dtype", "redop"),
    [(dtype, redop) for redop in ("sum", "prod", "avg", "mulsum") for dtype in DTYPES
     if not (redop == "mulsum" and dtype.startswith("float8"))],
)  # fmt: skip
def test_every_rank_has_a_part_in_the_result(dtype, redop):
    for nranks in (2, 3, 5, 8, 16, 31, 48, 61):  # as many as there are places in the pattern
        inputs = inputs_of(reducing(dtype, redop), nranks)
        nothing = 1.0 if redop == "prod" else 0.0
        without = [rank for rank in range(nranks) if bool((inputs[rank] == nothing).all())]
        assert without == [], nranks


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint32", "uint64"])
@pytest.mark.parametrize("nranks", [2, 3, 8, 60])
def test_no_two_ranks_send_the_same(dtype, nranks):
    for name, entry in COLLECTIVES.items():
        if not entry.reduces:
            cell = cell_of(name, dtype=dtype)
            assert len({tuple(pattern.inputs(cell, rank, nranks)) for rank in range(nranks)}) == nranks


@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn", "float8_e5m2", "uint8", "uint64"])
def test_neighbouring_shares_differ(dtype):
    values = pattern.inputs(cell_of("scatter", dtype=dtype), 3, 8)
    for count in (4, 8, 16, 60, 64, 256, 1000, 4096):
        shares = [[values[(rank * count + place) % PERIOD] for place in range(min(count, PERIOD))] for rank in range(8)]
        assert all(shares[rank] != shares[rank + 1] for rank in range(7))


# --- who expects what ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", [0, 2])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_parts_of_a_receive_buffer(root, rank):
    group, count = Group(None, (4, 7, 9), rank), 100
    moved, summed = cell_of("broadcast", root=root), reducing("float32", "sum")
    of_rank = [pattern.inputs(moved, sender, 3) for sender in range(3)]
    total = expected(summed, 3)
    assert pattern.expect_root(moved, group, count) == [Part(0, of_rank[root])]
    assert pattern.expect_share_of_root(moved, group, count) == [Part(100 * rank, of_rank[root])]
    assert pattern.expect_gathered(moved, group, count) == [Part(0, values) for values in of_rank]
    assert pattern.expect_shares_of_all(moved, group, count) == [Part(100 * rank, values) for values in of_rank]
    assert pattern.expect_rank_before(moved, group, count) == [Part(0, of_rank[(rank + 2) % 3])]
    assert pattern.expect_reduced(summed, group, count) == [Part(0, total)]
    assert pattern.expect_reduced_share(summed, group, count) == [Part(100 * rank, total)]


# --- laying it out, and comparing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_buffer_is_tiled_with_the_period(dtype):
    values = [float(place % 8) for place in range(PERIOD)]
    for elements in (0, 1, 60, 61, 62, 500):
        tensor = torch.zeros(elements, dtype=getattr(torch, dtype))
        pattern.tile(tensor, values)
        assert tensor.double().tolist() == [values[place % PERIOD] for place in range(elements)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_part_is_compared_from_its_own_place_in_the_pattern(dtype):
    cell = cell_of("scatter", dtype=dtype)
    values = pattern.inputs(cell, 2, 8)
    for first in (0, 1, 60, 61, 4096):
        whole = torch.zeros(first + 300, dtype=getattr(torch, dtype))
        pattern.tile(whole, values)
        share = whole[first:].clone()
        assert pattern.differing(cell, share, Part(first, values)) == 0
        for place in (0, 299):
            share[place] = 1 if share[place].double() != 1 else 2
        assert pattern.differing(cell, share, Part(first, values)) == 2
        assert pattern.differing(cell, whole[first:], Part(first + 1, values)) > 100


def test_types_with_all_their_bits_are_told_apart():
    # Above 2^53 neighbours are one float64; above 2^31 and 2^63 they are negative to the type that compares them.
    for dtype, large in (("int64", 2**62), ("uint64", 2**63 + 2**10), ("uint32", 2**32 - 2)):
        cell, part = cell_of("broadcast", dtype=dtype), Part(0, [0.0] * PERIOD)
        received = torch.from_numpy(np.array([0, large, 0], dtype=dtype))
        assert pattern.differing(cell, received, part) == 1


def test_a_mean_may_be_two_units_in_the_last_place_off_and_no_more():
    eps = torch.finfo(torch.float32).eps
    mean, total = reducing("float32", "avg"), reducing("float32", "sum")
    right = torch.tensor(expected(mean, 7), dtype=torch.float64)
    some = int((right != 0).sum())
    assert pattern.differing(mean, (right * (1 + eps)).float(), Part(0, expected(mean, 7))) == 0
    assert pattern.differing(mean, (right * (1 + 16 * eps)).float(), Part(0, expected(mean, 7))) == some > 30
    # a sum has no tolerance at all
    right = torch.tensor(expected(total, 7), dtype=torch.float64)
    assert pattern.differing(total, (right * (1 + 2 * eps)).float(), Part(0, expected(total, 7))) > 0


def test_a_mean_of_integers_is_cut():
    cell = reducing("int32", "avg")
    exact = expected(cell, 4)
    assert any(value != int(value) for value in exact)
    received = torch.tensor([int(value) for value in exact], dtype=torch.int32)
    assert pattern.differing(cell, received, Part(0, exact)) == 0
    assert pattern.differing(cell, received + 1, Part(0, exact)) == PERIOD


def test_a_long_buffer_is_compared_whole_in_pieces(monkeypatch):
    monkeypatch.setattr(pattern, "_CHUNK", 2 * PERIOD)
    cell, group = cell_of("broadcast", requested=8192), groups_of(3)[1]
    values, own = pattern.inputs(cell, 0, 3), buffers_of(cell, group)
    pattern.tile(own.recv, values)
    for place in (0, 121, 122, 123, 300, own.recv.numel() - 1):
        assert pattern.differing(cell, own.recv, Part(0, values)) == 0
        own.recv[place] += 1
        assert pattern.differing(cell, own.recv, Part(0, values)) == 1
        own.recv[place] -= 1
