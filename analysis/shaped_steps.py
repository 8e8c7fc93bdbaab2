"""The part of shaped_truth.py about training steps: real ones over links of known rates, beside their predictions.

Every step is predicted by a model that collbench measured on the same links.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from matplotlib.patches import Patch

from collbench.model.fit import fit_results
from collbench.report.canvas import GREEN, GREY, INK, dress, legend_below, new_figure, svg_of
from tests.cluster.steps import CASES, Case, Links, sweep

STEPS = 5  # measured, after a few to warm up
_QUANTITIES = {"step_ms": "step", "exposed_comm_ms": "communication it does not hide"}
_SLOWEST_MS = 20  # less exposed than this is not worth a percentage


def measure(folder: Path, quick: bool) -> None:
    """Write `step-CASE.json` for each that is missing, and the results on its links. quick: the first cluster alone."""
    for links in dict.fromkeys(case.links for case in CASES[: 1 if quick else None]):
        missing = [case for case in CASES if case.links == links and not _measured(folder, case).exists()]
        results = _results(folder, links)
        if not missing and results.exists():
            continue
        print(f"steps: {links}", file=sys.stderr)
        with links.cluster() as cluster:
            if not results.exists():
                sweep(cluster, links, results)
            fit_results(str(results)).save(_model(folder, links))
            for case in missing:
                measured = case.measure(cluster, _model(folder, links), STEPS)
                _measured(folder, case).write_text(json.dumps(measured) + "\n")


def compare(folder: Path) -> list[dict[str, Any]]:
    """One row a step that was measured: what, measured, predicted."""
    there = [case for case in CASES if _measured(folder, case).exists()]
    for links in dict.fromkeys(case.links for case in there):
        fit_results(str(_results(folder, links))).save(_model(folder, links))
    rows = []
    for case in there:
        measured = json.loads(_measured(folder, case).read_text())
        predicted = case.predict(_model(folder, case.links))
        rows.append({"step": case.name, "links": str(case.links), "measured": measured, "predicted": predicted})
    return rows


def draw(rows: list[dict[str, Any]]) -> bytes:
    """A pair of bars a step, predicted and measured, for its time and for what of the communication is exposed."""
    figure = new_figure(10, 1.4 + 0.42 * len(rows))
    left = None
    for place, (name, title) in enumerate(_QUANTITIES.items(), 1):
        axes = figure.add_subplot(1, 2, place, sharey=left)
        measured, predicted = ([row[of][name] for row in rows] for of in ("measured", "predicted"))
        dress(axes, title, f"{len(rows)} steps, the worst {max(_off_pct(row, name) or 0 for row in rows):.1f} % off")
        for side, (times, colour) in enumerate(((measured, GREY), (predicted, GREEN))):
            axes.barh([number + 0.36 * side for number in range(len(rows))], times, 0.34, color=colour)
        for number, row in enumerate(rows):
            error = _error_pct(row, name)
            words = "too small to compare" if error is None else f"{error:+.1f} %"
            end = max(measured[number], predicted[number])
            axes.annotate(
                words, (end, number + 0.18), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8,
                color=INK,
            )  # fmt: skip
        axes.set_xlim(0, 1.18 * max([*measured, *predicted], default=1.0))
        axes.set_xlabel("ms")
        axes.grid(False, axis="y")
        if left is None:
            left = axes
            axes.set_yticks([number + 0.18 for number in range(len(rows))], [row["step"] for row in rows])
            axes.invert_yaxis()
            handles = [Patch(color=GREY, label="measured"), Patch(color=GREEN, label="predicted")]
            legend_below(axes, handles, columns=2)
        else:
            axes.tick_params(labelleft=False)
    return svg_of(figure)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The section of the page."""
    lines = [
        "## Predicted against measured steps",
        "",
        "![predicted and measured steps](predicted.svg)",
        "",
        f"Medians of {STEPS} real steps whose computation is a wait, predicted by a model measured on the same links:",
        "torch's DistributedDataParallel, and FSDP. torch's own `fully_shard` blocks on a CPU and is predicted so; the",
        "schedule of a GPU is rolled by hand with asynchronous collectives (`tests/cluster/async_fsdp.py`). Gathers",
        "and reductions at once take gloo a tenth longer than one after the other, which the model does not know.",
        "",
        "| step | cluster | measured | predicted | error | exposed, measured | predicted | error |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        cells = [row["step"], row["links"]]
        for name in _QUANTITIES:
            error = _error_pct(row, name)
            cells += [f"{row[of][name]:.1f} ms" for of in ("measured", "predicted")]
            cells.append("-" if error is None else f"{error:+.1f} %")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _error_pct(row: dict[str, Any], name: str) -> float | None:
    measured, predicted = row["measured"][name], row["predicted"][name]
    return None if measured < _SLOWEST_MS else 100 * (predicted / measured - 1)


def _off_pct(row: dict[str, Any], name: str) -> float | None:
    error = _error_pct(row, name)
    return None if error is None else abs(error)


def _slug(words: str) -> str:
    return re.sub(r"[^0-9a-z]+", "-", words.lower())


def _measured(folder: Path, case: Case) -> Path:
    return folder / f"step-{_slug(case.name)}.json"


def _results(folder: Path, links: Links) -> Path:
    return folder / f"links-{_slug(str(links))}{'-sharded' * links.sharded}.jsonl"


def _model(folder: Path, links: Links) -> Path:
    return _results(folder, links).with_suffix(".model.json")
