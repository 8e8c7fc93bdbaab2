"""Ranking configurations: small cases that anyone can check on paper, and what always holds."""

from __future__ import annotations

import pytest
from predict_fakes import FakeModel

from collbench.errors import InputError
from collbench.predict.plan import plan_step
from collbench.predict.step import predict_step
from collbench.predict.workload import Layer, Workload

# Two layers of 1 MB, which take 1 ms to send, and 1 + 2 ms to compute. Adam: 16 bytes a parameter.
TWO = Workload(
    name="two",
    layers=(Layer(name="a", repeat=2, tensors=((250_000,),), forward_ms=1.0, backward_ms=2.0),),
    tokens_per_micro_batch=100.0,
    flops_per_token=1e9,
)
MANY = Workload(
    name="many",
    layers=(
        Layer(name="embedding", tensors=((1000, 64),), forward_ms=0.1, backward_ms=0.2, wrap=False),
        Layer(name="block", repeat=6, tensors=((512, 64), (64, 512), (64,)), forward_ms=0.3, backward_ms=0.6),
    ),
)
LARGE_GB = 1000.0


def plan(workload=TWO, model=None, memory_GB=LARGE_GB, **choices):
    return plan_step(workload, model or FakeModel(), memory_GB=memory_GB, **choices)


def names(found):
    return [step.configuration.strategy for step in found.steps]


def test_two_strategies_whose_steps_are_known():
    """ddp: 2 forward, 4 backward, the first layer's all_reduce behind it. fsdp: the first gather, the first one of
    backward and the last reduce-scatter are exposed."""
    found = plan(strategies=("fsdp", "ddp"), bucket_caps_mb=(0,), reshards=(None,), layers_per_unit=(1,))
    assert [(step.configuration.strategy, step.prediction.step_ms) for step in found.steps] == [("ddp", 7), ("fsdp", 9)]
    (change,) = found.steps[0].changes
    assert (change.knob, change.to.strategy, change.step_ms) == ("strategy", "fsdp", 9)
    document = found.to_dict()["steps"][1]
    assert document["exposed"] == {"forward_ms": 1.0, "backward_ms": 1.0, "tail_ms": 1.0, "after_ms": 0}
    assert document["changes"][0]["costs_ms"] == -2


def test_memory_excludes_what_does_not_fit():
    """ddp keeps 8 MB and a copy of 2 MB of gradients in its buckets. fsdp keeps half of the 8, gathers both units of
    1 MB, and copies one of them out of its gather's buffer."""
    choices = {"strategies": ("ddp", "fsdp"), "reshards": (None,), "layers_per_unit": (1,), "bucket_caps_mb": (0,)}
    assert names(plan(memory_GB=0.010, **choices)) == ["ddp", "fsdp"]
    found = plan(memory_GB=0.0099, **choices)
    assert (names(found), found.tried, found.fitting, found.nearest) == (["fsdp"], 2, 1, None)
    assert found.steps[0].total_GB == pytest.approx(0.007)
    assert found.steps[0].changes == ()


def test_nothing_fits():
    found = plan(memory_GB=0.005, strategies=("ddp", "fsdp"))
    assert (found.fitting, found.steps, found.scaling) == (0, (), ())
    assert (found.nearest.configuration.strategy, found.nearest.total_GB) == ("fsdp", pytest.approx(0.007))
    assert found.to_dict()["nearest"]["strategy"] == "fsdp"


def test_activations_count():
    choices = {"strategies": ("fsdp",), "reshards": (None,), "layers_per_unit": (1,)}
    assert plan(memory_GB=0.011, activations_GB=0.004, **choices).steps[0].total_GB == pytest.approx(0.011)
    found = plan(memory_GB=0.011, activations_GB=0.0041, **choices)
    assert found.fitting == 0
    assert any("0.0041 GB of activations" in note for note in found.notes)
    assert any("--activations-GB" in note for note in plan(**choices).notes)


