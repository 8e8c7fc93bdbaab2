"""`collbench env`: what this machine is, and what would go wrong on it. Works without torch."""

from __future__ import annotations

import argparse
import json
import platform

import collbench


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def run(args: argparse.Namespace) -> int:
    from collbench.measure.environment import allowed_environment, host_facts, problems, torch_facts

    host, torch = host_facts(), torch_facts()
    facts = {
        "hosts": [host],
        "devices": torch.get("gpus") or ["cpu"],
        "versions": {
            "collbench": collbench.__version__,
            "python": platform.python_version(),
            **{name: torch.get(name) for name in ("torch", "cuda", "nccl")},
        },
        "backends": torch.get("backends", []),
        "environment": allowed_environment(),
        "problems": problems(host, torch),
    }
    if args.json:
        print(json.dumps(facts, indent=1))
        return 0
    for name, value in host.items():
        print(f"{name:12} {', '.join(value) if isinstance(value, list) else '-' if value is None else value}")
    print(f"{'devices':12} {', '.join(facts['devices'])}")
    print(f"{'backends':12} {', '.join(facts['backends']) or '-'}")
    for name, value in facts["versions"].items():
        print(f"{name:12} {value or '-'}")
    for name, value in facts["environment"].items():
        print(f"{name}={value}")
    for problem in facts["problems"]:
        print(f"note: {problem['what']}\n      -> {problem['fix']}")
    return 0
