"""Shard and replicate groups all run at once: what a step takes where they were measured one at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest

from collbench.model.fit import fit_results
from collbench.model.store import Model
from collbench.predict.step import predict_step
from collbench.predict.workload import Workload

SIZES = 2 ** np.arange(3, 31)
WORKLOAD = Workload.from_dict({"layers": [{"repeat": 8, "tensors": [4_000_000], "forward_ms": 1, "backward_ms": 2}]})
AG, RS, AR = "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"
INTRA = {"group": "intra", "nnodes": 1, "ranks": ([0, 1, 2, 3], [4, 5, 6, 7])}
INTER = {"group": "inter", "nnodes": 2, "ranks": ([0, 4], [1, 5], [2, 6], [3, 7])}
SHARING = 4.0  # ranks of a node on its one network card


def swept(kind: dict[str, Any], collective: str, concurrent: bool) -> list[dict[str, Any]]:
    rate_GBps = 20.0 if kind is INTRA else 2.0 / (SHARING if concurrent else 1.0)
    return [
        {
            "run_id": "r1", "backend": "nccl", "collective": collective, "group": kind["group"], "group_ranks": ranks,
            "nranks": len(ranks), "nnodes": kind["nnodes"], "dtype": "float32", "in_place": False, "redop": "sum",
            "timing": "isolated", "concurrent": concurrent, "size_bytes": int(size),
            "time_us": 20.0 + float(size) / (1e3 * rate_GBps),
        }
        for ranks in kind["ranks"]
        for size in SIZES
    ]  # fmt: skip


def model_of(*sweeps: list[dict[str, Any]]) -> Model:
    return fit_results(pandas.DataFrame([record for each in sweeps for record in each]))


def inside(concurrent: bool) -> list[dict[str, Any]]:
    return [record for collective in (AG, RS) for record in swept(INTRA, collective, concurrent)]


TRUTH = model_of(inside(True), swept(INTER, AR, True))


def predicted(model: Model) -> Any:
    return predict_step(WORKLOAD, model, "hsdp", nodes=2, ranks_per_node=4)


def test_a_step_of_groups_measured_alone_is_too_fast_and_says_so_once() -> None:
    step = predicted(model_of(inside(False), swept(INTER, AR, False)))
    assert step.step_ms < 0.75 * predicted(TRUTH).step_ms
    of_kinds = [note for note in step.notes if "measured alone" in note]
    assert len(of_kinds) == 2  # one for each kind of group, not for each collective and size
    assert any("'collbench run --group inter' without --one-at-a-time" in note for note in of_kinds)
    assert not [note for note in predicted(TRUTH).notes if "alone" in note]


def test_groups_measured_both_ways_are_as_they_are_together() -> None:
    truth = predicted(TRUTH)
    step = predicted(model_of(inside(True), inside(False), swept(INTER, AR, True), swept(INTER, AR, False)))
    assert step.to_dict() == truth.to_dict()


def test_another_collective_lends_its_contention() -> None:
    lender = [*swept(INTER, "broadcast", True), *swept(INTER, "broadcast", False)]
    truth, step = predicted(TRUTH), predicted(model_of(inside(True), swept(INTER, AR, False), lender))
    assert step.step_ms == pytest.approx(truth.step_ms, rel=0.01)
    assert step.exposed_comm_ms == pytest.approx(truth.exposed_comm_ms, rel=0.01)
    low, high = step.step_ms_interval
    assert high - low > 3 * (truth.step_ms_interval[1] - truth.step_ms_interval[0])
    [note] = [note for note in step.notes if "alone" in note]
    assert "slowed as another collective was measured to be where" in note and "(broadcast, 2 ranks on 2 nodes" in note
