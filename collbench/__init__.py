"""collbench: time PyTorch collectives, fit α–β models to them, predict what a training step cannot hide.

    results = collbench.read_results("results.jsonl")      # one pandas DataFrame, a row per measurement
    model = collbench.fit_results(results)                 # α, bandwidth, intervals; the measured curve itself
    model.time("all_reduce", 25e6).time_us
    workload = collbench.Workload.from_toml("workload.toml")
    collbench.predict_step(workload, model, strategy="ddp").exposed_tail_ms

Names load on first use: importing collbench costs nothing but this file.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collbench.errors import CollbenchError, InputError, JobError
    from collbench.model.estimate import Estimate
    from collbench.model.fit import fit_results
    from collbench.model.link import LinkModel
    from collbench.model.store import Model, load_model
    from collbench.predict.plan import plan_step
    from collbench.predict.plan_result import Plan
    from collbench.predict.step import StepPrediction, predict_step
    from collbench.predict.workload import Workload
    from collbench.results_frame import read_results

__version__ = "0.1.0"

_HOME = {
    "CollbenchError": "collbench.errors",
    "InputError": "collbench.errors",
    "JobError": "collbench.errors",
    "read_results": "collbench.results_frame",
    "fit_results": "collbench.model.fit",
    "load_model": "collbench.model.store",
    "Model": "collbench.model.store",
    "LinkModel": "collbench.model.link",
    "Estimate": "collbench.model.estimate",
    "Workload": "collbench.predict.workload",
    "predict_step": "collbench.predict.step",
    "StepPrediction": "collbench.predict.step",
    "plan_step": "collbench.predict.plan",
    "Plan": "collbench.predict.plan_result",
}

__all__ = [
    "CollbenchError",
    "Estimate",
    "InputError",
    "JobError",
    "LinkModel",
    "Model",
    "Plan",
    "StepPrediction",
    "Workload",
    "fit_results",
    "load_model",
    "plan_step",
    "predict_step",
    "read_results",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'collbench' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
