"""Faults of a network, with collbench at work on it: a pulled cable, a rate that falls, a host that never comes."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace

import pytest
from conftest import ROOT

from cluster import Cluster, missing
from collbench.results import CELL_FIELDS, load_results

pytestmark = [
    pytest.mark.workers,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]
RUN = [sys.executable, "-m", "collbench", "run", "--group", "world", "--collective"]
HOW = {"environment": {"PYTHONPATH": str(ROOT)}, "timeout_s": 150}
TIMEOUT_S = 5  # of a cell
CONTROL_S = 10  # what passes between ranks around a cell has as long as this at least
STORE_S = 2  # for the others to say that they live
MORE_S = 8  # that a busy machine may take to find all this out; a kernel waits for minutes


def measurements(path):
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [record for record in map(json.loads, lines) if record["kind"] == "measurement"]


# --- a cable is pulled -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """A sweep on three hosts in whose midst the second one's cable is pulled; then the same command with it put back.
    In a gather to the first the third host has soon done its part, and waits for the others elsewhere than they.

    before, after: the measurements in the file.  text: the file between the two runs.
    """
    path = tmp_path_factory.mktemp("cut") / "r.jsonl"
    sweep = ["-b", "256K", "-e", "2M", "-n", "10", "-w", "1", "--timing", "isolated", "-T", str(TIMEOUT_S)]
    command = [*RUN, "gather", *sweep, "-o", str(path)]
    with Cluster(3, 500) as cluster:
        with cluster.start(command, environment=HOW["environment"], grace_s=40) as job:
            job.until(lambda: len(measurements(path)) >= 3, timeout_s=100)  # what Python needs to start is in it
            cluster.set_link(1, up=False)
            pulled = time.monotonic()
            failed = job.wait(HOW["timeout_s"])
        took_s, text, before = time.monotonic() - pulled, path.read_text(), measurements(path)
        cluster.set_link(1, up=True)
        again = cluster.run(command, **HOW)
    return SimpleNamespace(
        failed=failed, took_s=took_s, text=text, before=before, again=again, after=measurements(path), path=path
    )


def test_a_pulled_cable_ends_the_job_and_its_host_is_named(cut):
    assert cut.failed.codes == (3, 3, 3), cut.failed
    last = cut.failed.stderr[0].splitlines()[-1]
    assert last.startswith("collbench: rank 1 (host host1) died or hangs: "), cut.failed
    assert "timed out" in last.lower()  # gloo's word or collbench's own, whichever waited
    assert "Traceback" not in "".join(cut.failed.stderr)


def test_a_pulled_cable_leaves_the_file_whole_and_the_verdict_in_it(cut):
    assert cut.text.endswith("\n")
    records = [json.loads(line) for line in cut.text.splitlines()]
    assert records[-1]["kind"] == "end" and records[-1]["exit_code"] == 3
    assert "host1" in records[-1]["reason"] and records[-1]["measurements"] == len(cut.before) >= 3


def test_the_host_that_is_cut_off_gives_up_in_time_too(cut):
    assert cut.took_s < CONTROL_S + STORE_S + MORE_S, cut.failed


def test_the_same_command_finishes_what_a_pulled_cable_left(cut):
    assert cut.again.codes == (0, 0, 0), cut.again
    assert cut.after[: len(cut.before)] == cut.before
    assert len(cut.after) == 8 == len({json.dumps([record.get(name) for name in CELL_FIELDS]) for record in cut.after})
    assert len(load_results(cut.path).measurements) == 8


# --- a rate falls ----------------------------------------------------------------------------------------------------


def test_a_cell_in_whose_midst_the_rate_is_halved_is_unstable_and_the_others_are_not(tmp_path):
    """Half-way through the second of four cells of 40 samples."""
    path, samples, sample_s = tmp_path / "r.jsonl", 40, 0.021  # of 1 MiB at 400 Mbit/s
    sweep = ["-b", "1M", "-e", "1M", "-n", str(samples), "-w", "1", "--timing", "isolated", "-N", "2"]
    with (
        Cluster(2, 400) as cluster,
        cluster.start(
            [*RUN, "all_reduce", *sweep, "-o", str(path)], environment=HOW["environment"], realtime=True
        ) as job,
    ):
        job.until(lambda: len(measurements(path)) == 1, timeout_s=100)
        time.sleep(samples / 2 * sample_s)
        cluster.set_rate(1, 200)
        outcome = job.wait(HOW["timeout_s"])
    assert outcome.exit_code == 0, outcome
    first, second, *others = measurements(path)
    assert second["time_p95_us"] > 1.8 * second["time_p5_us"]
    assert [record["time_us"] / first["time_us"] for record in others] == pytest.approx([2, 2], rel=0.1)
    assert [record.get("unstable") for record in (first, second, *others)] == [False, True, False, False]
    assert "1 of 4 measurements unstable" in outcome.stdout[0]


# --- a host never comes ----------------------------------------------------------------------------------------------


def test_a_host_that_never_joins_is_named_when_the_time_to_join_is_over(tmp_path):
    join_s = 5
    command = [*RUN, "all_reduce", "--join-timeout", str(join_s), "-o", str(tmp_path / "r.jsonl")]
    with Cluster(3, 500) as cluster:
        # What Python needs to start, which is seconds, and in a fresh environment many.
        start_s = cluster.run([sys.executable, "-c", "import collbench.measure.worker"], hosts=[0, 2], **HOW).took_s
        outcome = cluster.run(command, hosts=[0, 2], **HOW)
    assert outcome.codes == (3, 3), outcome
    assert join_s <= outcome.took_s < join_s + 2 * start_s + MORE_S, outcome
    [line] = "".join(outcome.stderr).splitlines()  # of one rank, for all
    assert line.startswith(f"collbench: rank 1 did not arrive at {cluster.address(0)}:"), outcome
    assert f"within {join_s} s (--join-timeout)" in line and "rank 0 on host0, rank 2 on host2" in line
    assert not (tmp_path / "r.jsonl").exists()
