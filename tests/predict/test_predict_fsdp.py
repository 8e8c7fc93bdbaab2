"""FSDP and HSDP steps, computed by hand. The order of collectives is compared with torch in test_predict_torch.py."""

from __future__ import annotations

import pytest
from predict_fakes import FakeModel, bars, calls

from collbench.collectives import find_collective
from collbench.errors import InputError
from collbench.predict.step import predict_step
from collbench.predict.workload import Workload


def units(forward_ms=1.0, backward_ms=3.0, **more):
    """Three units of 250,000 parameters: 1 MB in fp32."""
    layer = {"tensors": [250_000], "forward_ms": forward_ms, "backward_ms": backward_ms}
    return {"layers": [{"name": name, **layer} for name in "abc"], **more}


ROOT = {"name": "embedding", "tensors": [250_000], "wrap": False}


def with_root(workload):
    return workload | {"layers": [ROOT, *workload["layers"]]}


def predict(workload, strategy="fsdp", model=None, **options):
    return predict_step(Workload.from_dict(workload), model or FakeModel(ms_per_MB=2), strategy, **options)


def test_a_step_by_hand():
    prediction = predict(units())
    times = bars(prediction)
    # Forward. The gather of b is issued when a starts, at 2; that of c when b starts, at 4.
    assert times["forward a"] == pytest.approx((2, 3))
    assert times["forward b"] == pytest.approx((4, 5))
    assert times["forward c"] == pytest.approx((6, 7))
    # Backward. gather c 7-9, b 9-11; reduce c 12-14 goes before gather a 14-16, which holds up backward a.
    assert times["backward c"] == pytest.approx((9, 12))
    assert times["reduce_scatter c"] == pytest.approx((12, 14))
    assert times["backward b"] == pytest.approx((12, 15))
    assert times["reduce_scatter b"] == pytest.approx((16, 18))
    assert times["backward a"] == pytest.approx((16, 19))
    assert times["reduce_scatter a"] == pytest.approx((19, 21))
    assert (prediction.step_ms, prediction.compute_ms, prediction.comm_ms) == pytest.approx((21, 12, 18))
    assert (prediction.exposed_comm_ms, prediction.exposed_tail_ms) == pytest.approx((9, 2))
    assert predict(units(), "zero3").step_ms == prediction.step_ms


def test_a_gather_may_start_two_units_ahead_in_forward():
    """Where the host runs ahead; after the gather before it, which is on the same communicator."""
    workload = units()
    workload["layers"][0]["forward_ms"] = 10.0
    workload["layers"][1]["forward_ms"] = 0.5
    times = bars(predict(workload, reshard_after_forward=False))
    # gathers 0-2, 2-4 and, with a's computation 2-12, 4-6: when b has computed for half a millisecond, c is there
    assert times["all_gather c"] == pytest.approx((4, 6))
    assert times["forward b"] == pytest.approx((12, 12.5))
    assert times["forward c"] == pytest.approx((12.5, 13.5))


def test_without_prefetch_a_gather_waits_for_the_computation_before_it():
    prediction = predict(units(), prefetch=False)
    times = bars(prediction)
    # gather 0-2, a 2-3, gather 3-5, b 5-6, gather 6-8, c 8-9; gather 9-11, backward c 11-14
    assert times["forward b"] == pytest.approx((5, 6))
    assert times["backward c"] == pytest.approx((11, 14))
    # reduce c 14-16, gather b 16-18, backward b 18-21; reduce b 21-23, gather a 23-25, backward a 25-28, reduce a 28-30
    assert prediction.step_ms == pytest.approx(30)
    assert calls(prediction)[-5:] == [
        "reduce_scatter c",
        "all_gather b",
        "reduce_scatter b",
        "all_gather a",
        "reduce_scatter a",
    ]


def test_gathers_ahead_as_set_explicitly():
    workload = units()
    workload["layers"].append(workload["layers"][0] | {"name": "d"})
    prediction = predict(workload, prefetch_ahead=2)
    assert calls(prediction)[:8] == [*(f"all_gather {name}" for name in "abcddcb"), "reduce_scatter d"]
    # b and c are issued when a has been waited for, so is d with b: when a is copied out, at 2
    assert bars(predict(workload, prefetch_ahead=2, reshard_after_forward=False))["all_gather d"] == (6, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefetch_ahead": 0}, "prefetch_ahead = 0"),
        ({"prefetch_ahead": 2, "prefetch": False}, "exclude one another"),
        ({"prefetch_ahead": 2, "strategy": "zero3"}, "does not belong to strategy zero3"),
    ],
)
def test_gathers_ahead_that_do_not_fit(options, message):
    with pytest.raises(InputError, match=message):
        predict(units(), **options)


