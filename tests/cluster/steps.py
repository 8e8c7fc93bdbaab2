"""Training steps on the cluster: collbench measures and fits it, predicts a step there, and runs the real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .network import Cluster
from .ranks import Outcome
from .system import ClusterError

_ROOT = Path(__file__).parents[2]
_COLLBENCH = [sys.executable, "-m", "collbench"]
_ENVIRONMENT = {"PYTHONPATH": str(_ROOT)}
_MIB = 1 << 20
_ELEMENT_BYTES = 4


@dataclass(frozen=True)
class Layers:
    """Equal layers of a workload, each one tensor of float32."""

    repeat: int
    size_mib: float
    forward_ms: float
    backward_ms: float

    def as_toml(self) -> str:
        elements = round(self.size_mib * _MIB / _ELEMENT_BYTES)
        times = f"forward_ms = {self.forward_ms}\nbackward_ms = {self.backward_ms}\n"
        return f"[[layers]]\nrepeat = {self.repeat}\ntensors = [{elements}]\n{times}"


@dataclass(frozen=True)
class Step:
    """A real step and its prediction, in ms, as `collbench validate` has them."""

    predicted: dict[str, float]
    measured: dict[str, float]

    def wrong(self, of_step: float, of_exposed: float = 0.10, exposed_of_step: float = 0.03) -> list[str]:
        """What is further off than this: the step's time, the communication that it does not hide (which may be off by
        a part of itself or by one of the step)."""
        step_ms = self.measured["step_ms"]
        allowed = {
            "step_ms": of_step * step_ms,
            "exposed_comm_ms": max(of_exposed * self.measured["exposed_comm_ms"], exposed_of_step * step_ms),
        }
        return [
            f"{name}: predicted {self.predicted[name]:.1f}, measured {self.measured[name]:.1f}"
            for name, by_ms in allowed.items()
            if abs(self.predicted[name] - self.measured[name]) > by_ms
        ]


def fit_model(
    cluster: Cluster,
    folder: Path,
    *,
    collectives: Sequence[str] = ("all_reduce",),
    ranks_per_host: int = 1,
    largest: str = "8M",
) -> Path:
    """The model of a short sweep on the cluster: sizes from 128 KiB, a quarter as many bytes each as the next."""
    results, model = folder / "results.jsonl", folder / "model.json"
    results.unlink(missing_ok=True)
    sweep = ["--collective", ",".join(collectives), "--group", "world", "--timing", "isolated"]
    sizes = ["-b", "128K", "-e", largest, "-f", "4", "-w", "2", "--budget", "0.3"]
    _run(cluster, ["run", *sweep, *sizes, "-o", str(results)], ranks_per_host)
    fitted = subprocess.run(
        [*_COLLBENCH, "fit", str(results), "-o", str(model)],
        env={**os.environ, **_ENVIRONMENT}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if fitted.returncode:
        raise ClusterError(f"collbench fit: {fitted.stderr}")
    return model


def real_step(
    cluster: Cluster,
    folder: Path,
    model: Path,
    layers: Sequence[Layers],
    *options: str,
    ranks_per_host: int = 1,
    steps: int = 3,
) -> Step:
    """Medians of a few real steps beside the model's prediction. `options`: more of `collbench validate`."""
    workload = folder / "workload.toml"
    workload.write_text("".join(each.as_toml() for each in layers))
    words = [str(workload), "--model", str(model), "--steps", str(steps), "--tolerance", "1000%", "--json", *options]
    document: dict[str, Any] = json.loads(_run(cluster, ["validate", *words], ranks_per_host).stdout[0])
    return Step(document["predicted"], document["measured"])


def _run(cluster: Cluster, command: list[str], ranks_per_host: int) -> Outcome:
    outcome = cluster.run(
        [*_COLLBENCH, *command], ranks_per_host=ranks_per_host, realtime=True, environment=_ENVIRONMENT
    )
    if outcome.exit_code:
        raise ClusterError(f"collbench {command[0]} {outcome}")
    return outcome
