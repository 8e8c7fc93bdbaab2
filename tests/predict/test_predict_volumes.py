"""What a rank sends in a step, in units of the parameters' bytes: ZeRO (arXiv 1910.02054, section 7)."""

from __future__ import annotations

from collections import Counter

import pytest
from predict_fakes import FakeModel

from collbench.collectives import find_collective
from collbench.predict.step import predict_step
from collbench.predict.workload import Workload

SHAPE, LAYERS = (1024, 64), 4
PARAMETER_BYTES = LAYERS * SHAPE[0] * SHAPE[1] * 4


def sent(strategy, nodes=2, ranks_per_node=4, **options):
    """By kind of group, in units of parameter bytes x (p-1)/p of its p ranks."""
    workload = Workload.from_dict({"layers": [{"tensors": [list(SHAPE)], "repeat": LAYERS}]})
    model = FakeModel(nodes=nodes, ranks_per_node=ranks_per_node)
    volumes = Counter()
    for entry in predict_step(workload, model, strategy, **options).collectives:
        nranks = entry.call.group.nranks
        a_rank = entry.count * entry.size_bytes * find_collective(entry.collective).sent_fraction(nranks)
        volumes[entry.group] += a_rank / (PARAMETER_BYTES * (nranks - 1) / nranks)
    return {group: pytest.approx(volume) for group, volume in volumes.items()}


@pytest.mark.parametrize("ranks", [(1, 2), (2, 4), (16, 8)])
@pytest.mark.parametrize(
    ("strategy", "options", "volume"),
    [
        ("ddp", {}, lambda m: 2),
        ("zero1", {}, lambda m: 2),
        ("zero2", {}, lambda m: m + 1),
        ("zero3", {}, lambda m: 3 * m),
        ("fsdp", {}, lambda m: 3 * m),
        ("fsdp", {"reshard_after_forward": False}, lambda m: 2 * m),
        ("fsdp1", {}, lambda m: 3 * m),
        ("fsdp1", {"reshard_after_forward": False}, lambda m: 2 * m),
        ("fsdp1", {"grad_sync": False}, lambda m: 2 * m + 1),
        ("fsdp", {"grad_sync": False}, lambda m: 2 * m + 1),
        ("fsdp", {"grad_sync": False, "reshard_after_forward": False}, lambda m: m + 1),
    ],
)
@pytest.mark.parametrize("accumulate", [1, 2, 5])
def test_of_the_whole_world_by_micro_batches(strategy, options, volume, accumulate, ranks):
    nodes, ranks_per_node = ranks
    found = sent(strategy, nodes, ranks_per_node, accumulate=accumulate, **options)
    assert found == {"world": volume(accumulate)}


@pytest.mark.parametrize(
    ("mesh", "inside", "across", "shards"),
    [("2x4", "intra", "inter", 4), ("4x2", "mesh:4x2:shard", "mesh:4x2:replicate", 2)],
)
def test_hsdp_sends_three_in_its_shard_group_and_a_shards_share_of_two_across(mesh, inside, across, shards):
    parts = [(inside, 3), (across, 2 / shards)]
    expected = Counter()
    for group, volume in parts:
        expected[group] += volume
    assert sent("hsdp", mesh=mesh) == expected


@pytest.mark.parametrize("accumulate", [1, 3])
def test_hsdp_at_its_ends_is_fsdp_and_a_reduction_of_everything(accumulate):
    assert sent("hsdp", mesh="1x8", accumulate=accumulate) == {"world": 3 * accumulate}
    assert sent("hsdp", mesh="8x1", accumulate=accumulate) == {"world": 2 * accumulate}
    assert sent("hsdp", mesh="8x1", accumulate=accumulate, grad_sync=False) == {"world": 2}


@pytest.mark.parametrize("hook", ["fp16", "bf16"])
def test_a_compression_hook_halves_what_ddp_sends(hook):
    assert sent("ddp", comm_hook=hook) == {"world": 1}
