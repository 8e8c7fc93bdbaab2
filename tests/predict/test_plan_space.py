"""What a plan chooses between."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from collbench.errors import InputError
from collbench.predict.captured import Captured
from collbench.predict.placement import Placement
from collbench.predict.plan_space import Space, configurations, merged, meshes_of
from collbench.predict.workload import Layer, Workload

BLOCK = Layer(name="block", repeat=5, tensors=((8, 4), (4,)), forward_ms=1.0, backward_ms=2.0)
EMBEDDING = Layer(name="embedding", tensors=((100, 4),), forward_ms=0.5, backward_ms=0.5, wrap=False)
WORKLOAD = Workload(layers=(EMBEDDING, BLOCK))


def chosen(workload=WORKLOAD, nodes=(2,), ranks_per_node=4, **space):
    return configurations(workload, Space(nodes=nodes, ranks_per_node=ranks_per_node, **space))


@pytest.mark.parametrize(
    ("nodes", "ranks_per_node", "meshes"),
    [
        (2, 4, [(4, 2), (2, 4)]),
        (4, 2, [(4, 2), (2, 4)]),
        (1, 4, [(2, 2)]),
        (1, 2, []),
        (8, 1, [(4, 2), (2, 4)]),
        # of 12 ranks on 2 nodes, 4 shards would be 4 of the first node, 2 of it and 2 of the second, …
        (2, 6, [(6, 2), (4, 3), (2, 6)]),
        (3, 2, [(3, 2)]),  # 3 shards straddle a border
    ],
)
def test_meshes_multiply_to_the_ranks_and_straddle_no_node(nodes, ranks_per_node, meshes):
    assert meshes_of(Placement(nodes=nodes, ranks_per_node=ranks_per_node)) == meshes


@pytest.mark.parametrize("ranks_per_node", [1, 3, 4, 6, 8])
def test_groups_span_as_many_nodes_as_their_ranks_are_on(ranks_per_node):
    for nodes in range(1, 10):
        nranks = nodes * ranks_per_node
        for shards in (each for each in range(2, nranks) if nranks % each == 0):
            made = Placement(nodes=nodes, ranks_per_node=ranks_per_node, replicas=nranks // shards)
            groups = [range(first, first + shards) for first in range(0, nranks, shards)]
            most = max(len({rank // ranks_per_node for rank in group}) for group in groups)
            assert made.shard.nnodes == most
            assert made.replicate.nnodes == len({rank // ranks_per_node for rank in range(0, nranks, shards)})


def test_every_strategy_with_all_of_its_knobs():
    counts = Counter(each.strategy for each in chosen())
    # the smallest cap already makes one bucket of everything
    assert counts["ddp"] == counts["zero1"] == counts["zero2"] == 1
    # 1, 2, 4 and all 5 layers a unit; none, true, false and the 4 ranks of a node
    assert counts["fsdp"] == 4 * 4
    assert counts["fsdp1"] == 0 and len(chosen(strategies=("fsdp1",))) == 4 * 2  # the older one only if asked for
    # 4x2 cannot gather over 4 ranks again, 2x4 over all of its shards is what none is
    assert counts["hsdp"] == 4 * (3 + 3)
    assert len(set(chosen())) == sum(counts.values())


def test_choices_that_make_no_difference_are_one():
    wide = Workload(layers=(Layer(name="wide", repeat=4, tensors=((1024, 1024),)),))  # 4 MiB each
    caps = [each.bucket_cap_mb for each in chosen(wide, strategies=("ddp",), bucket_caps_mb=(None, 1, 4, 5, 9, 99))]
    # by 5 MiB two of them are together, by 9 three; torch's default has a first bucket of its own
    assert caps == [None, 1, 5, 9, 99]
    reshards = {each.reshard_after_forward for each in chosen(wide, strategies=("fsdp",))}
    assert reshards == {None, False, 4}  # without a root unit true is none


def test_merging_keeps_all_tensors_and_all_time():
    pairs = merged(WORKLOAD, 2)
    assert [(layer.name, layer.repeat) for layer in pairs.layers] == [("embedding", 1), ("block", 2), ("block.rest", 1)]
    assert pairs.layers[1].tensors == ((8, 4), (4,), (8, 4), (4,))
    assert (pairs.layers[1].forward_ms, pairs.layers[1].backward_ms) == (2.0, 4.0)
    for size in (1, 2, 3, 5, 9):
        workload = merged(WORKLOAD, size)
        assert workload.numel == WORKLOAD.numel
        assert sum(layer.backward_ms * layer.repeat for layer in workload.layers) == 0.5 + 5 * 2.0
    assert merged(WORKLOAD, 1) is WORKLOAD


def test_what_torch_issued_holds_for_units_of_one_layer():
    calls = (("forward", "block.0"), ("backward", "block.0"))
    captured = {"strategy": "fsdp", "nranks": 2, "source": "a run", "plan": "as issued", "calls": calls}
    workload = replace(WORKLOAD, captured=Captured.from_dict(captured))
    assert merged(workload, 1).captured is not None
    assert merged(workload, 2).captured is None


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"strategies": ("dpp",)}, "did you mean"),
        ({"strategies": ("ddp",), "layers_per_unit": (2,)}, "^layers_per_unit 2: no use to ddp"),
        ({"strategies": ("fsdp",), "bucket_caps_mb": (25.0,)}, "^bucket_cap_mb 25.0: no use to fsdp"),
        ({"strategies": ("fsdp",), "meshes": ((2, 4),)}, "^mesh 2x4: no use to fsdp"),
        ({"meshes": ((2, 4), (2, 3))}, "mesh 2x3 has 6 ranks, but the layouts have 8"),
        ({"nodes": (0,)}, "number of nodes"),
        ({"bucket_caps_mb": (-1.0,)}, "bucket_cap_mb"),
        ({"strategies": ("fsdp",), "reshards": (None, 3)}, "reshard_after_forward = 3 must be"),
        ({"strategies": ("fsdp1",), "reshards": (2,)}, "reshard_after_forward = 2 must be"),
    ],
)
def test_choices_that_cannot_be(space, message):
    with pytest.raises(InputError, match=message):
        chosen(**space)


def test_a_mesh_is_tried_where_it_fits():
    found = chosen(nodes=(1, 2, 4), strategies=("hsdp",), meshes=((2, 4),), reshards=(None,), layers_per_unit=(1,))
    assert [(each.nodes, each.mesh) for each in found] == [(2, (2, 4))]
