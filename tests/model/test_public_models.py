"""The models that come with collbench answer within what was measured, and claim nothing their logs do not say."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import LOGS, ROOT, Run, clean_environment

from collbench.cli.models import cards, layouts, origins, system
from collbench.collectives import find_collective
from collbench.errors import InputError
from collbench.importers.check import Asked
from collbench.importers.reading import read_log
from collbench.importers.registry import FORMATS
from collbench.importers.source import Log
from collbench.model.public import PREFIX, model_file, public_files
from collbench.model.store import Model, load_model
from collbench.predict.step import predict_step

NAMES = list(public_files())
HOME = ROOT / "results" / "public"
STUDY = ROOT / "analysis" / "public_models.py"
WORKLOAD = ROOT / "sweeps" / "workloads" / "small.toml"
LEAST_SIZES = 10


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {name: load_model(PREFIX + name) for name in NAMES}


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("public_models", STUDY)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses ask for it
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def index(logs: Path) -> dict[str, dict[str, str]]:
    with (logs / "index.csv").open() as file:
        return {row["id"]: row for row in csv.DictReader(file)}


# --- what anyone can ask them ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_name_says_the_ranks_per_node_and_the_most_nodes(models: dict[str, Model], name: str) -> None:
    said = re.fullmatch(r"[a-z0-9]+-(\d+)x(\d+)(-[a-z0-9]+)*", name)
    assert said is not None
    model = models[name]
    assert (model.ranks_per_node, max(fit.nnodes for fit in model.fits)) == (int(said[1]), int(said[2]))


@pytest.mark.parametrize("name", NAMES)
def test_every_fit_has_sizes_enough_and_every_source_is_named(models: dict[str, Model], name: str) -> None:
    model = models[name]
    assert min(len(fit.curve) for fit in model.fits) >= LEAST_SIZES
    assert {fit.timing for fit in model.fits} == {"pipelined"}
    assert model.sources and system(model) and origins(model)
    for source in model.sources:
        assert source["source"] and ("log" in source) != ("curve" in source)
        assert source["system"] == system(model)


@pytest.mark.parametrize("name", NAMES)
def test_a_measured_size_is_answered_by_its_own_curve(models: dict[str, Model], name: str) -> None:
    model = models[name]
    for fit in model.fits:
        size = fit.curve[len(fit.curve) // 2][0]
        estimate = model.time(fit.collective, size, nranks=fit.nranks, nnodes=fit.nnodes)
        same = [other for other in model.fits if other.collective == fit.collective]
        measured = [dict(other.curve).get(size) for other in same if other.nranks == fit.nranks]
        assert estimate.time_us in [pytest.approx(time_us) for time_us in measured if time_us is not None]
        assert estimate.source == "fit" and not estimate.extrapolated
        assert estimate.low_us is not None and estimate.high_us is not None
        assert estimate.low_us < estimate.time_us < estimate.high_us


@pytest.mark.parametrize("name", NAMES)
def test_a_ready_workload_is_predicted_by_what_was_measured(models: dict[str, Model], name: str) -> None:
    """DDP needs all_reduce, FSDP its gathers and reductions; without them the answer is what is missing."""
    known = {fit.collective for fit in models[name].fits}
    needs = {"ddp": {"all_reduce"}, "fsdp": {"all_gather_into_tensor", "reduce_scatter_tensor"}}
    for strategy, collectives in needs.items():
        if collectives <= known:
            step = predict_step(WORKLOAD, PREFIX + name, strategy)
            assert step.step_ms > step.compute_ms > 0 and step.comm_ms > 0
        else:
            with pytest.raises(InputError, match="the model has no (" + "|".join(collectives - known) + ")"):
                predict_step(WORKLOAD, PREFIX + name, strategy)


def test_they_cover_the_systems_people_ask_for(models: dict[str, Model]) -> None:
    accelerators = {name.partition("-")[0] for name in models}
    assert {"a100", "h100", "b200", "mi300x"} <= accelerators
    nodes = {fit.nnodes for model in models.values() for fit in model.fits}
    assert min(nodes) == 1 and max(nodes) >= 64


def test_several_counts_of_one_system_make_a_law_that_was_tested(models: dict[str, Model]) -> None:
    alps = models["gh200-4x128-slingshot"]
    law = next(law for law in alps.scaling if law.network == "several ranks on several nodes")
    assert law.nranks == (8, 16, 32, 64, 128, 512) and law.error_pct.held_out
    between = alps.time("all_reduce", 2**25, nranks=256, nnodes=64)
    low, high = (alps.time("all_reduce", 2**25, nranks=n, nnodes=n // 4).time_us for n in (128, 512))
    assert low < between.time_us < high and between.source == "scaling"


# --- the commands ---------------------------------------------------------------------------------------------------


def test_models_lists_each_with_its_error_and_origin(collbench: Run, models: dict[str, Model]) -> None:
    shown = collbench("models")
    assert shown.returncode == 0 and not shown.stderr
    for name, model in models.items():
        row = next(line for line in shown.stdout.splitlines() if line.startswith(f"{name} "))
        assert all(cell in row for cell in cards(model)[0].cells)
        assert f"\n{name}: {system(model)}\n" in shown.stdout
        assert all(f"    from {origin}" in shown.stdout for origin in origins(model))


def test_models_as_one_document(collbench: Run, models: dict[str, Model]) -> None:
    listed = json.loads(collbench("models", "--json").stdout)["models"]
    assert [entry["name"] for entry in listed] == NAMES
    for entry in listed:
        assert entry["model"] == f"public:{entry['name']}"
        assert entry["system"] and entry["sources"] and entry["nodes"] and entry["ranks_per_node"]
        assert {card["collective"] for card in entry["collectives"]} == {
            fit.collective for fit in models[entry["name"]].fits
        }
        assert all(card["error_pct"]["median"] <= card["error_pct"]["p90"] for card in entry["collectives"])


def test_estimate_and_predict_take_one(collbench: Run) -> None:
    model = ("--model", "public:h100-8x2-efa")
    estimate = json.loads(collbench("estimate", "all_reduce", "--size", "1G", *model, "--json").stdout)
    assert (estimate["nranks"], estimate["nnodes"]) == (16, 2) and estimate["time_us"] == pytest.approx(4607.6)
    step = json.loads(collbench("predict", WORKLOAD, *model, "--json").stdout)
    assert (step["nodes"], step["ranks_per_node"]) == (2, 8)


def test_a_report_shows_one_beside_results(collbench: Run, tmp_path: Path) -> None:
    results, page = ROOT / "results" / "quickstart" / "results.jsonl", tmp_path / "page.html"
    done = collbench("report", results, "--model", "public:mi300x-8x1-xgmi", "-o", page, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["fits"] == 2


@pytest.mark.parametrize(
    "command",
    [
        ("estimate", "all_reduce", "--size", "1M"),
        ("predict", WORKLOAD),
        ("plan", WORKLOAD, "--memory", "80GB"),
        ("validate", WORKLOAD),
    ],
)
def test_an_unknown_name_is_one_line_with_the_nearest(collbench: Run, command: tuple[object, ...]) -> None:
    done = collbench(*command, "--model", "public:h100-8x2-eaf")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.splitlines()[-1].startswith(
        "collbench: unknown public model 'h100-8x2-eaf' (did you mean h100-8x2-efa?): one of a100-"
    )
    assert "Traceback" not in done.stderr


def test_an_installation_without_them_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("collbench.model.public._HOMES", (tmp_path,))
    with pytest.raises(InputError, match="not in this installation"):
        model_file("public:h100-8x2-efa")
    assert model_file("model.json") == Path("model.json")


def test_a_wheel_carries_them_to_where_they_are_looked_for() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert build["wheel"]["force-include"]["results/public"] == "collbench/public"
    assert "/results/public" in build["sdist"]["include"]


def test_counts_read_as_nodes_times_ranks() -> None:
    assert layouts([(8, 1), (16, 2)]) == "1, 2 x 8"
    assert layouts([(2, 1), (4, 1), (8, 1)]) == "1 x 2, 4, 8"
    assert layouts([(4, 1), (16, 2)]) == "1 x 4, 2 x 8"


# --- where they are from --------------------------------------------------------------------------------------------


def test_the_readmes_tables_are_those_of_the_models(study: ModuleType, models: dict[str, Model]) -> None:
    made = study.readme(models, []).removesuffix("\n")
    assert (HOME / "README.md").read_text().startswith(made) and list(models) == [each.name for each in study.SYSTEMS]


def test_the_logs_make_the_same_models_again(study: ModuleType, logs: Path, models: dict[str, Model]) -> None:
    published = study.Published(logs)
    for each in study.SYSTEMS:
        kept, again = models[each.name], study.fit_system(each, published)
        assert len(kept.fits) == len(again.fits)
        for old, new in zip(kept.fits, again.fits, strict=True):
            assert (old.collective, old.nranks, old.nnodes, old.curve) == (
                *(new.collective, new.nranks, new.nnodes, new.curve),
            )
            assert (old.alpha_us, old.busbw_GBps) == pytest.approx((new.alpha_us, new.busbw_GBps), rel=1e-6)
        assert [law.algorithm for law in kept.scaling] == [law.algorithm for law in again.scaling]
    checks = study.check_lines(models, published)
    assert (HOME / "README.md").read_text() == study.readme(models, checks)


@pytest.mark.parametrize("name", NAMES)
def test_no_model_claims_what_its_logs_do_not_say(
    logs: Path, index: dict[str, dict[str, str]], models: dict[str, Model], name: str
) -> None:
    measured = _measured(logs, index, models[name])
    for fit in models[name].fits:
        key = (fit.collective, fit.nranks, fit.nnodes, fit.backend)
        assert key in measured
        rows = measured[key]
        assert fit.dtype is None or fit.dtype in {row["dtype"] for row in rows}
        times = {(row["size_bytes"], row["time_us"]) for row in rows}
        assert set(fit.curve) <= times


def _measured(
    logs: Path, index: dict[str, dict[str, str]], model: Model
) -> dict[tuple[str, int, int, str], list[dict[str, Any]]]:
    """(collective, ranks, nodes, backend) -> rows of a model's logs and curves, read without the study's help."""
    curves = {curve["id"]: curve for curve in json.loads((logs / "curves.json").read_text())}
    found: dict[tuple[str, int, int, str], list[dict[str, Any]]] = {}
    for source in model.sources:
        if "curve" in source:
            curve = curves[source["curve"]]
            assert source["source"] == curve["source"]
            rows = [{"size_bytes": size, "time_us": time_us, "dtype": None} for size, time_us in curve["points"]]
            found.setdefault((curve["collective"], curve["nranks"], curve["nnodes"], "nccl"), []).extend(rows)
            continue
        row, said = index[source["log"]], source.get("said_by_its_index", {})
        assert source["source"] == row["source"] and row["origin"] not in ("derived", "generated")
        assert str(said.get("nnodes", "")) in ("", row["nodes"])
        assert said.get("collective", row["collective"]) == row["collective"]
        text = (logs / "raw" / f"{source['log']}.txt").read_bytes()
        for run, *records, _ in read_log(Log(source["log"], text), FORMATS.values(), Asked()).records():
            if not said:
                assert run["run_id"] in {each["run_id"] for each in model.sources}
            for record in records:
                collective = find_collective(said.get("collective", record["collective"])).name
                nnodes = record["nnodes"] or said.get("nnodes")
                assert not record["wrong"]
                found.setdefault((collective, record["nranks"], nnodes, run["backend"]), []).append(record)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_accelerator_in_a_name_is_the_one_in_the_index(
    index: dict[str, dict[str, str]], models: dict[str, Model], name: str
) -> None:
    accelerator = name.partition("-")[0]
    for source in models[name].sources:
        if "log" in source:
            assert accelerator in index[source["log"]]["accelerator"].lower()


def test_without_logs_the_study_says_so_and_changes_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, STUDY, "--logs", tmp_path / "none", "-o", tmp_path],
        capture_output=True,
        text=True,
        env=clean_environment(),
        check=False,
    )
    assert done.returncode == 0 and "COLLBENCH_LOGS" in done.stderr and not list(tmp_path.iterdir())


def test_the_studys_folder_of_logs_is_the_suites(study: ModuleType) -> None:
    assert study.LOGS == LOGS
