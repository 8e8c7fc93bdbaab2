"""Fit the public models of results/public/ from logs and curves that others published.

    python analysis/public_models.py [--logs FOLDER] [-o FOLDER]

The folder of logs (default: COLLBENCH_LOGS, else logs/ of the folder `shared` beside the checkout) holds index.csv,
curves.json and raw/. Each log is read by collbench's own importer; of it the model keeps numbers (sizes, times,
counts) and where they were published, no text. Writes NAME.json for each of SYSTEMS and README.md, their table.
Equal logs give equal bytes on one machine. Without the folder it says so and changes nothing.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from collbench.cli.models import cards, origins, system
from collbench.collectives import find_collective
from collbench.importers.check import Asked
from collbench.importers.reading import read_log
from collbench.importers.registry import FORMATS
from collbench.importers.source import Log
from collbench.model.fit import fit_results
from collbench.model.store import Model

ROOT = Path(__file__).parents[1]
LOGS = Path(os.environ.get("COLLBENCH_LOGS") or ROOT.parent / "shared" / "logs")
HOME = ROOT / "results" / "public"
NO_MEASUREMENTS = ("derived", "generated")  # origins in the index
KEPT = (
    *("run_id", "collective", "group", "nranks", "nnodes", "dtype", "redop", "root", "in_place", "timing"),
    *("concurrent", "size_bytes", "time_us", "wrong"),
)

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A log, or a published curve, of a system.

    given: what the log does not say and its index does ("nnodes", "collective").
    fastest_half: keep the faster of out of place and in place and no element type, as the curves beside it do.
    """

    id: str
    is_curve: bool = False
    given: Mapping[str, Any] = field(default_factory=dict)
    fastest_half: bool = False


@dataclass(frozen=True, kw_only=True)
class System:
    """One system in one state of its software, as one site published it.

    name: accelerator-ranks per node x most nodes-network, and the site where there are several.
    system: in words.  notes: what whoever uses the model should know.
    """

    name: str
    system: str
    sources: tuple[Source, ...]
    notes: tuple[str, ...] = ()


def log(id: str, **given: Any) -> Source:
    return Source(id=id, given=given)


def curves(*ids: str) -> tuple[Source, ...]:
    return tuple(Source(id=id, is_curve=True) for id in ids)


def fastest(*ids: str) -> tuple[Source, ...]:
    return tuple(Source(id=id, fastest_half=True) for id in ids)


