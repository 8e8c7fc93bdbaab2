"""What a prediction says: one optimizer step, as a record and as the JSON object of `predict --json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from collbench.predict.memory import Memory
from collbench.predict.placement import Placement
from collbench.predict.timeline import Call, Placed


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCount:
    """A collective call of a step: how often, and one call's time."""

    call: Call
    count: int
    time_ms: float

    @property
    def collective(self) -> str:
        """torch's name of it."""
        return self.call.collective

    @property
    def group(self) -> str:
        """The kind of group; `call.group` has its ranks and nodes."""
        return self.call.group.name

    @property
    def size_bytes(self) -> int:
        """nccl-tests' size."""
        return self.call.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrediction:
    """One optimizer step of `accumulate` micro-batches. `to_dict` is the object of `predict --json`.

    compute_ms: the step with free communication.  comm_ms: all collectives, one after another.  copies_ms: torch's own
    copies for them (predict.copies), one after another; None where they were not counted.
    exposed_tail_ms: from the end of the last backward computation to the end of the last gradient collective.
    *_interval: of 90 %, from the intervals of the model's answers (predict.draws); None where it has none.
    times, order: where the layers' times and the order of the collectives come from, in words.
    backends: torch's names of those whose times the collectives' are; none for link figures.
    windows: micro-batches of each optimizer step, and total_ms their time together; None where they were not asked for.
    """

    workload: str
    strategy: str
    placement: Placement
    step_ms: float
    step_ms_interval: tuple[float, float] | None
    compute_ms: float
    comm_ms: float
    comm_ms_interval: tuple[float, float] | None
    copies_ms: float | None
    exposed_tail_ms: float
    exposed_tail_ms_interval: tuple[float, float] | None
    collectives: tuple[CallCount, ...]
    memory: Memory
    timeline: tuple[Placed, ...]
    windows: tuple[int, ...] | None
    total_ms: float | None
    total_ms_interval: tuple[float, float] | None
    micro_batches_per_step: int
    tokens_per_micro_batch: float | None
    flops_per_token: float | None
    times: str
    order: str
    backends: tuple[str, ...]
    notes: tuple[str, ...]
    extrapolated: bool

    @property
    def nodes(self) -> int:
        """Nodes of the job."""
        return self.placement.nodes

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each of them."""
        return self.placement.ranks_per_node

    @property
    def gradient_syncs(self) -> int | None:
        """Optimizer steps in all micro-batches; None where they were not asked for."""
        return None if self.windows is None else len(self.windows)

    @property
    def exposed_comm_ms(self) -> float:
        """What communication adds to the step."""
        return max(0.0, self.step_ms - self.compute_ms)  # the difference of two long sums may be -1e-16

    @property
    def exposed_comm_ms_interval(self) -> tuple[float, float] | None:
        """The step's, less the computation."""
        if self.step_ms_interval is None:
            return None
        low, high = (max(0.0, end - self.compute_ms) for end in self.step_ms_interval)
        return low, high

    @property
    def tokens_per_s(self) -> float | None:
        """Of all ranks together; None where the workload does not say its tokens, or the step takes no time."""
        if self.tokens_per_micro_batch is None or not self.step_ms:
            return None
        return self.tokens_per_micro_batch * self.micro_batches_per_step * self.placement.nranks / self.step_ms * 1000

    @property
    def tflops_per_rank(self) -> float | None:
        """10^12 model operations a second and rank; divided by the device's peak it is the MFU."""
        if self.tokens_per_s is None or self.flops_per_token is None:
            return None
        return self.tokens_per_s * self.flops_per_token / self.placement.nranks / 1e12

    def to_dict(self) -> dict[str, Any]:
        """The JSON object; optional keys are absent where they have no value."""
        document: dict[str, Any] = {
            "workload": self.workload,
            "strategy": self.strategy,
            "nodes": self.nodes,
            "ranks_per_node": self.ranks_per_node,
            "step_ms": self.step_ms,
            "step_ms_interval": listed(self.step_ms_interval),
            "compute_ms": self.compute_ms,
            "comm_ms": self.comm_ms,
            "comm_ms_interval": listed(self.comm_ms_interval),
            "exposed_comm_ms": self.exposed_comm_ms,
            "exposed_comm_ms_interval": listed(self.exposed_comm_ms_interval),
            "exposed_tail_ms": self.exposed_tail_ms,
            "exposed_tail_ms_interval": listed(self.exposed_tail_ms_interval),
        }
        if self.copies_ms is not None:
            document["copies_ms"] = self.copies_ms
        if self.windows is not None:
            document |= {
                "windows": list(self.windows),
                "gradient_syncs": self.gradient_syncs,
                "total_ms": self.total_ms,
                "total_ms_interval": listed(self.total_ms_interval),
            }
        if self.tokens_per_s is not None:
            document["tokens_per_s"] = self.tokens_per_s
        if self.tflops_per_rank is not None:
            document["tflops_per_rank"] = self.tflops_per_rank
        return document | {
            "times": self.times,
            "order": self.order,
            "extrapolated": self.extrapolated,
            "notes": list(self.notes),
            "collectives": [_collective_dict(entry) for entry in self.collectives],
            "memory": self.memory.to_dict(),
            "timeline": [_bar_dict(placed) for placed in self.timeline],
        }


def listed(interval: tuple[float, float] | None) -> list[float] | None:
    """As JSON has it."""
    return None if interval is None else list(interval)


def _collective_dict(entry: CallCount) -> dict[str, Any]:
    call = entry.call
    return {
        "collective": entry.collective,
        "group": entry.group,
        "nranks": call.group.nranks,
        "nnodes": call.group.nnodes,
        "dtype": call.dtype,
        "size_bytes": entry.size_bytes,
        "count": entry.count,
        "time_ms": entry.time_ms,
    }


def _bar_dict(placed: Placed) -> dict[str, Any]:
    """`stream` is compute or comm; `channel` tells apart what may run at a time: HSDP's second stream, gloo's two."""
    return {
        "stream": placed.stream,
        "channel": placed.channel,
        "phase": placed.task.phase,
        "name": placed.name,
        "start_ms": placed.start_ms,
        "end_ms": placed.end_ms,
    }
