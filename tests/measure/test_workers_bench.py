"""The benchmarks run and print what their docstrings say. Never what they find: this machine may be busy."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys

import pytest
from conftest import ROOT, clean_environment

pytestmark = pytest.mark.workers


def run(module, *arguments):
    """The lines that a benchmark prints."""
    command = [sys.executable, "-m", f"tests.{module}", *arguments]
    environment = clean_environment()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_overhead_prints_a_ratio_for_every_size_and_regime_and_both_goals():
    *rows, small, large, middle, worst = run("bench_overhead", "--sizes", "8,4K,1M", "--seconds", "0", "--samples", "2")
    row = r"(pipelined|isolated) +(\d+) B  collbench/bare (\S+)  \[(\S+), (\S+)\]  bare \S+ us  6 blocks"
    found = [re.fullmatch(row, line).groups() for line in rows]
    expected = [(timing, size) for timing in ("pipelined", "isolated") for size in (8, 4096, 2**20)]
    assert [(timing, int(size)) for timing, size, *_ in found] == expected
    assert all(0 < float(low) <= float(ratio) <= float(high) for *_, ratio, low, high in found)
    alone = r"calls alone +\S+ +\S+  [+-]\S+ us a call  \[\S+, \S+\]  bare \S+ us  6 blocks  \S+% of the quickest .*"
    assert re.fullmatch(alone, small) and re.fullmatch(alone, large)
    ratios = [float(ratio) for _, _, ratio, *_ in found]
    said = re.fullmatch(r"median (\S+), goal at most 1.02: (met|not met)", middle)[1]
    assert float(said) == pytest.approx(statistics.median(ratios), abs=0.002)
    assert re.fullmatch(r"worst +(\S+)  \[.*\], goal at most 1.05: (met|not met)", worst)[1] == f"{max(ratios):.3f}"


def test_time_to_an_answer_prints_what_both_sides_took_and_reached():
    sweep = ("-b", "1K", "-e", "1K", "--precision", "0.4", "--budget", "0.2", "--most", "0.2")
    lines = run("bench_time_to_answer", *sweep, "--cells")
    side = r"\d+\.\d+ s +\d+ ops +\S+%"
    cell = rf"(pipelined|isolated) .* B  collbench +{side}  fixed +{side}  ratio \d+\.\d+"
    assert sum(bool(re.fullmatch(cell, line)) for line in lines) == 4 * 2 * 2  # collectives, regimes, halves
    sums = r"  collbench \S+ s, fixed \S+ s, ratio \S+ \(median cell \S+\)  widths \S+, \S+  given up by fixed: \d+"
    part = rf"(pipelined|isolated|both) +(known to 40%|known less well|all|no interval): (\d+) cells(?:{sums})?"
    found = [re.fullmatch(part, line) for line in lines]
    cells = {(match[1], match[2]): int(match[3]) for match in found if match}
    for timing, of_regime in (("pipelined", 8), ("isolated", 8), ("both", 16)):
        assert cells[timing, "all"] == cells[timing, "known to 40%"] + cells[timing, "known less well"]
        assert cells[timing, "all"] + cells[timing, "no interval"] == of_regime
    assert re.fullmatch(r"ratio \d+\.\d+, goal under 0.5: (met|not met)", lines[-1])
