"""A process group of any size in one process: it notes the collectives that torch asks of it, and moves no data.

Registered through torch's public interface for backends (torch 2.8 to 2.14), so that what is noted is what
`fully_shard` and DDP's reducer would have any backend send.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from collbench.errors import InputError
from collbench.predict.captured import Computed, Issued

_BACKEND = "collbench_recorder"


@dataclass(frozen=True, slots=True)
class Sent:
    """A collective as a process group sees it. `size_bytes` is nccl-tests' size."""

    collective: str
    size_bytes: int
    dtype: str
    nranks: int

    def of(self, unit: str) -> Issued:
        """The same, carrying that unit's tensors."""
        return Issued(
            collective=self.collective, unit=unit, size_bytes=self.size_bytes, dtype=self.dtype, nranks=self.nranks
        )


@dataclass(frozen=True, slots=True)
class Ready:
    """The gradient of the trained parameter of that number, in the order of `Module.parameters()`, is complete."""

    parameter: int


Event = Computed | Sent | Ready


@dataclass
class Recording:
    """What happened so far, in order."""

    events: list[Event] = field(default_factory=list)


_AS_SENT = {"bool": "uint8", "complex64": "float32", "complex128": "float64"}  # as torch's backends send them


def sent_dtype(tensor: torch.Tensor) -> str:
    """torch's name of the type that a collective of the tensor has."""
    name = str(tensor.dtype).removeprefix("torch.")
    return _AS_SENT.get(name, name)


class _Done(dist.Work):
    """A collective that has ended."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._result = result

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._result)
        return future


class Recorder(dist.ProcessGroup):
    """torch calls these methods, from Python and from C++; older and newer names of one operation are both there."""

    recording: Recording | None = None

    def __init__(self, rank: int, nranks: int, name: str) -> None:
        super().__init__(rank, nranks)  # type: ignore[call-arg]
        self._name, self._nranks = name, nranks

    @property
    def group_name(self) -> str:  # type: ignore[override]
        return self._name

    def getGroupName(self) -> str:
        return self._name

    def getBackendName(self) -> str:
        return _BACKEND

    def note(self, collective: str, tensors: Sequence[torch.Tensor], result: Any) -> _Done:
        if self.recording is not None:
            size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            self.recording.events.append(Sent(collective, size_bytes, sent_dtype(tensors[0]), self._nranks))
        return _Done(result)

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> _Done:  # type: ignore[override]
        return self.note("all_reduce", tensors, tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> _Done:
        return self.note("all_reduce", tensors, tensors)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> _Done:  # type: ignore[override]
        return self.note("broadcast", tensors, tensors)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> _Done:  # type: ignore[override]
        for output, tensor in zip(outputs, inputs, strict=True):
            for each in output:  # DDP compares what all ranks say of its parameters
                each.copy_(tensor)
        return self.note("all_gather_into_tensor", outputs[0], outputs)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> _Done:
        return self.note("all_gather_into_tensor", [output], [output])

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> _Done:
        return self.note("reduce_scatter_tensor", [tensor], [output])

    def alltoall_base(
        self, output: torch.Tensor, tensor: torch.Tensor, received: Any, sent: Any, opts: Any = None
    ) -> _Done:
        return self.note("all_to_all_single", [tensor], [output])

    def barrier(self, opts: Any = None) -> _Done:
        return _Done([])

    all_gather_single = _allgather_base  # type: ignore[assignment]
    reduce_scatter_single = _reduce_scatter_base  # type: ignore[assignment]


def register(name: str, kind: type[Recorder]) -> None:
    """Make a backend whose groups are of this kind known to torch, once."""

    def make(group: Any, _: Any) -> Recorder:
        return kind(group.group_rank, group.group_size, str(group.group_id))

    if not hasattr(dist.Backend, name.upper()):
        dist.Backend.register_backend(name, make, extended_api=True, devices=["cpu", "cuda"])


@contextmanager
def recording(nranks: int) -> Iterator[Recording]:
    """This process is rank 0 of `nranks`, and what it sends is noted. InputError where it is in a process group."""
    if dist.is_initialized():
        raise InputError("this process has a process group of its own: capture before it is made, or in another one")
    register(_BACKEND, Recorder)
    Recorder.recording = Recording()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own about names that it renamed and is using itself
        dist.init_process_group(_BACKEND, rank=0, world_size=nranks, store=dist.HashStore())  # type: ignore[attr-defined]
        try:
            yield Recorder.recording
        finally:
            dist.destroy_process_group()
            Recorder.recording = None
