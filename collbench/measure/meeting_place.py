"""MASTER_ADDR and MASTER_PORT: what they resolve to, whether anybody listens there, and torch's store behind them."""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from collbench.errors import EXIT_JOB, CollbenchError, InputError
from collbench.measure.failure import first_line

NOTICE_S = 10.0
_KNOCK_S = 3.0


class NotMet(CollbenchError):
    """The job is not formed, on all ranks for one reason; `speaks` on the one rank (a host) that should say so."""

    def __init__(self, reason: str, exit_code: int = EXIT_JOB, speaks: bool = True) -> None:
        super().__init__(reason)
        self.exit_code, self.speaks = exit_code, speaks


class Patience:
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
class Address:
    """MASTER_ADDR and MASTER_PORT, and what the name resolves to on this host."""

    host: str
    port: int
    resolved: str | None = None

    @staticmethod
    def from_environment() -> Address:
        host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        if not host or not port.isdigit() or not 0 < int(port) < 2**16:
            raise InputError(
                f"MASTER_ADDR={host} and MASTER_PORT={port}: expected rank 0's address and a port from 1 to 65535"
            )
        return Address(host, int(port))

    def __str__(self) -> str:
        same = self.resolved in (None, self.host)
        return f"{self.host}:{self.port}" + ("" if same else f" ({self.resolved})")

    def resolve(self, patience: Patience) -> None:
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


def open_store(rank: int, where: Address, patience: Patience) -> Any:
    """torch's store at the address: held by torchrun's agent where it says so, else by rank 0."""
    serves = rank == 0 and not held_by_agent()
    if not serves:
        _knock(where, patience, "torchrun's agent" if held_by_agent() else "rank 0")
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


def _knock(where: Address, patience: Patience, holder: str) -> None:
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


def held_by_agent() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


def _has_several_nodes() -> bool:
    nodes = os.environ.get("GROUP_WORLD_SIZE") or os.environ.get("SLURM_NNODES")
    local = os.environ.get("LOCAL_WORLD_SIZE")
    return nodes not in (None, "1") or (local is not None and local != os.environ.get("WORLD_SIZE"))


def speaks_for_host() -> bool:
    """Without a store, ranks cannot choose one of them to speak: the first of a host does."""
    return os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) == "0"
