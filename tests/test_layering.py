"""Imports run one way (DESIGN.md), and what is heavy is imported only where it is at home."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "collbench"

# The base: each may import those before it.
BASE = [
    "errors",
    "units",
    "dtypes",
    "tomlfile",
    "collectives",
    "topology",
    "results",
    "results_frame",
    "sweep_words",
    "sweep",
    "resume",
    "columns",
    "aggregates",
    "contention",
    "overlaps",
    "links",
    "slow_links",
    "nccl_style",
    "nccl_table",
    "nccl_json",
    "progress",
    "numbers",
]
# Above it: each may import what is in a level below; those of one level do not import each other.
LEVELS = [{"measure", "importers", "model"}, {"predict"}, {"validate", "report"}, {"quickstart"}, {"cli"}, {"__main__"}]

# Who may import what is heavy: modules, or packages with all that is in them. model.pooling is the part of the fit that
# reads the results table.
HOMES = {
    "torch": {"measure", "validate", "predict.capture"},
    "matplotlib": {"report"},
    "scipy": {"model.fit", "model.segments", "model.curve", "model.scaling"},
    "pandas": {"results_frame", "model.fit", "model.pooling", "report"},
}


def module_names():
    paths = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))
    return {".".join(path.parts).removesuffix(".__init__") for path in paths} - {"__init__"}


MODULES = module_names()


def imports_of(source, module, is_package=False):
    """(line, full name) of all a module imports, wherever it stands in it: at the top, in functions, for types only."""
    package = ["collbench", *([] if module == "__init__" else module.split("."))]
    if module != "__init__" and not is_package:
        package.pop()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else []
            home = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                below = f"{home}.{alias.name}"
                yield node.lineno, below if below.removeprefix("collbench.") in MODULES else home
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__"):
                yield node.lineno, str(node.args[0].value)


def place(module):
    """(level, place in it); None for a module that has none."""
    top = module.split(".")[0]
    if top in BASE:
        return 0, BASE.index(top)
    return next(((level, 0) for level, names in enumerate(LEVELS, start=1) if top in names), None)


def may_import(module, imported):
    if module == "__init__":  # loads lazily, so only names for types
        return True
    mine, theirs = module.split(".")[0], imported.split(".")[0]
    if mine == theirs or not theirs:  # within a package, or collbench itself for its version
        return mine in (*BASE, *set().union(*LEVELS))
    if place(module) is None or place(imported) is None:
        return False
    level, index = place(module)
    their_level, their_index = place(imported)
    return their_level < level or (level == their_level == 0 and their_index < index)


def violations(source, module, is_package=False):
    found = []
    for line, name in imports_of(source, module, is_package):
        top = name.split(".")[0]
        if top == "collbench":
            if not may_import(module, name.removeprefix("collbench").lstrip(".")):
                found.append(f"{module}:{line} imports {name}")
        elif top in HOMES and module != "__init__":
            homes = HOMES[top]
            if not any(module == home or module.startswith(f"{home}.") for home in homes):
                found.append(f"{module}:{line} imports {name}")
    return found


def test_every_import_runs_downwards_and_every_heavy_one_is_at_home():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        is_package = path.name == "__init__.py"
        if is_package and module != "__init__":
            module = module.removesuffix(".__init__")
        found += violations(path.read_text(), module, is_package)
    assert found == []


def test_every_module_has_its_place():
    assert [module for module in sorted(MODULES) if place(module) is None] == []
    assert [module for module in BASE if module not in MODULES] == []


def test_the_package_imports_nothing_at_its_top():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert not (getattr(node, "module", None) or node.names[0].name).startswith("collbench")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("units", "from collbench.results import Record"),
        ("units", "from collbench import results"),
        ("errors", "import collbench.units"),
        ("collectives", "from .sweep import Cell"),
        ("sweep", "def f():\n    from collbench.resume import done_cells"),
        ("resume", "from collbench.nccl_table import row"),
        ("topology", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from collbench.sweep import Sweep"),
        ("results", "import collbench.measure.cell"),
        ("measure.cell", "from collbench.model.store import Model"),
        ("measure.cell", "from ..model import store"),
        ("model.fit", "from collbench.measure import timing"),
        ("model.fit", "from collbench.predict.step import predict_step"),
        ("predict.step", "from collbench.report.page import write_page"),
        ("predict.step", "from collbench.cli.predict import run"),
        ("report.page", "from collbench.validate.step import run"),
        ("validate.step", "import collbench.report.page"),
        ("report.page", "import collbench.quickstart"),
        ("quickstart", "from collbench.cli import main"),
        ("model.store", "import importlib\nimportlib.import_module('collbench.predict.step')"),
        ("newcomer", "from collbench.errors import InputError"),
        ("units", "from collbench.newcomer import x"),
        ("model.fit", "import torch"),
        ("cli.run", "import torch.distributed as dist"),
        ("predict.workload", "def f():\n    from torch import nn"),
        ("results", "__import__('torch')"),
        ("quickstart", "import torch"),
        ("cli.fit", "import pandas"),
        ("model.store", "import pandas as pd"),
        ("measure.keeper", "import pandas"),
        ("model.store", "from scipy.special import stdtrit"),
        ("model.fit", "import matplotlib.pyplot as plt"),
        ("cli.report", "from matplotlib import pyplot"),
        ("results", "import pandas"),
        ("resultsother", "import pandas"),
    ],
)
def test_a_planted_violation_is_caught(module, source):
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("sweep", "from collbench.results import Record\nfrom collbench.topology import Groups"),
        ("measure.cell", "import torch\nfrom collbench.measure import timing\nfrom . import operations"),
        ("measure.environment", "import collbench"),
        ("model.fit", "def f():\n    import pandas\n    from scipy.special import stdtrit"),
        ("predict.step", "from collbench.model.store import Model\nfrom collbench.units import parse_size"),
        ("validate.worker", "import torch\nfrom collbench.measure.worker import be_a_rank"),
        ("quickstart", "from collbench.report.page import x\nfrom collbench.validate.step import y"),
        ("cli.show", "import collbench.results\nfrom collbench.cli import main"),
        ("cli.x", "import json\nfrom numpy import array"),
    ],
)
def test_what_is_allowed_is_not_caught(module, source):
    assert violations(source, module) == []


def test_a_relative_import_in_a_package_is_resolved_from_the_package():
    assert list(imports_of("from . import store", "model", is_package=True)) == [(1, "collbench.model.store")]
    assert list(imports_of("from . import store", "model.fit")) == [(1, "collbench.model.store")]
    assert list(imports_of("from ..units import parse_size", "model.fit")) == [(1, "collbench.units")]
