"""Process groups whose collectives end at once and move no data: what is left of a step is torch's own work."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from collbench.measure.clock import now_ns
from collbench.predict.capture.recorder import Recorder, register

_BACKEND = "collbench_silent"


class _Silent(Recorder):
    """Notes when this rank enters a collective, and touches the memory that it would fill: fresh pages come then."""

    entered_ns: ClassVar[list[int]] = []  # of all groups

    def note(self, collective: str, tensors: Sequence[torch.Tensor], result: Any) -> Any:
        self.entered_ns.append(now_ns())
        for output in result if collective in ("all_gather_into_tensor", "reduce_scatter_tensor") else ():
            if isinstance(output, torch.Tensor) and output.device.type == "cpu":
                output.view(torch.uint8)[:: mmap.PAGESIZE].zero_()
        return super().note(collective, tensors, result)


def silent_group(ranks: Sequence[int]) -> Any:
    """torch's group of these ranks, of which this one is one."""
    register(_BACKEND, _Silent)
    return dist.new_group(list(ranks), backend=_BACKEND, use_local_synchronization=True)


def entered_ns() -> list[int]:
    """When this rank entered each collective of silent groups since it was last asked."""
    entered = _Silent.entered_ns.copy()
    _Silent.entered_ns.clear()
    return entered