SYSTEMS = (
    System(
        name="a100-4x2-slingshot",
        system="2 nodes of 4 A100-SXM4-40GB, NVLink + Slingshot (aws-ofi plugin), NCCL 2.21.5",
        sources=(log("nccl036"),),
        notes=("run in a container",),
    ),
    System(
        name="a100-4x540-slingshot",
        system="Polaris: 2 to 540 nodes of 4 A100-SXM4-40GB, NVLink + Slingshot (2 NICs), NCCL 2.18",
        sources=(
            *curves(
                "polaris_all_reduce_nccl_2_18_2",
                "polaris_all_reduce_nccl_2_18_8",
                "polaris_all_gather_nccl_2_18_2",
                "polaris_all_gather_nccl_2_18_8",
                "polaris_all_gather_nccl_2_18_128",
                "polaris_alltoall_nccl_2_18_2",
                "polaris_alltoall_nccl_2_18_8",
            ),
            *fastest("nccl026", "nccl027"),
        ),
        notes=(
            "tuned environment; the faster of out of place and in place at each size",
            "all_to_all_single collapses to about 1 GB/s at 2160 ranks",
            "the 540 nodes were measured on 2024-04-29",
        ),
    ),
    System(
        name="a100-8x1-nvswitch",
        system="one node of 8 A100-SXM4-40GB, NVSwitch",
        sources=(
            log("nccl004"),
            log("nccl005"),
            log("nccl008"),
            log("nccl009", collective="reduce_scatter"),
        ),
        notes=("kept by their authors as specimens for a parser; one process for 8 GPUs; data not validated",),
    ),
    System(
        name="a100-8x1-vtrain",
        system="2, 4 and 8 A100 of one node",
        sources=curves("a100_2r", "a100_4r", "a100_8r"),
        notes=("a simulator's look-up table: how it was timed is not said; here it counts as pipelined",),
    ),
    System(
        name="a100-8x2-efa",
        system="AWS p4de: 2 nodes of 8 A100 80GB, NVSwitch + EFA",
        sources=(log("nccl041", nnodes=2),),
        notes=("published as what to expect",),
    ),
    System(
        name="a100-8x2-ib-azure",
        system="Azure ND: 2 nodes of 8 A100, NVSwitch + InfiniBand (SR-IOV)",
        sources=(log("nccl063", nnodes=2),),
        notes=(
            "published as what to expect; data not validated",
            "sizes are a factor of 4 apart, so that the error at one left out is that of a gap of 16",
        ),
    ),
    System(
        name="a100-8x2-ib-dgx",
        system="2 DGX A100, NVSwitch + 8 InfiniBand HDR, under Kubernetes",
        sources=(log("nccl038", nnodes=2),),
        notes=("published as what to expect; an nccl-tests older than 2.13",),
    ),
    System(
        name="a100-8x2-ib-sophia",
        system="Sophia: 2 nodes of 8 A100-SXM4-40GB, NVSwitch + InfiniBand HDR",
        sources=(log("nccl023"), log("nccl025")),
        notes=("measured on 2024-10-15",),
    ),
    System(
        name="a100-8x4-ib-dgx",
        system="4 DGX A100, NVSwitch + 8 InfiniBand HDR, under Slurm",
        sources=(log("nccl040", nnodes=4),),
        notes=("published as what to expect; an nccl-tests older than 2.13; no size below 1 MiB",),
    ),
    System(
        name="a100-8x16-ib-abci",
        system="ABCI 2.0 (A): 16 nodes of 8 A100-SXM4-40GB, NVSwitch + 4 InfiniBand HDR",
        sources=(log("nccl017"), log("nccl021")),
        notes=("an nccl-tests older than 2.13; no size above 32 MiB",),
    ),
    System(
        name="b200-8x1",
        system="one node of 8 B200",
        sources=curves("b200_1n8r"),
        notes=("published as a table of busbw: times are computed from it",),
    ),
    System(
        name="b200-8x2-roce",
        system="GCP A4: 2 nodes of 8 B200, NVSwitch + RoCE",
        sources=(log("nccl056", nnodes=2),),
        notes=("published as a reference; its rows below 8 MiB were left out there",),
    ),
    System(
        name="gh200-4x128-slingshot",
        system="Alps: 1 to 128 nodes of 4 GH200 120GB, NVLink + Slingshot 11",
        sources=curves("alps_1", "alps_2", "alps_4", "alps_8", "alps_16", "alps_32", "alps_128"),
        notes=(
            "at each size the best of 10 configurations: what tuning reaches, not what one run gives (single runs on "
            "16 and more nodes take up to several times as long at 1 to 64 MiB)",
        ),
    ),
    System(
        name="h100-4x2-ib-snellius",
        system="Snellius: 1 and 2 nodes of 4 H100 94GB, NVLink + InfiniBand (1 NIC per GPU), NCCL 2.22.3",
        sources=(log("nccl010"), log("nccl014"), log("nccl016")),
        notes=("all_reduce was measured on one node only, to 128 MiB",),
    ),
    System(
        name="h100-8x1-nvswitch",
        system="one node of 8 H100, NVSwitch",
        sources=curves("simumax_ar", "simumax_ag", "simumax_rs"),
        notes=("no size below 1 MiB; the accelerator is named where the table was published, not in it",),
    ),
    System(
        name="h100-8x2-efa",
        system="AWS p5: 1 and 2 nodes of 8 H100 80GB, NVSwitch + EFA",
        sources=curves("p5_1n8r", "p5_2n16r"),
    ),
    System(
        name="h100-8x2-tcpx",
        system="GCP A3 High: 2 nodes of 8 H100, NVSwitch + TCPX",
        sources=(log("nccl058", nnodes=2),),
        notes=("published as a reference; no size below 8 MiB; data not validated",),
    ),
    System(
        name="h100-8x2-tcpxo",
        system="GCP A3 Mega: 2 nodes of 8 H100, NVSwitch + TCPXO",
        sources=(log("nccl057", nnodes=2, collective="all_gather"),),
        notes=("published as a reference; no size below 8 MiB; data not validated",),
    ),
    System(
        name="h100-8x10-ib",
        system="10 nodes of 8 H100 80GB, NVSwitch + InfiniBand, NCCL 2.29.2",
        sources=(log("nccl032"),),
        notes=("elements of 8 bytes (double); no size below 32 MiB; measured on 2026-01-29",),
    ),
    System(
        name="mi300x-8x1-xgmi",
        system="one node of 8 MI300X, xGMI, rccl-tests a7809b3",
        sources=(log("rccl002"),),
    ),
    System(
        name="v100-4x32-ib-abci",
        system="ABCI 2.0 (V): 1 and 32 nodes of 4 V100-SXM2-16GB, NVLink + 2 InfiniBand EDR",
        sources=(log("nccl019"), log("nccl018")),
        notes=("an nccl-tests older than 2.13; no size above 32 MiB",),
    ),
)