def test_a_slow_reduce_scatter_stalls_the_computation():
    # Everything stays gathered; gathers and reductions take 5 ms, a backward 1 ms. Gathers end at 5, 10, 15.
    times = bars(predict(units(0, 1), model=FakeModel(ms_per_MB=5), reshard_after_forward=False))
    assert times["backward c"] == pytest.approx((15, 16))
    assert times["backward b"] == pytest.approx((16, 17))
    # After backward b the compute stream waits for c's reduce-scatter, 16-21: torch keeps one in flight.
    assert times["backward a"] == pytest.approx((21, 22))
    assert times["reduce_scatter b"] == pytest.approx((21, 26))
    assert times["reduce_scatter a"] == pytest.approx((26, 31))


def test_the_root_is_gathered_first_and_reduced_last():
    prediction = predict(with_root(units()))
    assert calls(prediction) == [
        *(f"all_gather {name}" for name in ("root", "a", "b", "c", "c", "b")),
        "reduce_scatter c",
        "all_gather a",
        *(f"reduce_scatter {name}" for name in ("b", "a", "root")),
    ]
    times = bars(prediction)
    assert times["forward embedding"] == pytest.approx((2, 2))
    assert times["forward a"] == pytest.approx((4, 5))


@pytest.mark.parametrize(
    ("reshard", "gathers"), [(None, 1 + 3 + 3), (True, 1 + 3 + 1 + 3), (False, 1 + 3), (2, 1 + 3 + 1 + 3)]
)
def test_resharding_decides_what_is_gathered_again(reshard, gathers):
    model = FakeModel(nodes=1, ranks_per_node=4)
    prediction = predict(with_root(units()), model=model, reshard_after_forward=reshard)
    assert sum(name.startswith("all_gather") for name in calls(prediction)) == gathers
    degrees = {c.call.group.nranks: c.count for c in prediction.collectives if "gather" in c.call.collective}
    assert degrees == ({4: 4, 2: 4} if reshard == 2 else {4: gathers})


@pytest.mark.parametrize("reshard", [0, 1, 3, 8, -2])
def test_resharding_over_a_number_that_does_not_divide(reshard):
    with pytest.raises(InputError, match=f"reshard_after_forward = {reshard} .*divides the shard degree, 4"):
        predict(units(), model=FakeModel(nodes=1, ranks_per_node=4), reshard_after_forward=reshard)


def test_sizes_are_padded_on_dimension_0_in_their_own_types():
    workload = {"param_dtype": "bfloat16", "reduce_dtype": "float32", "layers": [{"tensors": [[10, 3], 7]}]}
    prediction = predict(workload, model=FakeModel(nodes=1, ranks_per_node=4))
    sizes = {c.call.collective: (c.call.size_bytes, c.call.dtype) for c in prediction.collectives}
    # 10 rows are padded to 12, 7 elements to 8: 12 * 3 + 8 = 44 elements
    assert sizes == {"all_gather_into_tensor": (88, "bfloat16"), "reduce_scatter_tensor": (176, "float32")}


def test_frozen_units_are_gathered_but_not_reduced():
    workload = units()
    workload["layers"][1]["trainable"] = False
    prediction = predict(workload)
    assert calls(prediction).count("all_gather b") == 2
    assert "reduce_scatter b" not in calls(prediction)


def test_backward_does_not_enter_frozen_layers_at_the_start_that_have_no_backward_time():
    workload = units()
    for layer in workload["layers"][:2]:
        layer |= {"trainable": False, "backward_ms": 0.0}
    # torch prefetches the one before the last that trains all the same
    assert calls(predict(workload))[3:] == ["all_gather c", "all_gather b", "reduce_scatter c"]


def test_every_micro_batch_gathers_and_reduces():
    one, two = predict(with_root(units())), predict(with_root(units()), accumulate=2)
    assert two.comm_ms == pytest.approx(2 * one.comm_ms)
    assert two.step_ms == pytest.approx(2 * one.step_ms)  # nothing of the second can start before the first has synced


def test_without_gradient_sync_only_the_last_micro_batch_reduces():
    prediction = predict(units(), accumulate=2, grad_sync=False)
    assert [name for name in calls(prediction) if "reduce" in name] == [f"reduce_scatter {unit} #2" for unit in "cba"]
    # The first: forward ends at 7 (as by hand above), gathers end at 9, 11 and, prefetched with backward b, at 14 …
    times = bars(prediction)
    assert times["backward b #1"] == pytest.approx((12, 15))
    assert times["backward a #1"] == pytest.approx((15, 18))
    # … so the second begins at 18, when nothing of the first is left to wait for
    assert times["forward a #2"] == pytest.approx((20, 21))
    assert prediction.step_ms == pytest.approx(18 + 21)


