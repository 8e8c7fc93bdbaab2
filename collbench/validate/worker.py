"""One rank of `collbench validate`: run the real steps, and on rank 0 compare them with their prediction."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol, TextIO

from collbench.errors import EXIT_DONE, EXIT_NO, InputError
from collbench.measure.job import Job
from collbench.measure.process import Verdict
from collbench.measure.samples import quantile
from collbench.measure.worker import be_a_rank
from collbench.predict.copies import copies_ms
from collbench.predict.prediction import StepPrediction
from collbench.predict.workload import Workload
from collbench.progress import Progress
from collbench.validate.compare import QUANTITIES, as_text, error_pct, within
from collbench.validate.local import Local, measure_local
from collbench.validate.memory import Peak, PeakMemory, peak_memory_on
from collbench.validate.step import WARMUP_STEPS, WARMUP_TURNS, Knobs, Step, build, slowest

_BLOCKS = "fully_shard on a CPU blocks: predicted without overlap"


class Predict(Protocol):
    """The prediction for so many nodes and ranks on each; `local`: copy_GBps and host_us."""

    def __call__(
        self, nodes: int, ranks_per_node: int, *, overlap: bool, slowdown: bool, **local: float | None
    ) -> StepPrediction: ...


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
    notes: Sequence[str] = (),
) -> int:
    """Be one rank: returns its exit code, 1 on every rank where the step is outside the tolerance."""

    def work(job: Job, stdout: TextIO) -> Verdict:
        nodes = job.layout.nnodes
        if job.world_size % nodes:
            raise InputError(f"validate needs equal nodes: {job.world_size} ranks on {nodes} nodes")
        mine = knobs(nodes, job.world_size // nodes)
        on_cpu = job.device.torch_device.type == "cpu"
        # torch's fully_shard blocks on a CPU (torch 2.8 to 2.14): nothing overlaps there as it comes.
        overlap = mine.strategy == "ddp" or not on_cpu
        # A wait takes nothing from what is sent meanwhile; matrix products do.
        predicting = partial(predict, nodes, job.world_size // nodes, overlap=overlap, slowdown=not on_cpu)
        # At 1 GB/s a copy takes 1 ms for 10^6 bytes; with 1 ms of the host around each collective, they are counted.
        moved_bytes = [1e6 * ms for ms in copies_ms(predicting(copy_GBps=1.0).timeline)]
        collectives = round(sum(copies_ms(predicting(host_us=1e3).timeline)))
        local = measure_local(job, workload, mine, moved_bytes, collectives, timeout_s)
        predicted = predicting(copy_GBps=local.copy_GBps, host_us=local.host_us)
        measured = _measure(job, workload, mine, steps, timeout_s)
        code, reason = EXIT_DONE, None
        if job.rank == 0:
            document = _document(predicted, measured, local, steps)
            document["notes"] += [*([] if overlap else [_BLOCKS]), *_other_backend(predicted, job), *notes]
            print(json.dumps(document, indent=1) if as_json else as_text(document), file=stdout)
            if not within(document, tolerance):
                code = EXIT_NO
                error = document["error_pct"]["step_ms"]
                reason = f"the step's prediction is off by {error:+.1f} %, outside {100 * tolerance:g} %"
        return Verdict(job.control.from_rank(0, code), reason)

    return be_a_rank(work, backend, timeout_s, debug, join_timeout_s)


@dataclass(frozen=True, slots=True)
class Measured:
    """samples: of every quantity, one a step, the slowest rank's.  compute: the name of the computation.

    first, steady: the most memory that a rank took in the first step, and in a later one; None where it is not counted.
    """

    samples: dict[str, list[float]]
    compute: str
    first: Peak | None
    steady: Peak | None


def _measure(job: Job, workload: Workload, knobs: Knobs, steps: int, timeout_s: float) -> Measured:
    real, make_silent, compute = build(job, workload, knobs, timeout_s)
    progress = Progress(WARMUP_STEPS + WARMUP_TURNS + steps, "real steps") if job.rank == 0 else None
    memory = peak_memory_on(job.device)
    # Before there is a step without communication, whose memory would be counted too.
    peaks = [_peak(job, real, memory, progress, knobs.strategy) for _ in range(WARMUP_STEPS)]
    silent = make_silent()
    samples: dict[str, list[float]] = {name: [] for name in QUANTITIES}
    for number in range(WARMUP_TURNS + steps):
        # In turns, so that whatever drifts, drifts for both.
        with_comm = slowest(job, real.run())
        without = slowest(job, silent.run(syncs=False))
        if number >= WARMUP_TURNS:
            samples["step_ms"].append(with_comm.step_ms)
            samples["compute_ms"].append(without.step_ms)
            samples["exposed_comm_ms"].append(with_comm.step_ms - without.step_ms)
            samples["exposed_tail_ms"].append(max(0.0, with_comm.gradients_ms - with_comm.backward_ms))
        if progress is not None:
            progress.advance(knobs.strategy)
    if progress is not None:
        progress.clear()
    return Measured(samples, compute.name, peaks[0], peaks[-1])


def _peak(job: Job, step: Step, memory: PeakMemory | None, progress: Progress | None, name: str) -> Peak | None:
    """One step; the most memory that any rank took in it, None where it is not counted."""
    if memory is not None:
        memory.begin()
    step.run()
    if progress is not None:
        progress.advance(name)
    if memory is None:
        return None
    mine = memory.peak()
    allocated_bytes, reserved_bytes = job.control.maximum([mine.allocated_bytes, mine.reserved_bytes])
    return Peak(allocated_bytes=allocated_bytes, reserved_bytes=reserved_bytes)


def _other_backend(predicted: StepPrediction, job: Job) -> list[str]:
    """A note where the model is of another backend than the job."""
    here = job.device.backend
    if not predicted.backends or here in predicted.backends:
        return []
    return [
        f"the model's curves are of {' and '.join(predicted.backends)}, and these steps ran on {here}: to compare like "
        f"with like, fit a model from 'collbench run --backend {here}' here"
    ]


def _document(predicted: StepPrediction, measured: Measured, local: Local, steps: int) -> dict[str, Any]:
    prediction, samples = predicted.to_dict(), measured.samples
    expected = {name: float(prediction[name]) for name in QUANTITIES}
    medians = {name: quantile(values, 0.5) for name, values in samples.items()}
    medians["exposed_comm_ms"] = medians["step_ms"] - medians["compute_ms"]  # by its definition
    document = {
        "workload": prediction["workload"],
        "strategy": prediction["strategy"],
        "nodes": prediction["nodes"],
        "ranks_per_node": prediction["ranks_per_node"],
        "measured": medians,
        "predicted": expected,
        **{
            f"predicted_{name}_interval": prediction[f"{name}_interval"]
            for name in QUANTITIES
            if f"{name}_interval" in prediction
        },
        "error_pct": error_pct(expected, medians),
        "spread_ms": {name: [quantile(v, 0.05), quantile(v, 0.95)] for name, v in samples.items()},
        "steps": steps,
        "compute": measured.compute,
        "copy_GBps": local.copy_GBps,
        "host_us": local.host_us,
        "notes": list(prediction.get("notes", [])),
    }
    if measured.first is not None and measured.steady is not None:
        document["memory"] = {"first_step": asdict(measured.first), "steady_state": asdict(measured.steady)}
    return document
