"""Where the ranks meet: a store at MASTER_ADDR:MASTER_PORT, and who is missing, of another version, or cannot join.

Every rank leaves its arrival in the store. The last to arrive, or the first to lose patience, decides for all whether
the job goes on; every rank reads that verdict, so all of them end for the same reason.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore  # type: ignore[attr-defined]

import collbench
from collbench.errors import EXIT_DONE, EXIT_JOB, CollbenchError, InputError
from collbench.measure.failure import first_line
from collbench.measure.interfaces import Choice, choose_for_gloo, read_interfaces
from collbench.measure.meeting_place import Address, NotMet, Patience, held_by_agent, open_store
from collbench.measure.names import few, rank_names

JOIN_TIMEOUT_S = 300.0
_LINGER_S = 2.0  # for the ranks to read a refusal, before the rank that holds the store takes it away
_FIRST_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a rank says of itself when it arrives. `machine` tells hosts apart whatever their names; None: not known.

    `refusal` is why this rank cannot take part, with `exit_code`.
    """

    host: str
    pid: int
    version: str
    machine: str | None = None
    gloo_address: str | None = None
    gloo_is_loopback: bool = False
    gloo_fix: str | None = None
    refusal: str | None = None
    exit_code: int = EXIT_DONE
    backend: str | None = None

    @staticmethod
    def read(told: str | bytes) -> Arrival:
        """Also of another version of collbench, which may say more, or less."""
        said = json.loads(told)
        return Arrival(**{each.name: said[each.name] for each in fields(Arrival) if each.name in said})


@dataclass(frozen=True, slots=True)
class Meeting:
    """All ranks have met at `store`, which `holder` keeps."""

    store: Any
    world_size: int
    holder: str

    def arrivals(self) -> list[Arrival]:
        """Of all ranks, in their order."""
        return _read(self.store, range(self.world_size))

    def chooses(self, rank: int) -> bool:
        """Whether this rank is the one to say what became of all: the first to ask."""
        chosen: bytes = self.store.compare_set("speaker", "", str(rank))
        return chosen.decode() == str(rank)


def arrive(refusal: CollbenchError | None = None, backend: str | None = None) -> Arrival:
    """This rank's arrival; `refusal` is what already keeps it from taking part, `backend` what it would use."""
    host = socket.gethostname()
    gloo = choose_for_gloo(os.environ, host, read_interfaces())
    reason, code = (str(refusal), refusal.exit_code) if refusal else (_cannot_use(gloo, host), EXIT_JOB)
    return Arrival(
        host,
        os.getpid(),
        collbench.__version__,
        machine(),
        gloo.address,
        gloo.is_loopback,
        gloo.fix,
        reason,
        code if reason else EXIT_DONE,
        backend,
    )


