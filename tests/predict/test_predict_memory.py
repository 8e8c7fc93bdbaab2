"""The per-rank ledger: figures that anyone can check on paper."""

from __future__ import annotations

import pytest
from predict_fakes import FakeModel

from collbench.predict.step import predict_step
from collbench.predict.workload import Workload

BILLION = 10**9
BF16 = {"param_dtype": "bfloat16", "optimizer_bytes": 12, "layers": [{"tensors": [BILLION]}]}


def memory(workload, strategy="ddp", model=None, **options):
    prediction = predict_step(
        Workload.from_dict(workload), model or FakeModel(nodes=1, ranks_per_node=8), strategy, **options
    )
    return prediction.to_dict()["memory"]


@pytest.mark.parametrize(
    ("strategy", "expected"), [("ddp", 16), ("zero1", 5.5), ("zero2", 3.75), ("zero3", 2), ("fsdp", 2)]
)
def test_a_billion_parameters_in_bf16_on_eight_ranks(strategy, expected):
    assert memory(BF16, strategy)["persistent_GB"] == pytest.approx(expected)


def test_hsdp_divides_by_its_shard_degree():
    model = FakeModel(nodes=2, ranks_per_node=4)
    assert memory(BF16, "hsdp", model)["persistent_GB"] == pytest.approx(4)


def test_fp32_gradients():
    assert memory(BF16 | {"grad_dtype": "float32"})["persistent_GB"] == pytest.approx(18)


def test_seven_billion_in_fp32_without_a_master_copy():
    workload = {"optimizer_bytes": 8, "layers": [{"tensors": [7 * BILLION]}]}
    ledger = memory(workload)
    assert (ledger["parameters_GB"], ledger["gradients_GB"], ledger["optimizer_GB"]) == pytest.approx((28, 28, 56))
    assert ledger["persistent_GB"] == pytest.approx(112)


def test_frozen_layers_take_no_gradients_and_no_optimizer_state():
    layers = [{"tensors": [990_000_000], "trainable": False}, {"tensors": [10_000_000]}]
    assert memory(BF16 | {"layers": layers})["persistent_GB"] == pytest.approx(2.14)


def test_parameters_are_kept_in_their_storage_type():
    ledger = memory(BF16 | {"storage_dtype": "float32", "grad_dtype": "bfloat16"}, "fsdp")
    assert ledger["parameters_GB"] == pytest.approx(4 / 8)
    assert ledger["gathered_peak_GB"] == pytest.approx(2)  # gathered in bf16


