"""Ranks and nodes that a launcher's command line asks for: `mpirun -np 8 ...`, `srun -N2 --ntasks-per-node=4 ...`."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from collbench.importers.derived import ranks_in

_LAUNCHER = re.compile(
    r"(?:^|[\s/])(mpirun(?:_rsh)?|mpiexec(?:\.hydra)?|orterun|prterun|srun|flux(?= run)|torchrun"
    r"|torch\.distributed\.(?:run|launch))\s"
)
_LONGEST = 4000  # characters of a command line


class Launched(NamedTuple):
    """Ranks and nodes; None for what the line does not say."""

    nranks: int | None
    nnodes: int | None


def launched(line: str) -> Launched | None:
    """What this line asks for; None where it is no launcher's command line."""
    match = _LAUNCHER.search(line[:_LONGEST])
    if match is None:
        return None
    words = words_of_command(line[match.end() : _LONGEST])
    if match[1].startswith("torch"):
        per_node, nnodes = _value(words, "--nproc_per_node", "--nproc-per-node"), _value(words, "--nnodes")
        return Launched(per_node * (nnodes or 1) if per_node else None, nnodes or (1 if per_node else None))
    if match[1] in ("srun", "flux"):
        nnodes = _value(words, "-N", "--nodes")
        nranks = _value(words, "-n", "--ntasks")
        per_node = _value(words, "--ntasks-per-node", "--tasks-per-node")
    else:
        nnodes, nranks = None, _value(words, "-n", "-np", "--np", "-c")
        per_node = _value(words, "-ppn", "-perhost", "-npernode", "--npernode", "-N")
    if nranks is None and nnodes and per_node:
        nranks = nnodes * per_node
    if nnodes is None and nranks and per_node and nranks % per_node == 0:
        nnodes = nranks // per_node
    return Launched(nranks, nnodes)


def words_of_command(text: str) -> list[str]:
    """As a shell tells them apart."""
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed
        return text.split()


def _value(words: list[str], *flags: str) -> int | None:
    """The number given to the first of these flags: `-n 8`, `-N2`, `--ntasks=8`."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        for flag in flags:
            if word == flag:
                return ranks_in(following)
            if flag.startswith("--") and word.startswith(f"{flag}="):
                return ranks_in(word.removeprefix(f"{flag}="))
            if len(flag) == 2 and word.startswith(flag) and (count := ranks_in(word[2:])):
                return count
    return None
