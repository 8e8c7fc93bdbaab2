"""`collbench estimate`: how long one collective takes, from a model file or from link figures."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from collbench.cli.cost_flags import add_cost_flags, cost_model
from collbench.collectives import Collective, bandwidths_GBps, find_collective
from collbench.columns import aligned
from collbench.dtypes import find_dtype
from collbench.errors import EXIT_DONE
from collbench.units import format_size, format_time_us, parse_size

if TYPE_CHECKING:
    from collbench.model.estimate import Estimate

EPILOG = """\
algbw and busbw:
  algbw = size / time is what the program sees. busbw = algbw × factor is what one link carries, comparable between
  rank counts: the factor is 2(n-1)/n for all_reduce, (n-1)/n for all_gather and reduce_scatter, 1 for broadcast.
  Example, all_reduce of 2 GB over n = 8 ranks with 25 GB/s links: each rank sends 2·7/8 · 2 GB = 3.5 GB, which takes
  3.5 / 25 = 0.14 s; algbw = 2 / 0.14 = 14.29 GB/s and busbw = 14.29 · 2·7/8 = 25 GB/s. (3.5 GB / algbw would count
  the factor twice.)  --bandwidth is the bus bandwidth: one rank's one-way link rate.

  collbench estimate all_reduce --size 2GB --nranks 8 --bandwidth 25GB/s

--json prints one object for one size, a list of objects for several.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `collbench estimate`."""
    parser.add_argument("collective", metavar="COLLECTIVE", help="such as all_reduce, all_gather, reduce_scatter")
    parser.add_argument(
        "--size", required=True, metavar="S[,S...]", help="nccl-tests' size: 64K, 1M, 1G (1024); kB, MB, GB (1000)"
    )
    parser.add_argument("--nranks", type=int, metavar="N", help="ranks that take part (default: as measured)")
    parser.add_argument(
        *("--nnodes", "--nodes"),
        type=int,
        metavar="M",
        help="nodes they run on (default: nranks over the model's ranks per node, rounded up; link figures: 1)",
    )
    parser.add_argument("--group", default="world", help="world, intra (ranks of a node), inter (one per node)")
    parser.add_argument("-d", "--dtype", "--datatype", metavar="TYPE", help="element type (default float32)")
    parser.add_argument("--backend", help="backend, where the model holds several")
    add_cost_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Print the estimates: a table, or with --json one object for one size and a list for several."""
    collective = find_collective(args.collective)
    sizes_bytes = [parse_size(text) for text in args.size.split(",")]
    model = cost_model(args)
    nranks, nnodes = model.counts(collective.name, args.group, args.nranks, args.nnodes)
    asked: dict[str, Any] = {"group": args.group, "nranks": nranks, "nnodes": nnodes, "timing": args.timing}
    asked["dtype"] = args.dtype
    if args.backend is not None and args.model is not None:
        asked["backend"] = args.backend
    if args.dtype is not None:
        find_dtype(args.dtype)
    answers = []
    for size_bytes in sizes_bytes:
        estimate = model.time(collective.name, size_bytes, **asked)
        answers.append(_answer(collective, args.group, nranks, nnodes, size_bytes, estimate))
    notes = list(model.time(collective.name, sizes_bytes, **asked).notes)  # of all at once: the furthest size speaks
    if nnodes == 1 and (args.inter_bandwidth is not None or args.inter_latency is not None):
        notes.append("on one node the inter figures play no part: say how many nodes with --nnodes")
    for note in notes:
        print(f"collbench: note: {note}", file=sys.stderr)
    if args.json:
        print(json.dumps(answers if len(answers) > 1 else answers[0], allow_nan=False))
    else:
        print(_table(answers))
    return EXIT_DONE


def _answer(
    collective: Collective, group: str, nranks: int, nnodes: int, size_bytes: int, estimate: Estimate
) -> dict[str, Any]:
    """The contract's object. A bandwidth is null where the time is 0: one rank moves nothing."""
    time_us = float(estimate.time_us)
    algbw_GBps, busbw_GBps = bandwidths_GBps(collective, size_bytes, time_us, nranks) if time_us > 0 else (None, 0.0)
    return {
        "collective": collective.name,
        "group": group,
        "nranks": nranks,
        "nnodes": nnodes,
        "size_bytes": size_bytes,
        "time_us": time_us,
        "low_us": estimate.low_us,
        "high_us": estimate.high_us,
        "algbw_GBps": algbw_GBps,
        "busbw_GBps": busbw_GBps,
        "sent_bytes_per_rank": round(collective.sent_fraction(nranks) * size_bytes),
        "source": estimate.source,
        "extrapolated": bool(estimate.extrapolated),
        "notes": list(estimate.notes),
    }


def _table(answers: list[dict[str, Any]]) -> str:
    """The question once, then a row per size."""
    from collbench.topology import counts

    first = answers[0]
    title = f"{first['collective']}, group {first['group']}: {counts(first['nranks'], first['nnodes'])}"
    rows = [
        ("size", "time", "90 % interval", "algbw GB/s", "busbw GB/s", "sent per rank", "source"),
        *map(_row, answers),
    ]
    return "\n".join([title, *aligned(rows, left=())])


def _row(answer: dict[str, Any]) -> tuple[str, ...]:
    low_us, high_us = answer["low_us"], answer["high_us"]
    return (
        format_size(answer["size_bytes"]),
        format_time_us(answer["time_us"]),
        "-" if low_us is None else f"{format_time_us(low_us)} to {format_time_us(high_us)}",
        "-" if answer["algbw_GBps"] is None else f"{answer['algbw_GBps']:.4g}",
        f"{answer['busbw_GBps']:.4g}",
        format_size(answer["sent_bytes_per_rank"]),
        answer["source"] + (" (extrapolated)" if answer["extrapolated"] else ""),
    )
