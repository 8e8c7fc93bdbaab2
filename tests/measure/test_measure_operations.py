"""Buffers, patterns and the data check, on one process: what each rank would hold is computed here directly."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from collbench.collectives import COLLECTIVES, REDOPS
from collbench.dtypes import DTYPES
from collbench.measure import operations
from collbench.measure.operations import (
    OPERATIONS,
    Buffers,
    Group,
    allocate,
    buffer_bytes,
    fill_for_check,
    fill_for_timing,
    wrong_elements,
)
from collbench.sweep import Cell

CPU = torch.device("cpu")
AR, AG, RS = "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"
FOUR = ["broadcast", AR, AG, RS]
OUT_OF_PLACE = [AG, RS]
HALVES = [(name, True) for name in FOUR] + [(name, False) for name in OUT_OF_PLACE]
PERIOD = 61


def cell_of(collective, dtype="float32", redop=None, in_place=True, requested=4096, root=0):
    entry = COLLECTIVES[collective]
    return Cell(
        collective=collective,
        group="world",
        dtype=dtype,
        redop=(redop or "sum") if entry.reduces else None,
        root=root if entry.rooted else None,
        requested_bytes=requested,
        timing="isolated",
        in_place=in_place,
        repeat=0,
        concurrent=True,
    )


def reduced(sends, redop):
    table = torch.stack([send.double() for send in sends])
    by_name = {"sum": table.sum(0), "prod": table.prod(0), "max": table.amax(0), "min": table.amin(0)}
    return by_name[redop] if redop != "avg" else table.sum(0) / len(sends)


def filled(cell, nranks):
    """Every rank's group and buffers, as they are just before the checked call."""
    groups = [Group(None, tuple(range(nranks)), rank) for rank in range(nranks)]
    buffers = [allocate(cell, group, CPU) for group in groups]
    for group, own in zip(groups, buffers, strict=True):
        fill_for_timing(cell, own)
        fill_for_check(cell, group, own)
    return groups, buffers


def perform(cell, buffers, sends=None):
    """Do what the collective is defined to do."""
    nranks = len(buffers)
    sends = sends or [own.send.clone() for own in buffers]
    kind = buffers[0].recv.dtype
    if cell.collective == "broadcast":
        results = [sends[cell.root]] * nranks
    elif cell.collective == AR:
        results = [reduced(sends, cell.redop).to(kind)] * nranks
    elif cell.collective == AG:
        results = [torch.cat(sends)] * nranks
    else:
        results = list(reduced(sends, cell.redop).to(kind).chunk(nranks))
    for own, result in zip(buffers, results, strict=True):
        own.recv.copy_(result)


# --- patterns --------------------------------------------------------------------------------------------------------


def pattern_cell(dtype, redop):
    return cell_of(AR, dtype=dtype, redop=redop)


