"""A model in other programs' formats: one file per format, and here what each keeps and what it loses.

A new format is one entry in FORMATS and one module with `export(model, forced) -> Export`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.errors import InputError, one_of

if TYPE_CHECKING:
    from collbench.model.exports.common import Export
    from collbench.model.store import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format: the module that writes it, what it is, what arrives exactly and what does not arrive.

    folder: it is several files with names of their own, so that a user names a folder.
    """

    module: str
    what: str
    keeps: str
    loses: str
    folder: bool = False


FORMATS = {
    "csv": Format(
        module="collbench.model.exports.plain_csv",
        what="a table: one row per measured size, the fit's figures beside it",
        keeps="the curves, the α–β segments, the summary and all intervals",
        loses="laws over rank counts, repeats, notes, a prior's points",
    ),
    "nccl-tuner": Format(
        module="collbench.model.exports.nccl_tuner",
        what="NCCL's example tuner plugin (NCCL_TUNER_CONFIG_FILE)",
        keeps="which algorithm and protocol was fastest at each measured size, node and rank count, of those that runs "
        "were forced to (NCCL_ALGO and NCCL_PROTO one word each, a results file per pair)",
        loses="times, intervals, channels; a choice within 3 % of the fastest is kept rather than changed",
    ),
    "astra-sim": Format(
        module="collbench.model.exports.astra_sim",
        what="network.yml of ASTRA-sim's analytical backend",
        keeps="the first segment's α and the last one's bandwidth of one collective per level, for ring collectives "
        "unchunked (preferred-dataset-splits 1, endpoint-delay 0)",
        loses="all that lies between those two segments, intervals, the other collectives, rank counts",
    ),
    "galvatron": Format(
        module="collbench.model.exports.galvatron",
        what="Galvatron's hardware profile, up to three JSON files",
        keeps="times at 1 to 1024 MiB that were measured, in ms",
        loses="latencies of its bandwidth files (one figure, the fitted bus bandwidth), intervals, other sizes",
        folder=True,
    ),
}


def split_kind(text: str) -> tuple[str, str | None]:
    """(kind, file or folder) of `KIND` or `KIND=FILE`; InputError for an unknown kind or an empty file."""
    kind, equals, path = text.partition("=")
    if kind not in FORMATS:
        raise one_of("export", kind, list(FORMATS))
    if equals and not path:
        raise InputError(f"--export {text}: no file after '=': expected {kind}=FILE, or {kind} alone")
    return kind, path or None


def export(kind: str, model: Model, forced: Mapping[tuple[str, str], Model] | None = None) -> Export:
    """The model in this format. `forced`: models of runs with one algorithm and protocol, for `nccl-tuner`.

    Raises InputError where the model holds nothing that the format can say.
    """
    written: Export = import_module(FORMATS[kind].module).export(model, forced or {})
    return written


def write(exported: Export, kind: str, path: str | os.PathLike[str] | None) -> list[Path]:
    """Write the files, under their own names or, for a format of one file, as `path`; returns where they are."""
    if path is not None and not FORMATS[kind].folder:
        targets = {Path(path): text for text in exported.files.values()}
    else:
        targets = {Path(path or "") / name: text for name, text in exported.files.items()}
    for target, text in targets.items():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"{target}: cannot be written ({error.strerror}): name another place with --export {kind}=…"
            ) from None
    return list(targets)