# A root of 1 GB and units of 1, 2, 3 and 1 GB in bf16.
UNITS = {
    "param_dtype": "bfloat16",
    "layers": [
        {"tensors": [BILLION // 2], "wrap": False},
        *({"tensors": [size * BILLION // 2]} for size in (1, 2, 3, 1)),
    ],
}


@pytest.mark.parametrize(
    ("options", "peak"),
    [({}, 1 + 2 + 3), ({"prefetch": False}, 1 + 3), ({"reshard_after_forward": False}, 1 + 7)],
)
def test_the_gathered_peak_is_the_root_the_current_and_the_prefetched_unit(options, peak):
    ledger = memory(UNITS, "fsdp", **options)
    assert ledger["gathered_peak_GB"] == pytest.approx(peak)
    assert ledger["post_forward_shards_GB"] == 0


def test_units_that_torch_was_seen_to_gather_once_stay_until_their_backward():
    """Of five units of 1 GB, torch was told to keep the second and the fourth; the first is frozen, and backward does
    not come to it."""
    forward = [[kind, at] for at in "abcde" for kind in ("gather", "forward")]
    backward = [["gather", "e"], ["backward", "e"], ["backward", "d"], ["gather", "c"], ["backward", "c"]]
    calls = [
        ["all_gather_into_tensor", at, BILLION, "bfloat16", 8] if kind == "gather" else [kind, at]
        for kind, at in [*forward, *backward, ["backward", "b"]]
    ]
    workload = {
        "param_dtype": "bfloat16",
        "layers": [{"name": at, "tensors": [BILLION // 2], "trainable": at != "a"} for at in "abcde"],
        "captured": {"strategy": "fsdp", "nranks": 8, "source": "by hand", "plan": "as issued", "calls": calls},
    }
    # e computes backward while b and d are there
    assert memory(workload, "fsdp")["gathered_peak_GB"] == pytest.approx(3)
    assert memory(workload, "fsdp1")["gathered_peak_GB"] == pytest.approx(2)  # fsdp1 was not seen


@pytest.mark.parametrize(("reuse", "peak"), [(0, 2), (3 * BILLION, 3), (4 * BILLION, 4)])
def test_deepspeed_keeps_units_that_are_used_again_soon(reuse, peak):
    config = {
        "stage": 3,
        "stage3_max_reuse_distance": reuse,
        "stage3_param_persistence_threshold": 0,
        "reduce_bucket_size": 10**8,
    }
    workload = {"param_dtype": "bfloat16", "layers": [{"tensors": [BILLION // 2]}] * 5}
    found = memory(workload, None, deepspeed={"zero_optimization": config})
    assert found["gathered_peak_GB"] == pytest.approx(peak)
    assert found["buffers_GB"] == pytest.approx(1 + 0.2)  # a unit's gradients, and the one bucket for all


def test_resharding_over_fewer_ranks_keeps_larger_shards_until_backward():
    assert memory(UNITS, "fsdp", reshard_after_forward=4)["post_forward_shards_GB"] == pytest.approx(8 / 4)


# One unit of 1 GB in bf16, whose gradients are reduced in fp32; no root.
ONE = {
    "param_dtype": "bfloat16",
    "reduce_dtype": "float32",
    "optimizer_bytes": 0,
    "layers": [{"tensors": [BILLION // 2]}],
}


@pytest.mark.parametrize(
    ("options", "buffers", "peak"),
    [
        ({}, 1 + 2, 0.25 + 1 + 2),  # the unit is released when its gradients, 1 GB, are copied to be sent in fp32
        ({"accumulate": 2}, 1 + 2 + 2 / 8, 0.25 + 1 + 2 + 2 / 8),  # and what comes back is added to the first's
        ({"accumulate": 2, "grad_sync": False}, 1 + 2 + 2, 0.25 + 1 + 2 + 2),  # which wait in fp32
    ],
)
def test_gradients_are_whole_while_a_unit_is_reduced(options, buffers, peak):
    ledger = memory(ONE, "fsdp", **options)
    assert (ledger["buffers_GB"], ledger["peak_GB"]) == pytest.approx((buffers, peak))


def test_the_peak_may_be_when_units_are_gathered():
    workload = ONE | {"layers": [{"tensors": [8], "frozen_tensors": [BILLION // 2]}]}
    # copied out of the gather's output: both are there; nearly no gradients
    assert memory(workload, "fsdp")["peak_GB"] == pytest.approx(1 / 8 + 2)


def test_ddp_keeps_a_copy_of_all_gradients_in_its_buckets():
    ledger = memory(BF16)
    assert (ledger["buffers_GB"], ledger["peak_GB"]) == pytest.approx((2, 18))
    assert memory(BF16, gradient_as_bucket_view=True)["peak_GB"] == pytest.approx(16)


def test_a_compression_hook_copies_the_largest_bucket():
    workload = BF16 | {"param_dtype": "float32", "layers": [{"tensors": [BILLION // 4, 3 * BILLION // 4]}]}
    # of two buckets the one of 0.75 billion gradients, in fp16
    assert memory(workload, bucket_cap_mb=0, comm_hook="fp16")["buffers_GB"] == pytest.approx(4 + 1.5)


@pytest.mark.parametrize("strategy", ["zero1", "zero2"])
def test_zero_holds_a_bucket(strategy):
    workload = BF16 | {"layers": [{"tensors": [BILLION // 4, 3 * BILLION // 4]}]}
    assert memory(workload, strategy, bucket_cap_mb=0)["buffers_GB"] == pytest.approx(1.5)


@pytest.mark.parametrize(("overlap", "buffers"), [(False, 1), (True, 2)])
def test_deepspeeds_buckets_are_there_in_full(overlap, buffers):
    config = {"zero_optimization": {"stage": 2, "overlap_comm": overlap}, "bf16": {"enabled": True}}
    assert memory(BF16, None, deepspeed=config)["buffers_GB"] == pytest.approx(buffers)


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2"])
def test_replicated_parameters_are_never_gathered(strategy):
    assert memory(UNITS, strategy)["gathered_peak_GB"] == 0


def test_fsdps_shares_are_padded():
    # 3 rows on 2 ranks: two rows each
    workload = {"optimizer_bytes": 0, "layers": [{"tensors": [[3, 1000]]}]}
    ledger = memory(workload, "fsdp", FakeModel(nodes=1, ranks_per_node=2))
    assert ledger["persistent_GB"] == pytest.approx(2 * 2000 * 4 / 1e9)
    assert ledger["gathered_peak_GB"] == pytest.approx(4000 * 4 / 1e9)
