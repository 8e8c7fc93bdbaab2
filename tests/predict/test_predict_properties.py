"""What holds for every workload, strategy and network."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from predict_fakes import FakeModel

from collbench.predict.step import predict_step
from collbench.predict.strategies import STRATEGIES
from collbench.predict.workload import Layer, Workload

TOLERANCE = 1e-9

times_ms = st.floats(0, 10).map(lambda value: round(value, 3))
layers = st.builds(
    Layer,
    tensors=st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 50)), min_size=1, max_size=3).map(tuple),
    repeat=st.integers(1, 3),
    forward_ms=times_ms,
    backward_ms=times_ms,
    trainable=st.booleans(),
    wrap=st.booleans(),
)
some_trains = Layer(name="head", tensors=((1000, 20),), forward_ms=1.0, backward_ms=2.0)
workloads = st.builds(
    Workload,
    layers=st.lists(layers, max_size=5).map(lambda found: (*found, some_trains)),
    forward_ms=times_ms,
    backward_ms=times_ms,
    optimizer_ms=times_ms,
    reduce_dtype=st.sampled_from(["float32", "bfloat16"]),
)
steps = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(sorted(STRATEGIES)),
        "nodes": st.just(2),
        "ranks_per_node": st.sampled_from([1, 2, 8]),
        "accumulate": st.integers(1, 3),
        "overlap": st.booleans(),
    }
)
models = st.builds(
    FakeModel,
    ms_per_MB=st.floats(0.01, 50),
    alpha_ms=st.floats(0, 1),
    backend=st.sampled_from(["nccl", "gloo"]),  # each has its channel rule
)


@settings(deadline=None)
@given(workloads, models, steps)
def test_a_step_lies_between_computing_alone_and_hiding_nothing(workload, model, step):
    prediction = predict_step(workload, model, **step)
    slack = TOLERANCE * (1 + prediction.step_ms)
    assert prediction.compute_ms - slack <= prediction.step_ms <= prediction.compute_ms + prediction.comm_ms + slack
    assert 0 <= prediction.exposed_tail_ms <= prediction.exposed_comm_ms + slack
    assert prediction.exposed_comm_ms <= prediction.comm_ms + slack
    if not step["overlap"]:
        assert abs(prediction.exposed_comm_ms - prediction.comm_ms) <= slack


@settings(deadline=None)
@given(workloads, steps)
def test_free_communication_is_never_exposed(workload, step):
    prediction = predict_step(workload, FakeModel(ms_per_MB=0.0), **step)
    assert prediction.exposed_comm_ms == prediction.exposed_tail_ms == 0


@settings(deadline=None)
@given(workloads, models, steps)
def test_half_the_bandwidth_never_shortens_a_step(workload, model, step):
    slower = FakeModel(ms_per_MB=2 * model.ms_per_MB, alpha_ms=model.alpha_ms, backend=model.backend)
    assert predict_step(workload, slower, **step).step_ms >= predict_step(workload, model, **step).step_ms - TOLERANCE


@settings(deadline=None)
@given(workloads, models, st.sampled_from(["2x4", "4x2", "8x1", "1x8"]), st.integers(1, 2))
def test_the_same_of_meshes_whose_groups_share_the_network(workload, model, mesh, accumulate):
    """Half the bandwidth only where no more than two share it: gloo serves two of each group at a time."""
    step = {"nodes": 4, "ranks_per_node": 2, "mesh": mesh, "accumulate": accumulate}
    prediction = predict_step(workload, model, "hsdp", **step)
    slack = TOLERANCE * (1 + prediction.step_ms)
    assert prediction.compute_ms - slack <= prediction.step_ms <= prediction.compute_ms + prediction.comm_ms + slack
    assert 0 <= prediction.exposed_tail_ms <= prediction.exposed_comm_ms + slack
    if model.backend == "nccl" or mesh != "2x4":
        slower = FakeModel(ms_per_MB=2 * model.ms_per_MB, alpha_ms=model.alpha_ms, backend=model.backend)
        assert predict_step(workload, slower, "hsdp", **step).step_ms >= prediction.step_ms - slack


@settings(deadline=None)
@given(workloads, models)
def test_one_huge_bucket_is_all_tail(workload, model):
    """Where the first layer trains, so that the bucket is ready only at the very end."""
    workload = Workload(layers=(some_trains, *workload.layers))
    prediction = predict_step(workload, model, bucket_cap_mb=1e9)
    assert len(prediction.collectives) == 1
    assert abs(prediction.exposed_tail_ms - prediction.comm_ms) <= TOLERANCE * (1 + prediction.step_ms)


@settings(deadline=None)
@given(models, st.sampled_from(sorted(STRATEGIES)))
def test_one_layer_hides_nothing(model, strategy):
    prediction = predict_step(Workload(layers=(some_trains,)), model, strategy, nodes=2)
    assert abs(prediction.exposed_comm_ms - prediction.comm_ms) <= TOLERANCE * (1 + prediction.step_ms)


@settings(deadline=None)
@given(workloads, models, steps)
def test_the_optimizer_waits_for_all_gradients(workload, model, step):
    timeline = predict_step(workload, model, **step).to_dict()["timeline"]
    (optimizer,) = (bar for bar in timeline if bar["phase"] == "optimizer")
    assert all(bar["end_ms"] <= optimizer["start_ms"] for bar in timeline if bar["phase"] == "gradients")


@settings(deadline=None)
@given(workloads, models, steps)
def test_each_channel_runs_one_task_at_a_time(workload, model, step):
    free: dict[str, float] = {}
    for bar in predict_step(workload, model, **step).to_dict()["timeline"]:
        assert bar["start_ms"] >= free.get(bar["channel"], 0.0)
        free[bar["channel"]] = bar["end_ms"]
