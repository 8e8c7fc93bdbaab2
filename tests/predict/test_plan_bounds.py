"""What a step takes at least, and what is shared between configurations: nothing of it changes an answer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from predict_fakes import FakeModel

from collbench.model.slowdown import Slowdown
from collbench.predict.options import Options
from collbench.predict.plan_space import Space, configurations
from collbench.predict.plan_times import StepTimes
from collbench.predict.workload import Layer, Workload

layers = st.builds(
    Layer,
    tensors=st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 50)), min_size=1, max_size=2).map(tuple),
    repeat=st.integers(1, 5),
    forward_ms=st.floats(0, 10).map(lambda value: round(value, 3)),
    backward_ms=st.floats(0, 10).map(lambda value: round(value, 3)),
    trainable=st.booleans(),
    wrap=st.booleans(),
)
head = Layer(name="head", tensors=((1000, 20),), forward_ms=1.0, backward_ms=2.0)
workloads = st.builds(
    Workload,
    layers=st.lists(layers, max_size=2).map(lambda found: (*found, head)),
    optimizer_ms=st.sampled_from([0.0, 3.0]),
)
models = st.builds(
    FakeModel,
    ms_per_MB=st.floats(0.01, 50),
    alpha_ms=st.floats(0, 1),
    spread=st.none(),
    backend=st.sampled_from(["nccl", "gloo"]),
)


@settings(deadline=None, max_examples=30)
@given(workloads, models, st.sampled_from([(1, 2), (2, 2), (2, 4), (4, 2)]), st.integers(1, 2))
def test_bounds_steps_and_memory_are_those_of_the_prediction(workload, model, layout, accumulate):
    nodes, ranks_per_node = layout
    space = Space(nodes=(nodes,), ranks_per_node=ranks_per_node, bucket_caps_mb=(None, 0.1), grad_syncs=(True, False))
    tried = configurations(workload, space)
    times = StepTimes(workload, model, None, Options(accumulate=accumulate))
    least_ms, refused = times.least_ms(tried)
    assert not refused and list(least_ms) == tried
    for each in tried:
        prediction = times.predict(each, model)
        slack = 1e-9 * (1 + prediction.step_ms)
        assert least_ms[each] <= prediction.step_ms + slack
        assert times.step_ms(each) == pytest.approx(prediction.step_ms)
        assert times.step_ms(each, 3) == pytest.approx(times.predict(each, model, 3).step_ms)
        assert times.memory(each) == prediction.memory


def test_where_nothing_is_shared_the_bound_is_the_step():
    workload = Workload(layers=(Layer(name="a", repeat=8, tensors=((500, 500),), forward_ms=1.0, backward_ms=2.0),))
    tried = configurations(workload, Space(nodes=(2,), ranks_per_node=4, strategies=("ddp", "zero2", "fsdp")))
    times = StepTimes(workload, FakeModel(ms_per_MB=2.0, alpha_ms=0.1, backend="nccl"), None, Options())
    least_ms, _ = times.least_ms(tried)
    for each in tried:
        assert least_ms[each] == pytest.approx(times.step_ms(each))


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_what_communication_and_computation_cost_one_another_is_in_it(backend):
    class Slowing(FakeModel):
        def slowdown(self, *question):
            return Slowdown(comm=1.5, compute=1.2)

    workload = Workload(layers=(Layer(name="a", repeat=4, tensors=((500, 500),), forward_ms=1.0, backward_ms=2.0),))
    model, plain = (made(ms_per_MB=2.0, nodes=2, ranks_per_node=2, backend=backend) for made in (Slowing, FakeModel))
    tried = configurations(workload, Space(nodes=(2,), ranks_per_node=2))
    times, plain_times = (StepTimes(workload, each, None, Options()) for each in (model, plain))
    least_ms, _ = times.least_ms(tried)
    longer_ms = []
    for each in tried:
        step_ms = times.predict(each, model).step_ms
        assert times.step_ms(each) == pytest.approx(step_ms)
        assert least_ms[each] <= step_ms + 1e-9
        longer_ms.append(step_ms - plain_times.step_ms(each))
    assert min(longer_ms) >= -1e-9 and max(longer_ms) > 1.0


def test_the_model_is_asked_once_for_all_sizes():
    model = FakeModel()
    workload = Workload(layers=tuple(Layer(name=f"l{n}", tensors=((1000 * n, 8),)) for n in range(1, 9)))
    times = StepTimes(workload, model, "pipelined", Options())
    tried = configurations(workload, Space(nodes=(1,), ranks_per_node=4, strategies=("fsdp",), reshards=(None, False)))
    times.least_ms(tried)
    asked = [(question[0], question[2:]) for question in model.asked]
    assert sorted(asked) == [
        (collective, ("world", 4, 1, "float32", "pipelined"))
        for collective in ("all_gather_into_tensor", "reduce_scatter_tensor")
    ]
    assert len(tried) > 1 and all(len(question[1]) == 8 for question in model.asked)
    for each in tried:
        times.step_ms(each)
    assert len(model.asked) == 2
