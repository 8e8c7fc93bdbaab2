"""Ranks and nodes that a launcher's command line asks for: `mpirun -np 8 ...`, `srun -N2 --ntasks-per-node=4 ...`."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

_LAUNCHER = re.compile(
    r"(?:^|[\s/])(mpirun|mpiexec(?:\.hydra)?|orterun|prterun|srun|flux(?= run)|torchrun"
    r"|torch\.distributed\.(?:run|launch))\s"
)
_LONGEST = 1000  # characters of a command line
_MOST_RANKS = 2**20


class Launched(NamedTuple):
    """Ranks and nodes; None for what the line does not say."""

    nranks: int | None
    nnodes: int | None


def launched(line: str) -> Launched | None:
    """What this line asks for; None where it is no launcher's command line."""
    match = _LAUNCHER.search(line[:_LONGEST])
    if match is None:
        return None
    words = _words(line[match.end() : _LONGEST])
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


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed
        return text.split()


def _value(words: list[str], *flags: str) -> int | None:
    """The number given to the first of these flags: `-n 8`, `-N2`, `--ntasks=8`."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        for flag in flags:
            if word == flag:
                return _count(following)
            if flag.startswith("--") and word.startswith(f"{flag}="):
                return _count(word.removeprefix(f"{flag}="))
            if len(flag) == 2 and word.startswith(flag) and (count := _count(word[2:])):
                return count
    return None


def _count(text: str) -> int | None:
    if not (text.isascii() and text.isdecimal() and len(text) <= 7):
        return None
    return int(text) if 0 < int(text) <= _MOST_RANKS else None
