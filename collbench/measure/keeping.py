"""How a run is kept: its file, and the table it prints. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collbench.nccl_style import TableStyle
from collbench.nccl_table import DEFAULT


@dataclass(frozen=True, slots=True)
class Keeping:
    """output: the results file.  append: whether another sweep's run may stand there.  style: of the table.
    nccl_json: where nccl-tests' JSON goes, if anywhere."""

    output: Path
    append: bool = False
    style: TableStyle = DEFAULT
    nccl_json: Path | None = None
