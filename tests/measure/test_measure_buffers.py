"""Where the tensors of a call lie: nccl-tests' sizes and in-place layout, in slots that calls rotate through."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from one_process import CPU, FORMS, IN_PLACE, OUT_OF_PLACE, PERIOD, buffers_of, cell_of, filled, perform

from collbench.collectives import COLLECTIVES, REDOPS
from collbench.dtypes import DTYPES
from collbench.measure.buffers import Arena
from collbench.measure.groups import Group
from collbench.measure.slots import ALIGNMENT_BYTES, slot_of

AR, AG, RS = "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"
FOUR_RANKS = (8, 9, 10, 11)  # global ranks play no part: the place is the rank inside the group


def span(tensor):
    """[first, end) of a tensor's memory."""
    return tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()


def apart(one, other):
    return one[1] <= other[0] or other[1] <= one[0] or one[0] == one[1] or other[0] == other[1]


def of_call(own):
    """[first, end) of all that one call touches."""
    spans = [span(own.send), span(own.recv)]
    return min(first for first, _ in spans), max(end for _, end in spans)


def calls_of(arena, cell, group, calls, unalign=0):
    slot = slot_of(cell, group.nranks, group.rank, unalign)
    return list(islice(arena.buffers(cell, group, slot, calls), calls))


# --- one slot --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collective", "in_place", "sent", "received", "stride"),
    [
        ("broadcast", True, 1024, 1024, 4096),
        (AR, True, 1024, 1024, 4096),
        ("reduce", True, 1024, 1024, 4096),
        (AG, False, 256, 1024, 5120),
        (AG, True, 256, 1024, 4096),
        (RS, False, 1024, 256, 5120),
        (RS, True, 1024, 256, 4096),
        ("all_to_all_single", False, 1024, 1024, 8192),
        ("send_recv", False, 1024, 1024, 8192),
        ("gather", False, 256, 1024, 5120),
        ("gather", True, 256, 1024, 4096),
        ("scatter", False, 1024, 256, 5120),
        ("scatter", True, 1024, 256, 4096),
        ("hypercube", False, 256, 1024, 5120),
        ("hypercube", True, 256, 1024, 4096),
    ],
)
def test_buffers_have_nccl_tests_sizes(collective, in_place, sent, received, stride):
    cell, group = cell_of(collective, in_place=in_place), Group(None, FOUR_RANKS, 2)
    buffers = buffers_of(cell, group)
    assert (buffers.send.numel(), buffers.recv.numel()) == (sent, received)
    assert buffers.send.dtype == buffers.recv.dtype == torch.float32
    slot = slot_of(cell, 4, 2)
    assert (slot.sent, slot.received, slot.stride_bytes) == (sent, received, stride)


@pytest.mark.parametrize("unalign", [0, 3])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_in_place_the_smaller_buffer_is_this_ranks_part_of_the_larger(rank, unalign):
    group = Group(None, FOUR_RANKS, rank)
    for collective in IN_PLACE:
        own = buffers_of(cell_of(collective, in_place=True), group, unalign)
        if collective in (AG, "gather", "hypercube"):
            assert own.send.data_ptr() == own.recv.data_ptr() + rank * 256 * 4
        elif collective in (RS, "scatter"):
            assert own.recv.data_ptr() == own.send.data_ptr() + rank * 256 * 4
        else:
            assert own.send.data_ptr() == own.recv.data_ptr()


@pytest.mark.parametrize("collective", OUT_OF_PLACE)
def test_out_of_place_the_buffers_share_nothing(collective):
    own = buffers_of(cell_of(collective, in_place=False), Group(None, (0, 1), 1))
    own.recv.fill_(3)
    own.send.fill_(4)
    assert bool((own.recv == 3).all())


@pytest.mark.parametrize(("collective", "in_place"), FORMS)
def test_shares_are_the_buffer_that_is_made_of_shares(collective, in_place):
    own = buffers_of(cell_of(collective, in_place=in_place), Group(None, FOUR_RANKS, 1))
    divided = {AG: own.recv, "gather": own.recv, "hypercube": own.recv, RS: own.send, "scatter": own.send}
    if collective not in divided:
        assert own.shares == ()
        return
    whole = divided[collective]
    assert [span(share) for share in own.shares] == [span(whole[rank * 256 : (rank + 1) * 256]) for rank in range(4)]
    smaller = own.send if whole is own.recv else own.recv
    assert (span(own.shares[1]) == span(smaller)) is in_place


