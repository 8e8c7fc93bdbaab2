"""Torch's calls and the data check, on one process: what each rank would hold is computed here directly."""

from __future__ import annotations

import queue
import threading
from itertools import count
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from one_process import (
    FORMS,
    ON_THE_ROOT,
    OTHER_FORMS,
    REDUCING_FORMS,
    buffers_of,
    cell_of,
    filled,
    perform,
    results_of,
    swapped,
    wrongs,
)

from collbench.collectives import COLLECTIVES, REDOPS
from collbench.dtypes import DTYPES
from collbench.measure import operations, pattern
from collbench.measure.groups import Group
from collbench.measure.operations import OPERATIONS, wrong_elements

AR, AG, RS = "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"
SHARE_FORMS = [(name, in_place) for name, in_place in FORMS if COLLECTIVES[name].divided]


def receivers(cell, nranks):
    return [cell.root] if cell.collective in ON_THE_ROOT else list(range(nranks))


# --- the check -------------------------------------------------------------------------------------------------------

SIZES = [8, 64, 1024, 4096, 61 * 4 * 8, 100_000]


@pytest.mark.parametrize("nranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(("collective", "in_place"), FORMS)
def test_a_right_result_has_no_wrong_element(collective, in_place, nranks):
    for requested in SIZES:
        cell = cell_of(collective, in_place=in_place, requested=requested, root=nranks - 1)
        groups, buffers = filled(cell, nranks)
        perform(cell, buffers)
        assert wrongs(cell, groups, buffers) == [0] * nranks


def spoil(own, place):
    """Put a number there that no tolerance forgives; returns what stood there."""
    right = own.recv[place].clone()
    own.recv[place] = 2 + right.double() * 2
    return right


def check_every_rank(cell, nranks):
    groups, buffers = filled(cell, nranks)
    perform(cell, buffers)
    for rank in range(nranks):
        assert wrong_elements(cell, groups[rank], buffers[rank]) == 0
        spoil(buffers[rank], (rank * 97) % buffers[rank].recv.numel())
        assert wrong_elements(cell, groups[rank], buffers[rank]) == int(rank in receivers(cell, nranks))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("collective", "in_place"), REDUCING_FORMS)
def test_every_type_and_operator_is_checked_element_by_element(collective, in_place, dtype):
    for redop in REDOPS:
        check_every_rank(cell_of(collective, dtype=dtype, redop=redop, in_place=in_place, root=3), 5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("collective", "in_place"), OTHER_FORMS)
def test_every_type_that_is_only_moved_is_checked_element_by_element(collective, in_place, dtype):
    check_every_rank(cell_of(collective, dtype=dtype, in_place=in_place, root=2), 4)


