"""Ranks and nodes of an OSU test: the suite does not print them, what stands around its tables often does."""

from __future__ import annotations

import re

from collbench.importers.launch_line import Launched, launched
from collbench.importers.table import Table

# A wrapper's greeting, one line a rank: `I am 3 of 32: 3 on node01`; its end is optional.
_GREETING = re.compile(r"\s*I am ([0-9]{1,7}) of ([0-9]{1,7})\b(?:.{0,40}? on ([\w.-]{1,80}))?")
# Flux' event log: [first node, nodes, ranks a node, repeats].
_TASKMAP = re.compile(
    r'"taskmap": ?\{"version": ?1, ?"map": ?\[\[([0-9]{1,7}), ?([0-9]{1,7}), ?([0-9]{1,7}), ?([0-9]{1,7})\]\]'
)
_PAIR_OF_NODES = re.compile(r"\bnodes ([\w.-]{1,80}) (?:and )?([\w.-]{1,80})\s*\Z")


class Ranks:
    """What the lines so far say about who takes part. Feed it every line; ask it about a table when one begins."""

    def __init__(self) -> None:
        self._command: tuple[int, Launched] | None = None
        self._greeted: dict[int, str | None] = {}
        self._of: set[int] = set()
        self._taskmaps: set[tuple[int, int]] = set()
        self._pair: tuple[str, str] | None = None

    def read(self, number: int, line: str) -> None:
        if "osu_" in line and (asked := launched(line)) is not None:
            self._command = (number, asked)
        elif "I am " in line and (match := _GREETING.match(line)):
            self._of.add(int(match[2]))
            self._greeted[int(match[1])] = match[3]
        elif "nodes " in line and (match := _PAIR_OF_NODES.search(line)):
            self._pair = (match[1], match[2])
        else:
            self.read_long(line)

    def read_long(self, line: str) -> None:
        """The part of `read` that concerns lines too long for a table."""
        if "taskmap" in line and (match := _TASKMAP.search(line)):
            _, nodes, per_node, repeats = map(int, match.groups())
            self._taskmaps.add((nodes * per_node * repeats, nodes))

    def tell(self, table: Table, pairs: int | None) -> None:
        """Fill in ranks and nodes of a table that begins here. pairs: of a point-to-point test, None for others."""
        if pairs is not None:
            table.nranks = 2 * pairs
            if self._pair is not None and pairs == 1 and self._pair[0] != self._pair[1]:
                table.nnodes = 2
                table.nodes = [{"host": host, "ranks": [rank]} for rank, host in enumerate(self._pair)]
            return
        if self._command is not None and self._command[1].nranks:
            line, asked = self._command
            table.nranks, table.nnodes = asked
            table.inferred["nranks"] = f"the command in line {line}"
            if asked.nnodes:
                table.inferred["nnodes"] = table.inferred["nranks"]
        elif len(self._of) == 1 and self._greeted.keys() <= set(range(next(iter(self._of)))):
            table.nranks = next(iter(self._of))
            table.inferred["nranks"] = "the ranks' greetings above the table"
            self._tell_hosts(table)

    def _tell_hosts(self, table: Table) -> None:
        hosts: dict[str, list[int]] = {}
        for rank, host in sorted(self._greeted.items()):
            if host is None:
                return
            hosts.setdefault(host, []).append(rank)
        if len(self._greeted) == table.nranks:
            table.nnodes = len(hosts)
            table.nodes = [{"host": host, "ranks": ranks} for host, ranks in hosts.items()]
            table.inferred["nnodes"] = table.inferred["nranks"]

    def tell_late(self, table: Table) -> None:
        """What stands below a table: the event log of the job that it was the output of."""
        if table.nranks is None and len(self._taskmaps) == 1:
            table.nranks, table.nnodes = next(iter(self._taskmaps))
            table.inferred["nranks"] = table.inferred["nnodes"] = "the task map in Flux' event log"
