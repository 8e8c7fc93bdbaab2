"""DDP and ZeRO-1/2 steps, computed by hand."""

from __future__ import annotations

import pytest
from predict_fakes import FakeModel, bars

from collbench.errors import InputError
from collbench.predict.step import predict_step
from collbench.predict.workload import Workload

# Three layers of 250,000 fp32 gradients: 1 MB each. Forward 1 ms, backward 2 ms, optimizer 1 ms.
THREE = {
    "name": "three",
    "layers": [{"name": name, "tensors": [250_000], "forward_ms": 1, "backward_ms": 2} for name in "abc"],
    "optimizer_ms": 1,
}


def predict(workload=THREE, model=None, strategy="ddp", **options):
    return predict_step(Workload.from_dict(workload), model or FakeModel(ms_per_MB=3), strategy, **options)


def test_one_bucket_per_layer():
    prediction = predict(bucket_cap_mb=0)
    # forward 0-3; backward c 3-5, b 5-7, a 7-9; each all_reduce takes 3 ms and waits for the one before
    assert bars(prediction) == {
        "forward": (0, 0),
        "forward a": (0, 1),
        "forward b": (1, 2),
        "forward c": (2, 3),
        "backward": (3, 3),
        "backward c": (3, 5),
        "backward b": (5, 7),
        "backward a": (7, 9),
        "all_reduce bucket 0": (5, 8),
        "all_reduce bucket 1": (8, 11),
        "all_reduce bucket 2": (11, 14),
        "optimizer": (14, 15),
    }
    assert prediction.step_ms == pytest.approx(15)
    assert prediction.compute_ms == pytest.approx(10)
    assert prediction.comm_ms == pytest.approx(9)
    assert prediction.exposed_comm_ms == pytest.approx(5)
    assert prediction.exposed_tail_ms == pytest.approx(14 - 9)


def test_the_default_buckets_sync_in_one_go():
    # the first bucket's 1 MiB takes two layers of 1 MB, the rest is one
    prediction = predict()
    assert [(c.call.size_bytes, c.count, c.time_ms) for c in prediction.collectives] == [
        (2 * 10**6, 1, 6),
        (10**6, 1, 3),
    ]
    # ready at 7 and 9: 7-13, 13-16
    assert prediction.exposed_tail_ms == pytest.approx(16 - 9)


def test_several_caps():
    prediction = predict(bucket_cap_mb=(0, 25))
    assert [c.size_bytes for c in prediction.collectives] == [10**6, 2 * 10**6]
    assert predict(bucket_cap_mb=(25,)).step_ms == predict(bucket_cap_mb=25).step_ms


def test_a_compression_hook_sends_half_precision_of_the_same_buckets():
    prediction = predict(comm_hook="bf16")
    sizes = [(c.size_bytes, c.call.dtype) for c in prediction.collectives]
    assert sizes == [(10**6, "bfloat16"), (5 * 10**5, "bfloat16")]
    # ready at 7 and 9: 7-10, 10-11.5
    assert prediction.exposed_tail_ms == pytest.approx(2.5)
    assert predict(comm_hook="fp16").collectives[0].call.dtype == "float16"


def test_finding_unused_parameters_keeps_the_first_buckets_and_says_what_was_used():
    prediction = predict(find_unused_parameters=True)
    # 1 MiB closes behind a and b in the order of the module, reversed: c, then b and a; then an int32 a tensor
    sizes = [(c.size_bytes, c.call.dtype) for c in prediction.collectives]
    assert sizes == [(10**6, "float32"), (2 * 10**6, "float32"), (3 * 4, "int32")]
    assert bars(prediction)["all_reduce bucket 0"] == pytest.approx((5, 8))
    assert bars(prediction)["all_reduce bucket 1"] == pytest.approx((9, 15))
    assert bars(prediction)["all_reduce used"] == pytest.approx((15, 15 + 36e-6))


def test_a_static_graph_needs_to_find_nothing():
    found = predict(find_unused_parameters=True, static_graph=True, bucket_cap_mb=0)
    assert found == predict(bucket_cap_mb=0) == predict(static_graph=True, bucket_cap_mb=0)