def test_resharding_by_a_number_of_ranks_keeps_shards_and_counts_them():
    model = FakeModel(nodes=2, ranks_per_node=2)
    choices = {"strategies": ("fsdp",), "layers_per_unit": (1,)}
    by_node, whole = (plan(model=model, reshards=(choice,), **choices).steps[0] for choice in (2, None))
    assert by_node.total_GB - whole.total_GB == pytest.approx(0.001)  # half of 2 MB
    assert by_node.total_GB == by_node.prediction.memory.post_forward_shards_GB + whole.total_GB


def test_tokens_flops_and_mfu():
    (step,) = plan(strategies=("ddp",), bucket_caps_mb=(0,), peak_TFLOPS=50.0).steps
    assert step.prediction.tokens_per_s == pytest.approx(2 * 100 / 0.007)
    assert step.mfu == pytest.approx(100 * 1e9 / 0.007 / 50e12)
    assert plan(strategies=("ddp",)).steps[0].mfu is None


def test_an_mfu_that_cannot_be_is_said():
    assert not any("MFU" in note for note in plan(peak_TFLOPS=50.0, strategies=("ddp",)).notes)
    assert any("an MFU above 100 %" in note for note in plan(peak_TFLOPS=1.0, strategies=("ddp",)).notes)
    assert any("no MFU" in note for note in plan(MANY, peak_TFLOPS=1.0, strategies=("ddp",)).notes)


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_the_ranking_is_that_of_predicting_everything(backend):
    model = FakeModel(ms_per_MB=3.0, alpha_ms=0.2, nodes=2, ranks_per_node=4, backend=backend)
    found = plan(MANY, model, nodes=(1, 2), top=10_000, bucket_caps_mb=(None, 0.1, 0.5))
    steps_ms = [step.prediction.step_ms for step in found.steps]
    assert len(found.steps) == found.tried == found.fitting
    assert steps_ms == sorted(steps_ms)
    best = plan(MANY, model, nodes=(1, 2), top=3, bucket_caps_mb=(None, 0.1, 0.5))
    for nodes in (1, 2):
        all_of_them, three = (
            [step.prediction.step_ms for step in each.steps if step.configuration.nodes == nodes]
            for each in (found, best)
        )
        assert three == pytest.approx(all_of_them[:3])
    for step in best.steps:
        configuration = step.configuration
        others = [each for each in found.steps if each.configuration.nodes == configuration.nodes]
        for change in step.changes:
            alike = [
                each.prediction.step_ms
                for each in others
                if differing(configuration, each.configuration) == {change.knob}
                or (change.knob == "strategy" != each.configuration.strategy != configuration.strategy)
            ]
            assert change.step_ms == pytest.approx(min(alike))


def differing(one, other):
    knobs = ("strategy", "mesh", "bucket_cap_mb", "reshard_after_forward", "grad_sync", "layers_per_unit")
    values = {knob: [(type(value), value) for value in (getattr(one, knob), getattr(other, knob))] for knob in knobs}
    return {knob for knob, (mine, its) in values.items() if mine != its}


def test_accumulation_may_reduce_gradients_once():
    found = plan(strategies=("fsdp",), reshards=(None,), layers_per_unit=(1,), accumulate=3, top=5)
    syncs = {step.configuration.grad_sync: step.prediction for step in found.steps}
    assert {sync: sum(entry.count for entry in each.collectives) for sync, each in syncs.items()} == {
        True: 3 * (2 + 2 + 2),
        False: 3 * (2 + 2) + 2,
    }
    assert "grad_sync" in found.to_dict()["steps"][0]
    once = plan(strategies=("fsdp",), reshards=(None,), layers_per_unit=(1,))
    assert [step.configuration.grad_sync for step in once.steps] == [True]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_more_memory_never_makes_the_best_slower(backend):
    model = FakeModel(ms_per_MB=1.0, alpha_ms=0.05, nodes=2, ranks_per_node=4, backend=backend)
    plans = [plan(MANY, model, memory_GB=memory_GB) for memory_GB in (0.0016, 0.0025, 0.003, 0.006, 0.1)]
    best_ms = [found.steps[0].prediction.step_ms for found in plans if found.steps]
    assert len({found.fitting for found in plans}) == 5 and len(best_ms) >= 4
    assert best_ms == sorted(best_ms, reverse=True)


