"""Steps that others published at two numbers of GPUs, beside predictions from the public models.

    python analysis/published_steps.py [-o results/published_steps.md]

How long a step computes is in no such table. It is set so that the prediction for the smaller number equals what was
published, and the larger one is then predicted: the ratio of the two steps is left to communication. Only tables of
one code, batch per GPU and number of micro-batches, whose sharding can be predicted, are used; each with its source.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean

from collbench.model.store import load_model
from collbench.predict.step import predict_step
from collbench.predict.workload import Layer, Workload

ROOT = Path(__file__).parents[1]
TITAN = (
    "https://github.com/pytorch/torchtitan/blob/31a17bfdb70bab6f62a13d21816a5339b911d6e3/"
    "benchmarks/llama3_h100_202412_torchtitan.md"
)
FOUNDRY = (
    "https://github.com/mosaicml/llm-foundry/blob/061f2c7ce64e655100286584a7629e2a09f827ba/"
    "scripts/train/benchmarking/README.md"
)
ONE_NODE, NODES = "public:h100-8x1-nvswitch", "public:h100-8x10-ib"
MODEL = cache(load_model)  # read once for all steps


@dataclass(frozen=True, kw_only=True)
class Published:
    """One table's row for several numbers of GPUs. tokens_per_s: of one GPU, by number of GPUs."""

    name: str
    source: str
    workload: Workload
    strategy: str
    tokens: int  # of a GPU and step
    tokens_per_s: Mapping[int, float]


def mpt(name: str, width: int, layers: int, numel: int) -> Workload:
    """MPT with biases, learned positions and a tied head. numel: as the table has it."""
    block = Layer(
        name="blocks",
        repeat=layers,
        tensors=(
            *((width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,)),
            *((width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)),
        ),
        forward_ms=1.0,
        backward_ms=2.0,
    )
    root = Layer(name="root", tensors=((50368, width), (2048, width), (width,), (width,)), wrap=False)
    workload = Workload(
        name=name,
        layers=(block, root),
        storage_dtype="float32",
        param_dtype="bfloat16",
        grad_dtype="float32",
        reduce_dtype="float32",
    )
    if workload.numel != numel:
        raise SystemExit(f"{name} has {workload.numel} parameters, its table {numel}")
    return workload


def cases() -> list[Published]:
    """All tables that were found to do."""
    llama = Workload.from_toml(ROOT / "sweeps" / "workloads" / "llama3-8b.toml")
    found = [
        Published(
            name=f"Llama 3.1 8B, {words}",
            source=TITAN,
            workload=llama,
            strategy="fsdp",
            tokens=2 * 8192,
            tokens_per_s=speeds,
        )
        for words, speeds in (("FSDP2", {8: 5762, 128: 5605}), ("FSDP2, compiled", {8: 6667, 128: 6514}))
    ]
    sizes = (
        ("MPT 13B", 5120, 40, 12853954560, 2, {8: 4792, 16: 4767, 32: 4811, 64: 4800}),
        ("MPT 1B", 2048, 24, 1315950592, 20, {16: 46037, 32: 45130, 64: 44402}),
        ("MPT 760M", 1536, 24, 760470528, 24, {16: 68551, 32: 67971}),
    )
    for name, width, layers, numel, sequences, speeds in sizes:
        found.append(
            Published(
                name=f"{name}, FSDP1",
                source=FOUNDRY,
                workload=mpt(name, width, layers, numel),
                strategy="fsdp1",
                tokens=2048 * sequences,
                tokens_per_s=speeds,
            )
        )
    return found


