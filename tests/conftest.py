"""Shared by all tests: how to run collbench as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def clean_environment(**extra: str) -> dict[str, str]:
    """This process's environment without a launcher's variables, and collbench importable from the checkout."""
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "COLLBENCH_VERDICT_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in launcher}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **extra}
    return environment


@pytest.fixture(scope="session")
def collbench() -> Run:
    """Run the program; returns the completed process, its output as text."""

    def run(*arguments: object, timeout: float = 120, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "collbench", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=clean_environment(**extra),
            cwd=ROOT,
            check=False,
        )

    return run


# Logs of other tools, read in place: the one spot that knows where they are.
LOGS = Path(os.environ.get("COLLBENCH_LOGS") or ROOT.parent / "shared" / "logs")


@pytest.fixture(scope="session")
def logs() -> Path:
    """The folder of handed logs: `index.csv`, `expected.json` and `raw/`."""
    if not (LOGS / "index.csv").is_file():
        pytest.skip(f"no logs at {LOGS} (COLLBENCH_LOGS names another folder)")
    return LOGS