def test_checkpointed_layers_compute_forward_once_more_in_backward():
    prediction = predict(bucket_cap_mb=0, recompute=True)
    assert bars(prediction)["backward c"] == pytest.approx((3, 6))
    assert prediction.compute_ms == pytest.approx(10 + 3)


def test_times_outside_the_layers_come_first():
    prediction = predict(THREE | {"forward_ms": 2, "backward_ms": 4}, bucket_cap_mb=0)
    times = bars(prediction)
    assert times["forward a"] == (2, 3)
    assert times["backward"] == (5, 9)
    assert times["all_reduce bucket 0"] == pytest.approx((11, 14))


def test_a_frozen_layer_at_the_start_leaves_time_to_hide():
    layers = [THREE["layers"][0] | {"trainable": False}, *THREE["layers"][1:]]
    prediction = predict(THREE | {"layers": layers}, bucket_cap_mb=0)
    # ready at 5 and 7: 5-8, 8-11; backward ends at 9
    assert prediction.exposed_tail_ms == pytest.approx(2)


def test_without_overlap_the_sync_follows_the_whole_backward():
    prediction = predict(bucket_cap_mb=0, overlap=False)
    assert bars(prediction)["all_reduce bucket 0"] == pytest.approx((9, 12))
    assert prediction.step_ms == pytest.approx(prediction.compute_ms + prediction.comm_ms)
    assert prediction.exposed_tail_ms == pytest.approx(9)


def test_only_the_last_micro_batch_syncs():
    one, four = predict(bucket_cap_mb=0), predict(bucket_cap_mb=0, accumulate=4)
    assert four.comm_ms == one.comm_ms
    assert four.step_ms == pytest.approx(one.step_ms + 3 * 9)
    assert four.windows is None and "windows" not in four.to_dict()


def test_ten_micro_batches_by_four_sync_three_times():
    document = predict(bucket_cap_mb=0, accumulate=4, micro_batches=10).to_dict()
    assert document["windows"] == [4, 4, 2]
    assert document["gradient_syncs"] == 3
    # a step is 15 ms and 9 more for every further micro-batch
    assert document["total_ms"] == pytest.approx(2 * (15 + 27) + (15 + 9))
    assert predict(accumulate=4, micro_batches=3).windows == (3,)


def test_zero1_gathers_the_parameters_after_a_divided_optimizer():
    prediction = predict(strategy="zero1", bucket_cap_mb=0, accumulate=2)
    times = bars(prediction)
    # the second micro-batch starts at 9, its backward ends at 18; the last reduce_scatter is 20-23
    assert times["reduce_scatter_tensor bucket 0"] == pytest.approx((14, 17))
    assert times["optimizer"] == pytest.approx((23, 23.5))
    assert times["all_gather parameters"] == pytest.approx((23.5, 23.5 + 9))
    assert prediction.exposed_tail_ms == pytest.approx(5)  # the gather is no gradient collective


def test_zero2_reduces_in_every_micro_batch():
    prediction = predict(strategy="zero2", bucket_cap_mb=0, accumulate=2)
    counts = {c.call.collective: c.count for c in prediction.collectives}
    assert counts == {"reduce_scatter_tensor": 6, "all_gather_into_tensor": 1}


def test_the_model_is_asked_once_per_distinct_call_about_the_whole_world():
    model = FakeModel(nodes=4, ranks_per_node=8)
    predict(model=model, bucket_cap_mb=0, timing="pipelined")
    assert model.asked == [("all_reduce", 10**6, "world", 32, 4, "float32", "pipelined")]


def test_the_interval_is_played_from_the_models_own():
    low, high = predict(model=FakeModel(ms_per_MB=3, spread=0.1), bucket_cap_mb=0).step_ms_interval
    assert (low, high) == pytest.approx((5 + 3 * 2.7 + 1, 5 + 3 * 3.3 + 1))  # bound by communication throughout
    assert predict(model=FakeModel()).step_ms_interval is None