@pytest.mark.parametrize(("collective", "in_place"), FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int64", "uint64"])
def test_any_one_corrupted_element_is_seen(collective, in_place, dtype):
    nranks = 4
    cell = cell_of(collective, dtype=dtype, in_place=in_place, requested=2048, root=1)
    groups, buffers = filled(cell, nranks)
    perform(cell, buffers)
    for rank in receivers(cell, nranks):
        last = buffers[rank].recv.numel() - 1
        for place in {place for place in (0, 1, 59, 60, 61, 62, last // 2, last) if place <= last}:
            right = spoil(buffers[rank], place)
            assert wrong_elements(cell, groups[rank], buffers[rank]) == 1
            buffers[rank].recv[place] = right
    assert wrongs(cell, groups, buffers) == [0] * nranks


@pytest.mark.parametrize(("collective", "in_place"), [form for form in FORMS if form[0] in ON_THE_ROOT])
@pytest.mark.parametrize("root", [0, 2])
def test_ranks_other_than_the_root_expect_nothing(collective, in_place, root):
    cell = cell_of(collective, in_place=in_place, root=root)
    groups, buffers = filled(cell, 3)
    perform(cell, buffers)
    for rank in {0, 1, 2} - {root}:
        buffers[rank].recv.fill_(77)  # gloo's reduce leaves partial sums there
    assert wrongs(cell, groups, buffers) == [0, 0, 0]
    buffers[root].recv.fill_(77)
    assert wrong_elements(cell, groups[root], buffers[root]) == buffers[root].recv.numel()


def test_nan_and_infinity_are_wrong_in_a_mean_too():
    for redop in ("sum", "avg"):
        cell = cell_of(AR, redop=redop)
        groups, buffers = filled(cell, 2)
        perform(cell, buffers)
        buffers[0].recv[3] = float("nan")
        buffers[0].recv[4] = float("inf")
        assert wrong_elements(cell, groups[0], buffers[0]) == 2


@pytest.mark.parametrize(("collective", "in_place"), FORMS)
def test_a_call_that_did_nothing_is_seen(collective, in_place):
    cell = cell_of(collective, in_place=in_place, root=1)
    groups, buffers = filled(cell, 4)
    unmoved = wrongs(cell, groups, buffers)
    # Where the root has its own data already there is nothing to do on it.
    has_its_own = collective == "broadcast" or (collective == "scatter" and in_place)
    for rank, wrong in enumerate(unmoved):
        nothing_to_do = rank not in receivers(cell, 4) or (has_its_own and rank == 1)
        assert (wrong == 0) == nothing_to_do, rank


@pytest.mark.parametrize("nranks", [2, 3, 4, 6, 9, 12])
@pytest.mark.parametrize("redop", ["sum", "prod", "max", "avg", "mulsum"])
def test_another_ranks_share_is_not_ones_own(nranks, redop):
    for requested in (192 * 4, 1024 * 4, 36 * 4 * 12):
        cell = cell_of(RS, redop=redop, in_place=False, requested=requested * nranks)
        groups, buffers = filled(cell, nranks)
        perform(cell, buffers)
        assert wrong_elements(cell, groups[0], swapped(buffers[0], buffers[1])) > 0


@pytest.mark.parametrize("collective", ["scatter", "all_to_all_single", "send_recv"])
def test_another_ranks_result_is_not_ones_own(collective):
    for nranks in (2, 3, 4, 8):
        cell = cell_of(collective, in_place=False, requested=1024 * nranks)
        groups, buffers = filled(cell, nranks)
        perform(cell, buffers)
        for rank in range(nranks):
            assert wrong_elements(cell, groups[rank], swapped(buffers[rank], buffers[rank - 1])) > 0


@pytest.mark.parametrize("left_out", [0, 1, 5])
@pytest.mark.parametrize("redop", ["sum", "avg", "mulsum"])
@pytest.mark.parametrize("collective", [AR, "reduce"])
def test_a_rank_that_was_left_out_is_seen(collective, left_out, redop):
    cell = cell_of(collective, redop=redop)
    groups, buffers = filled(cell, 6)
    sends = [own.send.clone() for own in buffers]
    missed = int((sends[left_out] != 0).sum())  # wherever it had something
    sends[left_out].zero_()
    perform(cell, buffers, sends)
    assert wrong_elements(cell, groups[0], buffers[0]) == missed > 10


def test_an_operator_that_was_ignored_is_seen():
    # gloo of torch 2.8 sums in reduce_scatter whatever it is told
    for told in ("max", "min", "prod", "avg", "mulsum"):
        cell = cell_of(RS, redop=told, in_place=False)
        groups, buffers = filled(cell, 4)
        perform(cell_of(RS, redop="sum", in_place=False), buffers)
        assert wrong_elements(cell, groups[2], buffers[2]) > 0


@pytest.mark.parametrize("collective", [AG, "gather", "hypercube", "all_to_all_single"])
def test_gathered_shares_in_the_wrong_order_are_seen(collective):
    cell = cell_of(collective, in_place=False, root=3)
    groups, buffers = filled(cell, 4)
    sends = [own.send.clone() for own in buffers]
    perform(cell, buffers, [sends[1], sends[0], sends[2], sends[3]])
    share = buffers[3].recv.numel() // 4
    assert share < wrong_elements(cell, groups[3], buffers[3]) <= 2 * share


@pytest.mark.parametrize(("collective", "in_place"), FORMS)
def test_a_buffer_that_is_compared_in_pieces_is_compared_whole(monkeypatch, collective, in_place):
    monkeypatch.setattr(pattern, "_CHUNK", 122)
    cell = cell_of(collective, in_place=in_place, requested=8192, root=1)
    groups, buffers = filled(cell, 4)
    perform(cell, buffers)
    last = buffers[1].recv.numel() - 1
    for place in {min(place, last) for place in (121, 122, 123, 300, last)}:
        assert wrong_elements(cell, groups[1], buffers[1]) == 0
        right = spoil(buffers[1], place)
        assert wrong_elements(cell, groups[1], buffers[1]) == 1
        buffers[1].recv[place] = right


@pytest.mark.parametrize(("collective", "in_place"), SHARE_FORMS)
def test_a_size_too_small_for_the_ranks_is_an_empty_call(collective, in_place):
    cell = cell_of(collective, in_place=in_place, requested=8)
    groups, buffers = filled(cell, 4)
    for own in buffers:
        assert own.send.numel() == own.recv.numel() == 0
        assert all(share.numel() == 0 for share in own.shares)
    assert wrongs(cell, groups, buffers) == [0] * 4


@pytest.mark.parametrize("in_place", [True, False])
def test_what_is_received_is_not_there_before(in_place):
    cell, group = cell_of(AG, in_place=in_place), Group(None, (0, 1, 2, 3), 2)
    own = buffers_of(cell, group)
    if not in_place:
        own.recv.fill_(9)
    operations.fill_for_check(cell, group, own)
    assert bool((own.recv == 0).all()) is not in_place
    assert own.send[:61].tolist() == pattern.inputs(cell, 2, 4)


# --- torch's calls ---------------------------------------------------------------------------------------------------

RECORDED = ("broadcast", "all_reduce", "reduce", "gather", "scatter", "all_to_all_single", "all_gather_into_tensor",
            "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single")  # fmt: skip


@pytest.fixture
def calls(monkeypatch):
    """Every torch.distributed function a collective may use, recorded instead of run."""
    seen = []

    def recorder(name):
        def record(*tensors, **options):
            seen.append((name, tensors, options))
            return "work"

        return record

    for name in RECORDED:
        monkeypatch.setattr(dist, name, recorder(name), raising=False)
    return seen


def call(collective, group, async_op=True, **changes):
    cell = cell_of(collective, **changes)
    buffers = buffers_of(cell, group)
    assert OPERATIONS[collective].call(cell, group, buffers, async_op) == "work"
    return buffers


@pytest.mark.parametrize(("root", "world_rank"), [(0, 3), (1, 5), (2, 9)])
def test_a_root_inside_the_group_is_a_global_rank_for_torch(calls, root, world_rank):
    group = Group("handle", (3, 5, 9), 1)
    common = {"group": "handle", "async_op": True}
    buffers = call("broadcast", group, root=root)
    [(_, (tensor,), options)] = calls
    assert tensor is buffers.recv
    assert options == {"src": world_rank, **common}
    buffers = call("reduce", group, root=root, redop="max")
    _, (tensor,), options = calls[-1]
    assert tensor is buffers.recv
    assert options == {"dst": world_rank, "op": dist.ReduceOp.MAX, **common}
    buffers = call("gather", group, root=root)
    _, (sent, gathered), options = calls[-1]
    assert sent is buffers.send and options == {"dst": world_rank, **common}
    assert gathered == (list(buffers.shares) if root == 1 else None)
    buffers = call("scatter", group, root=root)
    _, (received, shares), options = calls[-1]
    assert received is buffers.recv and options == {"src": world_rank, **common}
    assert shares == (list(buffers.shares) if root == 1 else None)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_only_the_root_has_the_list_of_shares(calls, rank):
    for collective in ("gather", "scatter"):
        for in_place in (True, False):
            call(collective, Group("handle", (3, 5, 9), rank), root=1, in_place=in_place)
            shares = calls[-1][1][1]
            assert (shares is not None) == (rank == 1)
            if shares is not None:
                assert [share.numel() for share in shares] == [340] * 3  # 4096 B / 3 ranks / 16 B blocks / 4


@pytest.mark.parametrize(
    ("redop", "torchs"),
    [("sum", dist.ReduceOp.SUM), ("prod", dist.ReduceOp.PRODUCT), ("max", dist.ReduceOp.MAX),
     ("min", dist.ReduceOp.MIN), ("avg", dist.ReduceOp.AVG)],
)  # fmt: skip
def test_operators_are_torchs(calls, redop, torchs):
    group = Group("handle", (0, 1), 0)
    call(AR, group, redop=redop)
    call(RS, group, redop=redop, in_place=False)
    call("reduce", group, redop=redop)
    assert [options["op"] for _, _, options in calls] == [torchs] * 3
    assert all(options["group"] == "handle" and options["async_op"] is True for _, _, options in calls)


def test_mulsum_is_nccls_sum_multiplied_by_what_the_check_expects(calls, monkeypatch):
    made = []
    monkeypatch.setattr(dist, "_make_nccl_premul_sum", lambda factor: made.append(factor) or "premul")
    for collective in (AR, RS, "reduce"):
        call(collective, Group("handle", (0, 1), 0), redop="mulsum")
    assert [options["op"] for _, _, options in calls] == ["premul"] * 3
    assert made == [pattern.MULTIPLIER] * 3


def test_this_torch_makes_the_operator_of_mulsum(calls):
    call(AR, Group("handle", (0, 1), 0), redop="mulsum")
    assert isinstance(calls[0][2]["op"], dist.ReduceOp)


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


def test_all_to_all_receives_before_it_sends(calls):
    buffers = call("all_to_all_single", Group("handle", (0, 1), 1), in_place=False)
    [(name, (received, sent), options)] = calls
    assert (name, options) == ("all_to_all_single", {"group": "handle", "async_op": True})
    assert received is buffers.recv and sent is buffers.send


@pytest.mark.parametrize("async_op", [True, False])
@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name not in ("send_recv", "hypercube")])
def test_the_call_is_asynchronous_where_it_is_told_so(calls, collective, async_op):
    call(collective, Group("handle", (0, 1), 1), async_op)
    assert calls[0][2]["async_op"] is async_op


# --- exchanges between pairs -----------------------------------------------------------------------------------------


class Mail:
    """Sends and receives between ranks that are threads, in the place of torch's."""

    def __init__(self, monkeypatch):
        self.boxes, self.rank = {}, threading.local()
        self.batches = {}  # rank: [[(what, peer, elements)]]
        self.lock = threading.Lock()
        monkeypatch.setattr(dist, "P2POp", lambda op, tensor, peer, group: SimpleNamespace(**locals()))
        monkeypatch.setattr(dist, "batch_isend_irecv", self.batch)

    def box(self, source, to):
        with self.lock:
            return self.boxes.setdefault((source, to), queue.Queue())

    def batch(self, operations):
        me, works = self.rank.value, []
        said = []
        for one in operations:
            assert one.group == "handle"
            if one.op is dist.isend:
                said.append(("send", one.peer, one.tensor.numel()))
                self.box(me, one.peer).put(one.tensor.clone())
                works.append(SimpleNamespace(wait=lambda: None))
            else:
                assert one.op is dist.irecv
                said.append(("receive", one.peer, one.tensor.numel()))
                works.append(
                    SimpleNamespace(wait=lambda one=one: one.tensor.copy_(self.box(one.peer, me).get(timeout=10)))
                )
        self.batches.setdefault(me, []).append(said)
        return works


def exchange(monkeypatch, cell, ranks, async_op=True):
    """The whole collective between threads; every rank's group and buffers, and who said what to whom."""
    groups = [Group("handle", ranks, rank) for rank in range(len(ranks))]
    buffers = [buffers_of(cell, group) for group in groups]
    for group, own in zip(groups, buffers, strict=True):
        operations.fill_for_check(cell, group, own)
    mail, failed = Mail(monkeypatch), []

    def be(rank):
        mail.rank.value = ranks[rank]
        try:
            work = OPERATIONS[cell.collective].call(cell, groups[rank], buffers[rank], async_op)
            assert (work is None) is not async_op
            if work is not None:
                work.wait()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert failed == []
    return groups, buffers, mail.batches


@pytest.mark.parametrize("async_op", [True, False])
@pytest.mark.parametrize("ranks", [(0, 1), (3, 5, 9), (0, 1, 2, 3, 4)])
def test_send_recv_is_a_ring_of_global_ranks(monkeypatch, ranks, async_op):
    cell = cell_of("send_recv", requested=1000)
    groups, buffers, batches = exchange(monkeypatch, cell, ranks, async_op)
    for index, rank in enumerate(ranks):
        following, before = ranks[(index + 1) % len(ranks)], ranks[index - 1]
        assert batches[rank] == [[("receive", before, 250), ("send", following, 250)]]
    assert wrongs(cell, groups, buffers) == [0] * len(ranks)


@pytest.mark.parametrize("async_op", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("ranks", [(4,), (3, 9), (2, 3, 5, 7), tuple(range(8)), tuple(range(16))])
def test_a_hypercube_gathers_in_exchanges_that_double(monkeypatch, ranks, in_place, async_op):
    nranks = len(ranks)
    cell = cell_of("hypercube", in_place=in_place, requested=64 * nranks)
    groups, buffers, batches = exchange(monkeypatch, cell, ranks, async_op)
    for index, rank in enumerate(ranks):
        expected = [
            [(what, ranks[index ^ bit], 16 * bit) for what in ("receive", "send")]
            for bit in (1, 2, 4, 8)
            if bit < nranks
        ]
        assert batches.get(rank, []) == expected
    assert wrongs(cell, groups, buffers) == [0] * nranks
    result = results_of(cell, [own.send for own in buffers])
    assert all(torch.equal(own.recv, whole) for own, whole in zip(buffers, result, strict=True))


def test_the_first_step_of_a_hypercube_begins_with_the_call(monkeypatch):
    cell, group = cell_of("hypercube", in_place=False, requested=256), Group("handle", (0, 1, 2, 3), 2)
    mail, moment, when = Mail(monkeypatch), count(), []
    mail.rank.value = 2
    batch = dist.batch_isend_irecv
    monkeypatch.setattr(dist, "batch_isend_irecv", lambda exchange: when.append(next(moment)) or batch(exchange))
    work = OPERATIONS["hypercube"].call(cell, group, buffers_of(cell, group), True)
    assert when == [0]
    next(moment)
    for peer, elements in ((3, 16), (0, 32)):
        mail.box(peer, 2).put(torch.zeros(elements))
    work.wait()
    assert when == [0, 2]


def test_every_collective_has_an_operation():
    assert set(OPERATIONS) == set(COLLECTIVES)


def test_a_group_counts_its_ranks():
    assert Group(None, (4, 6, 8), 1).nranks == 3
