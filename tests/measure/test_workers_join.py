"""Ranks that a launcher started and that do not all meet: real processes, each with a launcher's variables by hand."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, clean_environment

from collbench.results import load_results

pytestmark = pytest.mark.workers

FAULTS = str(ROOT / "tests" / "faults_join")
CELL = ["--collective", "all_reduce", "-b", "64", "-e", "64", "-n", "2", "-w", "1", "--timing", "pipelined"]


@pytest.fixture
def start(tmp_path):
    """Start ranks; returns their (exit codes, stderr of all together). None of them outlives the test."""
    running = []

    def ranks(which, world_size, *arguments, command=(sys.executable,), of_rank=None, **extra):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        extra = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size), **extra}
        extra["PYTHONPATH"] = os.pathsep.join([str(ROOT), FAULTS])
        words = [*command, "-m", "collbench", "run", *CELL, "-o", str(tmp_path / "r.jsonl"), *arguments]
        started = [
            subprocess.Popen(
                [*words, *(of_rank or {}).get(rank, [])],
                env=clean_environment(**extra) | {"RANK": str(rank)}, cwd=ROOT,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
            for rank in which
        ]  # fmt: skip
        running.extend(started)
        stderr = [process.communicate(timeout=90)[1] for process in started]
        return [process.returncode for process in started], "".join(stderr)

    yield ranks
    for process in running:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_a_rank_that_never_starts_is_named_by_those_who_wait(start, tmp_path):
    codes, stderr = start([0, 1], 3, "--join-timeout", "5")
    assert codes == [3, 3]
    [line] = [line for line in stderr.splitlines() if "did not arrive" in line]
    assert line.startswith("collbench: rank 2 did not arrive at 127.0.0.1:") and "within 5 s (--join-timeout)" in line
    assert f"arrived: ranks 0-1 on {socket.gethostname()}" in line and "Traceback" not in stderr
    assert not (tmp_path / "r.jsonl").exists()


def test_without_rank_0_the_others_say_where_they_looked(start):
    codes, stderr = start([1], 2, "--join-timeout", "1")
    assert codes == [3]
    assert "rank 1 (host" in stderr and "(connection refused) within 1 s" in stderr
    assert "rank 0 should listen there" in stderr


def test_a_rank_with_another_version_is_refused_on_all(start):
    codes, stderr = start([0, 1], 2, COLLBENCH_TEST_VERSION="1=0.0.1")
    assert codes == [3, 3]
    [line] = [line for line in stderr.splitlines() if line.startswith("collbench: ")]
    assert line.startswith(f"collbench: rank 1 (host {socket.gethostname()}) has collbench 0.0.1, rank 0 (host")
    assert "install one version on all hosts" in line


def test_a_rank_without_a_device_ends_all_as_bad_input(start):
    codes, stderr = start([0, 1], 3, COLLBENCH_TEST_REFUSES="1")  # and rank 2 is not waited for
    assert codes == [2, 2]
    assert "rank 1 has no GPU of its own" in stderr


@pytest.mark.parametrize("dying", [0, 1])
def test_a_rank_that_dies_while_they_connect_is_named_in_time(start, dying):
    codes, stderr = start([0, 1], 2, "--join-timeout", "8", COLLBENCH_TEST_DIES=str(dying))
    assert sorted(codes) == [-signal.SIGKILL, 3]
    assert f"while the ranks connected: rank {dying} (host {socket.gethostname()})" in stderr


def test_a_host_name_of_the_loopback_does_not_stop_a_run_on_this_machine(start, tmp_path):
    """In a mount namespace whose /etc/hosts has 127.0.1.1 for this host, as Debian's has."""
    host = socket.gethostname()
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 {host}\n")
    bind = f"mount --bind '{hosts}' /etc/hosts && exec \"$@\""
    within = ("unshare", "--mount", "sh", "-c", bind, "sh", sys.executable)
    if not shutil.which("unshare"):
        pytest.skip("no unshare here")
    ask = [*within, "-c", f"import socket; print(socket.gethostbyname({host!r}))"]
    answer = subprocess.run(ask, capture_output=True, text=True, check=False)
    if answer.stdout.strip() != "127.0.1.1":
        pytest.skip(f"no mount namespace of its own here: {answer.stderr.strip() or answer.stdout.strip()}")
    codes, stderr = start([0, 1], 2, command=within, MASTER_ADDR=host)
    assert codes == [0, 0], stderr
    assert load_results(tmp_path / "r.jsonl").measurements
    facts = "import collbench.measure.environment as e; print(e.host_facts()['gloo']['problem'])"
    told = subprocess.run(
        [*within, "-c", facts], env=clean_environment(), cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == f"host name {host} resolves to 127.0.1.1: other nodes cannot reach it"
    assert Path("/etc/hosts").read_text() != hosts.read_text()  # this machine's own is as it was


def test_ranks_that_were_started_with_different_sweeps_are_refused_together(start):
    codes, stderr = start([0, 1], 2, of_rank={1: ["--redop", "max"]})
    assert codes == [2, 2]
    [line] = stderr.splitlines()
    host = socket.gethostname()
    assert line == (
        f"collbench: redop is ['sum'] on rank 0 and ['max'] on rank 1 (host {host}): "
        "start every node with the same sweep and flags"
    )
