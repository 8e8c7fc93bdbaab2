"""Communication and computation that slow one another, and streams that share a link: nccl's rule and gloo's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from predict_fakes import FakeModel, bars

from collbench.cli import main
from collbench.model.link import LinkModel
from collbench.model.slowdown import Slowdown
from collbench.predict.channels import GLOO, NCCL, play_sharing, shares_links
from collbench.predict.placement import Group
from collbench.predict.step import predict_step
from collbench.predict.timeline import Call, Schedule, play
from collbench.predict.workload import Workload

WORLD = Group(name="world", nranks=4, nnodes=2)
INTER = Group(name="inter", nranks=2, nnodes=2)
INTRA = Group(name="intra", nranks=2, nnodes=1)
BACKENDS = ("nccl", "gloo")
NONE = Slowdown(comm=1.0, compute=1.0)
MUCH = Slowdown(comm=2.0, compute=1.25)


def call(duration_ms, group=WORLD, collective="all_reduce"):
    return Call(collective=collective, size_bytes=duration_ms, group=group, dtype="float32")


def cost_ms(each):
    return float(each.size_bytes)


def schedule_of(*tasks):
    """(name, ms of computation or a call, stream, after): the names of what comes before."""
    schedule, positions = Schedule(), {}
    for name, work, stream, *after in tasks:
        before = tuple(positions[each] for each in after)
        positions[name] = schedule.add(name, work, after=before, stream=stream, phase="")
    return schedule


def times(schedule, slowdown=None, rule=NCCL, latency_share=0.0):
    factors = slowdown if callable(slowdown) or slowdown is None else lambda each: slowdown
    placed = play_sharing(schedule.tasks, cost_ms, lambda each: latency_share, rule=rule, slowdown=factors)
    return {each.name: pytest.approx((each.start_ms, each.end_ms)) for each in placed}


@pytest.mark.parametrize("rule", [NCCL, GLOO])
def test_each_goes_at_its_own_pace_while_the_other_runs(rule):
    schedule = schedule_of(("f", 10.0, "compute"), ("x", call(4), "comm"))
    # Beside one another for 4 x 2 = 8 ms, in which 8/1.25 = 6.4 of the 10 are computed; the rest alone.
    assert times(schedule, Slowdown(comm=2, compute=1.25), rule) == {"x": (0, 8), "f": (0, 11.6)}


def test_a_collective_that_outlasts_the_computation_goes_on_alone():
    schedule = schedule_of(("f", 4.0, "compute"), ("x", call(10), "comm"))
    assert times(schedule, Slowdown(comm=2, compute=1)) == {"f": (0, 4), "x": (0, 12)}
    # 4 ms computed in 6, which do 3 of the collective's 10
    assert times(schedule, Slowdown(comm=2, compute=1.5)) == {"f": (0, 6), "x": (0, 13)}


def test_one_computation_after_another_slows_a_collective_all_along():
    schedule = schedule_of(
        ("f1", 1.0, "compute"), ("f2", 1.0, "compute"), ("f3", 0.0, "compute"), ("f4", 8.0, "compute"),
        ("x", call(3), "comm", "f1"),
    )  # fmt: skip
    found = times(schedule, Slowdown(comm=2, compute=1.5))
    assert (found["x"], found["f2"], found["f4"]) == ((1, 7), (1, 2.5), (2.5, 12))


def test_nothing_is_slowed_by_what_runs_at_another_time():
    schedule = schedule_of(("f", 5.0, "compute"), ("x", call(4), "comm", "f"), ("b", 5.0, "compute", "x"))
    assert times(schedule, Slowdown(comm=3, compute=3)) == {"f": (0, 5), "x": (5, 9), "b": (9, 14)}


def test_beside_several_collectives_computation_has_the_pace_of_the_worst():
    schedule = schedule_of(
        ("f", 10.0, "compute"), ("x", call(4, INTRA), "comm"), ("y", call(4, INTER), "comm:replicate")
    )
    factors = {INTRA: Slowdown(comm=1, compute=2), INTER: Slowdown(comm=2, compute=1.25)}
    # 4 ms at half the pace, 4 at 1/1.25, then alone
    assert times(schedule, lambda each: factors[each.group]) == {"x": (0, 4), "y": (0, 8), "f": (0, 12.8)}


def test_a_slowed_transfer_still_shares_its_link():
    schedule = schedule_of(("f", 100.0, "compute"), ("x", call(3), "comm"), ("y", call(3), "comm"))
    assert times(schedule, Slowdown(comm=2, compute=1), GLOO) == {"x": (0, 12), "y": (0, 12), "f": (0, 100)}


def test_streams_share_the_network_under_nccls_rule_too():
    schedule = schedule_of(("x", call(4, WORLD), "comm"), ("y", call(4, INTER), "comm:replicate"))
    assert shares_links(schedule.tasks)
    assert times(schedule) == {"x": (0, 8), "y": (0, 8)}
    assert times(schedule, latency_share=1.0) == {"x": (0, 4), "y": (0, 4)}
    apart = schedule_of(("x", call(4, INTRA), "comm"), ("y", call(4, INTER), "comm:replicate"))
    assert not shares_links(apart.tasks)
    assert times(apart) == {"x": (0, 4), "y": (0, 4)}
    one_stream = schedule_of(("x", call(4, WORLD), "comm"), ("y", call(4, INTER), "comm"))
    assert not shares_links(one_stream.tasks)
    assert times(one_stream) == {"x": (0, 4), "y": (4, 8)}


random_tasks = st.lists(
    st.tuples(
        st.sampled_from(["compute", "comm", "comm:replicate"]),
        st.floats(0, 20),
        st.lists(st.integers(0, 30), max_size=3),
    ),
    max_size=25,
)


def random_schedule(steps):
    schedule = Schedule()
    groups = {"comm": INTRA, "comm:replicate": INTER}
    for number, (stream, duration_ms, after) in enumerate(steps):
        work = call(duration_ms, groups[stream]) if stream in groups else duration_ms
        before = tuple(dict.fromkeys(position for position in after if position < number))
        schedule.add(str(number), work, after=before, stream=stream, phase="")
    return schedule.tasks


@given(random_tasks)
def test_factors_of_one_change_nothing_to_the_last_bit(steps):
    tasks = random_schedule(steps)
    plain = play(tasks, cost_ms)
    for factors in (None, lambda each: NONE):
        assert play_sharing(tasks, cost_ms, lambda each: 0.3, rule=NCCL, slowdown=factors) == plain
    gloo = play_sharing(tasks, cost_ms, lambda each: 0.3)
    assert play_sharing(tasks, cost_ms, lambda each: 0.3, slowdown=lambda each: NONE) == gloo


@given(random_tasks, st.floats(1, 3), st.floats(1, 3), st.sampled_from([NCCL, GLOO]))
def test_slowed_tasks_take_between_what_they_take_alone_and_all_along_beside_others(steps, comm, compute, rule):
    tasks = random_schedule(steps)
    factors = Slowdown(comm=comm, compute=compute)
    for each in play_sharing(tasks, cost_ms, lambda each: 1.0, rule=rule, slowdown=lambda each: factors):
        is_call = isinstance(each.task.work, Call)
        alone = cost_ms(each.task.work) if is_call else each.task.work
        took, slack = each.end_ms - each.start_ms, 1e-9 * (1 + each.end_ms)
        assert alone - slack <= took <= alone * (comm if is_call else compute) + slack


@dataclass
class Slow(FakeModel):
    factors: Slowdown | None = MUCH
    only: str | None = None

    def slowdown(self, collective, size_bytes, group, nranks, nnodes, backend):
        assert backend == self.backend
        return self.factors if self.only in (None, collective) else None


THREE = Workload.from_dict({"layers": [{"tensors": [250_000], "repeat": 3, "forward_ms": 1, "backward_ms": 5}]})


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_is_played_with_what_was_measured_unless_left_out(backend):
    model = Slow(ms_per_MB=2, backend=backend)
    slowed = predict_step(THREE, model, bucket_cap_mb=0)
    # Two of three buckets of 2 ms are under computation of 5 ms: 4 ms each, in which 3.2 are computed.
    assert bars(slowed)["all_reduce bucket 0"] == pytest.approx((8, 12))
    assert bars(slowed)["backward layer0.1"] == pytest.approx((8, 13.8))
    assert slowed.step_ms == pytest.approx(3 + 15 + 2 * 0.8 + 2)
    assert slowed.comm_ms == pytest.approx(6)
    assert slowed.compute_ms == pytest.approx(18)
    assert slowed.exposed_comm_ms == pytest.approx(3.6)
    assert slowed.exposed_tail_ms == pytest.approx(2)
    (note,) = slowed.notes
    assert "beside a matrix product: all_reduce (world) x2.00, computation beside it x1.25" in note
    without = predict_step(THREE, model, bucket_cap_mb=0, slowdown=False)
    assert without == predict_step(THREE, FakeModel(ms_per_MB=2, backend=backend), bucket_cap_mb=0)
    assert without.notes == ()


def test_nothing_runs_beside_anything_without_overlap():
    one_by_one = predict_step(THREE, Slow(ms_per_MB=2), bucket_cap_mb=0, overlap=False)
    assert one_by_one.step_ms == pytest.approx(24)
    assert one_by_one.notes == ()


def test_models_and_collectives_without_factors_are_taken_to_cost_nothing():
    unmeasured = predict_step(THREE, Slow(ms_per_MB=2, factors=None), bucket_cap_mb=0)
    assert unmeasured == predict_step(THREE, FakeModel(ms_per_MB=2), bucket_cap_mb=0)
    assert not predict_step(THREE, LinkModel(bandwidth_GBps=1), nodes=1, ranks_per_node=2).notes
    (note,) = predict_step(THREE, Slow(only="all_gather_into_tensor"), "fsdp").notes
    assert "all_gather_into_tensor (world) x2.00" in note
    assert "reduce_scatter_tensor (world) not measured, taken to cost nothing" in note


@pytest.mark.parametrize("backend", BACKENDS)
def test_intervals_know_of_what_hidden_communication_costs(backend):
    """Where all but a little tail is hidden, what a step is off by is what it slows computation by."""
    workload = Workload.from_dict(
        {
            "layers": [
                {"tensors": [25_000], "backward_ms": 5},
                {"tensors": [250_000], "repeat": 4, "forward_ms": 1, "backward_ms": 5},
            ]
        }
    )
    model = Slow(ms_per_MB=2, backend=backend, spread=0.2, factors=Slowdown(comm=1.0, compute=2.0))
    low, high = predict_step(workload, model, bucket_cap_mb=0).step_ms_interval
    # 8 ms are hidden and cost 4; the tail is 0.2
    assert high - low == pytest.approx(0.4 * 4, abs=0.1)
    plain = predict_step(workload, model, bucket_cap_mb=0, slowdown=False).step_ms_interval
    assert plain[1] - plain[0] == pytest.approx(0.4 * 0.2)


@settings(deadline=None)
@given(st.integers(1, 5), st.floats(1, 3), st.floats(1, 3), st.sampled_from(BACKENDS))
def test_ddp_is_never_faster_for_being_slowed(repeat, comm, compute, backend):
    workload = Workload.from_dict({"layers": [{"tensors": [250_000], "repeat": repeat, "backward_ms": 3}]})
    slowed, plain = (
        predict_step(
            workload, Slow(ms_per_MB=2, backend=backend, factors=Slowdown(comm=comm, compute=compute)),
            bucket_cap_mb=0, slowdown=on,
        ).step_ms
        for on in (True, False)
    )  # fmt: skip
    assert slowed >= plain - 1e-9


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mesh_whose_groups_all_cross_nodes_shares_the_network(backend):
    """Shards over two nodes, replicas over two: reduce-scatters and all-reduces contend; within a node they do not."""
    workload = Workload.from_dict({"layers": [{"tensors": [250_000], "repeat": 4, "backward_ms": 0.1}]})
    layout = {"nodes": 4, "ranks_per_node": 2}
    model = FakeModel(ms_per_MB=4, backend=backend)

    def overlapping(prediction):
        """Reduce-scatters that last longer than one alone, 4 ms."""
        return [
            name
            for name, (start, end) in bars(prediction).items()
            if name.startswith("reduce_scatter") and end - start > 4 + 1e-6
        ]

    assert overlapping(predict_step(workload, model, "hsdp", mesh="2x4", **layout))
    if backend == "nccl":
        assert not overlapping(predict_step(workload, model, "hsdp", mesh="4x2", **layout))


def test_the_flag_that_leaves_it_out(capsys, tmp_path):
    small = str(Path(__file__).parents[2] / "sweeps" / "workloads" / "small.toml")
    overlap = {"collective": "all_reduce", "group": "world", "nranks": 2, "nnodes": 1, "backend": "nccl"}
    fit = {
        **overlap, "dtype": "float32", "in_place": False, "timing": "isolated", "concurrent": True,
        "curve": [[8, 10.0], [2**30, 1e5]], "segments": [
            {"from_bytes": 8, "to_bytes": 2**30, "alpha_us": 10.0, "bandwidth_GBps": 10.7}
        ],
        "alpha_us": 10.0, "alpha_us_interval": [9.0, 11.0], "busbw_GBps": 10.7, "busbw_GBps_interval": [10.0, 11.0],
        "n_half_bytes": 1e5, "error_pct": {"median": None, "p90": None, "held_out": False}, "points": 2,
    }  # fmt: skip
    factors = {"size_bytes": 2**20, "comm_slowdown": 1.5, "compute_slowdown": 1.25}
    document = {"schema": "collbench.model/1", "fits": [fit], "overlaps": [overlap | factors]}
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    found = []
    for flags in ([], ["--no-slowdown"]):
        assert main(["predict", small, "--model", str(path), "--json", *flags]) == 0
        found.append(json.loads(capsys.readouterr().out))
    slowed, plain = found
    assert slowed["step_ms"] > plain["step_ms"]
    assert any("all_reduce (world) x1.50, computation beside it x1.25" in note for note in slowed["notes"])
    assert not any("beside" in note for note in plain["notes"])
    assert main(["predict", small, "--model", str(path)]) == 0
    shown = capsys.readouterr().out
    for name in ("step_ms_interval", "exposed_comm_ms_interval", "exposed_tail_ms_interval"):
        low, high = slowed[name]
        assert f"{low:.3f} to {high:.3f} ms" in shown