forms = st.sampled_from(FORMS)
any_cell = st.builds(
    lambda form, dtype, requested: cell_of(form[0], dtype=dtype, in_place=form[1], requested=requested),
    forms,
    st.sampled_from(list(DTYPES)),
    st.integers(0, 20_000),
)


@settings(deadline=None, max_examples=300)
@given(any_cell, st.integers(1, 9), st.integers(0, 8), st.integers(0, 9))
def test_every_buffer_begins_aligned_and_no_two_slots_touch(cell, nranks, rank, unalign):
    group = Group(None, tuple(range(nranks)), rank % nranks)
    slot = slot_of(cell, nranks, group.rank, unalign)
    arena = Arena(CPU, 5 * slot.stride_bytes, slot.stride_bytes)
    assert arena.slots(slot) == 5
    calls = calls_of(arena, cell, group, 5, unalign)
    off = unalign * DTYPES[cell.dtype].itemsize % ALIGNMENT_BYTES
    for own in calls:
        larger = max(own.send, own.recv, key=torch.numel)
        aligned = [larger] if cell.in_place else [own.send, own.recv]
        if larger.numel():  # an empty tensor has no address
            assert {tensor.data_ptr() % 512 for tensor in aligned if tensor.numel()} == {off}
        if not cell.in_place:
            assert apart(span(own.send), span(own.recv))
        else:
            assert of_call(own) == span(larger)
    touched = [of_call(own) for own in calls]
    assert all(apart(one, other) for index, one in enumerate(touched) for other in touched[:index])
    memory = span(arena._memory)
    assert all(memory[0] <= first and end <= memory[1] for first, end in touched if first != end)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("unalign", [0, 1, 7])
def test_unalign_is_in_elements(dtype, unalign):
    itemsize = DTYPES[dtype].itemsize
    for collective in (AR, "send_recv"):
        own = buffers_of(cell_of(collective, dtype=dtype), Group(None, (0, 1), 0), unalign)
        assert own.send.data_ptr() % 512 == own.recv.data_ptr() % 512 == unalign * itemsize


@pytest.mark.parametrize(("collective", "in_place"), FORMS)
def test_a_size_of_nothing_has_empty_tensors_of_the_type(collective, in_place):
    for requested, unalign in ((0, 0), (3, 0), (0, 5)):
        cell = cell_of(collective, dtype="float64", in_place=in_place, requested=requested)
        own = buffers_of(cell, Group(None, FOUR_RANKS, 3), unalign)
        assert own.send.numel() == own.recv.numel() == 0
        assert own.send.dtype == own.recv.dtype == torch.float64
        assert [share.numel() for share in own.shares] == ([0] * 4 if own.shares else [])


# --- the rotation ----------------------------------------------------------------------------------------------------


def offsets(calls):
    first = calls[0].send.data_ptr()
    return [own.send.data_ptr() - first for own in calls]


def test_consecutive_calls_work_on_consecutive_slots_and_begin_anew_after_the_last():
    cell, group = cell_of(AR, requested=4096), Group(None, (0, 1), 0)
    arena = Arena(CPU, 4 * 4096, 4096)
    assert offsets(calls_of(arena, cell, group, 10)) == [4096 * (call % 4) for call in range(10)]


def test_a_batch_goes_on_where_the_one_before_ended():
    cell, group = cell_of(AG, in_place=False, requested=4096), Group(None, FOUR_RANKS, 1)
    arena = Arena(CPU, 7 * 5120, 5120)
    batches = [calls_of(arena, cell, group, calls) for calls in (3, 2, 1, 4, 9, 7, 16, 2)]
    places = offsets([own for batch in batches for own in batch])
    assert places == [5120 * (call % 7) for call in range(44)]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 12)), min_size=2, max_size=6))