def machine() -> str | None:
    """A name of this host's network (its boot and network namespace): processes that share it share the loopback."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/net').readlink()}"
    except OSError:
        return None


def meet(rank: int, world_size: int, mine: Arrival, join_timeout_s: float = JOIN_TIMEOUT_S) -> Meeting:
    """Meet all other ranks. Raises NotMet, on all ranks that arrived, where that fails or takes longer."""
    if rank >= world_size:
        raise InputError(f"RANK={rank} and WORLD_SIZE={world_size}: ranks go from 0 to WORLD_SIZE - 1")
    patience = Patience(rank, join_timeout_s)
    where = Address.from_environment()
    where.resolve(patience)
    base = open_store(rank, where, patience)
    # A launcher that restarts ranks may keep its store.
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    store = PrefixStore("/".join(["collbench", *(os.environ.get(name, "") for name in names)]), base)
    try:
        verdict = _agree(store, rank, world_size, mine, where, patience)
    except RuntimeError as error:
        raise NotMet(
            f"{patience.who} lost the other ranks while they met at {where} ({first_line(error)}): rank 0's host or "
            "launcher holds the store there; see what it says"
        ) from error
    if verdict["exit_code"] != EXIT_DONE:
        raise NotMet(verdict["reason"], verdict["exit_code"], speaks=verdict["speaker"] == rank)
    base.set_timeout(timedelta(seconds=max(join_timeout_s, JOIN_TIMEOUT_S)))  # what follows may take its time
    return Meeting(store, world_size, "torchrun's agent" if held_by_agent() else f"rank 0 (host {verdict['host']})")


def _agree(store: Any, rank: int, world_size: int, mine: Arrival, where: Address, patience: Patience) -> dict[str, Any]:
    """The verdict that all ranks share: {"exit_code", "reason", "speaker", "host"}, the host being rank 0's."""
    _be_the_only_one(store, rank, mine)
    _share_world_size(store, rank, world_size, mine)
    arrived = store.add("arrivals", 1)
    if arrived >= world_size or mine.refusal:
        _decide(store, rank, world_size, where, patience)
    poll_s = _FIRST_POLL_S
    while not store.check(["verdict"]):
        if patience.left_s() < 0:
            _decide(store, rank, world_size, where, patience)
            break
        if patience.is_time_for_notice() and store.compare_set("noticed", "", str(rank)).decode() == str(rank):
            missing = _missing(store, world_size)
            patience.say(f"{rank_names(missing)} of {world_size} not yet at {where}")
        time.sleep(max(0.0, min(poll_s, patience.left_s())))
        poll_s = min(1.5 * poll_s, max(0.05, world_size / 10_000))  # thousands of ranks ask one store
    verdict: dict[str, Any] = json.loads(store.get("verdict"))
    store.add("read", 1)
    if rank == 0 and verdict["exit_code"] != EXIT_DONE:
        _linger(store, world_size, patience)
    return verdict


def _be_the_only_one(store: Any, rank: int, mine: Arrival) -> None:
    told = json.dumps(asdict(mine))
    first = store.compare_set(f"arrived/{rank}", "", told).decode()
    if first != told:
        twin = Arrival.read(first)
        reason = (
            f"rank {rank} was started twice: on host {twin.host} (process {twin.pid}) and on host {mine.host} (process "
            f"{mine.pid}): give every node its own rank (torchrun --node-rank), and every job its own MASTER_PORT"
        )
        _publish(store, rank, EXIT_JOB, reason)
        raise NotMet(reason)


def _share_world_size(store: Any, rank: int, world_size: int, mine: Arrival) -> None:
    told = json.dumps([world_size, rank, mine.host])
    size, other, host = json.loads(store.compare_set("world-size", "", told))
    if size != world_size:
        reason = (
            f"rank {rank} (host {mine.host}) has WORLD_SIZE={world_size}, rank {other} (host {host}) {size}: start "
            "every node with the same number of nodes and of ranks"
        )
        _publish(store, rank, EXIT_JOB, reason)


def _linger(store: Any, world_size: int, patience: Patience) -> None:
    """On rank 0, which may hold the store: let those read the refusal who are here, or are about to arrive."""
    give_up = time.monotonic() + _LINGER_S
    while time.monotonic() < give_up:
        read = store.add("read", 0)
        if read >= world_size or (patience.left_s() < 0 and read >= store.add("arrivals", 0)):
            return
        time.sleep(_FIRST_POLL_S)


def _decide(store: Any, rank: int, world_size: int, where: Address, patience: Patience) -> None:
    """Publish whether the job can be; nothing while ranks may still arrive."""
    missing = _missing(store, world_size)
    present = [each for each in range(world_size) if each not in set(missing)]
    arrivals = dict(zip(present, _read(store, present), strict=True))
    code, reason = judge(arrivals, missing)
    if reason is None and missing:
        if patience.left_s() > 0:
            return
        code, reason = EXIT_JOB, _absent(arrivals, missing, where, patience.timeout_s)
    _publish(store, rank, code, reason, arrivals[0].host if 0 in arrivals else "?")