# (model, another log of such a system, what the two do not share): how far such a model is from another cluster.
CHECKS = (
    ("a100-8x1-vtrain", "nccl005", "another site"),
    ("b200-8x1", "nccl077", "another site"),
    ("gh200-4x128-slingshot", "nccl052", "the same system, one configuration in place of the best of 10"),
    ("h100-8x2-efa", "nccl003", "another cluster of the kind, NCCL 2.22.3"),
    ("mi300x-8x1-xgmi", "rccl008", "virtual functions, RCCL 2.20.5; a report of slow small messages"),
)


class Published:
    """The folder of logs: its index, its curves, and the records of a source."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with (folder / "index.csv").open(encoding="utf-8") as file:
            self.index = {row["id"]: row for row in csv.DictReader(file)}
        self.curves = {curve["id"]: curve for curve in json.loads((folder / "curves.json").read_text(encoding="utf-8"))}

    def records(self, source: Source) -> tuple[list[Record], list[Record]]:
        """(measurements, what is said of each run they are of) of a log or a curve."""
        if source.is_curve:
            return self._of_curve(source)
        row = self.index[source.id]
        if row["origin"] in NO_MEASUREMENTS:
            raise ValueError(f"{source.id} is {row['origin']}: no measurement")
        asked = Asked(
            collective=find_collective(source.given["collective"]).name if "collective" in source.given else None,
            nnodes=source.given.get("nnodes"),
        )
        text = (self.folder / "raw" / f"{source.id}.txt").read_bytes()
        records: list[Record] = []
        said: list[Record] = []
        for run, *measurements, _ in read_log(Log(source.id, text), FORMATS.values(), asked).records():
            records += [{name: each[name] for name in KEPT} | {"backend": run["backend"]} for each in measurements]
            about = {
                "run_id": run["run_id"],
                "source": row["source"],
                "log": source.id,
                "tool": row["tool"],
                "tool_version": row["tool_version"],
                "inferred": run["imported"]["inferred"],
                "notes": run["imported"]["notes"],
            }
            said.append(about | ({"said_by_its_index": dict(source.given)} if source.given else {}))
        return (_fastest_half(records) if source.fastest_half else records), said

    def _of_curve(self, source: Source) -> tuple[list[Record], list[Record]]:
        curve = self.curves[source.id]
        common = {
            "run_id": source.id,
            "collective": curve["collective"],
            "group": "world",
            "nranks": curve["nranks"],
            "nnodes": curve["nnodes"],
            "backend": "nccl",
            "timing": "pipelined",
            "concurrent": True,
        }
        records = [common | {"size_bytes": size, "time_us": time_us} for size, time_us in curve["points"]]
        return records, [{"run_id": source.id, "source": curve["source"], "curve": source.id}]


def _fastest_half(records: list[Record]) -> list[Record]:
    """Of the rows of one size the fastest, without what tells them apart."""
    best: dict[int, Record] = {}
    for record in records:
        size = record["size_bytes"]
        if record["wrong"] or not size:
            continue
        if size not in best or record["time_us"] < best[size]["time_us"]:
            best[size] = record | {"in_place": None, "dtype": None, "redop": None, "root": None}
    return list(best.values())


def fit_system(each: System, published: Published) -> Model:
    """The model of a system: fits of its numbers, with where they are from and what to know of them."""
    records: list[Record] = []
    sources: list[Record] = []
    for source in each.sources:
        measured, said = published.records(source)
        records += measured
        sources += [{**about, "system": each.system} for about in said]
    fitted = fit_results(pandas.DataFrame.from_records(records))
    return replace(fitted, sources=tuple(sources), notes=(*each.notes, *fitted.notes))


def check(model: Model, log_id: str, published: Published) -> tuple[int, float, float, float]:
    """A log the model was not made of: (rows, median and 90th percentile of its error in %, share of rows in its 90 %
    interval)."""
    records, _ = published.records(Source(id=log_id))
    measured = [record for record in records if record["size_bytes"] and not record["wrong"]]
    errors, held = [], []
    for record in measured:
        asked = {name: record[name] for name in ("nranks", "nnodes")}
        estimate = model.time(record["collective"], record["size_bytes"], **asked)
        if estimate.extrapolated:
            continue
        errors.append(abs(float(estimate.time_us) / record["time_us"] - 1))
        assert estimate.low_us is not None and estimate.high_us is not None
        held.append(float(estimate.low_us) <= record["time_us"] <= float(estimate.high_us))
    return len(errors), 100 * float(np.median(errors)), 100 * float(np.quantile(errors, 0.9)), float(np.mean(held))


README = """\
# Public models

