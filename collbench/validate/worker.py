"""One rank of `collbench validate`: run the real steps, and on rank 0 compare them with their prediction."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TextIO

from collbench.errors import EXIT_DONE, EXIT_NO, InputError
from collbench.measure.job import Job
from collbench.measure.process import Verdict
from collbench.measure.samples import quantile
from collbench.measure.worker import be_a_rank
from collbench.predict.prediction import StepPrediction
from collbench.predict.workload import Workload
from collbench.progress import Progress
from collbench.validate.compare import QUANTITIES, as_text, error_pct, within
from collbench.validate.step import WARMUP_STEPS, Knobs, Reading, build

Predict = Callable[[int, int, bool], StepPrediction]  # nodes, ranks per node, overlap -> the prediction


def validate(
    workload: Workload,
    knobs: Callable[[int, int], Knobs],
    predict: Predict,
    *,
    steps: int,
    tolerance: float,
    backend: str,
    timeout_s: float,
    join_timeout_s: float | None,
    as_json: bool,
    debug: bool,
) -> int:
    """Be one rank: returns its exit code, 1 on every rank where the step is outside the tolerance."""

    def work(job: Job, stdout: TextIO) -> Verdict:
        nodes = job.layout.nnodes
        if job.world_size % nodes:
            raise InputError(f"validate needs equal nodes: {job.world_size} ranks on {nodes} nodes")
        mine = knobs(nodes, job.world_size // nodes)
        # torch's fully_shard blocks on a CPU (torch 2.8 to 2.14): nothing overlaps there as it comes.
        overlap = mine.strategy == "ddp" or job.device.torch_device.type != "cpu"
        predicted = predict(nodes, job.world_size // nodes, overlap)
        samples, compute = _measure(job, workload, mine, steps, timeout_s)
        code, reason = EXIT_DONE, None
        if job.rank == 0:
            document = _document(predicted, samples, steps, compute)
            if not overlap:
                document["notes"].append("fully_shard on a CPU blocks: predicted without overlap")
            print(json.dumps(document, indent=1) if as_json else as_text(document), file=stdout)
            if not within(document, tolerance):
                code = EXIT_NO
                error = document["error_pct"]["step_ms"]
                reason = f"the step's prediction is off by {error:+.1f} %, outside {100 * tolerance:g} %"
        return Verdict(job.control.from_rank(0, code), reason)

    return be_a_rank(work, backend, timeout_s, debug, join_timeout_s)


def _measure(
    job: Job, workload: Workload, knobs: Knobs, steps: int, timeout_s: float
) -> tuple[dict[str, list[float]], str]:
    """Samples of every quantity, one a step, the slowest rank's; and the name of the compute."""
    real, silent, compute = build(job, workload, knobs, timeout_s)
    progress = Progress(WARMUP_STEPS + steps, "real steps") if job.rank == 0 else None
    samples: dict[str, list[float]] = {name: [] for name in QUANTITIES}
    for number in range(WARMUP_STEPS + steps):
        # In turns, so that whatever drifts, drifts for both.
        with_comm = _slowest(job, real.run(syncs=True))
        without = _slowest(job, silent.run(syncs=False))
        if number >= WARMUP_STEPS:
            samples["step_ms"].append(with_comm.step_ms)
            samples["compute_ms"].append(without.step_ms)
            samples["exposed_comm_ms"].append(with_comm.step_ms - without.step_ms)
            samples["exposed_tail_ms"].append(max(0.0, with_comm.gradients_ms - with_comm.backward_ms))
        if progress is not None:
            progress.advance(knobs.strategy)
    if progress is not None:
        progress.clear()
    return samples, compute.name


def _slowest(job: Job, reading: Reading) -> Reading:
    """The step as the job sees it: the last rank's times."""
    times_ns = [round(1e6 * value) for value in (reading.step_ms, reading.backward_ms, reading.gradients_ms)]
    return Reading(*(value / 1e6 for value in job.control.maximum(times_ns)))


def _document(predicted: StepPrediction, samples: dict[str, list[float]], steps: int, compute: str) -> dict[str, Any]:
    prediction = predicted.to_dict()
    expected = {name: float(prediction[name]) for name in QUANTITIES}
    measured = {name: quantile(values, 0.5) for name, values in samples.items()}
    measured["exposed_comm_ms"] = measured["step_ms"] - measured["compute_ms"]  # by its definition
    return {
        "workload": prediction["workload"],
        "strategy": prediction["strategy"],
        "nodes": prediction["nodes"],
        "ranks_per_node": prediction["ranks_per_node"],
        "measured": measured,
        "predicted": expected,
        "predicted_step_ms_interval": prediction["step_ms_interval"],
        "error_pct": error_pct(expected, measured),
        "spread_ms": {name: [quantile(v, 0.05), quantile(v, 0.95)] for name, v in samples.items()},
        "steps": steps,
        "compute": compute,
        "notes": list(prediction.get("notes", [])),
    }
