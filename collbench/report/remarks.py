"""What a reader must know before trusting the figures: each a line of text, the grave ones apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collbench.model.store import Model
from collbench.report.panels import kind_of_fit
from collbench.results import Record, ResultsFile
from collbench.units import format_size


@dataclass(frozen=True, slots=True)
class Remarks:
    """grave: figures here are wrong or missing.  notes: figures here mean less than they seem to."""

    grave: tuple[str, ...]
    notes: tuple[str, ...]


def remarks_on(
    results: Sequence[ResultsFile],
    model: Model | None,
    predictions: Iterable[Mapping[str, Any]],
    notes: Iterable[str] = (),
) -> Remarks:
    """All that the results, the fit and the predictions have to say against themselves; `notes` come first."""
    grave = [text for file in results for text in (*_wrong(file), *_failed(file))]
    soft = [*notes]
    for file in results:
        soft += [*_one_rank(file), *_unchecked(file), *_skips(file), *_torn(file)]
    if model is not None:
        soft += [*model.notes, *_fit_notes(model)]
    for prediction in predictions:
        name = f"prediction {prediction['workload']}, {prediction['strategy']}"
        said = prediction.get("notes") or (["extrapolated"] if prediction.get("extrapolated") else [])
        soft += [f"{name}: {note}" for note in said]
    return Remarks(grave=tuple(dict.fromkeys(grave)), notes=tuple(dict.fromkeys(soft)))


def _wrong(file: ResultsFile) -> Iterator[str]:
    """One line per collective and group whose results were not what they must be."""
    for (collective, group), records in _by_kind(file.measurements).items():
        wrong = [record for record in records if record.get("wrong")]
        if wrong:
            elements = sum(record["wrong"] for record in wrong)
            yield (
                f"wrong data: {collective} {group} at {_sizes(wrong)}: {elements} wrong elements in {len(wrong)} of "
                f"{len(records)} measurements; no fit uses them"
            )


def _failed(file: ResultsFile) -> Iterator[str]:
    """Runs that did not end, or ended badly."""
    ends = {end["run_id"]: end for end in file.ends}
    for run in file.runs:
        end = ends.get(run["run_id"])
        if end is None and "started" in run:
            yield f"run {run['run_id']} did not end: it was killed or is still running, and cells may be missing"
        elif end is not None and end.get("exit_code"):
            reason = end.get("reason") or "no reason given"
            yield f"run {run['run_id']} ended with exit code {end['exit_code']}: {reason}"


def _one_rank(file: ResultsFile) -> Iterator[str]:
    for run in file.runs:
        if run.get("world_size") == 1:
            yield f"run {run['run_id']} had one rank: nothing is moved, bus bandwidths are 0 and nothing can be fitted"


def _unchecked(file: ResultsFile) -> Iterator[str]:
    unchecked = sum(record.get("wrong") is None for record in file.measurements)
    if unchecked:
        yield f"{unchecked} of {len(file.measurements)} measurements were not checked for wrong data"


def _skips(file: ResultsFile) -> Iterator[str]:
    """Skipped cells, those of one reason together."""
    for (group, reason), skips in _by(file.skips, "group", "reason").items():
        names = ", ".join(dict.fromkeys(skip["collective"] for skip in skips))
        sized = [skip for skip in skips if skip.get("size_bytes") is not None]
        yield f"skipped: {names} {group}{f' at {_sizes(sized)}' if sized else ''}: {reason}"


def _fit_notes(model: Model) -> Iterator[str]:
    """What fits note about themselves, those of one note together."""
    fits_of: dict[str, list[str]] = {}
    for fit in model.fits:
        for note in fit.notes:
            kind = kind_of_fit(fit)
            fits_of.setdefault(note, []).append(f"{kind.collective} ({kind.details}, {fit.timing})")
    for note, fits in fits_of.items():
        yield f"{note}: {'; '.join(fits)}"


def _torn(file: ResultsFile) -> Iterator[str]:
    if file.torn_at_byte is not None:
        yield f"{file.path}: the last line is torn (the run was killed while writing it) and is left out"


def _sizes(records: Iterable[Record]) -> str:
    sizes = sorted({record["size_bytes"] for record in records})
    return format_size(sizes[0]) if len(sizes) == 1 else f"{format_size(sizes[0])} to {format_size(sizes[-1])}"


def _by_kind(records: Iterable[Record]) -> dict[tuple[Any, ...], list[Record]]:
    return _by(({**record, "group": record.get("group") or "world"} for record in records), "collective", "group")


def _by(records: Iterable[Record], *names: str) -> dict[tuple[Any, ...], list[Record]]:
    found: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        found.setdefault(tuple(record.get(name) for name in names), []).append(record)
    return found
