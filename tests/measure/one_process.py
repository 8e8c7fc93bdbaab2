"""For the tests of measure/: cells, and the buffers of all ranks of a group, in one process."""

from __future__ import annotations

import torch

from collbench.collectives import COLLECTIVES
from collbench.measure import operations
from collbench.measure.buffers import Arena, Buffers
from collbench.measure.groups import Group
from collbench.measure.slots import slot_of
from collbench.sweep import Cell

CPU = torch.device("cpu")
PERIOD = 61  # of the pattern

IN_PLACE = [name for name, entry in COLLECTIVES.items() if entry.in_place]
OUT_OF_PLACE = [name for name, entry in COLLECTIVES.items() if entry.out_of_place]
FORMS = [(name, True) for name in IN_PLACE] + [(name, False) for name in OUT_OF_PLACE]
REDUCING_FORMS = [(name, in_place) for name, in_place in FORMS if COLLECTIVES[name].reduces]
OTHER_FORMS = [(name, in_place) for name, in_place in FORMS if not COLLECTIVES[name].reduces]
ON_THE_ROOT = ("reduce", "gather")  # the other ranks receive nothing


def cell_of(collective, dtype="float32", redop=None, in_place=None, requested=4096, root=0, timing="isolated"):
    entry = COLLECTIVES[collective]
    return Cell(
        collective=collective,
        group="world",
        dtype=dtype,
        redop=(redop or "sum") if entry.reduces else None,
        root=root if entry.rooted else None,
        requested_bytes=requested,
        timing=timing,
        in_place=entry.in_place if in_place is None else in_place,
        repeat=0,
        concurrent=True,
    )


def groups_of(nranks):
    return [Group(None, tuple(range(nranks)), rank) for rank in range(nranks)]


def buffers_of(cell, group, unalign=0):
    """One rank's buffers, in an arena of their own."""
    slot = slot_of(cell, group.nranks, group.rank, unalign)
    return next(Arena(CPU, 0, slot.stride_bytes).buffers(cell, group, slot, 1))


def filled(cell, nranks):
    """Every rank's group and buffers, as they are just before the checked call."""
    groups = groups_of(nranks)
    buffers = [buffers_of(cell, group) for group in groups]
    for group, own in zip(groups, buffers, strict=True):
        operations.fill_for_check(cell, group, own)
    return groups, buffers


def wrongs(cell, groups, buffers):
    """The wrong elements of every rank."""
    return [operations.wrong_elements(cell, group, own) for group, own in zip(groups, buffers, strict=True)]


def reduced(sends, redop):
    """In float64, which holds every number of the patterns exactly."""
    table = torch.stack([send.double() for send in sends])
    if redop == "avg":
        return table.sum(0) / len(sends)
    if redop == "mulsum":
        return (2 * table).sum(0)
    return {"sum": table.sum(0), "prod": table.prod(0), "max": table.amax(0), "min": table.amin(0)}[redop]


def results_of(cell, sends):
    """What each rank receives, by definition of the collective; None on a rank that receives nothing."""
    nranks, kind = len(sends), sends[0].dtype
    ranks = range(nranks)
    shares = [torch.tensor_split(send, nranks) for send in sends]
    if cell.collective == "broadcast":
        return [sends[cell.root]] * nranks
    if cell.collective == "all_reduce":
        return [reduced(sends, cell.redop).to(kind)] * nranks
    if cell.collective == "reduce":
        total = reduced(sends, cell.redop).to(kind)
        return [total if rank == cell.root else None for rank in ranks]
    if cell.collective in ("all_gather_into_tensor", "hypercube"):
        return [torch.cat(sends)] * nranks
    if cell.collective == "gather":
        return [torch.cat(sends) if rank == cell.root else None for rank in ranks]
    if cell.collective == "reduce_scatter_tensor":
        return list(torch.tensor_split(reduced(sends, cell.redop).to(kind), nranks))
    if cell.collective == "scatter":
        return list(shares[cell.root])
    if cell.collective == "all_to_all_single":
        return [torch.cat([shares[sender][rank] for sender in ranks]) for rank in ranks]
    assert cell.collective == "send_recv"
    return [sends[rank - 1] for rank in ranks]


def perform(cell, buffers, sends=None):
    """Do what the collective is defined to do; `sends`: of other data than the buffers hold."""
    results = results_of(cell, sends or [own.send.clone() for own in buffers])
    for own, result in zip(buffers, results, strict=True):
        if result is not None:
            own.recv.copy_(result)


def swapped(own, other):
    """One rank's buffers with another's results."""
    return Buffers(own.send, other.recv, own.shares)