def test_checkpointed_layers_compute_forward_once_more_before_backward():
    prediction = predict(with_root(units()), recompute=True)
    times = bars(prediction)
    assert times["backward c"][1] - times["backward c"][0] == pytest.approx(1 + 3)
    assert calls(prediction) == calls(predict(with_root(units())))  # torch gathers nothing again for it
    assert prediction.compute_ms == pytest.approx(12 + 3)


def test_the_root_is_not_checkpointed():
    workload = units()
    workload["layers"][0]["wrap"] = False
    assert predict(workload, recompute=True).compute_ms == pytest.approx(12 + 2)


def test_the_optimizer_works_on_its_shard():
    assert predict(units(optimizer_ms=8.0)).step_ms == pytest.approx(21 + 8 / 2)


def test_without_overlap_nothing_hides():
    prediction = predict(with_root(units()), overlap=False)
    assert prediction.step_ms == pytest.approx(prediction.compute_ms + prediction.comm_ms)


def test_hsdp_reduces_over_the_nodes_on_links_of_their_own():
    model = FakeModel(nodes=3, ranks_per_node=2, ms_per_MB=2)
    prediction = predict(units(), "hsdp", model)
    entries = {c.call.collective: c.call for c in prediction.collectives}
    scatter, reduce = entries["reduce_scatter_tensor"], entries["all_reduce"]
    assert (scatter.group.name, scatter.group.nranks, scatter.group.nnodes) == ("intra", 2, 1)
    assert (reduce.group.name, reduce.group.nranks, reduce.group.nnodes) == ("inter", 3, 3)
    assert reduce.size_bytes == scatter.size_bytes / 2
    # as in the first test, and an all_reduce of 1 ms after each reduce-scatter; the last one is 21-22
    times = bars(prediction)
    assert times["all_reduce c"] == pytest.approx((14, 15))
    assert (prediction.step_ms, prediction.exposed_tail_ms) == pytest.approx((22, 3))
    channels = {bar["channel"]: bar["stream"] for bar in prediction.to_dict()["timeline"]}
    assert channels == {"compute": "compute", "comm": "comm", "comm:replicate": "comm"}


@pytest.mark.parametrize(
    ("mesh", "shard", "replicate"),
    [
        ("2x4", ("intra", 4, 1), ("inter", 2, 2)),
        ((2, 4), ("intra", 4, 1), ("inter", 2, 2)),
        ("4x2", ("mesh:4x2:shard", 2, 1), ("mesh:4x2:replicate", 4, 2)),
        ("1x8", ("world", 8, 2), None),
        ("8x1", None, ("world", 8, 2)),
    ],
)
def test_meshes(mesh, shard, replicate):
    prediction = predict(units(), "hsdp", FakeModel(nodes=2, ranks_per_node=4), mesh=mesh)
    groups = {c.call.collective: c.call.group for c in prediction.collectives}
    for collective, expected in (("reduce_scatter_tensor", shard), ("all_reduce", replicate)):
        group = groups.get(collective)
        assert (group and (group.name, group.nranks, group.nnodes)) == expected


@pytest.mark.parametrize(
    ("layout", "mesh", "message"),
    [
        ((2, 4), "3x2", "mesh 3x2 has 6 ranks"),
        ((2, 4), "0x8", "mesh 0x8 has 0 ranks"),
        ((2, 4), "2by4", "expected RxS"),
        ((1, 4), None, "needs a mesh"),
    ],
)
def test_meshes_that_do_not_fit(layout, mesh, message):
    with pytest.raises(InputError, match=message):
        predict(units(), "hsdp", FakeModel(nodes=layout[0], ranks_per_node=layout[1]), mesh=mesh)


@pytest.mark.parametrize(
    ("strategy", "options", "expected"),
    [
        ("ddp", {}, 2),
        ("zero1", {}, 2),
        ("zero2", {}, 2),
        ("zero3", {}, 3),
        ("fsdp", {}, 3),
        ("fsdp", {"reshard_after_forward": False}, 2),
    ],
)
def test_volume_per_step_in_parameter_bytes(strategy, options, expected):
    """ZeRO (arXiv 1910.02054), section 7; a rank of p sends this times (p-1)/p."""
    workload = {"layers": [{"tensors": [[1024, 64]], "repeat": 4}]}
    prediction = predict(workload, strategy, FakeModel(nodes=1, ranks_per_node=8), **options)
    sent = sum(
        c.count * c.call.size_bytes * find_collective(c.call.collective).sent_fraction(8)
        for c in prediction.collectives
    )
    assert sent == pytest.approx(expected * (4 * 1024 * 64 * 4) * 7 / 8)
