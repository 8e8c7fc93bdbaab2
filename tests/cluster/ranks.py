"""A job on the cluster: one command as every rank, started as torchrun's nodes would, or by torchrun itself."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from .system import ClusterError, die_with, kill_in, pids_in

if TYPE_CHECKING:
    from .network import Cluster

_TICK_S = 0.05
_LOOK_S = 0.25  # between looks for ranks that have started up
_LAST_WORDS_S = 3.0  # from SIGTERM to SIGKILL
_LAUNCHERS_OWN = ("RANK", "LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_", "COLLBENCH_")


@dataclass(frozen=True)
class Outcome:
    """How a job ended, one entry a process, which is a rank or, under torchrun, a host.

    names: `host1 rank1`. codes: exit codes, below 0 for a signal. timed_out: the whole job did not end in time.
    """

    names: tuple[str, ...]
    codes: tuple[int, ...]
    stdout: tuple[str, ...]
    stderr: tuple[str, ...]
    timed_out: bool
    took_s: float

    @property
    def exit_code(self) -> int:
        """0, 124 after a time-out as the command `timeout` has it, else the first code that is not 0."""
        failed = (abs(code) + 128 * (code < 0) for code in self.codes if code)
        return 124 if self.timed_out else next(failed, 0)

    def __str__(self) -> str:
        """All that was printed, for messages of tests."""
        took = f"{'timed out' if self.timed_out else 'ended'} after {self.took_s:.1f} s"
        said = [
            f"--- {name}: {code}\n{out}{err}"
            for name, code, out, err in zip(self.names, self.codes, self.stdout, self.stderr, strict=True)
        ]
        return "\n".join([took, *said])


class Job:
    """Started when made; a context, after which none of its processes is left. One at a time on a cluster.

    hosts: those that take part at all (default all; the others are expected by the job and never come).
    torchrun: start a torchrun on every host, with static rendezvous, instead of the ranks.
    realtime: real-time priority for the ranks once they have imported torch, so that other load on the machine stays
        out of the times. Keep such jobs short.
    environment: more variables. grace_s: for the other ranks to end by themselves after one has failed.
    """

    def __init__(
        self,
        cluster: Cluster,
        command: Sequence[str],
        *,
        ranks_per_host: int = 1,
        hosts: Iterable[int] | None = None,
        torchrun: bool = False,
        realtime: bool = False,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        grace_s: float = 15.0,
    ) -> None:
        self._namespaces = [cluster.namespace(host) for host in cluster.hosts]
        if any(pids_in(namespace) for namespace in self._namespaces):
            raise ClusterError(f"{cluster.name}: another job runs on it")
        taking_part = list(cluster.hosts if hosts is None else hosts)
        self._grace_s = grace_s
        self._to_hurry = len(taking_part) * ranks_per_host if realtime else 0
        self._urgent: set[int] = set()
        self._began = self._looked = time.monotonic()
        self._names: list[str] = []
        self._outputs: list[tuple[Path, Path]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        variables = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS_OWN)}
        variables |= {
            "MASTER_ADDR": cluster.address(0),
            "MASTER_PORT": str(random.randrange(20000, 30000)),  # free: below the ports that the kernel gives out
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            **(environment or {}),
        }
        try:
            for host in taking_part:
                for name, words, own in _nodes(cluster, host, list(command), ranks_per_host, torchrun, variables):
                    self._start(cluster, name, cluster.command_on(host, words), variables | own, cwd)
        except BaseException:
            self.kill()
            raise

    def _start(
        self, cluster: Cluster, name: str, command: list[str], variables: dict[str, str], cwd: Path | None
    ) -> None:
        stem = cluster.folder / f"{os.getpid()}-{name.replace(' ', '-')}"
        files = stem.with_suffix(".out"), stem.with_suffix(".err")
        with files[0].open("wb") as out, files[1].open("wb") as err:
            process = subprocess.Popen(
                command, env=variables, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True,  # Ctrl-C reaches this process alone, whose context ends the job
                preexec_fn=die_with(os.getpid()),
            )  # fmt: skip
        self._names.append(name)
        self._outputs.append(files)
        self._processes.append(process)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def poll(self) -> bool:
        """Whether all processes have ended. Gives ranks their priority on the way, so while a job starts up something
        must call this: `wait` and `until` do."""
        codes = [process.poll() for process in self._processes]
        ended = None not in codes
        if len(self._urgent) < self._to_hurry and not ended and time.monotonic() > self._looked + _LOOK_S:
            self._hurry()
            self._looked = time.monotonic()
        return ended

    def until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait for something to become true while the job runs. Raises ClusterError where it does not."""
        give_up = time.monotonic() + timeout_s
        while not condition():
            if self.poll():
                raise ClusterError(f"the job ended early: {self._outcome(timed_out=False)}")
            if time.monotonic() > give_up:
                raise ClusterError(f"waited {timeout_s:g} s in vain: {self._outcome(timed_out=True)}")
            time.sleep(_TICK_S)

    def wait(self, timeout_s: float) -> Outcome:
        """Until all processes have ended, or `timeout_s` after the start: then they are ended, those that hang too."""
        give_up, timed_out, failed = self._began + timeout_s, False, False
        while not self.poll():
            if not failed and any(process.returncode for process in self._processes):
                failed, give_up = True, min(give_up, time.monotonic() + self._grace_s)
            if time.monotonic() > give_up:
                timed_out = time.monotonic() > self._began + timeout_s
                self._ask_to_end()
                self.kill()
            time.sleep(_TICK_S)
        return self._outcome(timed_out)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to one process, by its name in Outcome."""
        self._processes[self._names.index(name)].send_signal(number)

    def kill(self) -> None:
        """Leave no process of the job, also none that its processes started."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        kill_in(self._namespaces)
        for process in self._processes:
            process.wait()

    def _ask_to_end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        give_up = time.monotonic() + _LAST_WORDS_S
        while not self.poll() and time.monotonic() < give_up:
            time.sleep(_TICK_S)

    def _outcome(self, timed_out: bool) -> Outcome:
        codes = tuple(-signal.SIGKILL if (code := each.returncode) is None else code for each in self._processes)
        stdout, stderr = (tuple(files[of].read_text(errors="replace") for files in self._outputs) for of in (0, 1))
        return Outcome(tuple(self._names), codes, stdout, stderr, timed_out, time.monotonic() - self._began)

    def _hurry(self) -> None:
        """Real-time priority for the threads of ranks that have a socket, so are past importing torch: at that priority
        it would starve the ranks that come later. Threads begun from then on inherit it."""
        for pid in (pid for namespace in self._namespaces for pid in pids_in(namespace)):
            with suppress(OSError):
                if pid in self._urgent or b"\0RANK=" not in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
                    continue
                if any(str(each.readlink()).startswith("socket:") for each in Path(f"/proc/{pid}/fd").iterdir()):
                    for thread in Path(f"/proc/{pid}/task").iterdir():
                        os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(1))
                    self._urgent.add(pid)


def _nodes(
    cluster: Cluster,
    host: int,
    command: list[str],
    ranks_per_host: int,
    torchrun: bool,
    variables: dict[str, str],
) -> Iterable[tuple[str, list[str], dict[str, str]]]:
    """(name, command, variables of its own) of every process to start on a host."""
    hosts = cluster.shape.hosts
    if torchrun:
        words = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(hosts), "--node-rank", str(host)),
            *("--nproc-per-node", str(ranks_per_host), "--max-restarts", "0", "--local-addr", cluster.address(host)),
            *("--master-addr", variables["MASTER_ADDR"], "--master-port", variables["MASTER_PORT"]),
            *("--no-python", *command),
        ]
        yield f"host{host} torchrun", words, {}
        return
    for local in range(ranks_per_host):
        rank = host * ranks_per_host + local
        own = {
            "RANK": rank,
            "WORLD_SIZE": hosts * ranks_per_host,
            "LOCAL_RANK": local,
            "LOCAL_WORLD_SIZE": ranks_per_host,
            "GROUP_RANK": host,
        }
        yield f"host{host} rank{rank}", command, {name: str(value) for name, value in own.items()}
