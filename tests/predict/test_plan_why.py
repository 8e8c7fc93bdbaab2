"""Whom a step's computation waits for."""

from __future__ import annotations

from predict_fakes import FakeModel

from collbench.predict.plan_why import Wait, waits
from collbench.predict.step import predict_step
from collbench.predict.workload import Layer, Workload

# Two layers of 1 MB, which take 1 ms to send, and 1 + 2 ms to compute.
TWO = Workload(layers=(Layer(name="a", repeat=2, tensors=((250_000,),), forward_ms=1.0, backward_ms=2.0),))


def found(strategy, model=None, workload=TWO, **options):
    prediction = predict_step(workload, model or FakeModel(), strategy, **options)
    return waits(prediction.timeline), prediction


def test_a_gradient_that_is_ready_last_is_the_tail():
    whole, prediction = found("ddp", bucket_cap_mb=0)
    assert whole == (Wait(phase="tail", collective="all_reduce bucket 1", wait_ms=1.0),)
    assert prediction.step_ms == 7.0


def test_a_wait_is_shared_by_all_that_are_in_the_queue():
    # 5 ms each: the first is ready at 4, the second at 6 and begins at 9; computation has ended at 6
    whole, _ = found("ddp", FakeModel(ms_per_MB=5.0), bucket_cap_mb=0)
    assert whole == (
        Wait(phase="tail", collective="all_reduce bucket 1", wait_ms=5.0),
        Wait(phase="tail", collective="all_reduce bucket 0", wait_ms=3.0),
    )


def test_sharded_parameters_are_waited_for_in_both_directions():
    whole, prediction = found("fsdp")
    assert {(wait.phase, wait.collective): wait.wait_ms for wait in whole} == {
        ("forward", "all_gather a.0"): 1.0,
        ("backward", "all_gather a.1"): 1.0,
        ("tail", "reduce_scatter a.0"): 1.0,
    }
    assert prediction.step_ms == 9.0


def test_what_comes_behind_the_optimizer():
    whole, _ = found("zero1", bucket_cap_mb=0)
    assert Wait(phase="after", collective="all_gather parameters", wait_ms=2.0) in whole


def test_the_waits_are_the_exposed_communication():
    for strategy in ("ddp", "zero1", "zero2", "fsdp"):
        for backend in ("nccl", "gloo"):
            model = FakeModel(ms_per_MB=7.0, alpha_ms=0.3, nodes=2, ranks_per_node=2, backend=backend)
            whole, prediction = found(strategy, model, accumulate=2)
            assert abs(sum(wait.wait_ms for wait in whole) - prediction.exposed_comm_ms) < 1e-9