def step_ms(case: Published, ranks: int, scale: float) -> float:
    """The step on so many GPUs, eight a node, with all computation `scale` times as long."""
    layers = tuple(
        replace(layer, forward_ms=layer.forward_ms * scale, backward_ms=layer.backward_ms * scale)
        for layer in case.workload.layers
    )
    workload = replace(case.workload, layers=layers, captured=None)
    model, nodes = (ONE_NODE, 1) if ranks == 8 else (NODES, ranks // 8)
    return predict_step(workload, MODEL(model), case.strategy, nodes=nodes, ranks_per_node=8).step_ms


def scale_for(case: Published, ranks: int, published_ms: float) -> float:
    """How long everything must compute for the step to be as published; by halving."""
    low, high = 0.0, 1.0
    while step_ms(case, ranks, high) < published_ms:
        high *= 2
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if step_ms(case, ranks, middle) < published_ms else (low, middle)
    return high


@dataclass(frozen=True, kw_only=True)
class Row:
    """Two numbers of GPUs, their steps as published, and how much longer the second is predicted to take."""

    name: str
    ranks: tuple[int, int]
    steps_ms: tuple[float, float]
    predicted: float

    @property
    def ratio(self) -> float:
        """As published."""
        return self.steps_ms[1] / self.steps_ms[0]

    @property
    def error_pct(self) -> float:
        """Of the prediction."""
        return 100 * (self.predicted / self.ratio - 1)


def rows(case: Published) -> list[Row]:
    """A row for each number of GPUs but the least."""
    least, *others = sorted(case.tokens_per_s)
    published = {ranks: 1000 * case.tokens / speed for ranks, speed in case.tokens_per_s.items()}
    scale = scale_for(case, least, published[least])
    return [
        Row(
            name=case.name,
            ranks=(least, ranks),
            steps_ms=(published[least], published[ranks]),
            predicted=step_ms(case, ranks, scale) / published[least],
        )
        for ranks in others
    ]


TOP = """# Published steps

By `python analysis/published_steps.py`. The same model, code and batch per GPU at two numbers of H100 GPUs, eight a
node: how much longer a step takes on more of them, as published and as predicted. Computation is set so that the
step of the first number is as published; nothing else is fitted.

| model | GPUs | published step, ms | ratio published | ratio predicted | error % |
|---|---|---|--:|--:|--:|
"""
BOTTOM = """
Mean absolute error: {ours:.1f} %; of predicting that nothing changes, a ratio of 1: {naive:.1f} %. The steps hide
nearly all their communication, so these ratios say little of single collectives; that the larger jobs lose up to
4 % which is not predicted, the public models and tables do not explain.

Sources: [torchtitan, tables 1 and 3]({titan}) and [llm-foundry, "H100 80GB BF16"]({foundry}), rows of one
micro-batch. A step is the tokens of a GPU and step, divided by tokens per second and GPU.

What they ran on was not measured here. 8 GPUs are predicted from `{one_node}`, more from `{nodes}`: other
clusters with other networks (torchtitan names 400 Gb/s RDMA per GPU, llm-foundry none), and numbers of nodes and
sizes other than those measured are extrapolated. Left out are tables whose batch, micro-batches or parallelism change
with the number of GPUs (llm-foundry's 30B and 70B) and those with tensor or pipeline parallelism (NeMo, Megatron):
their ratios are not free of computation.
"""


def document() -> str:
    """The table, and what it is worth."""
    found = [row for case in cases() for row in rows(case)]
    lines = [
        f"| {row.name} | {row.ranks[0]} -> {row.ranks[1]} | {row.steps_ms[0]:.1f} -> {row.steps_ms[1]:.1f} "
        f"| {row.ratio:.3f} | {row.predicted:.3f} | {row.error_pct:+.1f} |\n"
        for row in found
    ]
    bottom = BOTTOM.format(
        ours=mean(abs(row.error_pct) for row in found),
        naive=mean(abs(100 * (1 / row.ratio - 1)) for row in found),
        titan=TITAN,
        foundry=FOUNDRY,
        one_node=ONE_NODE,
        nodes=NODES,
    )
    return TOP + "".join(lines) + bottom


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default=ROOT / "results" / "published_steps.md", type=Path)
    arguments = parser.parse_args()
    arguments.output.write_text(document(), encoding="utf-8")
    print(arguments.output.read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    main()