Fitted from what others published, by `python analysis/public_models.py`; times and sizes alone were kept. For
planning where there is no cluster: `collbench models` lists them, and every `--model` takes `public:NAME`.

    collbench predict sweeps/workloads/small.toml --strategy ddp --model public:h100-8x2-efa

A name says accelerator, ranks per node x most nodes measured, network (and the site). One model is one system in one
state of its software; counts are merged only within it. All were timed operation after operation (`pipelined`). Error:
at sizes the curve was not shown, median / 90th percentile in percent, of the fit that is furthest off. Outside the
sizes and counts of the table answers say `extrapolated`.

"""

CHECK_HEAD = """
## Against other logs

Rows of logs that are in no model (nccl077, rccl008: ids of the logs' index), beside the model's answers at the same
counts, within its sizes. A fit's own error and interval know of one cluster, and clusters of the same parts differ by
more: measure your own where it matters.

| model | log | what differs | rows | error %, median / p90 | in the 90 % interval |
|---|---|---|--:|--:|--:|
"""


def readme(models: Mapping[str, Model], checks: Iterable[str]) -> str:
    """README.md of results/public/, from the models alone and the lines of `check_lines`."""
    lines = ["| name | collective | nodes x ranks | sizes | points | error % |", "|---|---|---|---|--:|--:|"]
    for name, model in models.items():
        first = f"`{name}`"
        for card in cards(model):
            lines.append(f"| {first} | {' | '.join(card.cells)} |")
            first = ""
    lines += ["", "## Systems and sources", ""]
    for name, model in models.items():
        own = [*next(each.notes for each in SYSTEMS if each.name == name), *_index_said(model)]
        lines.append(_wrapped(f"* `{name}`: {system(model)}. From {'; '.join(origins(model))}."))
        lines += [_wrapped(f"  * {note}") for note in own]
    return README + "\n".join(lines) + "\n" + CHECK_HEAD + "\n".join(checks) + "\n"


def _index_said(model: Model) -> list[str]:
    """What is not in a model's logs."""
    said = [source.get("said_by_its_index", {}) for source in model.sources]
    words = {"nnodes": "number of nodes", "collective": "collective"}
    names = [words[name] for name in words if any(name in each for each in said)]
    return [f"the {' and the '.join(names)} told by whoever published the log, not in it"] if names else []


def _wrapped(text: str) -> str:
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def check_lines(models: Mapping[str, Model], published: Published) -> list[str]:
    lines = []
    for name, log_id, differs in CHECKS:
        rows, median, p90, held = check(models[name], log_id, published)
        source = published.index[log_id]["source"]
        where = source if source.startswith("github:") else log_id
        lines.append(f"| `{name}` | {where} | {differs} | {rows} | {median:.1f} / {p90:.1f} | {100 * held:.0f} % |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, default=LOGS, metavar="FOLDER", help="of the logs (%(default)s)")
    parser.add_argument("-o", "--output", type=Path, default=HOME, metavar="FOLDER", help="to write in (%(default)s)")
    args = parser.parse_args()
    if not (args.logs / "index.csv").is_file():
        print(f"no logs at {args.logs} (--logs or COLLBENCH_LOGS name another folder): nothing done", file=sys.stderr)
        return 0
    published = Published(args.logs)
    models = {each.name: fit_system(each, published) for each in SYSTEMS}
    for name, model in models.items():
        model.save(args.output / f"{name}.json")
    (args.output / "README.md").write_text(readme(models, check_lines(models, published)), encoding="utf-8")
    print(f"{len(models)} models in {args.output}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
