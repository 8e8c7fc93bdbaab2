"""How long ten thousand configurations take: `python -m tests.bench_plan [MODEL.json]`.

GPT-2 and both Llamas on 1 to 256 nodes of 8 ranks, with link figures and, where one is named, with a model file; more
bucket caps and units than `collbench plan` tries by itself, until there are ten thousand configurations. Memory is
endless, so that all of them fit: with less, those that do not fit cost a ledger alone. Goal: under 10 s each.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from collbench.model.link import LinkModel
from collbench.model.store import load_model
from collbench.predict.cost import CostModel
from collbench.predict.plan import plan_step

WORKLOADS = Path(__file__).parents[1] / "sweeps" / "workloads"
NODES = tuple(range(1, 9)) + tuple(2**power * odd for power in range(2, 8) for odd in (3, 4) if 2**power * odd <= 256)
CAPS_MB = (None, *(2 ** (half / 2) for half in range(-4, 20)))
UNITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40)


def main() -> None:
    models: dict[str, CostModel] = {
        "link figures": LinkModel(bandwidth_GBps=200, latency_us=5, inter_bandwidth_GBps=25, inter_latency_us=10),
        **{path: load_model(path) for path in sys.argv[1:]},
    }
    for name in ("gpt2", "llama3-8b", "llama3-70b"):
        for words, model in models.items():
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            plan = plan_step(
                WORKLOADS / f"{name}.toml",
                model,
                memory_GB=1e6,
                nodes=NODES,
                ranks_per_node=8,
                bucket_caps_mb=CAPS_MB,
                layers_per_unit=UNITS,
                top=3,
            )
            wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
            per_10000_s = wall_s / plan.fitting * 10_000
            print(
                f"{name}, {words}: {plan.fitting} configurations in {wall_s:.1f} s ({cpu_s:.1f} s of CPU): "
                f"{per_10000_s:.1f} s for ten thousand",
                flush=True,
            )


if __name__ == "__main__":
    main()
