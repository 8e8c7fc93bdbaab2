"""The whole loop on this machine: sweep, fit, predict, the real step, compare, by the same functions as the commands.

Everything goes into one new folder: results.jsonl, model.json, workload.toml, prediction.json, validation.json,
report.html.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collbench.errors import EXIT_NO, InputError, Interrupted, JobError
from collbench.measure.launch import choose_ranks, launch
from collbench.model.fit import fit_results
from collbench.model.store import Model
from collbench.predict.prediction import StepPrediction
from collbench.predict.step import predict_step
from collbench.predict.workload import Workload
from collbench.report.page import write_page
from collbench.results import load_results

# Sizes that cover the workload's buckets; few enough iterations for about half a minute on two CPU ranks.
_SWEEP = ["-b", "64", "-e", "16M", "-f", "2", "-n", "10", "-w", "2", "--timeout", "30"]
_STEPS = 12

_WORKLOAD = """\
# Eight layers of 2 MiB gradients: small enough to run for real on a laptop.
name = "quickstart"
param_dtype = "float32"
optimizer_bytes = 8          # Adam: m and v in fp32

[[layers]]
name = "mlp"
repeat = 8
tensors = [[512, 1024], 512] # one Linear(1024, 512): weight and bias
forward_ms = 4.0
backward_ms = 8.0
"""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What the loop left behind. `validation` is None where the real step could not be run; `problem` says why."""

    folder: Path
    model: Model
    predictions: tuple[StepPrediction, ...]
    validation: dict[str, Any] | None
    problem: str | None


def new_folder(parent: Path) -> Path:
    """A new folder of this moment's name in `parent`."""
    name = f"collbench-quickstart-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 1000):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError(f"{folder}: cannot be made ({error.strerror}): name another folder with -o") from None
    raise InputError(f"{parent}: holds a thousand quickstarts of this second: name a folder with -o")


def run_loop(folder: Path, nproc: int | None, backend: str, table_to_stderr: bool, say: Say) -> Loop:
    """The loop in `folder`; `say` takes one line a step. Raises JobError where the sweep itself fails."""
    ranks, backend, why = choose_ranks(nproc, backend)
    say(f"sweep four collectives on {ranks} {backend} ranks ({why})")
    results = folder / "results.jsonl"
    sweep = launch(
        ["run", *_SWEEP, "-o", str(results), "--backend", backend],
        ranks,
        backend,
        stdout=sys.stderr if table_to_stderr else None,
    )
    if sweep.exit_code > EXIT_NO:
        kind = Interrupted if sweep.exit_code == Interrupted.exit_code else JobError
        kept = f"; what was measured is in {results}" if results.exists() and results.stat().st_size else ""
        raise kind(f"the sweep failed: {sweep.reason}{kept}")

    say("fit α–β models")
    model = fit_results(results)
    model.save(folder / "model.json")

    say("predict a DDP and an FSDP step")
    workload_file = folder / "workload.toml"
    workload_file.write_text(_WORKLOAD)
    workload = Workload.from_toml(workload_file)
    predictions = tuple(predict_step(workload, model, strategy) for strategy in ("ddp", "fsdp"))
    documents = [prediction.to_dict() for prediction in predictions]
    (folder / "prediction.json").write_text(json.dumps(documents[0], indent=1))
    (folder / "prediction-fsdp.json").write_text(json.dumps(documents[1], indent=1))

    say("run the real DDP step")
    validation, problem = _validate(folder, ranks, backend)

    say("write the report")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        measured = load_results(results)
    write_page(folder / "report.html", measured, model=model, predictions=documents, validation=validation)
    return Loop(folder=folder, model=model, predictions=predictions, validation=validation, problem=problem)


def _validate(folder: Path, ranks: int, backend: str) -> tuple[dict[str, Any] | None, str | None]:
    """The validation's document, or why there is none. A step outside the tolerance is a result like any other."""
    arguments = [str(folder / "workload.toml"), "--model", str(folder / "model.json"), "--strategy", "ddp"]
    with tempfile.TemporaryFile("w+") as answer:
        verdict = launch(
            ["validate", *arguments, "--steps", str(_STEPS), "--backend", backend, "--json"],
            ranks,
            backend,
            stdout=answer,
        )
        if verdict.exit_code == Interrupted.exit_code:
            raise Interrupted(f"interrupted; what was done so far is in {folder}")
        if verdict.exit_code > EXIT_NO:
            return None, verdict.reason
        answer.seek(0)
        text = answer.read()
    (folder / "validation.json").write_text(text)
    document: dict[str, Any] = json.loads(text)
    return document, None
