"""Does collbench measure what a link is, and predict what a step takes on it? Links of known rate and delay know.

    python analysis/shaped_truth.py [--quick] [-o FOLDER]

Needs root and iproute2 (tests/cluster). About 8 minutes; --quick: the first of each question, about 2. Writes into
results/shaped: for every cluster its results, its model and what is true of it, real training steps; `measured.json`
and `measured.svg`, which put all fits beside the truth, `predicted.json` and `predicted.svg`, which put the steps
beside their predictions, and README.md. What is there already is not measured again: remove a file, or the folder,
for that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from analysis import shaped_steps  # noqa: E402
from collbench.collectives import find_collective  # noqa: E402
from collbench.model.fit import fit_results  # noqa: E402
from collbench.model.laws import Fit  # noqa: E402
from collbench.report.canvas import BLUE, GREY, VERMILLION, dress, new_figure, svg_of  # noqa: E402
from collbench.results import load_results  # noqa: E402
from tests.cluster import Cluster, missing, payload_bytes_per_s, ping_s  # noqa: E402
from tests.cluster.truth import WIRE, bytes_through_a_nic, delays, slow_in_groups, slow_in_pairs, sweeps_of  # noqa: E402

SHAPED = ROOT / "results" / "shaped"
SWEEPS = 10  # that look for a slow host
RATE, DELAY, LEVELS, SLOW = "rate", "delay", "levels", "slow"
_LATENCY = ("all_reduce", "all_gather_into_tensor", "broadcast")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One cluster and the sweep on it. question: RATE, DELAY, LEVELS or SLOW. intra_mbit: 0 where not shaped."""

    question: str
    hosts: int
    rate_mbit: int
    slow_mbit: int = 0
    intra_mbit: int = 0
    delay_ms: int = 0
    quick: bool = False

    @property
    def name(self) -> str:
        detail = {SLOW: self.slow_mbit or "none", LEVELS: self.intra_mbit, DELAY: self.delay_ms}
        return "-".join(map(str, filter(None, (self.question, self.hosts, self.rate_mbit, detail.get(self.question)))))

    @property
    def ranks_per_host(self) -> int:
        return 2 if self.question == LEVELS else 1

    def sweep(self) -> list[str]:
        most = max(4, min(16, 16 * self.rate_mbit // 1000))  # MiB, about as long a time at every rate
        fixed = ["--timing", "isolated", "-n", "3", "-w", "1", "-c", "0"]
        collectives = {RATE: WIRE, DELAY: _LATENCY}.get(self.question, ("send_recv",))
        words = {
            RATE: ["--group", "world", "-b", "1M", "-e", f"{most}M", *fixed],
            DELAY: ["--group", "world", "-b", "1K", "-e", "16K", "-f", "4", *fixed, "--timing", "pipelined"],
            LEVELS: ["--group", "world,intra,inter", "-b", "1M", "-e", "4M", *fixed],
            SLOW: ["--group", "pairs,mesh:2x2", "-b", "1M", "-e", "1M", "-N", str(SWEEPS // 2), *fixed],
        }
        return ["--collective", ",".join(collectives), *words[self.question]]


SETUPS = [
    *(
        Setup(question=RATE, hosts=hosts, rate_mbit=rate, quick=(hosts, rate) in ((2, 1000), (3, 500)))
        for hosts in (2, 3)
        for rate in (200, 500, 1000)
    ),
    *(
        Setup(question=DELAY, hosts=hosts, rate_mbit=1000, delay_ms=delay, quick=(hosts, delay) == (2, 2))
        for hosts in (2, 3)
        for delay in (2, 5)
    ),
    Setup(question=LEVELS, hosts=2, rate_mbit=500, intra_mbit=2000, quick=True),
    Setup(question=SLOW, hosts=4, rate_mbit=500, slow_mbit=300, quick=True),
    Setup(question=SLOW, hosts=4, rate_mbit=500),
]


# --- measuring -------------------------------------------------------------------------------------------------------


def measure(setup: Setup, folder: Path) -> None:
    """Write `NAME.jsonl`, and `NAME.json` once that is whole. Raises RuntimeError where the job fails."""
    truth, results = folder / f"{setup.name}.json", folder / f"{setup.name}.jsonl"
    if truth.exists() and results.exists():
        return
    slow = {1: setup.slow_mbit} if setup.slow_mbit else {}
    with Cluster(
        setup.hosts, setup.rate_mbit, slow=slow, intra_mbit=setup.intra_mbit or None, delay_ms=setup.delay_ms
    ) as cluster:
        one_way_us = max(ping_s(cluster, 0, host) for host in range(1, setup.hosts)) / 2 * 1e6
        command = [sys.executable, "-m", "collbench", "run", *setup.sweep(), "-o", str(results)]
        outcome = cluster.run(
            command,
            ranks_per_host=setup.ranks_per_host,
            realtime=True,
            timeout_s=120,
            environment={"PYTHONPATH": str(ROOT)},
        )
    if outcome.exit_code:
        raise RuntimeError(f"{setup.name}: {outcome}")
    truth.write_text(json.dumps({"one_way_us": one_way_us}) + "\n")


# --- beside the truth ------------------------------------------------------------------------------------------------


def compare(setup: Setup, folder: Path) -> list[dict[str, Any]]:
    """One row a fit: what, measured, its interval, true."""
    model = fit_results(str(folder / f"{setup.name}.jsonl"))
    model.save(folder / f"{setup.name}.model.json")
    one_way_us = json.loads((folder / f"{setup.name}.json").read_text())["one_way_us"]
    return [_row(setup, fit, one_way_us) for fit in model.fits]


def _row(setup: Setup, fit: Fit, one_way_us: float) -> dict[str, Any]:
    place = {"place": "in" if fit.in_place else "out"} if fit.collective == "all_gather_into_tensor" else {}
    row = {"setup": setup.name, "collective": fit.collective, "group": fit.group, **place}
    if setup.question == DELAY:
        true = delays(fit.collective, setup.hosts) * one_way_us
        return {**row, "unit": "us", "measured": fit.alpha_us, "interval": fit.alpha_us_interval, "true": true}
    link_GBps = payload_bytes_per_s(setup.intra_mbit if fit.group == "intra" else setup.rate_mbit) / 1e9
    # Inside a host both directions share a queue, and between hosts two groups share a NIC.
    shared = 1 if fit.group == "world" else 2
    sent = bytes_through_a_nic(fit.collective, 1, setup.hosts) if setup.question == RATE else 1.0
    true = link_GBps / shared / sent * find_collective(fit.collective).sent_fraction(fit.nranks)
    return {**row, "unit": "GB/s", "measured": fit.busbw_GBps, "interval": fit.busbw_GBps_interval, "true": true}


def named(setup: Setup, folder: Path) -> dict[str, Any]:
    """How many sweeps named what, by the matrix of pairs and by the slowest groups of a mesh."""
    counts: dict[str, dict[str, int]] = {"pairs": {}, "slowest group": {}}
    for sweep in sweeps_of(folder / f"{setup.name}.jsonl", SWEEPS):
        hosts = {f"host{rank}" for rank in slow_in_groups(sweep)}  # one rank a host
        for how, found in (("pairs", slow_in_pairs(sweep)), ("slowest group", hosts)):
            key = " ".join(sorted(found)) or "none"
            counts[how][key] = counts[how].get(key, 0) + 1
        sweep.unlink()
    return {"setup": setup.name, "true": "host1" if setup.slow_mbit else "none", **counts}


def draw(rows: list[dict[str, Any]]) -> bytes:
    """Bandwidths and latencies, measured against true, on the line where both are equal."""
    figure = new_figure(8.4, 3.9)
    for place, (unit, title) in enumerate((("GB/s", "fitted bandwidth (busbw)"), ("us", "fitted latency (α)")), 1):
        scale, label = (1.0, "GB/s") if unit == "GB/s" else (1e-3, "ms")
        of_unit = [row for row in rows if row["unit"] == unit]
        axes = figure.add_subplot(1, 2, place)
        worst = max((abs(row["measured"] / row["true"] - 1) for row in of_unit), default=0.0)
        dress(axes, title, f"{len(of_unit)} fits, the worst {100 * worst:.1f} % off")
        ends = [scale * max((row["true"] for row in of_unit), default=1.0) * part for part in (0.0, 1.1)]
        axes.plot(ends, ends, color=GREY, linewidth=1)
        for row in of_unit:
            low, high = row["interval"]
            middle = row["measured"]
            axes.errorbar(
                scale * row["true"], scale * middle, yerr=[[scale * (middle - low)], [scale * (high - middle)]],
                fmt="o", markersize=4, linewidth=1, color=BLUE if unit == "GB/s" else VERMILLION,
            )  # fmt: skip
        axes.set_xlabel(f"true, {label}")
        axes.set_ylabel(f"measured, {label}")
    return svg_of(figure)


def page(rows: list[dict[str, Any]], hunts: list[dict[str, Any]], steps: list[dict[str, Any]], taken: str) -> str:
    """README.md of the folder."""
    lines = [
        "# Measured against the truth of shaped links",
        "",
        "Network namespaces as hosts, NICs shaped by `tc tbf` (`tests/cluster`), gloo on a CPU, ranks at real-time",
        f"priority, {taken}. Regenerated by `python analysis/shaped_truth.py`.",
        "",
        "![fitted bandwidth and latency against the truth](measured.svg)",
        "",
        "True is what the shaper lets through as TCP's payload, or as many one-way delays, measured by ping, as the",
        "algorithm has in a row. Intervals are the fits' own (90 %).",
        "",
        "| cluster | collective | group | measured | interval | true | measured / true |",
        "|---|---|---|--:|---|--:|--:|",
    ]
    for row in rows:
        digits = ".4f" if row["unit"] == "GB/s" else ".0f"
        measured, true, (low, high) = row["measured"], row["true"], row["interval"]
        collective = row["collective"] + (f" ({row['place']} of place)" if row.get("place") == "out" else "")
        lines.append(
            f"| {row['setup']} | {collective} | {row['group']} | {measured:{digits}} {row['unit']} | "
            f"{low:{digits}} to {high:{digits}} | {true:{digits}} | {measured / true:.3f} |"
        )
    lines += [
        "",
        "Clusters are named after the question, hosts, Mbit/s of a NIC, then delay (ms), slow NIC or inside (Mbit/s).",
        "",
        f"The slow host, {SWEEPS} sweeps of one job each:",
        "",
        "| cluster | slow | `pairs` names | `slowest group` names |",
        "|---|---|---|---|",
    ]
    for hunt in hunts:
        of = [", ".join(f"{what} {count}×" for what, count in hunt[how].items()) for how in ("pairs", "slowest group")]
        lines.append(f"| {hunt['setup']} | {hunt['true']} | {of[0]} | {of[1]} |")
    return "\n".join([*lines, "", *shaped_steps.table(steps)]) + "\n"


def study(folder: Path, quick: bool) -> None:
    """Measure what is missing, then write what can be said of all that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [setup for setup in SETUPS if setup.quick or not quick]
    for number, setup in enumerate(chosen, 1):
        print(f"{number} of {len(chosen)}: {setup.name}", file=sys.stderr)
        measure(setup, folder)
    shaped_steps.measure(folder, quick)
    there = [setup for setup in SETUPS if (folder / f"{setup.name}.json").exists()]
    rows = [row for setup in there if setup.question != SLOW for row in compare(setup, folder)]
    hunts = [named(setup, folder) for setup in there if setup.question == SLOW]
    versions = {
        f"torch {run['versions'].get('torch')}, {run['started'][:10]}"
        for setup in there
        for run in load_results(folder / f"{setup.name}.jsonl").runs
    }
    (folder / "measured.json").write_text(json.dumps({"fits": rows, "slow": hunts}, indent=1) + "\n")
    (folder / "measured.svg").write_bytes(draw(rows))
    steps = shaped_steps.compare(folder)
    (folder / "predicted.json").write_text(json.dumps(steps, indent=1) + "\n")
    (folder / "predicted.svg").write_bytes(shaped_steps.draw(steps))
    (folder / "README.md").write_text(page(rows, hunts, steps, "; ".join(sorted(versions))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few clusters, about a minute")
    parser.add_argument("-o", "--output", type=Path, default=SHAPED, metavar="FOLDER", help="default results/shaped")
    args = parser.parse_args()
    if (reason := missing()) is not None:
        parser.exit(2, f"{reason}\n")
    try:
        with contextlib.suppress(KeyboardInterrupt):
            study(args.output, args.quick)
            return 0
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 3
    return 130


if __name__ == "__main__":
    sys.exit(main())
