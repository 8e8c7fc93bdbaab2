"""The Chrome trace of a step: tracks, microseconds, what hides what, who waits for whom."""

from __future__ import annotations

import itertools
import json

import pytest

from collbench.model.link import LinkModel
from collbench.predict.step import predict_step
from collbench.predict.workload import Workload
from collbench.report.trace import trace_of

LAYERS = {"layers": [{"name": "a", "repeat": 3, "tensors": [[1000, 1000]], "forward_ms": 2.0, "backward_ms": 3.0}]}


def _predict(strategy, layers=LAYERS, **options):
    workload, link = Workload.from_dict(layers | {"optimizer_ms": 1.0}), LinkModel(bandwidth_GBps=1.0)
    return predict_step(workload, link, strategy, **({"nodes": 2, "ranks_per_node": 2} | options))


def _tracks(trace):
    """Name of a track -> its events, in order."""
    events = trace["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    on = {
        name: [event for event in events if event["ph"] == "X" and event["tid"] == tid] for tid, name in names.items()
    }
    return {name: sorted(found, key=lambda event: event["ts"]) for name, found in on.items()}


def test_a_track_a_stream_and_one_process():
    trace = json.loads(json.dumps(trace_of(_predict("hsdp", mesh="2x2"))))
    assert list(_tracks(trace)) == [
        "compute",
        "comm (all_gather_into_tensor, reduce_scatter_tensor)",
        "comm:replicate (all_reduce)",
    ]
    assert {event["pid"] for event in trace["traceEvents"]} == {0}
    (process,) = [event for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert process["args"]["name"] == "each of 4 ranks: workload, hsdp"


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "fsdp", "hsdp"])
def test_times_are_microseconds_of_the_timeline_and_a_tracks_events_follow_one_another(strategy):
    predicted = _predict(strategy, accumulate=2)
    for events in _tracks(trace_of(predicted)).values():
        for event, following in itertools.pairwise(events):
            assert round(1e3 * (event["ts"] + event["dur"])) <= round(1e3 * following["ts"])
    shown = sorted(
        (event["name"], event["ts"], event["ts"] + event["dur"])
        for event in trace_of(predicted)["traceEvents"]
        if event["ph"] == "X" and event["cat"] != "wait"
    )
    wanted = sorted(
        (bar.name, 1e3 * bar.start_ms, 1e3 * bar.end_ms) for bar in predicted.timeline if bar.end_ms > bar.start_ms
    )
    assert [name for name, *_ in shown] == [name for name, *_ in wanted]
    assert [time for _, *times in shown for time in times] == pytest.approx(
        [time for _, *times in wanted for time in times], abs=2e-3
    )


def test_a_collective_says_what_it_is_and_how_much_of_it_is_hidden():
    (comm,) = [events for name, events in _tracks(trace_of(_predict("ddp"))).items() if name.startswith("comm")]
    # The last layer's bucket of 4 MB takes 6 ms of 4 ranks' ring, beside what is left of backward: 3 ms a layer.
    first, last = comm[0], comm[-1]
    assert first["args"] == {
        "collective": "all_reduce", "size_bytes": 4_000_000, "dtype": "float32", "group": "world", "ranks": 4,
        "nodes": 2, "carries": "gradients", "state": "hidden", "exposed_ms": 0.0, "hidden_ms": 6.0,
    }  # fmt: skip
    assert first["cat"] == "hidden" and last["cat"] == last["args"]["state"] == "exposed"
    assert sum(event["args"]["exposed_ms"] for event in comm) == pytest.approx(_predict("ddp").exposed_comm_ms)


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp", "hsdp"])
def test_the_computations_waits_are_what_is_exposed_and_name_whom_they_wait_for(strategy):
    predicted = _predict(strategy)
    compute = _tracks(trace_of(predicted))["compute"]
    waits = [event for event in compute if event["cat"] == "wait"]
    assert sum(event["dur"] for event in waits) == pytest.approx(1e3 * predicted.exposed_comm_ms, rel=1e-6)
    for event in waits:
        ends = [1e3 * bar.end_ms for bar in predicted.timeline if bar.name == event["args"]["waits_for"]]
        assert pytest.approx(event["ts"] + event["dur"], abs=2e-3) in ends


def test_one_rank_has_one_track():
    assert list(_tracks(trace_of(_predict("ddp", nodes=1, ranks_per_node=1)))) == ["compute"]
