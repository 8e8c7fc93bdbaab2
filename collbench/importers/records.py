"""Tables -> the records of a results file: a run, its measurements, its end."""

from __future__ import annotations

import hashlib
from typing import Any

from collbench.collectives import COLLECTIVES, bandwidths_GBps
from collbench.dtypes import DTYPES
from collbench.importers.source import Log
from collbench.importers.table import Row, Table
from collbench.results import SCHEMA, Record

GROUP = "world"


def records_of(table: Table, log: Log, number: int, asked: str) -> list[Record]:
    """The records of one table, the `number`-th of its log.

    The run's id follows from the log's content and what the user said about it: the same import is the same run.
    """
    run_id = hashlib.sha256(f"{table.format}\n{number}\n{asked}\n{log.digest}".encode()).hexdigest()[:12]
    nranks = table.nranks
    run: Record = {
        "kind": "run",
        "schema": SCHEMA,
        "run_id": run_id,
        "started": _started(table),
        "backend": table.backend,
        "world_size": nranks,
        "nodes": table.nodes,
        "groups": {GROUP: [list(range(nranks))]} if nranks is not None and not table.more.get("groups_at_once") else {},
        "versions": table.versions,
        "environment": table.environment,
        "sweep": None,
        **table.more,
        **({"estimates": table.estimates} if table.estimates else {}),
        "imported": {
            "file": log.name,
            "line": table.line,
            "format": table.format,
            "inferred": table.inferred,
            "notes": table.notes,
        },
    }
    measurements = [_measurement(row, table, run_id) for row in table.rows]
    end = {
        "kind": "end",
        "run_id": run_id,
        "finished": None,
        "measurements": len(measurements),
        "skips": 0,
        "exit_code": 0,
        "reason": None,
    }
    return [run, *measurements, end]


def _started(table: Table) -> str | None:
    started = table.more.get("started") or next((row.more.get("measured") for row in table.rows), None)
    return str(started) if started is not None else None


def _measurement(row: Row, table: Table, run_id: str) -> Record:
    collective = COLLECTIVES.get(table.collective or "")
    more = dict(row.more)
    sweep_pass = int(more.pop("pass", 0))
    if collective is not None and row.in_place is not None:
        sweep_pass = collective.halves(sweep_pass)[int(row.in_place)][1]  # as of this program's own, which show tells
    takes = collective is None or collective.reduces
    algbw, busbw = _bandwidths(row, table)
    return {
        "kind": "measurement",
        "run_id": run_id,
        "collective": table.collective,
        "group": GROUP,
        "group_ranks": list(range(table.nranks)) if table.nranks is not None and table.nranks <= 256 else None,
        "nranks": table.nranks,
        "nnodes": table.nnodes,
        "dtype": row.dtype,
        "redop": row.redop if takes else None,
        "root": row.root,
        "in_place": row.in_place,
        "pass": sweep_pass,
        "size_bytes": row.size_bytes,
        "count": _count(row, table) if row.count is None else row.count,
        "timing": table.timing,
        "concurrent": True,
        "time_us": row.time_us.value,
        "algbw_GBps": algbw,
        "busbw_GBps": busbw,
        "wrong": row.wrong,
        **more,
    }


def _count(row: Row, table: Table) -> int | None:
    """The count argument of the call that size, type and ranks make; None where they do not make one."""
    collective = COLLECTIVES.get(table.collective or "")
    if collective is None or row.dtype not in DTYPES or (collective.divided and table.nranks is None):
        return None
    count, rest = divmod(
        row.size_bytes, DTYPES[row.dtype].itemsize * ((table.nranks or 1) if collective.divided else 1)
    )
    return None if rest else count


def _bandwidths(row: Row, table: Table) -> tuple[float | None, float | None]:
    """As printed; computed where the tool prints none and the ranks are known."""
    algbw = None if row.algbw_GBps is None else row.algbw_GBps.value
    busbw = None if row.busbw_GBps is None else row.busbw_GBps.value
    collective: Any = COLLECTIVES.get(table.collective or "")
    if collective is not None and table.nranks is not None and (algbw is None or busbw is None):
        computed = bandwidths_GBps(collective, row.size_bytes, row.time_us.value, table.nranks)
        algbw = computed[0] if algbw is None else algbw
        busbw = computed[1] if busbw is None else busbw
    return algbw, busbw
