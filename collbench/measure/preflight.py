"""What the ranks tell each other before anything is measured: the head of a run, and where their hosts differ."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch

import collbench
from collbench.measure.control import Control
from collbench.measure.device import Device
from collbench.measure.environment import allowed_environment, host_facts, host_problems, usable_cpus, versions
from collbench.measure.hardware import map_text
from collbench.measure.names import SHOWN, few, rank_names
from collbench.topology import counts

if TYPE_CHECKING:
    from collbench.measure.job import Job

# Variables that a launcher sets for each rank or host: never the same, and no difference.
_OWN = frozenset(
    (
        *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TOPOLOGY_ADDR", "NCCL_HOSTID"),
    )
)

# The settings that are no variables.
_FACTS = (
    *("python", "torch", "cuda", "nccl", "driver"),
    *("device", "usable CPUs", "gloo interface", "NCCL interface", "RDMA devices", "GPU map"),
)

Settings = Mapping[str, str | None]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Told:
    """What one rank said, packed: thousands of ranks say the same."""

    _settings: bytes
    _host: bytes

    @staticmethod
    def of(settings: Settings, host: dict[str, Any] | None) -> Told:
        return Told(_pack(settings), _pack(host))

    @property
    def settings(self) -> Settings:
        """What should be the same on all ranks: versions, device, interfaces, variables."""
        settings: Settings = _unpack(self._settings)
        return settings

    @property
    def host(self) -> dict[str, Any] | None:
        """host_facts() and its "problems"; None but for one rank a host."""
        host: dict[str, Any] | None = _unpack(self._host)
        return host


def this_rank(device: Device, speaks_for_host: bool) -> Told:
    """What this rank has to tell."""
    host = host_facts()
    host["problems"] = host_problems(host, len(host["gpus"]) if device.backend == "nccl" else 0)
    known = versions(torch)
    settings: dict[str, str | None] = {name: known[name] for name in ("python", "torch", "cuda", "nccl", "driver")}
    settings |= {
        "device": device.name,
        "usable CPUs": str(usable_cpus(host)),
        "gloo interface": few(host["gloo"]["names"]) or None,
    }
    if device.backend == "nccl":
        settings |= {
            "NCCL interface": few(host["nccl"]["names"]) or None,
            "RDMA devices": few(host["rdma"]) or None,
            "GPU map": map_text(host["gpus"]) or None,
        }
    settings |= {name: value for name, value in allowed_environment().items() if name not in _OWN}
    return Told.of(settings, host if speaks_for_host else None)


def everyones(control: Control, mine: _T, told: Told) -> tuple[list[_T], tuple[Told, ...]]:
    """Every rank's `mine` and what it tells, in the order of ranks. Called by all ranks together."""
    both = control.everyones((mine, told))
    return [each for each, _ in both], tuple(each for _, each in both)


def differences(ranks: Sequence[tuple[str, Settings]]) -> list[str]:
    """`NCCL_SOCKET_IFNAME: eth0 on n0, n1; unset on n2`, for every setting that is not the same on all ranks.

    `ranks` holds every rank's host and settings, in their order. Where ranks of one host differ, ranks are named.
    """
    found = []
    names = dict.fromkeys(name for _, settings in ranks for name in settings)
    for name in names:
        values = [settings.get(name) for _, settings in ranks]
        if len(set(values)) == 1:
            continue
        of_host: dict[str, set[str | None]] = {}
        for (host, _), value in zip(ranks, values, strict=True):
            of_host.setdefault(host, set()).add(value)
        by_host = all(len(of_one) == 1 for of_one in of_host.values())
        parts = []
        usual = Counter(values).most_common()
        for value, _ in usual[:SHOWN]:
            where = [rank for rank, other in enumerate(values) if other == value]
            place = few(ranks[rank][0] for rank in where) if by_host else rank_names(where)
            parts.append(f"{'unset' if value is None else value} on {place}")
        if len(usual) > SHOWN:
            parts.append(f"{len(usual) - SHOWN} other values on the other ranks")
        found.append(f"{name}: {'; '.join(parts)}")
    return found


def run_fields(job: Job) -> dict[str, Any]:
    """What the run record keeps of the hosts: {"hosts": facts of each node, "differences": [lines]}."""
    hosts = _hosts(job)
    return {
        "hosts": [{"node": node, **hosts[node]} for node in sorted(hosts)],
        "differences": differences(_labelled(job)),
    }


