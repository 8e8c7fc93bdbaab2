"""FullyShardedDataParallel's steps, computed by hand. Its order is compared with torch in test_predict_torch.py."""

from __future__ import annotations

import pytest
from predict_fakes import FakeModel, bars, calls

from collbench.errors import InputError
from collbench.predict.step import predict_step
from collbench.predict.workload import Workload


def units(forward_ms=1.0, backward_ms=3.0):
    """Three units of 250,000 parameters: 1 MB in fp32."""
    layer = {"tensors": [250_000], "forward_ms": forward_ms, "backward_ms": backward_ms}
    return {"layers": [{"name": name, **layer} for name in "abc"]}


def predict(workload, strategy="fsdp1", ranks_per_node=2, **options):
    model = FakeModel(ms_per_MB=2, ranks_per_node=ranks_per_node)
    return predict_step(Workload.from_dict(workload), model, strategy, **options)


def gathers(prediction):
    """[(unit, start), …] of all gathers, in order."""
    found = [bar for bar in prediction.to_dict()["timeline"] if bar["name"].startswith("all_gather")]
    return [(bar["name"].removeprefix("all_gather "), bar["start_ms"]) for bar in found]


def test_a_step_by_hand():
    prediction = predict(units())
    # Forward: gathers 0-2, 2-4, 4-6. Backward: 7-9, 9-11 and, behind the reduction of c, 14-16.
    assert gathers(prediction) == [("a", 0), ("b", 2), ("c", 4), ("c", 7), ("b", 9), ("a", pytest.approx(14))]
    times = bars(prediction)
    assert times["forward c"] == pytest.approx((6, 7))
    assert times["backward c"] == pytest.approx((9, 12))
    assert times["backward b"] == pytest.approx((12, 15))
    assert times["backward a"] == pytest.approx((16, 19))
    assert times["reduce_scatter a"] == pytest.approx((19, 21))
    assert prediction.step_ms == pytest.approx(21)


def test_two_gathers_are_in_flight_unless_there_is_no_limit():
    limited, free = (dict(gathers(predict(units(10), limit_all_gathers=limit))[:3]) for limit in (True, False))
    assert limited == pytest.approx({"a": 0, "b": 2, "c": 12})  # a is freed when it has computed, 2-12
    assert free == pytest.approx({"a": 0, "b": 2, "c": 4})


def test_a_slow_reduce_scatter_stalls_no_computation():
    # gathers end at 2, 4, 6; backward of 1 ms each from 6 on, and reductions of 2 ms behind them
    times = bars(predict(units(0, 1), reshard_after_forward=False))
    assert times["backward a"] == pytest.approx((8, 9))
    assert times["reduce_scatter a"] == pytest.approx((11, 13))


def test_without_backward_prefetch_every_gather_waits_for_a_reduction():
    prediction = predict(units(), backward_prefetch="none")
    assert calls(prediction)[3:] == [
        *("all_gather c", "reduce_scatter c", "all_gather b", "reduce_scatter b", "all_gather a", "reduce_scatter a")
    ]
    # forward 7; then three times a gather of 2, backward of 3 and a reduction of 2
    assert prediction.step_ms == pytest.approx(7 + 3 * 7)


def test_units_are_padded_as_a_whole():
    workload = {"layers": [{"tensors": [[10, 3], 7]}]}  # 37 elements are padded to 40
    prediction = predict(workload, ranks_per_node=4)
    assert {c.size_bytes for c in prediction.collectives} == {160}
    assert prediction.memory.parameters_GB == pytest.approx(160 / 4 / 1e9)


def test_a_flat_parameter_is_reduced_with_what_is_frozen_in_it():
    workload = {"layers": [{"tensors": [8], "frozen_tensors": [32]}, {"tensors": [16], "trainable": False}]}
    prediction = predict(workload)
    sizes = [c.size_bytes for c in prediction.collectives if c.collective == "reduce_scatter_tensor"]
    assert sizes == [160]


def test_shards_of_gradients_alone_keep_what_was_gathered_while_gradients_wait():
    prediction = predict(units(), reshard_after_forward=False, grad_sync=False, accumulate=3)
    assert [name for name, _ in gathers(prediction)] == ["a #1", "b #1", "c #1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reshard_after_forward": 2}, "fsdp1 has true"),
        ({"prefetch_ahead": 2}, "prefetch_ahead = 2 does not belong to strategy fsdp1"),
        ({"backward_prefetch": "before"}, "unknown backward_prefetch 'before'"),
        ({"strategy": "fsdp", "forward_prefetch": True}, "forward_prefetch = True does not belong to strategy fsdp"),
        ({"strategy": "fsdp", "backward_prefetch": "post"}, "backward_prefetch = 'post' does not belong"),
        ({"strategy": "hsdp", "limit_all_gathers": False}, "limit_all_gathers = False does not belong"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(InputError, match=message):
        predict(units(), **options)
