"""gloo's channel rule: two collectives of a group at a time, latencies side by side, transfers in equal shares."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from predict_fakes import FakeModel, bars

from collbench.model.link import LinkModel
from collbench.predict.channels import play_sharing
from collbench.predict.placement import Group
from collbench.predict.step import predict_step
from collbench.predict.timeline import Call, Schedule, play
from collbench.predict.workload import Workload

WORLD = Group(name="world", nranks=4, nnodes=2)
INTRA = Group(name="intra", nranks=2, nnodes=1)
INTER = Group(name="inter", nranks=2, nnodes=2)


def schedule_of(*calls, after=()):
    """Collectives on one stream: (name, ms, group)."""
    schedule = Schedule()
    for name, duration_ms, group in calls:
        call = Call(collective="all_reduce", size_bytes=duration_ms, group=group, dtype="float32")
        schedule.call(name, call, after=after, stream="comm", phase="gradients")
    return schedule


def times(schedule, latency_share=0.0):
    placed = play_sharing(schedule.tasks, lambda call: float(call.size_bytes), lambda call: latency_share)
    return {each.name: (each.start_ms, each.end_ms) for each in placed}


def test_two_at_a_time_take_as_long_as_one_after_another_and_the_third_waits():
    assert times(schedule_of(("a", 4, WORLD), ("b", 4, WORLD), ("c", 4, WORLD))) == {
        "a": (0, 8),
        "b": (0, 8),
        "c": (8, 12),
    }


def test_a_shorter_one_leaves_the_link_to_the_longer():
    # both have 1 ms by 2 ms; b needs 5 more. c waits for a's place.
    assert times(schedule_of(("a", 1, WORLD), ("b", 6, WORLD), ("c", 1, WORLD))) == {
        "a": (0, 2),
        "b": (0, 8),
        "c": (2, 4),
    }


def test_latencies_pass_side_by_side():
    # 3 of 4 ms are latency: 3 ms of it for two, then 2 ms of both transfers
    calls = [(name, 4, WORLD) for name in "abcd"]
    assert times(schedule_of(*calls), latency_share=0.75) == {"a": (0, 5), "b": (0, 5), "c": (5, 10), "d": (5, 10)}
    assert times(schedule_of(*calls), latency_share=1.0) == {"a": (0, 4), "b": (0, 4), "c": (4, 8), "d": (4, 8)}


def test_a_latency_does_not_slow_the_others_transfer():
    # a's latency is over at 4, b's at 1: b transfers alone, 3 ms
    schedule = schedule_of(("a", 8, WORLD), ("b", 4, WORLD))
    placed = play_sharing(
        schedule.tasks, lambda call: float(call.size_bytes), lambda call: 0.5 if call.size_bytes == 8 else 0.25
    )
    assert [each.end_ms for each in placed] == [8, 4]


def test_each_group_has_its_own_two_and_groups_within_a_node_their_own_link():
    both = schedule_of(("a", 4, WORLD), ("b", 4, WORLD), ("c", 4, INTER))
    assert times(both)["c"] == (0, 12)  # three share the network
    inside = schedule_of(("a", 4, WORLD), ("b", 4, WORLD), ("c", 4, INTRA))
    assert times(inside) == {"a": (0, 8), "b": (0, 8), "c": (0, 4)}


def test_a_stream_issues_in_the_order_of_its_list():
    schedule = Schedule()
    first = schedule.add("compute", 5.0, stream="compute", phase="backward")
    for name, after in (("a", (first,)), ("b", ())):
        call = Call(collective="all_reduce", size_bytes=1, group=WORLD, dtype="float32")
        schedule.call(name, call, after=after, stream="comm", phase="gradients")
    assert times(schedule)["b"] == (5, 7)


def test_those_that_overlap_are_told_apart():
    schedule = schedule_of(("a", 1, WORLD), ("b", 6, WORLD), ("c", 1, WORLD))
    placed = play_sharing(schedule.tasks, lambda call: float(call.size_bytes), lambda call: 0.0)
    assert [(each.name, each.stream, each.channel) for each in placed] == [
        ("a", "comm", "comm"),
        ("b", "comm", "comm:2"),
        ("c", "comm", "comm"),
    ]


@given(st.lists(st.tuples(st.sampled_from(["compute", "comm"]), st.integers(0, 20)), max_size=20))
def test_tasks_that_each_wait_for_the_one_before_are_placed_as_on_queues(steps):
    schedule = Schedule()
    for number, (stream, duration_ms) in enumerate(steps):
        after = (number - 1,) if number else ()
        work = float(duration_ms)
        if stream == "comm":
            work = Call(collective="all_reduce", size_bytes=duration_ms, group=WORLD, dtype="float32")
        schedule.add(str(number), work, after=after, stream=stream, phase="")

    def cost_ms(call):
        return float(call.size_bytes)

    assert play_sharing(schedule.tasks, cost_ms, lambda call: 0.5) == play(schedule.tasks, cost_ms)


THREE = {"layers": [{"tensors": [250_000], "repeat": 3, "forward_ms": 1, "backward_ms": 1}]}  # 1 MB each


def predict(backend, **options):
    model = FakeModel(ms_per_MB=1.0, alpha_ms=9.0, backend=backend, spread=0.1)
    return predict_step(Workload.from_dict(THREE), model, bucket_cap_mb=0, **options)


def test_the_backend_that_was_measured_decides_the_rule():
    # Gradients are ready at 4, 5 and 6 ms; a collective takes 10, of which 9 are latency.
    assert predict("nccl").step_ms == pytest.approx(34)
    gloo = predict("gloo")
    assert bars(gloo)["all_reduce bucket 1"] == pytest.approx((5, 15))
    assert bars(gloo)["all_reduce bucket 2"] == pytest.approx((14, 24))
    assert gloo.step_ms == pytest.approx(24)
    assert gloo.step_ms_interval == pytest.approx((22, 26), abs=0.5)
    assert gloo.comm_ms == pytest.approx(30)


def test_without_overlap_all_backends_are_alike():
    assert predict("gloo", overlap=False).step_ms == predict("nccl", overlap=False).step_ms == pytest.approx(36)


def test_the_optimizer_waits_for_the_bucket_that_ends_last():
    """Not for the one issued last: a small one overtakes a big one."""
    workload = Workload.from_dict(
        {
            "optimizer_ms": 1,
            "layers": [{"tensors": [1000], "backward_ms": 1}, {"tensors": [2_500_000], "backward_ms": 1}],
        }
    )
    prediction = predict_step(workload, FakeModel(backend="gloo"), bucket_cap_mb=0)
    ends = {name: end for name, (_, end) in bars(prediction).items()}
    assert ends["all_reduce bucket 1"] < ends["all_reduce bucket 0"]
    assert bars(prediction)["optimizer"][0] == ends["all_reduce bucket 0"]


def test_link_figures_have_nccls_rule():
    model = LinkModel(bandwidth_GBps=1, latency_us=1000)
    channels = {bar["channel"] for bar in predict_step(
        Workload.from_dict(THREE), model, bucket_cap_mb=0, ranks_per_node=4
    ).to_dict()["timeline"]}  # fmt: skip
    assert channels == {"compute", "comm"}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_a_thousand_layers_are_played_in_no_time(strategy):
    workload = Workload.from_dict(
        {"layers": [{"tensors": [[8192, 8192], 8192], "repeat": 1000, "forward_ms": 1, "backward_ms": 2}]}
    )
    started = time.process_time()
    predict_step(workload, FakeModel(alpha_ms=0.1, backend="gloo"), strategy, nodes=2048, ranks_per_node=8)
    assert time.process_time() - started < 2  # takes 0.2 s; generous for a busy machine
