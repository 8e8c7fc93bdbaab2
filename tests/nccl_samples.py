"""Records of all ten collectives and rows and tables of them; nccl-tests' formulas are typed here a second time."""

from __future__ import annotations

from sample_records import Record, run_record

from collbench.nccl_style import TableStyle, find_generation
from collbench.nccl_table import Printer

# collective: (forms torch has, bytes moved in one operation / size, busbw / algbw). One rank moves nothing.
COLLECTIVES = {
    "broadcast": ("in", lambda n: 1, lambda n: n > 1),
    "all_reduce": ("in", lambda n: 1, lambda n: 2 * (n - 1) / n),
    "all_gather_into_tensor": ("both", lambda n: 1, lambda n: (n - 1) / n),
    "reduce_scatter_tensor": ("both", lambda n: 1, lambda n: (n - 1) / n),
    "all_to_all_single": ("out", lambda n: 1, lambda n: (n - 1) / n),
    "reduce": ("in", lambda n: 1, lambda n: n > 1),
    "gather": ("both", lambda n: 1, lambda n: (n - 1) / n),
    "scatter": ("both", lambda n: 1, lambda n: (n - 1) / n),
    "send_recv": ("out", lambda n: 1, lambda n: n > 1),
    "hypercube": ("both", lambda n: (n - 1) / n, lambda n: n > 1),
}
REDUCES = ("all_reduce", "reduce_scatter_tensor", "reduce")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
DIVIDED = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "gather", "scatter", "hypercube")

# A version of every stretch in which nccl-tests printed the same, and the last before each change.
VERSIONS = ("2.13.0", "2.13.3", "2.13.4", "2.14.1", "2.16.6", "2.16.7", "2.17.2", "2.17.3", "2.17.5", "2.17.6",
            "2.17.7", "2.18.1", "2.18.2", "2.19.1", "2.19.2", "2.19.5", "2.19.6")  # fmt: skip


def half(collective: str, size: int, count: int, dtype: str, time_us: float, right: bool, **changes: object) -> Record:
    """One half of a row: 8 ranks, pipelined, the bandwidths follow from the size, the time and the ranks."""
    form, moved, factor = COLLECTIVES[collective]
    record: Record = {
        "kind": "measurement",
        "run_id": "r1",
        "collective": collective,
        "group": "world",
        "group_ranks": list(range(8)),
        "nranks": 8,
        "nnodes": 1,
        "dtype": dtype,
        "redop": "sum" if collective in REDUCES else None,
        "root": 0 if collective in ROOTED else None,
        "in_place": right if form == "both" else form == "in",
        "pass": int(right and form != "both"),
        "size_bytes": size,
        "count": count,
        "timing": "pipelined",
        "concurrent": True,
        "iterations": 20,
        "time_us": time_us,
        "wrong": 0,
        **changes,
    }
    algbw = size * moved(record["nranks"]) / 1e9 / (record["time_us"] / 1e6)
    return {"algbw_GBps": algbw, "busbw_GBps": algbw * factor(record["nranks"]), **record}


def halves(collective, size, count, dtype, left_us, right_us, **changes):
    sides = ((left_us, False), (right_us, True))
    return tuple([half(collective, size, count, dtype, time_us, right, **changes)] for time_us, right in sides)


def style(version: str = "2.19.6", **changes: object) -> TableStyle:
    return TableStyle(generation=find_generation(version), **{"plain": True, **changes})


def table(*rows, like: TableStyle | None = None, run=None, comments=(), memory=None):
    """The text of tables with these rows."""
    written: list[str] = []
    printer = Printer(run or run_record(), written.append, *(() if like is None else (like,)))
    for comment in comments:
        printer.comment(comment)
    for row in rows:
        printer.add(row)
    printer.close(memory)
    return "".join(written)