def head_lines(job: Job) -> list[str]:
    """The head of a run in a few lines: ranks, hosts, devices, versions, interfaces, differences, warnings."""
    settings, hosts, labels = job.told[0].settings, _hosts(job), _labels(job)
    backend, nodes = job.device.backend, _nodes(job)
    known = ", ".join(
        f"{name} {settings[name]}" for name in ("torch", "cuda", "nccl", "driver", "python") if settings[name]
    )
    lines = [f"{collbench.__version__}: {counts(job.world_size, len(nodes))}, {backend}; {known}"]
    for node in list(hosts)[:SHOWN]:
        lines.append(f"{labels[node]}: {_host_line(nodes[node], hosts[node], backend)}")
    if len(hosts) > SHOWN:
        lines.append(f"and {len(hosts) - SHOWN} nodes more, in the results file")
    maps = {map_text(host["gpus"]) for host in hosts.values()}
    if backend == "nccl" and len(maps) == 1 and maps != {""}:
        lines.append(f"every node: {maps.pop()}" if len(nodes) > 1 else maps.pop())
    variables = [f"{name}={value}" for name, value in settings.items() if name not in _FACTS]
    if backend != "nccl":  # torchrun itself sets one of NCCL's
        variables = [each for each in variables if not each.startswith(("NCCL_", "RCCL_", "TORCH_NCCL_"))]
    if variables:
        lines.append(f"variables: {few(variables)}")
    differing = differences(_labelled(job))
    lines += [f"differs: {each}" for each in differing[:SHOWN]]
    if len(differing) > SHOWN:
        lines.append(f"differs: {len(differing) - SHOWN} settings more, in the results file")
    lines += [f"warning: {each}" for each in _warnings(job, hosts, labels)]
    return [f"collbench {lines[0]}", *(f"collbench: {line}" for line in lines[1:])]


def _host_line(node: dict[str, Any], host: dict[str, Any], backend: str) -> str:
    devices = Counter(host["cpu"] if device == "cpu" else device for device in node["devices"])
    named = ", ".join(name if backend == "gloo" else f"{count} x {name}" for name, count in devices.items())
    parts = [f"{rank_names(node['ranks'])} on {named}", f"{usable_cpus(host)} CPUs"]
    if host["governor"]:
        parts.append(f"governor {host['governor']}")
    if host["shm_GB"] is not None:
        parts.append(f"/dev/shm {host['shm_GB']:g} GB")
    parts.append(f"load {host['load_1min']:g}")
    networks = [f"gloo on {_interface(host['gloo'])}"]
    if backend == "nccl":
        rdma = f"{few(host['rdma'])}, bootstrap on " if host["rdma"] else ""
        networks.append(f"NCCL on {rdma}{_interface(host['nccl'])}")
    return f"{', '.join(parts)}; {', '.join(networks)}"


def _interface(choice: dict[str, Any]) -> str:
    return f"{few(choice['names']) or 'no known interface'} ({choice['address']})"


def _warnings(job: Job, hosts: dict[int, dict[str, Any]], labels: dict[int, str]) -> list[str]:
    """Each with the nodes it is about and what to do; what all nodes have is said once."""
    of: dict[str, list[str]] = {}
    for node, host in hosts.items():
        for problem in host["problems"]:
            of.setdefault(f"{problem['what']} ({problem['fix']})", []).append(labels[node])
    for label, ranks, cpus in _oversubscribed(job, hosts, labels):
        text = f"{ranks} ranks share {cpus} CPU{'s' * (cpus > 1)}: they take turns (start at most {cpus} there)"
        of.setdefault(text, []).append(label)
    found = [f"{few(where)}: {what}" for what, where in of.items()]
    more = len(found) - SHOWN
    return found[:SHOWN] + ([f"{more} more, in the results file"] if more > 0 else [])


def _oversubscribed(
    job: Job, hosts: dict[int, dict[str, Any]], labels: dict[int, str]
) -> Iterable[tuple[str, int, int]]:
    """(host, its ranks, its usable CPUs) where ranks outnumber CPUs; nodes on one machine are one host."""
    ranks_of: dict[str, list[int]] = {}
    for rank, facts in enumerate(job.facts):
        ranks_of.setdefault(facts.machine or labels[facts.node or 0], []).append(rank)
    for ranks in ranks_of.values():
        node = job.facts[ranks[0]].node or 0
        quota = hosts[node]["cpu_quota"] if node in hosts else None
        cpus = len(set().union(*(_numbers(job.facts[rank].cpus) for rank in ranks)))
        cpus = min(cpus, max(1, int(quota))) if quota else cpus
        if 0 < cpus < len(ranks):
            yield labels[node], len(ranks), cpus


def _numbers(spans: str) -> set[int]:
    """The reverse of names.spans."""
    found: set[int] = set()
    for span in filter(None, spans.split(", ")):
        first, _, last = span.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _nodes(job: Job) -> dict[int, dict[str, Any]]:
    """Node -> its entry in the run record."""
    return dict(zip(sorted({facts.node or 0 for facts in job.facts}), job.nodes(), strict=True))


def _labels(job: Job) -> dict[int, str]:
    """A name for every node: its host's, with its number where several share that (containers may)."""
    names = {node: entry["host"] for node, entry in _nodes(job).items()}
    shared = Counter(names.values())
    return {node: name if shared[name] == 1 else f"{name} (node {node})" for node, name in names.items()}


def _labelled(job: Job) -> list[tuple[str, Settings]]:
    labels = _labels(job)
    return [(labels[facts.node or 0], told.settings) for facts, told in zip(job.facts, job.told, strict=True)]


def _hosts(job: Job) -> dict[int, dict[str, Any]]:
    """Node -> its host's facts."""
    hosts: dict[int, dict[str, Any]] = {}
    for facts, told in zip(job.facts, job.told, strict=True):
        if facts.node not in hosts and (host := told.host) is not None:
            hosts[facts.node or 0] = host
    return dict(sorted(hosts.items()))


def _pack(value: Any) -> bytes:
    return zlib.compress(json.dumps(value).encode())


@cache
def _unpack(packed: bytes) -> Any:
    return json.loads(zlib.decompress(packed))