def test_scaling_is_told_apart():
    """Weak: each rank does the same. Strong: the sixteen micro-batches of eight nodes, on one node in eight each."""
    model = FakeModel(alpha_ms=1.0)
    found = plan(model=model, nodes=(8, 1, 2), ranks_per_node=2, strategies=("ddp",), bucket_caps_mb=(99,))
    assert [row.nodes for row in found.scaling] == [1, 2, 8]
    # whatever the ranks, the all_reduce takes 3 ms here
    assert [row.weak for row in found.scaling] == [1.0, 1.0, 1.0]
    alone, four, here = (2 * 51.0, 4 * 27.0, 16 * 9.0)  # 8, 4 and 1 micro-batches of 6 ms, and 3 ms behind them
    assert [row.strong for row in found.scaling] == pytest.approx([1.0, alone / four, alone / here])


def test_of_steps_that_take_the_same_the_one_that_needs_less_memory_is_the_best():
    """All communication is free, so every step takes what is computed."""
    free = FakeModel(ms_per_MB=0.0)
    found = plan(model=free, top=1, strategies=("ddp", "zero1", "zero2"), bucket_caps_mb=(25.0,))
    assert names(found) == ["zero2"]
    many = plan(model=free, nodes=(4, 1, 2), ranks_per_node=2)
    for row in many.scaling:
        first = next(step for step in many.steps if step.configuration.nodes == row.nodes)
        assert row.configuration == first.configuration
    assert [row.nodes for row in many.scaling] == [1, 2, 4]


def test_many_nodes_are_planned_as_fast_as_few():
    found = plan(nodes=(10**6,), ranks_per_node=8, strategies=("hsdp",), reshards=(None,), layers_per_unit=(1,), top=1)
    assert found.tried > 40


def test_strong_scaling_is_left_out_where_micro_batches_do_not_divide():
    found = plan(nodes=(1, 2, 3), ranks_per_node=2, strategies=("ddp",))
    assert [row.strong is None for row in found.scaling] == [False, True, False]


def test_what_a_model_cannot_answer_is_left_out_and_said():
    class Reducing(FakeModel):
        def time(self, collective, *question, **named):
            if collective != "all_reduce":
                raise InputError(f"the model has no {collective}: measure it with 'collbench run --collective it'")
            return super().time(collective, *question, **named)

    found = plan(model=Reducing())
    assert set(names(found)) == {"ddp"}
    assert sum(each.count for each in found.refused) == found.fitting - 1
    lacking = {"all_gather_into_tensor on world", "reduce_scatter_tensor on world"}
    assert {each.what for each in found.refused} == lacking
    with pytest.raises(InputError, match="collbench run --collective"):
        plan(model=Reducing(), strategies=("fsdp",))


def test_intervals_and_notes_are_the_predictions():
    model = FakeModel(spread=0.1, notes=("a note",), extrapolated_above=1.0)
    (step,) = plan(model=model, strategies=("ddp",), bucket_caps_mb=(0,)).steps
    expected = predict_step(TWO, model, "ddp", bucket_cap_mb=0)
    document = step.to_dict()
    assert document["step_ms_interval"] == list(expected.step_ms_interval)
    assert (document["notes"], document["extrapolated"]) == (["a note"], True)


def test_one_rank_needs_no_communication():
    found = plan(model=FakeModel(ranks_per_node=1))
    assert {step.prediction.step_ms for step in found.steps} == {6.0}
    assert found.steps[0].waits == ()


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"memory_GB": 0.0}, "memory_GB"),
        ({"memory_GB": float("nan")}, "memory_GB"),
        ({"activations_GB": -1.0}, "activations_GB"),
        ({"peak_TFLOPS": 0.0}, "peak_TFLOPS"),
        ({"top": 0}, "top"),
        ({"accumulate": 0}, "accumulate"),
        ({"model": FakeModel(ranks_per_node=None)}, "--ranks-per-node"),
        ({"workload": Workload(layers=(Layer(forward_ms=1.0),))}, "trains nothing"),
    ],
)
def test_bad_input(choices, message):
    with pytest.raises(InputError, match=message):
        plan(**choices)
