"""Sizes that a tool counts for one rank -> nccl-tests' size, which counts all shares; needs the number of ranks."""

from __future__ import annotations

from dataclasses import replace

from collbench.importers.table import Table


def settle_sizes(table: Table) -> None:
    """Give a table nccl-tests' sizes, or, where nobody knows its ranks, a name of its own, saying so.

    Call it when `nranks` is as known as it will be.
    """
    name, table.per_rank_name = table.per_rank_name, None
    if name is None:
        return
    if table.nranks is None:
        table.notes.append(
            f"sizes are one rank's and the ranks are not known: kept as {name}, which no fit uses; with --nranks it "
            f"is {table.collective}"
        )
        table.collective = name
        return
    table.rows = [replace(row, size_bytes=row.size_bytes * table.nranks) for row in table.rows]
    table.notes.append(f"the log's sizes are one rank's: multiplied by its {table.nranks} ranks")
