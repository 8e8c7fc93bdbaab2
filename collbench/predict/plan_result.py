"""What a plan says: configurations with their predictions, as records and as the JSON object of `plan --json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from collbench.predict.plan_space import Configuration
from collbench.predict.plan_times import Refused
from collbench.predict.plan_why import PHASES, Wait, waits
from collbench.predict.prediction import StepPrediction, listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The best step with another value of one knob, all else the same; of the knob `strategy`, with all of its own."""

    knob: str
    to: Configuration
    step_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One configuration that fits, and what is predicted for it.

    total_GB: what a rank needs at most.  mfu: of the peak that was given.  changes: one for each knob that has another
    value that fits, the least costly first.
    """

    configuration: Configuration
    prediction: StepPrediction
    total_GB: float
    mfu: float | None
    changes: tuple[Change, ...]

    @property
    def waits(self) -> tuple[Wait, ...]:
        """What computation waits for, the longest first."""
        return waits(self.prediction.timeline)

    def to_dict(self) -> dict[str, Any]:
        """Its object in `plan --json`."""
        prediction, found = self.prediction, self.waits
        exposed = {f"{phase}_ms": sum(wait.wait_ms for wait in found if wait.phase == phase) for phase in PHASES}
        return configuration_dict(self.configuration) | {
            "step_ms": prediction.step_ms,
            "step_ms_interval": listed(prediction.step_ms_interval),
            "compute_ms": prediction.compute_ms,
            "comm_ms": prediction.comm_ms,
            "exposed_comm_ms": prediction.exposed_comm_ms,
            "exposed_tail_ms": prediction.exposed_tail_ms,
            "exposed": exposed,
            "waits": [asdict(wait) for wait in found],
            "tokens_per_s": prediction.tokens_per_s,
            "tflops_per_rank": prediction.tflops_per_rank,
            "mfu": self.mfu,
            "memory": prediction.memory.to_dict() | {"total_GB": self.total_GB},
            "changes": [
                {
                    "knob": change.knob,
                    "to": configuration_dict(change.to),
                    "step_ms": change.step_ms,
                    "costs_ms": change.step_ms - prediction.step_ms,
                }
                for change in self.changes
            ],
            "extrapolated": prediction.extrapolated,
            "notes": list(prediction.notes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The best step of one number of nodes, beside the best of the smallest number that has one.

    weak: each rank computes the same; the smallest's step over this one.
    strong: all ranks together compute what those of the largest number do in a step, fewer ranks in more micro-batches;
    the smallest's rank-seconds over this one's.  None where that is no whole number of micro-batches, or too many.
    """

    nodes: int
    configuration: Configuration
    step_ms: float
    tokens_per_s: float | None
    weak: float
    strong: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """A configuration and what it needs."""

    configuration: Configuration
    total_GB: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What fits, ranked. `to_dict` is the object of `plan --json`.

    steps: the fastest ones of each number of nodes, by step time.  nearest: what needs least, where nothing fits.
    refused: what the model cannot answer, and how many configurations are left out for it.
    """

    workload: str
    memory_GB: float
    activations_GB: float
    accumulate: int
    tried: int
    fitting: int
    steps: tuple[PlannedStep, ...]
    scaling: tuple[Scaling, ...]
    nearest: Needed | None
    refused: tuple[Refused, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        nearest = self.nearest
        return {
            "workload": self.workload,
            "memory_GB": self.memory_GB,
            "activations_GB": self.activations_GB,
            "accumulate": self.accumulate,
            "tried": self.tried,
            "fitting": self.fitting,
            "refused": [asdict(each) for each in self.refused],
            "steps": [{"rank": rank, **step.to_dict()} for rank, step in enumerate(self.steps, start=1)],
            "scaling": [
                {
                    "nodes": row.nodes,
                    "configuration": configuration_dict(row.configuration),
                    "step_ms": row.step_ms,
                    "tokens_per_s": row.tokens_per_s,
                    "weak": row.weak,
                    "strong": row.strong,
                }
                for row in self.scaling
            ],
            "nearest": nearest and configuration_dict(nearest.configuration) | {"total_GB": nearest.total_GB},
            "notes": list(self.notes),
        }


def configuration_dict(configuration: Configuration) -> dict[str, Any]:
    """Strategy, layout, and the knobs that the strategy has."""
    knobs = {name: getattr(configuration, name) for name in configuration.knobs}
    if configuration.mesh is not None:
        knobs["mesh"] = "x".join(map(str, configuration.mesh))
    return {
        "strategy": configuration.strategy,
        "nodes": configuration.nodes,
        "ranks_per_node": configuration.ranks_per_node,
        **knobs,
    }
