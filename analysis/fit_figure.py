"""How well do α–β segments describe what the quickstart measured? Points and fit of the four collectives.

    python analysis/fit_figure.py [FOLDER] [-o FIGURE.svg]

Reads results.jsonl and model.json in FOLDER (default results/quickstart) and writes fit.svg there: the figure in
README.md. Equal measurements give equal bytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from collbench.errors import InputError
from collbench.model.store import load_model
from collbench.report.canvas import svg_of
from collbench.report.panels import panels_of, plotted
from collbench.report.plots import time_figure
from collbench.results import load_results

QUICKSTART = Path(__file__).parents[1] / "results" / "quickstart"


def draw_fit(folder: Path) -> bytes:
    """The figure as SVG: time against size, one plot a collective, both regimes."""
    panels = panels_of([load_results(folder / "results.jsonl")], load_model(folder / "model.json").fits)
    return svg_of(time_figure(plotted(panels), columns=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folder", nargs="?", type=Path, default=QUICKSTART, help="where results.jsonl and model.json are"
    )
    parser.add_argument("-o", "--output", type=Path, help="the figure to write (default: fit.svg in the folder)")
    args = parser.parse_args()
    output = args.output or args.folder / "fit.svg"
    try:
        output.write_bytes(draw_fit(args.folder))
    except InputError as error:
        parser.exit(error.exit_code, f"{error}\n")
    print(output)


if __name__ == "__main__":
    main()
