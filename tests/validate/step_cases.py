"""Cases of a real step, run by a program in this folder: one process for all, as torch takes seconds to start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from conftest import ROOT, clean_environment


def run_program(name, cases, nranks):
    """What the program says of each case, by the case's name. cases: (workload, knobs) by name."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(name))],
        input=json.dumps([[workload, knobs, nranks] for workload, knobs in cases.values()]),
        env=clean_environment(), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip(cases, json.loads(done.stdout), strict=True))
