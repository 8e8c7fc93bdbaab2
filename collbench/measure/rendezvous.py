"""Where the ranks meet: a store at MASTER_ADDR:MASTER_PORT, and who is missing, of another version, or cannot join.

Every rank leaves its arrival in the store. The last to arrive, or the first to lose patience, decides for all whether
the job goes on; every rank reads that verdict, so all of them end for the same reason.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

import collbench
from collbench.errors import EXIT_DONE, EXIT_JOB, CollbenchError, InputError
from collbench.measure.failure import first_line
from collbench.measure.interfaces import Choice, choose_for_gloo, read_interfaces
from collbench.measure.names import few, rank_names

JOIN_TIMEOUT_S = 300.0
NOTICE_S = 10.0
_LINGER_S = 2.0  # for the ranks to read a refusal, before the rank that holds the store takes it away
_KNOCK_S = 3.0
_FIRST_POLL_S = 0.005


class NotMet(CollbenchError):
    """The job is not formed, on all ranks for one reason; `speaks` on the one rank (a host) that should say so."""

    def __init__(self, reason: str, exit_code: int = EXIT_JOB, speaks: bool = True) -> None:
        super().__init__(reason)
        self.exit_code, self.speaks = exit_code, speaks


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
    patience = _Patience(rank, join_timeout_s)
    where = _Address.from_environment()
    where.resolve(patience)
    base = _open_store(rank, where, patience)
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
    return Meeting(store, world_size, "torchrun's agent" if _held_by_agent() else f"rank 0 (host {verdict['host']})")


class _Patience:
    """How long to wait still, and one notice on the way."""

    def __init__(self, rank: int, timeout_s: float) -> None:
        self.rank, self.timeout_s = rank, timeout_s
        self.who = f"rank {rank} (host {socket.gethostname()})"
        self._began = time.monotonic()
        self._noticed = False

    def left_s(self) -> float:
        return self._began + self.timeout_s - time.monotonic()

    def is_time_for_notice(self) -> bool:
        """Once, when others have kept this rank waiting for NOTICE_S."""
        due = not self._noticed and time.monotonic() - self._began > NOTICE_S
        self._noticed = self._noticed or due
        return due

    def say(self, what: str) -> None:
        stray = ""
        if "TORCHELASTIC_RUN_ID" not in os.environ and "SLURM_PROCID" not in os.environ:
            stray = " (RANK and WORLD_SIZE are set, so this is a launcher's rank; unset them to start ranks here)"
        print(f"collbench: {self.who} waits for the other ranks: {what}{stray}", file=sys.stderr, flush=True)


@dataclass(slots=True)
class _Address:
    """MASTER_ADDR and MASTER_PORT, and what the name resolves to on this host."""

    host: str
    port: int
    resolved: str | None = None

    @staticmethod
    def from_environment() -> _Address:
        host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        if not host or not port.isdigit() or not 0 < int(port) < 2**16:
            raise InputError(
                f"MASTER_ADDR={host} and MASTER_PORT={port}: expected rank 0's address and a port from 1 to 65535"
            )
        return _Address(host, int(port))

    def __str__(self) -> str:
        same = self.resolved in (None, self.host)
        return f"{self.host}:{self.port}" + ("" if same else f" ({self.resolved})")

    def resolve(self, patience: _Patience) -> None:
        """Wait until the name resolves: a cluster's name service may learn of rank 0's host after it starts."""
        while self.resolved is None:
            try:
                self.resolved = str(socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][4][0])
            except OSError as error:
                if patience.left_s() < 0:
                    raise NotMet(
                        f"{patience.who}: MASTER_ADDR={self.host} does not resolve ({error.strerror or error}) within "
                        f"{patience.timeout_s:g} s (--join-timeout): set it to rank 0's address, or to a name that "
                        "every host resolves",
                        speaks=speaks_for_host(),
                    ) from error
                if patience.is_time_for_notice() and speaks_for_host():
                    patience.say(f"MASTER_ADDR={self.host} does not resolve yet")
                time.sleep(max(0.0, min(0.2, patience.left_s())))

    def hint(self) -> str:
        """Where the address is this host itself, though there are others."""
        if not (self.resolved or "").startswith("127.") or not _has_several_nodes():
            return ""
        return (
            f". {self.host} resolves to {self.resolved} on this host, which is this host itself: on several nodes "
            "MASTER_ADDR must be an address of rank 0's host that the others reach"
        )


def _open_store(rank: int, where: _Address, patience: _Patience) -> Any:
    """torch's store at the address: held by torchrun's agent where it says so, else by rank 0."""
    serves = rank == 0 and not _held_by_agent()
    if not serves:
        _knock(where, patience, "torchrun's agent" if _held_by_agent() else "rank 0")
    try:
        return TCPStore(
            where.host,
            where.port,
            is_master=serves,
            timeout=timedelta(seconds=max(1.0, patience.left_s())),
            wait_for_workers=False,
            multi_tenant=serves,
        )
    except (RuntimeError, ValueError) as error:
        if serves and ("EADDRINUSE" in str(error) or "in use" in str(error)):
            advice = "another job may hold it; set MASTER_PORT to a free port on all ranks"
            raise NotMet(f"{patience.who}: port {where.port} is in use on this host: {advice}") from error
        raise NotMet(
            f"{patience.who}: no store of torch's answers at {where} ({first_line(error)}): check MASTER_ADDR and "
            f"MASTER_PORT{where.hint()}",
            speaks=speaks_for_host(),
        ) from error


def _held_by_agent() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


def _knock(where: _Address, patience: _Patience, holder: str) -> None:
    """Wait until something listens at the address: torch's own wait outlasts its limit, and fills the screen."""
    answer = "no answer"
    while True:
        try:
            socket.create_connection((where.host, where.port), max(0.1, min(_KNOCK_S, patience.left_s()))).close()
            return
        except TimeoutError:
            answer = "no answer"
        except OSError as error:
            answer = (error.strerror or str(error)).lower()
        if patience.left_s() < 0:
            raise NotMet(
                f"{patience.who} finds nobody at {where} ({answer}) within {patience.timeout_s:g} s (--join-timeout): "
                f"{holder} should listen there; check that it was started, that MASTER_ADDR and MASTER_PORT are the "
                f"same on all ranks, and that no firewall is between{where.hint()}",
                speaks=speaks_for_host(),
            )
        if patience.is_time_for_notice() and speaks_for_host():
            patience.say(f"{holder} does not answer at {where} ({answer})")
        time.sleep(max(0.0, min(0.1, patience.left_s())))


