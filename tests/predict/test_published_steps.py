"""results/published_steps.md is what the public models give today."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_record_is_made_anew():
    spec = importlib.util.spec_from_file_location("published_steps", ROOT / "analysis" / "published_steps.py")
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script  # dataclasses look their module up
    spec.loader.exec_module(script)
    assert script.document() == (ROOT / "results" / "published_steps.md").read_text(encoding="utf-8")
