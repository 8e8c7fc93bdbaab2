"""`collbench report`: results, their fit, predictions and a validation on one self-contained page."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.errors import InputError
from collbench.results import load_results

if TYPE_CHECKING:
    from collbench.model.store import Model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `collbench report`."""
    parser.add_argument("results", nargs="+", metavar="RESULTS", help="results files")
    parser.add_argument(
        "-o", "--output", default="report.html", metavar="report.html", help="the page to write (%(default)s)"
    )
    parser.add_argument("--model", metavar="MODEL.json", help="the fit to show, or public:NAME (default: theirs)")
    parser.add_argument(
        "--prediction",
        nargs="+",
        action="extend",
        default=[],
        metavar="P.json",
        help="what 'collbench predict --json' printed",
    )
    parser.add_argument("--validation", metavar="V.json", help="what 'collbench validate --json' printed")
    parser.add_argument("--title", default="collbench report", help="the page's heading (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Read everything, then write the page."""
    from collbench.report.documents import load_predictions, load_validation
    from collbench.report.page import write_page

    inputs = [*args.results, *args.prediction, args.model, args.validation]
    if any(Path(args.output).resolve() == Path(path).resolve() for path in inputs if path):
        raise InputError(f"{args.output}: is one of the files to read: name another file with -o")
    results = [load_results(path) for path in args.results]
    predictions = [prediction for path in args.prediction for prediction in load_predictions(path)]
    validation = load_validation(args.validation) if args.validation else None
    model, notes = _model(args)
    for note in notes:
        print(f"collbench: warning: {note}", file=sys.stderr)
    write_page(args.output, results, model, predictions, validation, title=args.title, notes=notes)
    if args.json:
        print(json.dumps({"page": args.output, "fits": 0 if model is None else len(model.fits), "warnings": notes}))
    else:
        print(f"report: {args.output}")
    return 0


def _model(args: argparse.Namespace) -> tuple[Model | None, list[str]]:
    """The model to show; None, with the reason, where the results cannot be fitted."""
    if args.model:
        from collbench.model.store import load_model

        return load_model(args.model), []
    from collbench.model.fit import fit_results

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a torn line has been told of when the page read the file
            return fit_results(args.results), []
    except InputError as reason:
        return None, [f"no fit: {reason}"]
