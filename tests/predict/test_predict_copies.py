"""torch's own copies around collectives, by hand. That they are as many bytes as torch's: tests/validate."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from predict_fakes import FakeModel, bars

from collbench.cli import main
from collbench.errors import InputError
from collbench.predict.step import predict_step
from collbench.predict.workload import Workload

LAYER = {"tensors": [250_000], "forward_ms": 10.0, "backward_ms": 30.0}  # 1 MB, or half of it in bf16
UNITS = {"layers": [{"name": name, **LAYER} for name in "ab"]}


def predict(workload, strategy, **options):
    return predict_step(Workload.from_dict(workload), FakeModel(ms_per_MB=2), strategy, **options)


def test_a_sharded_unit_is_copied_in_beside_the_computation_and_out_of_and_into_it():
    prediction = predict(UNITS, "fsdp", copy_GBps=1.0, reshard_after_forward=False)
    times = bars(prediction)
    assert times["copy in a"] == pytest.approx((0, 1))  # half of it read and written
    assert times["all_gather a"] == pytest.approx((1, 3))
    assert times["copy out a"] == pytest.approx((3, 5))  # all of it
    assert times["forward a"] == pytest.approx((5, 15))
    assert times["all_gather b"] == pytest.approx((3, 5)), "b was copied in while a was gathered"
    assert times["backward b"][0] == pytest.approx(27)  # forward b began when it had been copied out, 15-17
    assert times["gradients in b"] == pytest.approx((57, 59))  # its gradients, behind its backward
    assert times["reduce_scatter b"] == pytest.approx((59, 61))
    assert times["backward a"] == pytest.approx((59, 89))
    assert (prediction.step_ms, prediction.compute_ms) == pytest.approx((93, 80))
    assert prediction.exposed_tail_ms == pytest.approx(4)
    assert prediction.copies_ms == pytest.approx(2 * (1 + 2 + 2))


def test_types_that_differ_are_cast_before_the_gather_and_behind_the_reduction():
    mixed = UNITS | {"storage_dtype": "float32", "param_dtype": "bfloat16", "reduce_dtype": "float32"}
    times = bars(predict(mixed, "fsdp", copy_GBps=1.0, reshard_after_forward=False))
    took = {name: end - start for name, (start, end) in times.items()}
    assert took["copy in a"] == pytest.approx(0.125 * 6 + 0.125 * 4)  # 125,000 elements: cast, then copied
    assert took["copy out a"] == pytest.approx(2 * 0.5)
    assert took["gradients in a"] == pytest.approx(0.5 + 1)  # read in bf16, written in fp32
    assert "gradients out a" not in took, "reduced in the type that is kept"
    same = UNITS | {"storage_dtype": "float32", "param_dtype": "bfloat16", "reduce_dtype": "bfloat16"}
    start, end = bars(predict(same, "fsdp", copy_GBps=1.0))["gradients out a"]
    assert end - start == pytest.approx(0.25 + 0.5)


def test_ddp_copies_gradients_into_its_buckets_and_back_unless_they_are_views():
    kept = predict(UNITS, "ddp", bucket_cap_mb=0.5, copy_GBps=2.0)
    times = bars(kept)
    assert times["gradients in b"] == pytest.approx((50, 51))
    assert times["all_reduce bucket 0"] == pytest.approx((51, 53))
    assert times["backward a"] == pytest.approx((51, 81))
    assert times["gradients out bucket 0"] == pytest.approx((82, 83))
    assert times["gradients out bucket 1"] == pytest.approx((84, 85))
    assert kept.step_ms == pytest.approx(85) and kept.exposed_tail_ms == pytest.approx(3)
    views = predict(UNITS, "ddp", bucket_cap_mb=0.5, copy_GBps=2.0, gradient_as_bucket_view=True)
    assert views.step_ms == pytest.approx(84)


def test_only_the_micro_batch_that_is_reduced_is_copied():
    one, three = (predict(UNITS, "ddp", copy_GBps=1.0, accumulate=count).copies_ms for count in (1, 3))
    assert one == three


def test_a_hook_casts_divides_and_casts_back():
    plain, hooked = (predict(UNITS, "ddp", copy_GBps=1.0, comm_hook=hook).copies_ms for hook in (None, "fp16"))
    assert hooked - plain == pytest.approx(2 * (1 + 0.5) + 2 * 2 * 0.5 + 2 * (0.5 + 1))


def test_the_host_takes_its_time_around_every_collective():
    plain = predict(UNITS, "fsdp", overlap=False)
    hosted = predict(UNITS, "fsdp", overlap=False, host_us=500.0)
    collectives = sum(entry.count for entry in plain.collectives)
    assert hosted.step_ms - plain.step_ms == pytest.approx(0.5 * collectives) == pytest.approx(hosted.copies_ms)
    assert hosted.compute_ms == plain.compute_ms


@settings(max_examples=60, deadline=None)
@given(
    strategy=st.sampled_from(["ddp", "fsdp", "hsdp"]),
    GBps=st.floats(0.1, 1000),
    overlap=st.booleans(),
    accumulate=st.integers(1, 3),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
)
def test_copies_lengthen_a_step_by_no_more_than_they_take_and_are_no_computation(
    strategy, GBps, overlap, accumulate, dtype
):
    workload = UNITS | {"param_dtype": dtype, "storage_dtype": "float32", "grad_dtype": "float32"}
    options = {"overlap": overlap, "accumulate": accumulate, "nodes": 2, "ranks_per_node": 2}
    plain = predict(workload, strategy, **options)
    copied = predict(workload, strategy, copy_GBps=GBps, **options)
    assert copied.copies_ms > 0 and plain.copies_ms is None
    assert plain.step_ms - 1e-9 <= copied.step_ms <= plain.step_ms + copied.copies_ms + 1e-9
    assert (copied.compute_ms, copied.comm_ms) == (plain.compute_ms, plain.comm_ms)
    assert [entry.call for entry in copied.collectives] == [entry.call for entry in plain.collectives]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"copy_GBps": 0}, "copy_GBps = 0 must be a finite number above 0"),
        ({"copy_GBps": float("nan")}, "copy_GBps = nan"),
        ({"copy_GBps": "fast"}, "copy_GBps = 'fast'"),
        ({"host_us": -1.0}, "host_us = -1.0 must be a finite number, 0 or more"),
        ({"host_us": float("inf")}, "host_us = inf"),
    ],
)
def test_what_is_no_rate_and_no_time_is_refused(options, words):
    with pytest.raises(InputError, match=words):
        predict(UNITS, "fsdp", **options)


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "fsdp1"])
def test_strategies_whose_copies_are_not_known_refuse_a_rate(strategy):
    with pytest.raises(InputError, match=f"copy_GBps = 2.0 does not belong to strategy {strategy}"):
        predict(UNITS, strategy, copy_GBps=2.0)


def test_the_command_says_what_copies_take(tmp_path, capsys):
    workload = tmp_path / "w.toml"
    workload.write_text("[[layers]]\ntensors = [250000]\nforward_ms = 1.0\n")
    command = ["predict", str(workload), "--bandwidth", "1GB/s", "--ranks-per-node", "2", "--strategy", "fsdp"]
    assert main(command) == 0
    assert "copies" not in capsys.readouterr().out
    assert main([*command, "--copy-GBps", "1"]) == 0
    assert "copies                8.000 ms" in capsys.readouterr().out
