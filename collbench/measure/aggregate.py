"""What the groups of one kind make of a collective together: the slowest, and the sum of bandwidths."""

from __future__ import annotations

from collbench.results import Record
from collbench.sweep import Cell


def aggregate(cell: Cell, records: list[Record]) -> Record:
    """The aggregate record of groups that ran at the same time; `records` has one of each group.

    time_us is the slowest group's. All groups begin together, and while the fastest has not ended all are at work: this
    is the common window, and `overlap` its part of the slowest group's time. In it group g moves its bytes at its own
    bandwidth, so that the sum of bandwidths is the sum of theirs; with little overlap that says little, because a slow
    group had the network to itself at the end.
    """
    slowest = max(records, key=lambda record: record["time_us"])
    window_us = min(record["time_us"] for record in records)
    named = {name: value for name, value in cell.record(tuple(slowest["group_ranks"])).items() if name not in _OF_ONE}
    return {
        "kind": "aggregate",
        **named,
        "groups": len(records),
        "time_us": slowest["time_us"],
        "slowest_group": slowest["group_ranks"],
        "algbw_GBps_sum": sum(record["algbw_GBps"] for record in records),
        "busbw_GBps_sum": sum(record["busbw_GBps"] for record in records),
        "common_window_us": window_us,
        "overlap": window_us / slowest["time_us"],
    }


_OF_ONE = ("group_ranks", "nranks", "count", "requests")
