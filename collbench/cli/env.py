"""`collbench env`: what this machine is, and what would go wrong on it. Works without torch."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterator
from typing import Any

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
            "driver": host["driver"],
        },
        "backends": torch.get("backends", []),
        "environment": allowed_environment(),
        "problems": problems(host, torch),
    }
    if args.json:
        print(json.dumps(facts, indent=1))
        return 0
    for name, value in _lines(facts):
        print(f"{name:12} {value}")
    for name, value in facts["environment"].items():
        print(f"{name}={value}")
    for problem in facts["problems"]:
        print(f"note: {problem['what']}\n      -> {problem['fix']}")
    return 0


def _lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    [host] = facts["hosts"]
    for name, value in host.items():
        if name in ("gloo", "nccl"):
            address = f" ({value['address']})" if value["address"] else ""
            yield f"{name} on", f"{', '.join(value['names']) or 'no interface'}{address}, by {value['reason']}"
        elif name == "gpus":
            for index, gpu in enumerate(value):
                near = f"; nearest {' '.join(gpu['nics'])} ({gpu['distance']})" if gpu["nics"] else ""
                yield f"gpu {index}", f"{gpu['model']} at {gpu['pci']}, {_numa(gpu)}{near}"
        elif name == "nics":
            for nic in value:
                speed = f"{nic['Gbit_per_s']:g} Gbit/s" if nic["Gbit_per_s"] else "speed not known"
                yield (
                    f"nic {nic['name']}",
                    f"{nic['state']}, {speed}, {nic['link'] or '-'} at {nic['pci']}, {_numa(nic)}",
                )
        elif name != "driver":
            yield name, ", ".join(value) or "-" if isinstance(value, list) else "-" if value is None else str(value)
    yield "devices", ", ".join(facts["devices"])
    yield "backends", ", ".join(facts["backends"]) or "-"
    for name, value in facts["versions"].items():
        yield name, value or "-"


def _numa(device: dict[str, Any]) -> str:
    return "NUMA ?" if device["numa"] is None else f"NUMA {device['numa']}"
