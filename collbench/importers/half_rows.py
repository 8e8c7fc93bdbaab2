"""One line, one time: the rows of tools that write the two halves of nccl-tests' row apart, as JSON or as CSV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collbench.importers.derived import count_in
from collbench.importers.evidence import MOST_RANKS
from collbench.importers.json_text import integer, number, shown
from collbench.importers.table import Row, Table
from collbench.importers.words import collective_named, dtype_named, is_uneven, redop_named


@dataclass(frozen=True, slots=True)
class Where:
    """What ran where, as one line says it. named: the tool's own word for the collective."""

    named: str
    ranks: int | None
    nodes: int | None
    gpus_per_rank: int | None

    def table(self, format: str, line: int, backend: str | None, is_document: bool = False) -> Table:
        """The table, still empty, of all lines of this kind."""
        table = Table(format=format, line=line, timing="pipelined", backend=backend, is_document=is_document)
        table.collective = collective_named(self.named)
        table.nranks, table.nnodes = self.ranks, self.nodes
        if self.ranks is not None and self.gpus_per_rank is not None and self.gpus_per_rank > 1:
            table.nranks = self.ranks * self.gpus_per_rank
            table.inferred["nranks"] = f"{self.ranks} processes of {self.gpus_per_rank} GPUs each"
        elif self.ranks is None and self.gpus_per_rank is not None and self.gpus_per_rank > 1:
            table.nranks, table.nnodes = self.gpus_per_rank, 1
            table.inferred["nranks"] = f"one process of {self.gpus_per_rank} GPUs (a build without MPI)"
        if is_uneven(self.named):
            table.notes.append(
                "an uneven all-to-all (alltoallv): its sizes are the most that any rank sends or receives"
            )
        return table


def where(values: Mapping[str, Any]) -> Where:
    """values: by name in lower case."""
    ranks, per_node = _few(values.get("ranks")), _few(values.get("rankspernode"))
    nodes = _few(values.get("nodes"))
    if nodes is None and ranks and per_node:
        nodes = -(-ranks // per_node)
    gpus = _few(values.get("gpusperrank", values.get("gpus")))
    return Where(str(values.get("name", values.get("collective", "")))[:64], ranks, nodes, gpus)


def _few(value: Any) -> int | None:
    known = integer(value)
    return known if known is not None and 1 <= known <= MOST_RANKS else None


def half_row(values: Mapping[str, Any], line: int) -> Row | str:
    """The row, or the reason why it is none. values: by name in lower case, numbers as their text."""
    size, time_us = integer(values.get("size")), number(values.get("time"))
    if size is None:
        return f"its size is {shown(values.get('size'))}, no number of bytes"
    if time_us is None or time_us.value <= 0:
        return f"it took {shown(values.get('time'))} us, which is no time"
    side = integer(values.get("inplace"))
    more: dict[str, Any] = {"mode": "uneven"} if is_uneven(values.get("name", values.get("collective"))) else {}
    if (cycle := integer(values.get("numcycle"))) is not None:
        more["pass"] = cycle  # rccl-tests -s: the sweep over and over
    if (kernel := integer(values.get("kernel"))) is not None:
        more["kernel"] = kernel
    return Row(
        line=line,
        size_bytes=size,
        time_us=time_us,
        count=integer(values.get("count")),
        dtype=dtype_named(values.get("type")),
        redop=redop_named(values.get("redop")),
        root=integer(values.get("root")),
        in_place={0: False, 1: True}.get(-1 if side is None else side),
        wrong=count_in(number(values.get("wrong"))),
        algbw_GBps=number(values.get("algbw")),
        busbw_GBps=number(values.get("busbw")),
        more=more,
    )