@pytest.mark.parametrize("redop", REDOPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_expected_table_is_the_direct_reduction_of_the_inputs(dtype, redop):
    cell, limit = pattern_cell(dtype, redop), DTYPES[dtype].exact_integers
    # The types differ by their limit alone, so every rank count is tried for one of each.
    every = redop == "sum" and dtype not in ("float64", "int32", "int64")
    for nranks in range(1, 65) if every else (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 48, 61, 64):
        inputs = torch.tensor([operations._inputs(cell, rank, nranks) for rank in range(nranks)], dtype=torch.float64)
        assert inputs.shape == (nranks, PERIOD)
        assert bool((inputs == inputs.round()).all()) and inputs.min() >= 0
        expected = torch.tensor(operations._reduced(cell, nranks), dtype=torch.float64)
        assert torch.equal(expected, reduced(list(inputs), redop)), nranks
        # Every partial sum, in any order, is a whole number the type holds exactly.
        if redop == "sum":
            assert inputs.sum(0).max() <= limit
        if redop == "prod":
            assert inputs.prod(0).max() <= limit
        if redop in ("max", "min"):
            assert inputs.max() <= limit


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("nranks", [*range(2, 34), 48, 61, 63, 64])
def test_a_mean_is_right_whether_scaled_before_or_after_the_sum(dtype, nranks):
    cell, kind = cell_of(AR, dtype=dtype, redop="avg", requested=PERIOD * DTYPES[dtype].itemsize), getattr(torch, dtype)
    groups, buffers = filled(cell, nranks)
    sends = [own.send.clone() for own in buffers]
    share = torch.tensor(1 / nranks, dtype=kind).double()
    before, after = torch.zeros(PERIOD, dtype=kind), torch.zeros(PERIOD, dtype=kind)
    for send in sends:
        before = (before.double() + (send.double() * share).to(kind).double()).to(kind)
        after = (after.double() + send.double()).to(kind)
    for mean in (before, (after.double() * share).to(kind)):
        buffers[0].recv.copy_(mean)
        assert wrong_elements(cell, groups[0], buffers[0]) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nranks", [2, 3, 8, 48, 64])
def test_sums_are_exact_in_the_type_itself_in_any_order(dtype, nranks):
    cell, kind = pattern_cell(dtype, "sum"), getattr(torch, dtype)
    sends = [torch.tensor(operations._inputs(cell, rank, nranks)).to(kind) for rank in range(nranks)]
    expected = torch.tensor(operations._reduced(cell, nranks), dtype=torch.float64)
    for order in (range(nranks), range(nranks - 1, -1, -1), sorted(range(nranks), key=lambda r: r * 37 % 65)):
        total = torch.zeros(PERIOD, dtype=kind)
        for rank in order:  # rounded to the type after every step, as a ring does
            total = (total.double() + sends[rank].double()).to(kind)
        assert torch.equal(total.double(), expected)


@pytest.mark.parametrize("redop", ["sum", "prod", "avg"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2"])
def test_no_rank_count_makes_the_result_the_same_everywhere(dtype, redop):
    cell = pattern_cell(dtype, redop)
    same_everywhere = [n for n in (*range(2, 20), 24, 32, 48, 63, 64) if len(set(operations._reduced(cell, n))) == 1]
    assert same_everywhere == []


@pytest.mark.parametrize("redop", ["max", "min"])
def test_maxima_and_minima_differ_from_place_to_place(redop):
    cell = pattern_cell("float32", redop)
    assert [
        n for n in (*range(2, 17), 24, 32, 59, 60, 61, 64, 128) if len(set(operations._reduced(cell, n))) == 1
    ] == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("nranks", [2, 3, 8, 60])
def test_no_two_ranks_send_the_same(dtype, nranks):
    for cell in (cell_of(AG, dtype=dtype), cell_of("broadcast", dtype=dtype)):
        sent = [tuple(operations._inputs(cell, rank, nranks)) for rank in range(nranks)]
        assert len(set(sent)) == nranks


# --- the check -------------------------------------------------------------------------------------------------------

SIZES = [8, 64, 1024, 4096, 61 * 4 * 8, 100_000]


@pytest.mark.parametrize("requested", SIZES)
@pytest.mark.parametrize("nranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(("collective", "in_place"), HALVES)
def test_a_right_result_has_no_wrong_element(collective, in_place, nranks, requested):
    cell = cell_of(collective, in_place=in_place, requested=requested, root=nranks - 1)
    groups, buffers = filled(cell, nranks)
    perform(cell, buffers)
    assert [wrong_elements(cell, group, own) for group, own in zip(groups, buffers, strict=True)] == [0] * nranks


@pytest.mark.parametrize("redop", REDOPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("collective", "in_place"), [(AR, True), (RS, False), (RS, True)])
def test_every_type_and_operator_is_checked_element_by_element(collective, in_place, dtype, redop):
    nranks = 5
    cell = cell_of(collective, dtype=dtype, redop=redop, in_place=in_place)
    groups, buffers = filled(cell, nranks)
    perform(cell, buffers)
    for rank, (group, own) in enumerate(zip(groups, buffers, strict=True)):
        assert wrong_elements(cell, group, own) == 0
        place = (rank * 97) % own.recv.numel()
        own.recv[place] = 2 + own.recv[place].double() * 2
        assert wrong_elements(cell, group, own) == 1


@pytest.mark.parametrize(("collective", "in_place"), HALVES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int64"])
def test_any_one_corrupted_element_is_seen(collective, in_place, dtype):
    nranks = 3
    cell = cell_of(collective, dtype=dtype, in_place=in_place, requested=2048)
    groups, buffers = filled(cell, nranks)
    perform(cell, buffers)
    for rank in range(nranks):
        recv = buffers[rank].recv
        for place in {0, 1, 59, 60, 61, 62, recv.numel() // 2, recv.numel() - 1}:
            right = recv[place].clone()
            recv[place] = right + 1
            assert wrong_elements(cell, groups[rank], buffers[rank]) == 1
            recv[place] = right
    assert wrong_elements(cell, groups[0], buffers[0]) == 0


def test_nan_and_infinity_are_wrong_in_a_mean_too():
    for redop in ("sum", "avg"):
        cell = cell_of(AR, redop=redop)
        groups, buffers = filled(cell, 2)
        perform(cell, buffers)
        buffers[0].recv[3] = float("nan")
        buffers[0].recv[4] = float("inf")
        assert wrong_elements(cell, groups[0], buffers[0]) == 2


@pytest.mark.parametrize(("collective", "in_place"), HALVES)
def test_a_call_that_did_nothing_is_seen(collective, in_place):
    cell = cell_of(collective, in_place=in_place, root=1)
    groups, buffers = filled(cell, 3)
    unmoved = [wrong_elements(cell, group, own) for group, own in zip(groups, buffers, strict=True)]
    if collective == "broadcast":
        assert unmoved[1] == 0  # the root has its own data
        unmoved.pop(1)
    assert all(wrong > 0 for wrong in unmoved)


@pytest.mark.parametrize("nranks", [2, 3, 4, 6, 9, 12])
@pytest.mark.parametrize("requested", [192 * 4, 1024 * 4, 36 * 4 * 12])
@pytest.mark.parametrize("redop", ["sum", "prod", "max", "avg"])
def test_another_ranks_share_is_not_ones_own(nranks, requested, redop):
    cell = cell_of(RS, redop=redop, in_place=False, requested=requested * nranks)
    groups, buffers = filled(cell, nranks)
    perform(cell, buffers)
    swapped = Buffers(buffers[0].send, buffers[1].recv)
    assert wrong_elements(cell, groups[0], swapped) > 0


@pytest.mark.parametrize("left_out", [0, 1, 5])
@pytest.mark.parametrize("redop", ["sum", "avg"])
def test_a_rank_that_was_left_out_is_seen(left_out, redop):
    cell = cell_of(AR, redop=redop)
    groups, buffers = filled(cell, 6)
    sends = [own.send.clone() for own in buffers]
    missed = int((sends[left_out] != 0).sum())  # wherever it had something
    sends[left_out].zero_()
    perform(cell, buffers, sends)
    assert wrong_elements(cell, groups[0], buffers[0]) == missed > 10


def test_an_operator_that_was_ignored_is_seen():
    # gloo of torch 2.8 sums in reduce_scatter whatever it is told
    for told in ("max", "min", "prod", "avg"):
        cell = cell_of(RS, redop=told, in_place=False)
        groups, buffers = filled(cell, 4)
        perform(cell_of(RS, redop="sum", in_place=False), buffers)
        assert wrong_elements(cell, groups[2], buffers[2]) > 0


def test_gathered_shares_in_the_wrong_order_are_seen():
    cell = cell_of(AG, in_place=False)
    groups, buffers = filled(cell, 4)
    sends = [own.send.clone() for own in buffers]
    perform(cell, buffers, [sends[1], sends[0], sends[2], sends[3]])
    share = buffers[0].recv.numel() // 4
    wrong = wrong_elements(cell, groups[3], buffers[3])
    assert share < wrong <= 2 * share


def test_a_mean_may_be_two_units_in_the_last_place_off_and_no_more():
    cell = cell_of(AR, redop="avg", requested=61 * 4)
    groups, buffers = filled(cell, 7)
    perform(cell, buffers)
    right = buffers[0].recv.clone()
    eps = torch.finfo(torch.float32).eps
    buffers[0].recv.copy_(right * (1 + eps))
    assert wrong_elements(cell, groups[0], buffers[0]) == 0
    buffers[0].recv.copy_(right.double() * (1 + 16 * eps))
    assert wrong_elements(cell, groups[0], buffers[0]) == 61
    # a sum has no tolerance at all
    cell = cell_of(AR, redop="sum", requested=61 * 4)
    groups, buffers = filled(cell, 7)
    perform(cell, buffers)
    buffers[0].recv.mul_(1 + 2 * eps)
    assert wrong_elements(cell, groups[0], buffers[0]) > 0


@pytest.mark.parametrize(("collective", "in_place"), HALVES)
def test_a_buffer_that_is_compared_in_pieces_is_compared_whole(monkeypatch, collective, in_place):
    monkeypatch.setattr(operations, "_CHUNK", 150)
    cell = cell_of(collective, in_place=in_place, requested=8192)
    groups, buffers = filled(cell, 3)
    perform(cell, buffers)
    for place in (121, 122, 123, 300, buffers[1].recv.numel() - 1):
        assert wrong_elements(cell, groups[1], buffers[1]) == 0
        right = buffers[1].recv[place].clone()
        buffers[1].recv[place] = right + 1
        assert wrong_elements(cell, groups[1], buffers[1]) == 1
        buffers[1].recv[place] = right


# --- buffers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collective", "in_place", "sent", "received", "bytes_held"),
    [
        ("broadcast", True, 1024, 1024, 4096),
        (AR, True, 1024, 1024, 4096),
        (AG, False, 256, 1024, 5120),
        (AG, True, 256, 1024, 4096),
        (RS, False, 1024, 256, 5120),
        (RS, True, 1024, 256, 4096),
    ],
)
def test_buffers_have_nccl_tests_sizes(collective, in_place, sent, received, bytes_held):
    cell = cell_of(collective, in_place=in_place)
    buffers = allocate(cell, Group(None, (0, 1, 2, 3), 2), CPU)
    assert (buffers.send.numel(), buffers.recv.numel()) == (sent, received)
    assert buffer_bytes(cell, 4) == bytes_held
    assert buffers.send.dtype == buffers.recv.dtype == torch.float32


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_in_place_the_smaller_buffer_is_this_ranks_part_of_the_larger(rank):
    group = Group(None, (8, 9, 10, 11), rank)  # global ranks play no part: the place is the rank inside the group
    gathered = allocate(cell_of(AG), group, CPU)
    assert gathered.send.data_ptr() == gathered.recv.data_ptr() + rank * 256 * 4
    scattered = allocate(cell_of(RS), group, CPU)
    assert scattered.recv.data_ptr() == scattered.send.data_ptr() + rank * 256 * 4
    for collective in ("broadcast", AR):
        same = allocate(cell_of(collective), group, CPU)
        assert same.send.data_ptr() == same.recv.data_ptr()


@pytest.mark.parametrize("collective", OUT_OF_PLACE)
def test_out_of_place_the_buffers_share_nothing(collective):
    buffers = allocate(cell_of(collective, in_place=False), Group(None, (0, 1), 1), CPU)
    buffers.recv.fill_(3)
    buffers.send.fill_(4)
    assert bool((buffers.recv == 3).all())


@pytest.mark.parametrize("redop", REDOPS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_what_is_timed_stays_finite_however_often_it_is_reduced_in_place(dtype, redop):
    cell = cell_of(AR, dtype=dtype, redop=redop)
    buffers = [allocate(cell, Group(None, tuple(range(8)), rank), CPU) for rank in range(8)]
    for own in buffers:
        fill_for_timing(cell, own)
    for _ in range(50):
        perform(cell, buffers)
    assert bool(torch.isfinite(buffers[0].recv).all())


def test_a_size_too_small_for_the_ranks_is_an_empty_call():
    for collective, in_place in HALVES[2:]:
        cell = cell_of(collective, in_place=in_place, requested=8)
        groups, buffers = filled(cell, 4)
        assert buffers[0].send.numel() == buffers[0].recv.numel() == 0
        assert buffer_bytes(cell, 4) == 0
        assert wrong_elements(cell, groups[0], buffers[0]) == 0


# --- torch's calls ---------------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
    """Every torch.distributed function a collective may use, recorded instead of run."""
    seen = []

    def recorder(name):
        def record(*tensors, **options):
            seen.append((name, tensors, options))
            return "work"

        return record

    for name in ("broadcast", "all_reduce", "all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor",
                 "reduce_scatter_single"):  # fmt: skip
        monkeypatch.setattr(dist, name, recorder(name), raising=False)
    return seen


def call(collective, group, **changes):
    cell = cell_of(collective, **changes)
    buffers = allocate(cell, group, CPU)
    assert OPERATIONS[collective].call(cell, group, buffers, True) == "work"
    return buffers


@pytest.mark.parametrize(("root", "source"), [(0, 3), (1, 5), (2, 9)])
def test_a_root_inside_the_group_is_a_global_source_for_torch(calls, root, source):
    buffers = call("broadcast", Group("handle", (3, 5, 9), 1), root=root)
    [(_, (tensor,), options)] = calls
    assert tensor is buffers.recv
    assert options == {"src": source, "group": "handle", "async_op": True}


@pytest.mark.parametrize(
    ("redop", "torchs"),
    [("sum", dist.ReduceOp.SUM), ("prod", dist.ReduceOp.PRODUCT), ("max", dist.ReduceOp.MAX),
     ("min", dist.ReduceOp.MIN), ("avg", dist.ReduceOp.AVG)],
)  # fmt: skip
def test_operators_are_torchs(calls, redop, torchs):
    group = Group("handle", (0, 1), 0)
    call(AR, group, redop=redop)
    call(RS, group, redop=redop, in_place=False)
    assert [options["op"] for _, _, options in calls] == [torchs, torchs]
    assert all(options["group"] == "handle" and options["async_op"] is True for _, _, options in calls)


@pytest.mark.parametrize(
    ("collective", "old", "new"),
    [(AG, "all_gather_into_tensor", "all_gather_single"), (RS, "reduce_scatter_tensor", "reduce_scatter_single")],
)
def test_the_name_this_torch_has_is_called_and_receives_before_it_sends(calls, monkeypatch, collective, old, new):
    group = Group("handle", (0, 1), 1)
    buffers = call(collective, group, in_place=False)
    name, (received, sent), _ = calls.pop()
    assert name == new
    assert received is buffers.recv and sent is buffers.send
    monkeypatch.delattr(dist, new)
    call(collective, group, in_place=False)
    assert calls.pop()[0] == old


def test_every_collective_has_an_operation():
    assert set(OPERATIONS) == set(COLLECTIVES)


def test_a_group_counts_its_ranks():
    assert Group(None, (4, 6, 8), 1).nranks == 3
