"""The page: one HTML file with everything inside it, from what was run to what was predicted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from collbench.model.laws import Fit
from collbench.model.store import Model
from collbench.numbers import UNKNOWN, digits, interval, ms, percent
from collbench.report.files import write_file
from collbench.report.fit_text import busbw_interval_text, busbw_text, n_half_text
from collbench.report.gantt import timeline_figure
from collbench.report.html import bullets, document, element, facts, folded, picture, section, table
from collbench.report.panels import TIMINGS, Panel, Point, panels_of, plotted
from collbench.report.plots import busbw_figure, time_figure
from collbench.report.remarks import Remarks, remarks_on
from collbench.report.steps import QUANTITIES, validation_figure
from collbench.report.together import groups_section, overlap_section, pairs_section
from collbench.results import Record, ResultsFile
from collbench.units import format_size

Json = Mapping[str, Any]


def write_page(
    path: str | os.PathLike[str],
    results: ResultsFile | Sequence[ResultsFile],
    model: Model | None = None,
    predictions: Sequence[dict[str, Any]] = (),
    validation: dict[str, Any] | None = None,
    title: str = "collbench report",
    notes: Sequence[str] = (),
) -> None:
    """Write one self-contained page: what was run, its figures, the fit, predictions and their validation.

    predictions: objects of `predict --json`.  validation: the object of `validate --json`.  notes: further warnings,
    such as why there is no model.  Raises InputError where the file cannot be written.
    """
    files = [results] if isinstance(results, ResultsFile) else list(results)
    panels = panels_of(files, model.fits if model is not None else ())
    page = document(
        title,
        _what_was_run(files),
        _warnings(remarks_on(files, model, predictions, notes)),
        _headline(panels),
        _plots(plotted(panels)),
        groups_section(files),
        overlap_section(files),
        pairs_section(files),
        _measured(panels),
        _predictions(predictions),
        _validation(validation),
        _environment(files),
    )
    write_file(path, page.encode(), "-o")


def _what_was_run(files: Sequence[ResultsFile]) -> str:
    parts = []
    for file in files:
        for run in file.runs:
            sweep = run.get("sweep") or {}
            of_run = [record for record in file.measurements if record["run_id"] == run["run_id"]]
            if sweep.get("question"):
                parts.append(element("p", sweep["question"]))
            parts.append(facts(_run_facts(file, run, sweep, of_run)))
    return "\n".join(parts)


def _run_facts(file: ResultsFile, run: Record, sweep: Json, measurements: list[Record]) -> list[tuple[str, str]]:
    nodes = run.get("nodes") or []
    hosts = ", ".join(f"{node.get('host')} (ranks {_ranks(node.get('ranks') or [])})" for node in nodes)
    devices = sorted({str(device) for node in nodes for device in node.get("devices") or []})
    ended = next((end.get("finished") for end in file.ends if end["run_id"] == run["run_id"]), None)
    known = {name: version for name, version in (run.get("versions") or {}).items() if version is not None}
    ranks = str(run.get("world_size") or "")
    return [
        ("hosts", hosts),
        ("ranks", f"{ranks} on {len(nodes)} node{'s' * (len(nodes) != 1)}" if ranks and nodes else ranks),
        ("devices", ", ".join(devices)),
        ("backend", str(run.get("backend") or "")),
        ("versions", ", ".join(f"{name} {version}" for name, version in known.items())),
        ("when", f"{run.get('started') or ''}{f' to {ended}' if ended else ''}"),
        ("sweep", str(sweep.get("name") or "")),
        ("measured", f"{len(measurements)} cells, in {file.path.name} (run {run['run_id']})"),
    ]  # fmt: skip


def _ranks(ranks: list[int]) -> str:
    consecutive = len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1))
    return f"{ranks[0]}–{ranks[-1]}" if consecutive else ", ".join(map(str, ranks))


def _warnings(remarks: Remarks) -> str:
    if not remarks.grave and not remarks.notes:
        return section("Warnings", element("p", "None: all runs ended and all data were right."))
    return section("Warnings", bullets(remarks.grave, "bad"), bullets(remarks.notes, "note"))


def _headline(panels: Iterable[Panel]) -> str:
    fits = [panel.fits[timing] for panel in panels for timing in TIMINGS if timing in panel.fits]
    if not fits:
        return section("The fit", element("p", "There is no fit; the warnings say why."))
    head = ("collective", "group", "ranks on nodes", "kind", "place", "timing", "α, us [90\u00a0%]",
            "busbw, GB/s [90\u00a0%]", "n½", "held-out error, %", "points")  # fmt: skip
    explanation = (
        "Time is α + size / bandwidth, in as many segments as the data carry. α is the first segment's, the bus "
        "bandwidth the last one's; n½ is the size at which half of it is reached. The error is the median and the 90th "
        "percentile at sizes the curve was not shown. Isolated: one operation at a time, last exit over all ranks. "
        "Pipelined: back to back, as nccl-tests measures."
    )
    return section("The fit", table(head, map(_fit_row, fits), 6), element("p", explanation, "soft"))


def _fit_row(fit: Fit) -> tuple[str, ...]:
    error = fit.error_pct
    return (
        *(fit.collective, fit.group, f"{fit.nranks} on {fit.nnodes}"),
        " ".join(word for word in (fit.backend, fit.dtype) if word) or UNKNOWN,
        {True: "in", False: "out"}.get(fit.in_place, UNKNOWN),  # type: ignore[arg-type]
        f"{fit.timing}{', alone' if fit.concurrent is False else ''}",
        f"{digits(fit.alpha_us)} {interval(fit.alpha_us_interval)}",
        f"{busbw_text(fit)} {busbw_interval_text(fit)}",
        n_half_text(fit),
        UNKNOWN if error.median is None or error.p90 is None else f"{error.median:.1f} / {error.p90:.1f}",
        str(fit.points),
    )


def _plots(panels: Sequence[Panel]) -> str:
    if not panels:
        return ""
    pictures = []
    for panel in panels:
        pictures.append(picture(time_figure([panel]), f"Time against size: {panel.title}"))
        pictures.append(picture(busbw_figure([panel]), f"Bus bandwidth against size: {panel.title}"))
    explanation = (
        "Points are medians, the thin bars through them reach from the shortest to the longest measurement. Lines are "
        "the α–β segments, bands the 90 % interval of the model's answer. What was measured both in and out of place "
        "is drawn out of place."
    )
    shown = f'<div class="plots">\n{"".join(pictures)}\n</div>'
    return section("Time and bus bandwidth against size", element("p", explanation, "soft"), shown)


def _measured(panels: Iterable[Panel]) -> str:
    parts = []
    for panel in panels:
        regimes = {timing: panel.points(timing) for timing in TIMINGS if timing in panel.records}
        sizes = sorted({point.size_bytes for points in regimes.values() for point in points})
        if sizes:
            summary = f"{panel.title}: {len(sizes)} sizes, {format_size(sizes[0])} to {format_size(sizes[-1])}"
            parts.append(folded(summary, _measured_table(regimes, sizes)))
    explanation = "Each figure is the median over repeats, of the slowest group. “wrong” counts wrong elements."
    return section("Measurements", element("p", explanation if parts else "Nothing was measured.", "soft"), *parts)


def _measured_table(regimes: Mapping[str, Sequence[Point]], sizes: Iterable[int]) -> str:
    """A row per size, the regimes side by side."""
    head = ["size", *(f"{timing} {column}" for timing in regimes for column in _POINT_COLUMNS)]
    by_size = [{point.size_bytes: point for point in points} for points in regimes.values()]
    rows = [[format_size(size), *(cell for points in by_size for cell in _cells(points.get(size)))] for size in sizes]
    return table(head, rows)


_POINT_COLUMNS = ("time, us", "algbw, GB/s", "busbw, GB/s", "repeats", "wrong")


def _cells(point: Point | None) -> Sequence[str]:
    if point is None:
        return [UNKNOWN] * len(_POINT_COLUMNS)
    wrong = UNKNOWN if point.wrong is None else str(point.wrong)
    bandwidths = (digits(point.algbw_GBps), digits(point.busbw_GBps))
    return (digits(point.time_us, 4), *bandwidths, str(point.repeats), wrong)


def _predictions(predictions: Sequence[dict[str, Any]]) -> str:
    if not predictions:
        return ""
    head = ("workload", "strategy", "nodes × ranks", "step", "[90\u00a0%]", "computation", "communication", "exposed",
            "exposed tail", "memory per rank")  # fmt: skip
    parts = [table(head, map(_prediction_row, predictions), 3)]
    for prediction in predictions:
        name = f"{prediction['workload']}, {prediction['strategy']}"
        parts.append(element("h3", name))
        parts.append(picture(timeline_figure(prediction), f"Timeline of one step: {name}", "wide"))
        calls = prediction.get("collectives") or []
        if calls:
            parts.append(table(("collective", "group", "size", "calls", "time of one"), map(_call_row, calls), 2))
    return section("Predicted steps", *parts)


def _prediction_row(prediction: Json) -> tuple[str, ...]:
    ends = prediction.get("step_ms_interval")
    memory = (prediction.get("memory") or {}).get("persistent_GB")
    return (
        *(prediction["workload"], prediction["strategy"]),
        f"{prediction.get('nodes', UNKNOWN)} × {prediction.get('ranks_per_node', UNKNOWN)}",
        *(ms(prediction["step_ms"]), f"{interval(ends, 4)} ms" if ends else UNKNOWN),
        *(ms(prediction[key]) for key in ("compute_ms", "comm_ms", "exposed_comm_ms", "exposed_tail_ms")),
        UNKNOWN if memory is None else f"{digits(memory)} GB",
    )


def _call_row(call: Json) -> tuple[str, ...]:
    return (call["collective"], call["group"], format_size(call["size_bytes"]), str(call["count"]), ms(call["time_ms"]))


def _validation(validation: dict[str, Any] | None) -> str:
    if validation is None:
        return ""
    rows = [_validation_row(validation, key, name) for key, name in QUANTITIES.items()]
    how = {"sleep": "a wait", "matmul": "matrix products"}.get(validation.get("compute", ""))
    what = ", ".join(str(validation[key]) for key in ("workload", "strategy") if key in validation)
    explanation = (
        f"{f'{what}: ' if what else ''}medians of {validation.get('steps', 'some')} real steps"
        f"{f', computation as {how}' if how else ''}. "
        "Error is (predicted − measured) / measured, where measured is at least 1 % of the step."
    )
    return section(
        "Predicted against measured",
        element("p", explanation, "soft"),
        table(("", "measured", "[p5, p95], ms", "predicted", "[90\u00a0%], ms", "error"), rows),
        _validation_memory(validation),
        picture(validation_figure(validation), "Predicted and measured step times", "small"),
    )


def _validation_row(validation: Json, key: str, name: str) -> tuple[str, ...]:
    spread, predicted = (validation.get("spread_ms") or {}).get(key), validation.get(f"predicted_{key}_interval")
    return (
        name,
        ms(validation["measured"][key]),
        interval(spread, 4) if spread else UNKNOWN,
        ms(validation["predicted"][key]),
        interval(predicted, 4) if predicted else UNKNOWN,
        percent(validation["error_pct"].get(key), signed=True),
    )


def _validation_memory(validation: Json) -> str:
    """The most that a rank took, where it was counted: on GPUs."""
    peaks = validation.get("memory") or {}
    if not peaks:
        return ""
    rows = [
        (when.replace("_", " "), *(f"{digits(peak[key] / 1e9)} GB" for key in ("allocated_bytes", "reserved_bytes")))
        for when, peak in peaks.items()
    ]
    note = "The most memory of any rank, as torch's allocator counts it; without optimizer state and activations."
    return element("p", note, "soft") + table(("", "allocated", "reserved"), rows)


def _environment(files: Iterable[ResultsFile]) -> str:
    """Each run's variables that change a measurement; runs with the same ones together."""
    runs_of: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for file in files:
        for run in file.runs:
            variables = tuple((name, str(value)) for name, value in (run.get("environment") or {}).items())
            runs_of.setdefault(variables, []).append(run["run_id"])
    parts = []
    for variables, runs in runs_of.items():
        parts.append(element("h3", f"run {', '.join(runs)}"))
        rows = table(("variable", "value"), variables, 2)
        parts.append(rows if variables else element("p", "No variable that changes a measurement was set."))
    return section("Environment", *parts)
