"""What the tests of the importers share: a text through the whole reading, handed logs by name."""

from __future__ import annotations

import csv
import json

from collbench.importers.check import Asked
from collbench.importers.reading import read_log
from collbench.importers.registry import FORMATS
from collbench.importers.source import Log


def read_text(text, name="log.txt", **asked):
    """A log's text through every format that recognises it, and the checks."""
    return read_log(Log.of_text(name, text), FORMATS.values(), Asked(**asked))


def measurements(imported):
    """All measurement records, in the order of the log."""
    return [record for records in imported.records() for record in records if record["kind"] == "measurement"]


def read_handed(logs, name, **asked):
    path = logs / "raw" / f"{name}.txt"
    return read_log(Log(str(path), path.read_bytes()), FORMATS.values(), Asked(**asked))


def n_rows(logs, name):
    """How many rows the index says that a handed log has."""
    with (logs / "index.csv").open(newline="", encoding="utf-8") as file:
        return next(int(row["n_rows"]) for row in csv.DictReader(file) if row["id"] == name)


def expected(logs, name):
    return json.loads((logs / "expected.json").read_text(encoding="utf-8"))["logs"][name]
