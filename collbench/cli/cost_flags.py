"""The flags that say what a collective takes: a model file, or link figures. For every command that asks."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from collbench.errors import InputError
from collbench.units import parse_latency, parse_rate

if TYPE_CHECKING:
    from collbench.model.link import LinkModel
    from collbench.model.store import Model


_LINK_FLAGS = ("bandwidth", "latency", "inter_bandwidth", "inter_latency")


def add_cost_flags(parser: argparse.ArgumentParser) -> None:
    costs = parser.add_argument_group("what a collective takes: a model, or link figures")
    costs.add_argument("--model", metavar="MODEL.json", help="of 'collbench fit', or public:NAME ('collbench models')")
    add_link_flags(costs)
    costs.add_argument("--timing", choices=("isolated", "pipelined"), help="regime (default: isolated if measured)")


def add_link_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--bandwidth", metavar="B", help="one rank's one-way link rate: 25GB/s, 200Gb/s, bare GB/s")
    group.add_argument("--latency", metavar="L", help="per algorithm step: 5us, 0.1ms, bare us (default 0)")
    group.add_argument("--inter-bandwidth", metavar="B", help="between nodes (default: --bandwidth)")
    group.add_argument("--inter-latency", metavar="L", help="between nodes (default: --latency)")


def given_link_flags(args: argparse.Namespace) -> list[str]:
    """Those of the link flags that the user gave, as typed."""
    return [f"--{flag.replace('_', '-')}" for flag in _LINK_FLAGS if getattr(args, flag) is not None]


def cost_model(args: argparse.Namespace) -> Model | LinkModel:
    """What answers: the model file, or the link figures. InputError for both, neither, or a figure not understood."""
    if args.model is not None:
        given = given_link_flags(args)
        if given:
            raise InputError(f"--model and {given[0]} exclude each other: a model file has its own link figures")
        from collbench.model.store import load_model

        return load_model(args.model)
    if args.bandwidth is None:
        raise InputError("neither --model nor --bandwidth: give a model file, or the links' rate such as 25GB/s")
    return link_model(args)


def link_model(args: argparse.Namespace) -> LinkModel:
    """The link figures, --bandwidth among them; InputError for one not understood."""
    from collbench.model.link import LinkModel

    inter_rate, inter_latency = args.inter_bandwidth, args.inter_latency
    return LinkModel(
        bandwidth_GBps=parse_rate(args.bandwidth, "--bandwidth"),
        latency_us=1e6 * parse_latency(args.latency or 0, "--latency"),
        inter_bandwidth_GBps=None if inter_rate is None else parse_rate(inter_rate, "--inter-bandwidth"),
        inter_latency_us=None if inter_latency is None else 1e6 * parse_latency(inter_latency, "--inter-latency"),
    )