def _agree(
    store: Any, rank: int, world_size: int, mine: Arrival, where: _Address, patience: _Patience
) -> dict[str, Any]:
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


def _linger(store: Any, world_size: int, patience: _Patience) -> None:
    """On rank 0, which may hold the store: let those read the refusal who are here, or are about to arrive."""
    give_up = time.monotonic() + _LINGER_S
    while time.monotonic() < give_up:
        read = store.add("read", 0)
        if read >= world_size or (patience.left_s() < 0 and read >= store.add("arrivals", 0)):
            return
        time.sleep(_FIRST_POLL_S)


def _decide(store: Any, rank: int, world_size: int, where: _Address, patience: _Patience) -> None:
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


def _absent(arrivals: dict[int, Arrival], missing: Sequence[int], where: _Address, timeout_s: float) -> str:
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


def _has_several_nodes() -> bool:
    nodes = os.environ.get("GROUP_WORLD_SIZE") or os.environ.get("SLURM_NNODES")
    local = os.environ.get("LOCAL_WORLD_SIZE")
    return nodes not in (None, "1") or (local is not None and local != os.environ.get("WORLD_SIZE"))


def speaks_for_host() -> bool:
    """Without a store, ranks cannot choose one of them to speak: the first of a host does."""
    return os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) == "0"
