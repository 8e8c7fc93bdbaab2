"""Runs that tests kill, stop and starve: real launchers, torchruns and ranks, found by a mark in their environment."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path

from collbench.results import CELL_FIELDS

ROOT = Path(__file__).parents[2]
FAULTS = str(ROOT / "tests" / "faults")
# Eight cells; with `slow` they take about 0.4 s each.
SWEEP = ["--collective", "all_reduce", "--group", "world", "-b", "8", "-e", "64", "-f", "8", "-n", "8", "-w", "1"]
CELLS = 8

_LAUNCHER = [sys.executable, "-m", "collbench"]
_TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2"),
    *("--local-addr", "127.0.0.1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "-m", "collbench"),
]
_PATIENCE_S = 60  # for what must happen, on a machine however busy
_MARK = "COLLBENCH_TEST_MARK"


class Run:
    """A `collbench run` on its way; a context, after which no process of it is left in any case."""

    def __init__(self, folder, *extra, sweep=SWEEP, faults="slow", torchrun=False):
        self.path = folder / "r.jsonl"
        self.temporary = Path(tempfile.mkdtemp(prefix="tmp-", dir=folder))
        self._by_torchrun = torchrun
        self._mark = uuid.uuid4().hex
        environment = _environment(TMPDIR=str(self.temporary), COLLBENCH_TEST_FAULTS=faults, **{_MARK: self._mark})
        self.process = subprocess.Popen(
            [*(_TORCHRUN if torchrun else _LAUNCHER), "run", *sweep, *extra, "-o", str(self.path)],
            env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.processes().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def processes(self):
        """{"launcher", "torchrun", "rank 0", ...: process id} of those that live."""
        found = {}
        for each in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                environment = dict(line.split(b"=", 1) for line in (each / "environ").read_bytes().split(b"\0") if line)
                if environment.get(_MARK.encode()) == self._mark.encode():
                    found[self._name(each, environment)] = int(each.name)
        return found

    def _name(self, process, environment):
        parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
        if b"RANK" in environment and b"collbench" in (process / "cmdline").read_bytes():
            return f"rank {environment[b'RANK'].decode()}"
        if int(process.name) == self.process.pid:
            return "torchrun" if self._by_torchrun else "launcher"
        # A rank that is just being forked looks like torchrun, but for its parent.
        return "torchrun" if parent == self.process.pid and not self._by_torchrun else process.name

    def until(self, condition):
        """Wait for `condition()`, while the run goes on."""
        give_up = time.monotonic() + _PATIENCE_S
        while not (found := condition()):
            assert time.monotonic() < give_up, "waited in vain"
            assert self.process.poll() is None, f"ended early: {self.process.stderr.read()}"
            time.sleep(0.01)
        return found

    def until_measured(self, cells=2):
        self.until(lambda: self.path.exists() and len(measurements(self.path)) >= cells)
        return self

    def until_started(self, name):
        self.until(lambda: name in self.processes())
        return self

    def until_a_rank_is_ready(self):
        self.until(lambda: list(self.temporary.glob("collbench-*/*.ready")))
        return self

    def send(self, sent, name):
        os.kill(self.processes()[name], sent)

    def end(self):
        """stderr of the ended run. Fails where it does not end, or leaves a process or a folder of its own behind."""
        started = time.monotonic()
        stderr = self.process.communicate(timeout=_PATIENCE_S)[1]
        give_up = time.monotonic() + 8
        while left := [*self.processes(), *self.temporary.glob("collbench-*")]:
            assert time.monotonic() < give_up, f"left behind: {left}"
            time.sleep(0.02)
        assert "Traceback" not in stderr or self._by_torchrun, stderr
        self.took_s = time.monotonic() - started
        return stderr


def run(folder, *extra, sweep=SWEEP, path=None):
    """A `collbench run` from beginning to end, without faults."""
    command = [*_LAUNCHER, "run", *sweep, *extra, "-o", str(path or folder / "r.jsonl")]
    environment = _environment()
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
    )


def finishes(run_, *extra, cells=CELLS, sweep=SWEEP):
    """The same command finishes what `run_` left, and leaves alone what that measured."""
    before = measurements(run_.path)
    finished = run(None, *extra, sweep=sweep, path=run_.path)
    assert finished.returncode == 0, finished.stderr
    after = measurements(run_.path)
    assert after[: len(before)] == before
    assert len(after) == cells == len({json.dumps([record.get(name) for name in CELL_FIELDS]) for record in after})


def records(path):
    """Of all whole lines of a results file."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def measurements(path):
    return [record for record in records(path) if record["kind"] == "measurement"]


@contextmanager
def small_disk(folder, size="1m"):
    """(a file system of its own, a function that runs a shell command where it can be mounted anew); (None, None) where
    this user may not mount one, also not in a name space of its own."""
    for unshare in (["unshare", "-m"], ["unshare", "-Urm"]) if shutil.which("unshare") else ():
        shell = subprocess.Popen([*unshare, "sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        def tell(command, shell=shell):
            with suppress(BrokenPipeError):
                shell.stdin.write(f'{command} 2>&1; echo "= $?"\n')
                shell.stdin.flush()
            lines = iter(shell.stdout.readline, "")
            return next((line == "= 0\n" for line in lines if line.startswith("= ")), False)

        try:
            if tell(f"mount -t tmpfs -o size={size} tmpfs {folder}"):
                yield Path(f"/proc/{shell.pid}/root{folder}"), tell
                return
        finally:
            shell.communicate()
    yield None, None


def fill(folder):
    """Leave no block free on a file system."""
    with suppress(OSError), (folder / "filling").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def _environment(**extra):
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "COLLBENCH_VERDICT_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in launcher}
    path = os.pathsep.join([str(ROOT), FAULTS])
    return environment | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **extra}
