"""Going on with a results file: what of a sweep it holds already, and whether a sweep may go on in it at all."""

from __future__ import annotations

import os
from pathlib import Path

from collbench.errors import InputError
from collbench.results import Record, ResultsFile, load_results
from collbench.sweep import Sweep, identity_of


def done_cells(path: Path, sweep: Sweep, world_size: int, backend: str, append: bool) -> list[Record]:
    """The measurements of `held`."""
    return held(path, sweep, world_size, backend, append).measurements


def held(path: Path, sweep: Sweep, world_size: int, backend: str, append: bool) -> ResultsFile:
    """What a file holds of this very sweep, world size and backend; nothing where the file is new or empty.

    Raises InputError where the file's last run was of another, unless `append` says to put both in one file.
    """
    if path.exists() and not path.is_file() and path != Path(os.devnull):
        raise InputError(f"{path}: is not a regular file: name a results file with -o")
    if not path.exists() or _holds_nothing(path):
        return ResultsFile(path)
    results = load_results(path)
    mine = {
        "sweep": sweep.identity(),
        "world size": world_size,
        "backend": backend,
    }
    same = set()
    for run in results.runs:
        theirs = {
            "sweep": identity_of(run.get("sweep") or {}),
            "world size": run.get("world_size"),
            "backend": run.get("backend"),
        }
        if theirs == mine:
            same.add(run["run_id"])
        elif run is results.runs[-1] and not append:
            raise InputError(
                f"{path}: holds another run ({_difference(theirs, mine)}): --append puts both in one file, "
                "or name another file with -o"
            )
    return results.of_runs(same)


def _holds_nothing(path: Path) -> bool:
    """Whether a file is empty, or was killed while its very first record was written."""
    try:
        with path.open("rb") as file:
            start = file.read(2**16)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): name another file with -o") from None
    first = b'{"kind":"run"'
    return not start or (b"\n" not in start and start.startswith(first[: len(start)]))


def _difference(theirs: dict[str, object], mine: dict[str, object]) -> str:
    for name in ("backend", "world size"):
        if theirs[name] != mine[name]:
            return f"{name} {theirs[name]}, now {mine[name]}"
    old, new = theirs["sweep"], mine["sweep"]
    assert isinstance(old, dict) and isinstance(new, dict)
    if not old:
        return "without a sweep, such as an imported log"
    changed = [f"{key} {old.get(key)}, now {new[key]}" for key in new if old.get(key) != new[key]]
    return "; ".join(changed) or "another version's sweep"