def test_a_cell_does_not_find_the_last_ones_data(batches):
    group, arena = Group(None, (0, 1), 0), Arena(CPU, 16 * 5120, 5120)
    before = None
    for size_bytes, calls in batches:
        cell = cell_of(AR, dtype="uint8", requested=size_bytes)
        now = calls_of(arena, cell, group, calls)
        if before is not None:
            assert apart(of_call(before), of_call(now[0]))
        before = now[-1]


@pytest.mark.parametrize("calls", [1, 2, 5])
def test_calls_beyond_those_foretold_go_on_through_all_slots(calls):
    # Samples that are void are done again, and must not find the data of the first ones in a cache.
    cell, group = cell_of(AR, requested=4096), Group(None, (0, 1), 0)
    slot, arena = slot_of(cell, 2, 0), Arena(CPU, 8 * 4096, 4096)
    buffers = list(islice(arena.buffers(cell, group, slot, calls), 8))
    assert len({own.send.data_ptr() for own in buffers}) == 8


@pytest.mark.parametrize("requested", [8, 1000, 4096, 65536])
def test_the_rotation_of_a_size_is_the_same_whatever_the_largest_of_the_sweep(requested):
    cell, group = cell_of("send_recv", requested=requested), Group(None, (0, 1), 0)
    slot, found = slot_of(cell, 2, 0), []
    for largest_bytes in (slot.stride_bytes, 2**17, 2**20, 2**22):
        arena = Arena(CPU, 2**18, largest_bytes)
        found.append((arena.slots(slot), offsets(calls_of(arena, cell, group, 50))))
    assert all(one == found[0] for one in found)
    assert found[0][0] == 2**18 // slot.stride_bytes


def test_where_two_slots_do_not_fit_there_is_one():
    cell, group = cell_of(AR, requested=2**18), Group(None, (0, 1), 0)
    for working_set_bytes in (0, 2**17, 2**18, 2**19 - 1):
        arena = Arena(CPU, working_set_bytes, 2**18)
        assert arena.slots(slot_of(cell, 2, 0)) == 1
        assert len(set(offsets(calls_of(arena, cell, group, 5)))) == 1
    assert Arena(CPU, 2**19, 2**18).slots(slot_of(cell, 2, 0)) == 2


def test_hot_is_one_slot_for_every_size():
    group, arena = Group(None, (0, 1), 0), Arena(CPU, 0, 2**16)
    places = {
        own.send.data_ptr()
        for requested in (8, 4096, 2**16)
        for own in calls_of(arena, cell_of(AR, requested=requested), group, 5)
    }
    assert len(places) == 1


def test_ranks_of_a_group_have_slots_of_one_size():
    # Rank 0's slot says how much memory every rank needs.
    for collective, in_place in FORMS:
        cell = cell_of(collective, in_place=in_place, requested=5000)
        assert len({slot_of(cell, 7, rank, 2).stride_bytes for rank in range(7)}) == 1


def test_no_call_at_all_needs_no_buffers():
    cell = cell_of(AR)
    arena = Arena(CPU, 8 * 4096, 4096)
    assert calls_of(arena, cell, Group(None, (0, 1), 0), 0) == []


# --- what stands in them ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("redop", REDOPS)
@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if COLLECTIVES[name].reduces])
def test_what_is_timed_stays_finite_however_often_it_is_reduced(collective, redop):
    for dtype in ("float16", "bfloat16", "float32"):
        cell = cell_of(collective, dtype=dtype, redop=redop)
        buffers = [buffers_of(cell, Group(None, tuple(range(8)), rank)) for rank in range(8)]
        for _ in range(50):
            perform(cell, buffers)
        assert all(bool(torch.isfinite(own.recv).all()) for own in buffers)


@pytest.mark.parametrize(("collective", "in_place"), FORMS)
def test_what_a_check_wrote_is_put_back(collective, in_place):
    cell = cell_of(collective, in_place=in_place, requested=PERIOD * 16 * 4)
    _, buffers = filled(cell, 4)
    perform(cell, buffers)
    arena = Arena(CPU, 0, 4096)
    for own in buffers:
        assert bool((own.send != 0).any())
        arena.clear(own)
        assert not bool((own.send != 0).any()) and not bool((own.recv != 0).any())