def judge(arrivals: dict[int, Arrival], missing: Sequence[int]) -> tuple[int, str | None]:
    """(exit code, reason) where those who arrived cannot form a job; (0, None) where they can."""
    refused = [rank for rank, arrival in arrivals.items() if arrival.refusal]
    if refused:
        arrival = arrivals[refused[0]]
        return arrival.exit_code, arrival.refusal
    versions = {rank: arrival.version for rank, arrival in arrivals.items()}
    if len(set(versions.values())) > 1:
        return EXIT_JOB, _mixed_versions(versions, arrivals)
    backends = {str(arrival.backend): rank for rank, arrival in reversed(arrivals.items())}
    if len(backends) > 1:
        each = "; ".join(f"{backend}: rank {r} (host {arrivals[r].host})" for backend, r in sorted(backends.items()))
        return EXIT_JOB, (
            f"the ranks would use different backends ({each}): 'collbench env' there says why; or say --backend"
        )
    machines = {arrival.machine for arrival in arrivals.values()}
    if missing or None in machines or len(machines) == 1:
        return EXIT_DONE, None
    lonely = {rank: arrival for rank, arrival in arrivals.items() if arrival.gloo_is_loopback}
    if not lonely:
        return EXIT_DONE, None
    arrival = next(iter(lonely.values()))
    hosts = few(f"{each.host} ({each.gloo_address})" for each in lonely.values())
    fix = arrival.gloo_fix or "set GLOO_SOCKET_IFNAME to the interface that joins the hosts"
    return EXIT_JOB, f"gloo would listen on the loopback of {hosts}, which the other hosts cannot reach: {fix}"


def _mixed_versions(versions: dict[int, str], arrivals: dict[int, Arrival]) -> str:
    """Names those that differ from most; of two equal halves, from rank 0's."""
    usual = Counter(versions[rank] for rank in sorted(versions)).most_common(1)[0][0]
    other = next(version for version in versions.values() if version != usual)
    these, those = ([rank for rank in versions if versions[rank] == version] for version in (other, usual))
    hosts, usual_hosts = (few(arrivals[rank].host for rank in ranks) for ranks in (these, those))
    return (
        f"{rank_names(these)} (host {hosts}) {'has' if len(these) == 1 else 'have'} collbench {other}, "
        f"{rank_names(those)} (host {usual_hosts}) {usual}: install one version on all hosts, or start every rank from "
        "the same environment"
    )


def _absent(arrivals: dict[int, Arrival], missing: Sequence[int], where: Address, timeout_s: float) -> str:
    by_host: dict[str, list[int]] = {}
    for rank, arrival in arrivals.items():
        by_host.setdefault(arrival.host, []).append(rank)
    here = few(f"{rank_names(ranks)} on {host}" for host, ranks in by_host.items())
    return (
        f"{rank_names(missing)} did not arrive at {where} within {timeout_s:g} s (--join-timeout); arrived: {here}: "
        f"check that the others were started with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE, and reach that "
        f"address{where.hint()}"
    )


def _publish(store: Any, rank: int, exit_code: int, reason: str | None, host: str = "?") -> None:
    """The first verdict stands."""
    verdict = {"exit_code": exit_code, "reason": reason, "speaker": rank, "host": host}
    store.compare_set("verdict", "", json.dumps(verdict))


def _missing(store: Any, world_size: int) -> list[int]:
    return [rank for rank in range(world_size) if not store.check([f"arrived/{rank}"])]


def _read(store: Any, ranks: Sequence[int]) -> list[Arrival]:
    keys = [f"arrived/{rank}" for rank in ranks]
    return [Arrival.read(value) for value in (store.multi_get(keys) if keys else [])]


def _cannot_use(gloo: Choice, host: str) -> str | None:
    """Why gloo would not start; an address that only this host reaches is no reason before others are known."""
    return f"host {host}: {gloo.problem}: {gloo.fix}" if not gloo.names and gloo.problem else None
