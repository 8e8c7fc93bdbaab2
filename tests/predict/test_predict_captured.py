"""What torch issued, as a workload's file keeps it, and what predict makes of it."""

from __future__ import annotations

import pytest
from predict_fakes import FakeModel, bars, calls

from collbench.errors import InputError
from collbench.predict.step import predict_step
from collbench.predict.workload import Workload
from collbench.predict.workload_file import as_toml

UNIT = {"tensors": [250_000], "forward_ms": 1, "backward_ms": 3}
LAYERS = [
    {"name": "embedding", "tensors": [250_000], "wrap": False},
    {"name": "block", **UNIT},
    {"name": "block.attention", **UNIT},
]
BEGIN = {"strategy": "fsdp", "nranks": 8, "source": "by hand", "plan": "differs"}


def gather(unit):
    return ["all_gather_into_tensor", unit, 10**6, "float32", 8]


def scatter(unit):
    return ["reduce_scatter_tensor", unit, 10**6, "float32", 8]


# A unit in a unit: the outer one is gathered first in both directions, and reduced last.
NESTED = [
    gather("root"), ["forward", ""], ["forward", "embedding"], gather("block"), ["forward", "block"],
    gather("block.attention"), ["forward", "block.attention"], ["backward", ""], gather("block"),
    gather("block.attention"), ["backward", "block"], ["backward", "block.attention"], scatter("block.attention"),
    scatter("block"), ["backward", "embedding"], scatter("root"),
]  # fmt: skip


def workload(events, layers=LAYERS, **captured):
    return Workload.from_dict({"layers": layers, "captured": {**BEGIN, **captured, "calls": events}})


def predict(made, strategy="fsdp", ms_per_MB=2.0, **options):
    return predict_step(made, FakeModel(ms_per_MB=ms_per_MB), strategy, **options)


def test_fsdp_is_predicted_in_the_captured_order():
    prediction = predict(workload(NESTED))
    assert calls(prediction) == [
        *("all_gather root", "all_gather block", "all_gather block.attention"),
        *("all_gather block", "all_gather block.attention"),
        *("reduce_scatter block.attention", "reduce_scatter block", "reduce_scatter root"),
    ]
    times = bars(prediction)
    # gathers 0-2, 2-4, 4-6; block 4-5, attention 6-7; gather block 7-9, its backward 9-12; attention's 12-15
    assert times["forward block.attention"] == pytest.approx((6, 7))
    assert times["backward block"] == pytest.approx((9, 12))
    assert times["backward block.attention"] == pytest.approx((12, 15))
    assert prediction.step_ms == pytest.approx(15 + 3 * 2)


@pytest.mark.parametrize("options", [{"prefetch": False}, {"reshard_after_forward": True}])
def test_other_options_are_planned(options):
    prediction = predict(workload(NESTED), **options)
    assert calls(prediction)[-2:] == ["reduce_scatter block", "reduce_scatter root"]
    backward = [name for name in calls(prediction) if name.startswith("reduce")]
    assert backward[0] == "reduce_scatter block.attention"
    assert calls(prediction) != calls(predict(workload(NESTED)))


def test_a_layer_that_is_called_twice_takes_half_its_time_each():
    events = [["forward", ""], ["forward", "a"], ["forward", "b"], ["forward", "a"], ["backward", ""]]
    layers = [{"name": name, "tensors": [10], "forward_ms": 4, "wrap": False} for name in "ab"]
    prediction = predict(workload([*events, ["backward", "b"], ["backward", "a"]], layers), ms_per_MB=0.0)
    assert prediction.compute_ms == pytest.approx(8)
    assert [placed.end_ms - placed.start_ms for placed in prediction.timeline if placed.name == "forward a"] == [2, 2]


DDP = [
    ["broadcast", "buffers", 500_000, "float32", 8], ["forward", ""], ["forward", "a"], ["forward", "b"],
    ["backward", ""], ["backward", "b"], ["all_reduce", "bucket 0", 10**6, "float32", 8], ["backward", "a"],
    ["all_reduce", "bucket 1", 2 * 10**6, "float32", 8], ["all_reduce", "unused parameters", 8, "int32", 8],
]  # fmt: skip
TWO = [{"name": name, "tensors": [250_000], "forward_ms": 1, "backward_ms": 3} for name in "ab"]


def test_ddp_has_the_captured_buckets_and_broadcasts_its_buffers():
    made = workload(DDP, TWO, strategy="ddp")
    times = bars(predict(made, "ddp"))
    assert times["broadcast buffers"] == pytest.approx((0, 1))
    assert times["forward a"] == pytest.approx((1, 2))
    assert times["all_reduce bucket 0"] == pytest.approx((6, 8))
    assert times["all_reduce bucket 1"] == pytest.approx((9, 13))
    sizes = [(c.call.size_bytes, c.call.dtype) for c in predict(made, "ddp").collectives]
    assert sizes == [(500_000, "float32"), (10**6, "float32"), (2 * 10**6, "float32"), (8, "int32")]
    assert bars(predict(made, "ddp", accumulate=2))["forward a #2"] == pytest.approx((9, 10))


