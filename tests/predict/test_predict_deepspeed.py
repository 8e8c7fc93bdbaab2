"""Steps of a DeepSpeed config, computed by hand, and what such a config may say."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from predict_fakes import FakeModel, bars, calls

from collbench.cli import main
from collbench.errors import InputError
from collbench.predict.deepspeed import DeepSpeed
from collbench.predict.step import predict_step
from collbench.predict.workload import Workload

# Three layers of 250,000 fp32 gradients: 1 MB each, 3 ms a collective. Forward 1 ms, backward 2 ms, optimizer 1 ms.
THREE = {
    "layers": [{"name": name, "tensors": [250_000], "forward_ms": 1, "backward_ms": 2} for name in "abc"],
    "optimizer_ms": 1,
}
ONE_EACH = {"reduce_bucket_size": 250_000}
SHARDED = {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0}


def predict(zero, workload=THREE, strategy=None, options=None, **config):
    config["zero_optimization"] = zero
    return predict_step(
        Workload.from_dict(workload), FakeModel(ms_per_MB=3), strategy, deepspeed=config, **(options or {})
    )


def counts(prediction):
    return dict(Counter({c.collective: c.count for c in prediction.collectives}))


def test_stage_2_with_overlap_sends_a_bucket_when_the_next_gradient_would_overfill_it():
    prediction = predict({"stage": 2, "overlap_comm": True, **ONE_EACH})
    assert prediction.strategy == "zero2"
    # forward 0-3, backward c 3-5, b 5-7, a 7-9
    assert bars(prediction)["all_reduce bucket 0"] == pytest.approx((7, 10))
    assert bars(prediction)["all_reduce bucket 1"] == pytest.approx((10, 13))
    assert bars(prediction)["all_reduce bucket 2"] == pytest.approx((13, 16))
    assert bars(prediction)["optimizer"] == pytest.approx((16, 16.5))
    assert bars(prediction)["all_gather parameters"] == pytest.approx((16.5, 25.5))


def test_with_overlap_computation_waits_for_the_bucket_before_the_last():
    workload = {"layers": [*THREE["layers"], THREE["layers"][0] | {"name": "d"}]}
    times = bars(predict({"stage": 2, "overlap_comm": True, **ONE_EACH}, workload))
    # backward d 4-6, c 6-8, b 8-10: the buckets of d and c are 8-11 and 11-14, and a fills none of both before 11
    assert times["backward a"] == pytest.approx((11, 13))


def test_stage_2_without_overlap_computes_no_further_until_a_bucket_is_reduced():
    times = bars(predict({"stage": 2, **ONE_EACH}))
    assert times["all_reduce bucket 0"] == pytest.approx((7, 10))
    assert times["backward a"] == pytest.approx((10, 12))
    assert times["all_reduce bucket 2"] == pytest.approx((15, 18))


def test_stages_0_and_1_without_overlap_reduce_behind_the_backward():
    one, none = predict({"stage": 1, **ONE_EACH}), predict({"stage": 0})
    assert bars(one)["all_reduce bucket 0"] == pytest.approx((9, 12))
    assert (one.strategy, counts(one)) == ("zero1", {"all_reduce": 3, "all_gather_into_tensor": 1})
    assert (none.strategy, counts(none)) == ("ddp", {"all_reduce": 1})
    assert none.step_ms == pytest.approx(9 + 9 + 1)


def test_micro_batches_are_the_configs():
    for stage, reductions in ((1, 3), (2, 6)):
        prediction = predict({"stage": stage, **ONE_EACH}, gradient_accumulation_steps=2)
        assert prediction.micro_batches_per_step == 2
        assert counts(prediction)["all_reduce"] == reductions


@pytest.mark.parametrize(
    ("batches", "accumulate"),  # on two ranks
    [
        ({"train_batch_size": 12, "train_micro_batch_size_per_gpu": 2}, 3),
        ({"train_batch_size": 12, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}, 3),
        ({"train_batch_size": 12, "gradient_accumulation_steps": 2}, 2),
        ({"train_batch_size": 12}, 1),
        ({"train_micro_batch_size_per_gpu": 2}, 1),
        ({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2}, 1),
    ],
)
def test_micro_batches_follow_from_the_batch_sizes(batches, accumulate):
    model = FakeModel(nodes=1, ranks_per_node=2)
    prediction = predict_step(Workload.from_dict(THREE), model, deepspeed=batches)
    assert prediction.micro_batches_per_step == accumulate


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ({"train_batch_size": 13, "train_micro_batch_size_per_gpu": 2}, "not a multiple of .* = 2 x 2"),
        ({"train_batch_size": 1}, "not a multiple of .* = 1 x 2"),
        (
            {"train_batch_size": 24, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3},
            "train_batch_size = 24 is not .* = 2 x 3 x 2: DeepSpeed refuses that",
        ),
    ],
)
def test_batch_sizes_that_do_not_go_together(batches, message):
    with pytest.raises(InputError, match=message):
        predict_step(Workload.from_dict(THREE), FakeModel(nodes=1, ranks_per_node=2), deepspeed=batches)


def test_types_are_the_configs():
    prediction = predict({"stage": 1}, bf16={"enabled": True}, communication_data_type="fp32")
    sizes = {c.collective: (c.size_bytes, c.call.dtype) for c in prediction.collectives}
    assert sizes == {"all_reduce": (3 * 10**6, "float32"), "all_gather_into_tensor": (15 * 10**5, "bfloat16")}
    assert prediction.memory.parameters_GB == pytest.approx(15e5 / 1e9)
    half = predict({"stage": 1}, fp16={"enabled": True, "loss_scale": 0})
    assert {c.call.dtype for c in half.collectives} == {"float16"}


def test_stage_3_by_unit_is_the_schedule_of_fully_shard():
    plain = predict_step(Workload.from_dict(THREE), FakeModel(ms_per_MB=3), "zero3")
    prediction = predict(SHARDED | ONE_EACH)
    assert (prediction.strategy, calls(prediction)) == ("zero3", calls(plain))
    assert prediction.step_ms == pytest.approx(plain.step_ms)


def test_stage_3_reduces_as_many_units_at_once_as_a_bucket_takes():
    prediction = predict(SHARDED | {"reduce_bucket_size": 500_000})
    reduced = [c.size_bytes for c in prediction.collectives if c.collective == "reduce_scatter_tensor"]
    assert reduced == [2 * 10**6, 10**6]


def test_stage_3_gathers_nothing_again_that_is_used_soon():
    def gathered(distance):
        return [name for name in calls(predict(SHARDED | {"stage3_max_reuse_distance": distance})) if "gather" in name]

    assert len(gathered(0)) == 6
    # c is used again at once; between the uses of b are two of c, 500,000 elements
    assert gathered(1)[3:] == ["all_gather b", "all_gather a"]
    assert gathered(500_001)[3:] == ["all_gather a"]
    assert len(gathered(10**9)) == 3


def test_stage_3_keeps_small_parameters_whole_and_gathers_them_once_a_step():
    workload = {"layers": [layer | {"tensors": [250_000, 1000]} for layer in THREE["layers"]], "optimizer_bytes": 0}
    prediction = predict(SHARDED | {"stage3_param_persistence_threshold": 1000}, workload)
    assert bars(prediction)["all_gather small parameters"][1] == prediction.step_ms
    sizes = sorted({c.size_bytes for c in prediction.collectives if c.collective == "all_gather_into_tensor"})
    assert sizes == [3 * 4000, 10**6]
    assert prediction.memory.parameters_GB == pytest.approx((3 * 10**6 / 2 + 3 * 4000) / 1e9)
    assert prediction.memory.gradients_GB == pytest.approx(3 * 251_000 * 4 / 2 / 1e9)


def test_stage_3_prefetches_only_with_overlap_and_room():
    ahead = predict(SHARDED).step_ms
    for off in ({"overlap_comm": False}, {"stage3_prefetch_bucket_size": 0}, {"stage3_max_live_parameters": 250_000}):
        assert predict(SHARDED | off).step_ms > ahead


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"zero_optimisation": {}}, "unknown key 'zero_optimisation' (did you mean zero_optimization?)"),
        ({"zero_optimization": {"stages": 2}}, "zero_optimization: unknown key 'stages' (did you mean stage?)"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage = 4: expected a whole number from 0 to 3"),
        ({"zero_optimization": {"reduce_bucket_size": "auto"}}, "reduce_bucket_size = 'auto': expected a whole number"),
        ({"zero_optimization": {"overlap_comm": 1}}, "overlap_comm = 1: expected true or false"),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, 'offload_optimizer = {"device": "cpu"}: is'),
        ({"zero_optimization": {"zero_hpz_partition_size": 8}}, "zero_hpz_partition_size = 8: is not predicted"),
        ({"zero_optimization": 2}, "zero_optimization = 2 must be an object"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "fp16 and bf16 are both enabled"),
        ({"communication_data_type": "fp8"}, "communication_data_type = 'fp8': expected fp16, bf16, fp32"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps = 0"),
    ],
)
def test_what_is_not_understood_is_refused(config, message):
    with pytest.raises(InputError) as error:
        DeepSpeed.from_dict(config, "ds.json")
    assert str(error.value).startswith("ds.json: ")
    assert message in str(error.value)


def test_what_moves_no_data_is_passed_over():
    config = {
        "train_micro_batch_size_per_gpu": "auto",
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 2, "contiguous_gradients": True, "allgather_bucket_size": 2e8},
        "bf16": {"enabled": False},
    }
    assert DeepSpeed.from_dict(config) == DeepSpeed(stage=2)
    assert DeepSpeed.from_dict({"zero_optimization": {"reduce_bucket_size": 2e8}}).reduce_bucket_numel == 200_000_000


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("ddp", {}, "strategy ddp, but the DeepSpeed config has stage 2"),
        (None, {"accumulate": 3}, "accumulate = 3, but the DeepSpeed config has gradient_accumulation_steps = 1"),
        (None, {"bucket_cap_mb": 25}, "bucket_cap_mb = 25 and a DeepSpeed config exclude one another"),
    ],
)
def test_what_the_config_says_is_not_said_twice(strategy, options, message):
    with pytest.raises(InputError, match=message):
        predict({"stage": 2}, strategy=strategy, options=options)


def test_from_a_file(tmp_path, capsys):
    workload, config = tmp_path / "three.toml", tmp_path / "ds.json"
    Workload.from_dict(THREE).save(workload)
    config.write_text(json.dumps({"zero_optimization": {"stage": 2, **ONE_EACH}}))
    link = ["--bandwidth", "1", "--ranks-per-node", "2"]
    assert main(["predict", str(workload), *link, "--deepspeed", str(config), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["strategy"], document["collectives"][0]["count"]) == ("zero2", 3)
    for text, words in (("{", "is not JSON"), ('{"zero": 1}', "unknown key 'zero'")):
        config.write_text(text)
        assert main(["predict", str(workload), *link, "--deepspeed", str(config)]) == 2
        assert words in capsys.readouterr().err
    assert main(["predict", str(workload), *link, "--deepspeed", str(tmp_path / "none.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err