def test_what_the_model_says_about_itself_is_passed_on():
    model = FakeModel(notes=("as float32",), extrapolated_above=1.5e6)
    assert predict(model=model).extrapolated and predict(model=model).notes == ("as float32",)
    assert not predict(model=model, bucket_cap_mb=0).extrapolated


def test_tokens_and_flops():
    prediction = predict(
        THREE | {"tokens_per_micro_batch": 1000, "flops_per_token": 6e9}, bucket_cap_mb=0, accumulate=2
    )
    assert prediction.tokens_per_s == pytest.approx(2 * 2 * 1000 / (15 + 9) * 1000)  # 2 ranks, 2 micro-batches
    assert prediction.to_dict()["tflops_per_rank"] == pytest.approx(2 * 1000 * 6e9 / 24e-3 / 1e12)
    assert "tokens_per_s" not in predict().to_dict()


def test_one_rank_does_not_communicate():
    prediction = predict(nodes=1, ranks_per_node=1)
    assert (prediction.comm_ms, prediction.exposed_comm_ms, prediction.step_ms) == (0, 0, 10)
    assert prediction.to_dict()["collectives"] == []
    assert "one rank" in prediction.notes[0]


def test_a_workload_without_times_is_communication_alone():
    prediction = predict({"layers": [{"tensors": [250_000]}]})
    assert prediction.step_ms == prediction.comm_ms == prediction.exposed_tail_ms == pytest.approx(3)
    assert "no times" in prediction.notes[0]


def test_the_layout_is_the_models_own_unless_given():
    prediction = predict(model=FakeModel(nodes=4, ranks_per_node=8), nodes=2)
    assert (prediction.placement.nodes, prediction.placement.ranks_per_node) == (2, 8)
    prediction = predict(model=FakeModel(nodes=4, ranks_per_node=8), ranks_per_node=2)
    assert (prediction.placement.nodes, prediction.placement.ranks_per_node) == (4, 2)
    prediction = predict(model=FakeModel(nodes=None, ranks_per_node=None), ranks_per_node=8)
    assert (prediction.placement.nodes, prediction.placement.ranks_per_node) == (1, 8)
    with pytest.raises(InputError, match="--ranks-per-node"):
        predict(model=FakeModel(nodes=None, ranks_per_node=None))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "dpp"}, "did you mean ddp"),
        ({"mesh": "1x2"}, "mesh = '1x2' does not belong to strategy ddp: leave it out, or choose hsdp"),
        ({"reshard_after_forward": False}, "reshard_after_forward = False does not belong to strategy ddp"),
        ({"prefetch": False, "strategy": "zero1"}, "prefetch = False does not belong to strategy zero1"),
        ({"bucket_cap_mb": 25, "strategy": "fsdp"}, "bucket_cap_mb = 25 does not belong to strategy fsdp"),
        ({"grad_sync": False}, "grad_sync = False does not belong to strategy ddp"),
        ({"comm_hook": "bf16", "strategy": "zero2"}, "comm_hook = 'bf16' does not belong to strategy zero2"),
        ({"find_unused_parameters": True, "strategy": "fsdp"}, "does not belong to strategy fsdp: leave it out, or"),
        ({"static_graph": True, "strategy": "zero1"}, "static_graph = True does not belong to strategy zero1"),
        ({"comm_hook": "fp8"}, "unknown comm_hook 'fp8'"),
        ({"accumulate": 0}, "accumulate = 0"),
        ({"accumulate": 1.5}, "accumulate = 1.5"),
        ({"micro_batches": 0}, "micro_batches = 0"),
        ({"nodes": 0}, "nodes = 0"),
        ({"ranks_per_node": -1}, "ranks_per_node = -1"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(InputError) as error:
        predict(**options)
    assert message in str(error.value)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_model_that_trains_nothing_is_refused(strategy):
    with pytest.raises(InputError, match="trains nothing"):
        predict({"layers": [{"tensors": [8], "trainable": False}, {"forward_ms": 1}]}, strategy=strategy)
