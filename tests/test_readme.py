"""README's promises: its commands are whole, its Python runs, its requirement spares a vendor's torch."""

from __future__ import annotations

import re
import shutil
import tomllib

import pytest
from conftest import ROOT
from packaging.requirements import Requirement

import collbench
from collbench.cli import COMMANDS

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, flags=re.DOTALL)
COMMAND_LINES = [line for language, text in BLOCKS if language == "bash" for line in text.splitlines()]


def requirements():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {requirement.name: requirement for requirement in map(Requirement, project["dependencies"])}


def test_one_line_runs_the_loop_and_one_the_tests_both_with_the_tested_versions():
    lines = [line for line in COMMAND_LINES if line.startswith("python3 -m venv .venv && ")]
    assert len(lines) == 2
    assert all("-c tests/constraints.txt" in line for line in lines)
    assert lines[0].endswith("collbench quickstart") and lines[1].endswith("pytest -q")


def test_ci_runs_the_readmes_own_test_command():
    script = (ROOT / ".ci" / "run").read_text()
    pattern = re.search(r"grep -m1 -E '([^']+)' README.md", script)[1]
    assert next(line for line in README.splitlines() if re.search(pattern, line)) in COMMAND_LINES


@pytest.mark.parametrize(
    "version", ["2.9.0a0+nv25.10", "2.8.0", "2.8.0a0+git1", "2.13.0+cpu", "2.14.1+cu130", "2.15.0"]
)
def test_a_torch_that_is_there_satisfies_the_requirement_and_is_never_replaced(version):
    torch = requirements()["torch"]
    assert torch.specifier.contains(version)
    assert {clause.operator for clause in torch.specifier} == {">="}


def test_the_tested_versions_satisfy_the_requirements_and_are_those_in_use():
    from importlib.metadata import version

    pins = dict(line.split("==") for line in (ROOT / "tests/constraints.txt").read_text().splitlines() if "==" in line)
    assert pins["torch"] == "2.13.0"
    for name, requirement in requirements().items():
        assert requirement.specifier.contains(pins[name])
    assert version("collbench") == collbench.__version__


def test_every_command_stands_in_the_readme():
    assert [name for name in COMMANDS if f"collbench {name}" not in README and name != "show"] == []


def test_files_that_the_readme_names_exist():
    named = re.findall(r"\b(?:sweeps|results|tests|analysis)/[\w/.-]+\.\w+", README)
    assert named and [name for name in named if not (ROOT / name).exists()] == []


def test_the_workload_example_predicts(tmp_path):
    path = tmp_path / "w.toml"
    path.write_text(next(text for language, text in BLOCKS if language == "toml"))
    link = collbench.LinkModel(bandwidth_GBps=25)
    assert collbench.predict_step(path, link, "fsdp", nodes=2, ranks_per_node=8).compute_ms > 24 * 6


def test_the_python_example_runs(tmp_path, monkeypatch, capsys):
    code = next(text for language, text in BLOCKS if language == "python")
    (tmp_path / "results.jsonl").write_bytes((ROOT / "results" / "quickstart" / "results.jsonl").read_bytes())
    shutil.copytree(ROOT / "sweeps", tmp_path / "sweeps")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert float(lines[0]) > 0
    assert [line.split()[0] for line in lines[1:]] == ["ddp", "fsdp"]