def test_another_cap_is_planned():
    made = workload(DDP, TWO, strategy="ddp")
    sizes = [c.call.size_bytes for c in predict(made, "ddp", bucket_cap_mb=0.1).collectives for _ in range(c.count)]
    assert sizes == [10**6, 10**6]
    assert [c.count for c in predict(workload(NESTED), "ddp", bucket_cap_mb=0.1).collectives] == [3]


def test_a_workload_reads_back_what_it_wrote(tmp_path):
    layers = [*LAYERS, {"name": "lora", "tensors": [[8, 4]], "frozen_tensors": [[64, 4], 4], "repeat": 3}]
    made = Workload.from_dict(
        {
            "name": "a \"b\" ü", "times": "from FLOPs", "param_dtype": "bfloat16", "optimizer_bytes": 12.0,
            "forward_ms": 0.1 + 0.2, "flops_per_token": 6.02e17, "layers": layers,
            "captured": {**BEGIN, "reshard_after_forward": False, "calls": NESTED},
        }
    )  # fmt: skip
    path = tmp_path / "w.toml"
    made.save(path)
    read = Workload.from_toml(path)
    assert read.forward_ms == pytest.approx(made.forward_ms, rel=1e-5)
    assert as_toml(read) == as_toml(made) == path.read_text()
    assert (read.captured, read.layers, read.name, read.times) == (made.captured, made.layers, made.name, made.times)
    with pytest.raises(InputError, match="cannot be written"):
        made.save(tmp_path / "none" / "w.toml")


def test_frozen_tensors_are_gathered_and_kept_but_not_trained():
    layer = {"tensors": [[8, 4]], "frozen_tensors": [[65, 4], 4]}
    made = Workload.from_dict({"layers": [layer]})
    assert (made.numel, made.trainable_numel) == (32 + 260 + 4, 32)
    prediction = predict_step(made, FakeModel(nodes=1, ranks_per_node=2), "fsdp")
    sizes = {c.call.collective: c.call.size_bytes for c in prediction.collectives}
    assert sizes == {"all_gather_into_tensor": 4 * (32 + 264 + 4), "reduce_scatter_tensor": 4 * 32}
    assert prediction.memory.gradients_GB == pytest.approx(4 * 32 / 2 / 1e9)
    assert Workload.from_dict({"layers": [{**layer, "trainable": False}, {"tensors": [3]}]}).trainable_numel == 3


@pytest.mark.parametrize(
    ("captured", "message"),
    [
        ({"strategy": "zero1"}, "unknown strategy 'zero1'"),
        ({"nranks": 0}, "nranks = 0"),
        ({"nrank": 1}, "did you mean nranks?"),
        ({"plan": 3}, "plan = 3 must be a text"),
        ({"calls": 3}, "calls = 3 must be a list"),
        ({"calls": [["forward", "blocks"]]}, "the layer 'blocks', which the workload has not"),
        ({"calls": [["sideways", "block"]]}, "expected [collective, unit"),
        ({"calls": [["all_reduce", "root", -1, "float32", 8]]}, "expected [collective, unit"),
        ({"calls": [["all_redcue", "root", 1, "float32", 8]]}, "did you mean all_reduce?"),
        ({"calls": [["all_reduce", "root", 1, "float33", 8]]}, "did you mean float32?"),
        ({"calls": [7]}, "calls has 7"),
    ],
)
def test_what_is_not_understood_is_refused_in_one_line_that_says_where(tmp_path, captured, message):
    path = tmp_path / "w.toml"
    rows = {**BEGIN, "calls": NESTED, **captured}
    lines = "\n".join(f"{key} = {value!r}" for key, value in rows.items())
    layers = '\n[[layers]]\nname = "block"\ntensors = [8]\n'
    path.write_text(f"[captured]\n{lines}\n{layers}")
    with pytest.raises(InputError) as error:
        Workload.from_toml(path)
    assert message in str(error.value) and f"{path}:1: captured" in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_missing_is_named():
    table = {**BEGIN, "calls": []}
    for key in table:
        with pytest.raises(InputError, match=f"captured: {key} is missing"):
            Workload.from_dict({"layers": TWO, "captured": {k: v for k, v in table.items() if k != key}})
    with pytest.raises(InputError, match="captured = 3 must be a table"):
        Workload.from_dict({"layers": TWO, "captured": 3})
