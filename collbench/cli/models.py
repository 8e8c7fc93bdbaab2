"""`collbench models`: the public models that come with collbench, how far off they are, and where they are from."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from collbench.columns import aligned
from collbench.errors import EXIT_DONE
from collbench.model.laws import Fit
from collbench.model.public import PREFIX, public_files
from collbench.model.store import Model, load_model
from collbench.units import format_size

EPILOG = """\
A name says accelerator, ranks per node x most nodes measured, network. Use one in place of a model file:

  collbench predict sweeps/workloads/small.toml --strategy ddp --model public:h100-8x2-efa

error: how far off the curve is at sizes it was not shown (median / 90th percentile), of the fit that is furthest off.
It says nothing of another site's cluster of the same parts.
"""

_COLUMNS = ("name", "collective", "nodes x ranks", "sizes", "points", "error %")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a public model knows of one collective.

    counts: (nranks, nnodes) measured.  error_pct: the largest held-out median and the largest 90th percentile of its
    fits; None where none was held out.
    """

    collective: str
    counts: tuple[tuple[int, int], ...]
    min_bytes: int
    max_bytes: int
    points: int
    error_pct: tuple[float, float] | None

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """As text: collective, nodes x ranks, sizes, points, error."""
        error = "-" if self.error_pct is None else "{:.1f} / {:.1f}".format(*self.error_pct)
        sizes = f"{format_size(self.min_bytes)} to {format_size(self.max_bytes)}"
        return self.collective, layouts(self.counts), sizes, str(self.points), error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`collbench models` has no flags of its own."""


def run(args: argparse.Namespace) -> int:
    """Print what there is: a table and the sources, or with --json the same as one document."""
    models = {name: load_model(PREFIX + name) for name in public_files()}
    if args.json:
        print(json.dumps({"models": [_entry(name, model) for name, model in models.items()]}, allow_nan=False))
        return EXIT_DONE
    rows = [_COLUMNS]
    for name, model in models.items():
        named = [name, *[""] * len(model.fits)]
        rows += [(head, *card.cells) for head, card in zip(named, cards(model), strict=False)]
    print("\n".join(aligned(rows, left=(0, 1, 2, 3))))
    for name, model in models.items():
        print(f"\n{name}: {system(model)}")
        print("\n".join(f"    from {origin}" for origin in origins(model)))
    return EXIT_DONE


def system(model: Model) -> str:
    """What was measured, in words."""
    return str(model.sources[0]["system"])


def origins(model: Model) -> list[str]:
    """Where its measurements were published, each once."""
    return list(dict.fromkeys(str(source["source"]) for source in model.sources))


def cards(model: Model) -> list[Card]:
    """One per collective, by name."""
    by_collective: dict[str, list[Fit]] = {}
    for fit in model.fits:
        by_collective.setdefault(fit.collective, []).append(fit)
    return [_card(name, fits) for name, fits in sorted(by_collective.items())]


def _card(collective: str, fits: list[Fit]) -> Card:
    errors = [(fit.error_pct.median, fit.error_pct.p90) for fit in fits]
    known = [(median, p90) for median, p90 in errors if median is not None and p90 is not None]
    return Card(
        collective=collective,
        counts=tuple(sorted({(fit.nranks, fit.nnodes) for fit in fits})),
        min_bytes=min(fit.curve[0][0] for fit in fits),
        max_bytes=max(fit.curve[-1][0] for fit in fits),
        points=sum(fit.points for fit in fits),
        error_pct=(max(median for median, _ in known), max(p90 for _, p90 in known)) if known else None,
    )


def layouts(counts: Iterable[tuple[int, int]]) -> str:
    """(nranks, nnodes) as nodes x ranks per node: `1, 2 x 8`, `1 x 2, 4, 8`."""
    by_ranks: dict[int, list[int]] = {}
    for nranks, nnodes in counts:
        by_ranks.setdefault(nranks // nnodes, []).append(nnodes)
    nodes = {tuple(each) for each in by_ranks.values()}
    groups = {_listed(by_ranks): nodes.pop()} if len(nodes) == 1 else {str(r): tuple(n) for r, n in by_ranks.items()}
    return ", ".join(f"{_listed(nnodes)} x {ranks}" for ranks, nnodes in groups.items())


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _entry(name: str, model: Model) -> dict[str, Any]:
    return {
        "name": name,
        "model": PREFIX + name,
        "system": system(model),
        "nodes": sorted({fit.nnodes for fit in model.fits}),
        "ranks_per_node": model.ranks_per_node,
        "backend": model.fits[0].backend,
        "timing": model.fits[0].timing,
        "collectives": [_card_entry(card) for card in cards(model)],
        "sources": list(model.sources),
        "notes": list(model.notes),
    }


def _card_entry(card: Card) -> dict[str, Any]:
    median, p90 = card.error_pct or (None, None)
    return {
        "collective": card.collective,
        "counts": [{"nranks": nranks, "nnodes": nnodes} for nranks, nnodes in card.counts],
        "min_bytes": card.min_bytes,
        "max_bytes": card.max_bytes,
        "points": card.points,
        "error_pct": {"median": median, "p90": p90, "held_out": card.error_pct is not None},
    }
