"""What ranks say to each other around a measurement: agreements, readings, verdicts.

The control group is gloo on every backend and never carries a measured byte. It is called through the process group's
own methods, not through torch.distributed's functions: those are what is measured, and whoever instruments or replaces
them must not reach the measuring.
"""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from collbench.measure.tree import Tree


class Control:
    """The control group of a job. Every method but send and receive is called by all ranks together.

    address: where the other ranks reach this one; where it is not known, `maximum` goes the slow way through gloo.
    """

    def __init__(self, timeout_s: float, address: str | None = None) -> None:
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self.rank: int = self._group.rank()
        self.world_size: int = self._group.size()
        self._tree: Tree | None = None
        if address is not None:
            self._tree = Tree(self.rank, self.world_size, address, self.everyones, timeout_s)

    def maximum(self, values: list[int]) -> list[int]:
        """The largest of every rank's values, place by place."""
        if self._tree is not None:
            return self._tree.maximum(values)
        tensor = torch.tensor(values, dtype=torch.int64)
        options = c10d.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        self._group.allreduce([tensor], options).wait()
        largest: list[int] = tensor.tolist()
        return largest

    def leave(self) -> None:
        """Let the ranks that wait for this one in `maximum` know that it will not come."""
        if self._tree is not None:
            self._tree.close()

    def from_rank(self, source: int, value: Any) -> Any:
        """One rank's value, on every rank; the others' `value` is not looked at."""
        data = _bytes_of(value) if self.rank == source else torch.empty(0, dtype=torch.uint8)
        data = self._padded(data)
        options = c10d.BroadcastOptions()
        options.rootRank = source
        options.rootTensor = 0
        self._group.broadcast([data], options).wait()
        return _value_of(data)

    def everyones(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of ranks."""
        data = self._padded(_bytes_of(value))
        gathered = [torch.empty_like(data) for _ in range(self.world_size)]
        self._group.allgather([gathered], [data]).wait()
        return [_value_of(data) for data in gathered]

    def to_rank0(self, values: list[int]) -> list[list[int]] | None:
        """Every rank's values (equally many of each) on rank 0; None on the others."""
        mine = torch.tensor(values, dtype=torch.int64)
        options = c10d.GatherOptions()
        options.rootRank = 0
        gathered = [[torch.empty_like(mine) for _ in range(self.world_size)]] if self.rank == 0 else []
        self._group.gather(gathered, [mine], options).wait()
        return [tensor.tolist() for tensor in gathered[0]] if self.rank == 0 else None

    def send(self, value: int, other: int) -> None:
        self._group.send([torch.tensor([value], dtype=torch.int64)], other, 0).wait()

    def receive(self, other: int) -> int:
        tensor = torch.zeros(1, dtype=torch.int64)
        self._group.recv([tensor], other, 0).wait()
        return int(tensor)

    def _padded(self, data: torch.Tensor) -> torch.Tensor:
        """As long as the longest of all ranks'; pickle knows where it ends."""
        longest = self.maximum([data.numel()])[0]
        return torch.cat([data, torch.zeros(longest - data.numel(), dtype=torch.uint8)])


def _bytes_of(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def _value_of(data: torch.Tensor) -> Any:
    return pickle.loads(bytes(data.tolist()))
