"""Faults that a run survives: real processes, killed, stopped, interrupted and without room to write.

After each, no process and no temporary folder of the run is left, and the file reads. Most of their time these tests
wait for processes to start or for a timeout to pass, so they wait together: see `at_once`.
"""

from __future__ import annotations

import resource
import signal
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from fault_runs import CELLS, SWEEP, Run, fill, finishes, measurements, records, run, small_disk

from collbench.measure.process import GRACE_S
from collbench.results import load_results

pytestmark = pytest.mark.workers

AT_A_TIME = 3
SCENARIOS = {}


def at_once(scenario):
    """A test whose body, given a folder, runs in a thread beside the others'. It returns the results file, if any."""
    SCENARIOS[scenario.__name__] = scenario

    def test(outcomes):
        path = outcomes[scenario.__name__].result()
        if path is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # a last line may be torn
                load_results(path)

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    chosen = [item.name for item in request.session.items if item.module is request.module]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield {
            name: pool.submit(SCENARIOS[name], tmp_path_factory.mktemp(name[:40]))
            for name in chosen
            if name in SCENARIOS
        }
        pool.shutdown(cancel_futures=True)


# --- killed ----------------------------------------------------------------------------------------------------------


@at_once
def test_a_killed_rank_is_named_and_the_same_command_finishes_the_rest(folder):
    with Run(folder, "--nproc", "3") as killed:
        killed.until_measured().send(signal.SIGKILL, "rank 2")
        stderr = killed.end()
    assert killed.process.returncode == 3 and "rank 2 was killed by SIGKILL" in stderr
    last = records(killed.path)[-1]
    assert last["kind"] == "end" and last["exit_code"] == 3 and last["reason"].startswith("rank 2 (host")
    finishes(killed, "--nproc", "3")
    return killed.path


@at_once
def test_a_killed_rank_0_is_named(folder):
    with Run(folder) as killed:
        killed.until_measured().send(signal.SIGKILL, "rank 0")
        stderr = killed.end()
    assert killed.process.returncode == 3 and "rank 0 was killed by SIGKILL" in stderr
    return killed.path


@at_once
def test_a_torchrun_killed_over_a_rank_that_hangs_leaves_nothing_behind(folder):
    with Run(folder) as killed:
        killed.until_measured().send(signal.SIGSTOP, "rank 1")
        killed.send(signal.SIGKILL, "torchrun")
        stderr = killed.end()
    assert killed.process.returncode == 3 and "torchrun was killed by SIGKILL" in stderr
    assert records(killed.path)[-1]["exit_code"] == 3
    return killed.path


@at_once
def test_a_killed_launcher_leaves_nothing_behind_but_what_was_measured(folder):
    with Run(folder) as killed:
        killed.until_measured().send(signal.SIGKILL, "launcher")
        killed.end()
    last = records(killed.path)[-1]
    assert last["exit_code"] == 3 and last["reason"] == "ended by its launcher"
    return killed.path


@at_once
def test_a_launcher_killed_over_a_rank_that_hangs_leaves_nothing_behind(folder):
    with Run(folder) as killed:
        killed.until_measured().send(signal.SIGSTOP, "rank 0")
        killed.send(signal.SIGKILL, "launcher")
        killed.end()
    return killed.path


# --- stopped ---------------------------------------------------------------------------------------------------------


@at_once
def test_a_rank_that_stops_for_3_s_is_flagged_and_the_run_ends_well(folder):
    sweep = [*SWEEP[:4], "-b", "64", "-e", "64", "-n", "40", "-w", "1", "-c", "0", "--timeout", "60"]
    with Run(folder, sweep=sweep) as stopped:
        stopped.until_measured(1)
        time.sleep(0.5)  # into the timed part of the next cell
        stopped.send(signal.SIGSTOP, "rank 1")
        time.sleep(3)
        stopped.send(signal.SIGCONT, "rank 1")
        stderr = stopped.end()
    assert stopped.process.returncode == 0, stderr
    found = measurements(stopped.path)
    assert any(record["late"] and 1 in record["late_ranks"] for record in found)
    assert all(record["time_rank_max_us"] < 1e6 for record in found)  # and the 3 s are in no figure
    return stopped.path


@at_once
def test_a_rank_that_stops_for_ever_is_named_and_the_same_command_finishes_the_rest(folder):
    with Run(folder, "--timeout", "2") as stopped:
        stopped.until_measured().send(signal.SIGSTOP, "rank 1")
        stderr = stopped.end()
    assert stopped.process.returncode == 3 and "collbench: rank 1 (host" in stderr, stderr
    last = records(stopped.path)[-1]
    assert last["exit_code"] == 3 and last["reason"].startswith("rank 1 (host")
    finishes(stopped, "--timeout", "2")
    return stopped.path


@at_once
def test_a_rank_0_that_stops_for_ever_is_named_though_it_cannot_write_it_down(folder):
    with Run(folder, "--timeout", "2") as stopped:
        stopped.until_measured().send(signal.SIGSTOP, "rank 0")
        stderr = stopped.end()
    assert stopped.process.returncode == 3 and "collbench: rank 0 (host" in stderr, stderr
    return stopped.path


# --- interrupted -----------------------------------------------------------------------------------------------------


@at_once
def test_ctrl_c_ends_all_ranks_soon_and_keeps_the_results(folder):
    with Run(folder) as run:
        run.until_measured().send(signal.SIGINT, "launcher")
        stderr = run.end()
    assert run.process.returncode == 130 and "interrupted; what was measured is in" in stderr, stderr
    assert records(run.path)[-1]["exit_code"] == 130
    assert run.took_s < 5
    return run.path


@at_once
def test_ctrl_c_twice_does_not_wait_for_what_hangs(folder):
    with Run(folder) as run:
        run.until_measured().send(signal.SIGSTOP, "rank 0")
        run.send(signal.SIGINT, "launcher")
        time.sleep(0.3)
        run.send(signal.SIGINT, "launcher")
        stderr = run.end()
    assert run.process.returncode == 130 and "interrupted; what was measured is in" in stderr, stderr
    assert run.took_s < GRACE_S + 0.5  # the first one alone takes a second more
    return run.path


# --- before there is anything to keep --------------------------------------------------------------------------------


@at_once
def test_while_torchrun_starts_every_signal_ends_it(folder):
    for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with Run(folder, faults="") as run:
            run.until_started("torchrun").send(sent, "launcher")
            stderr = run.end()
        assert run.process.returncode == 130 and stderr.splitlines()[1:] == ["collbench: interrupted"]


@at_once
def test_ctrl_c_while_the_ranks_import_torch(folder):
    with Run(folder, faults="") as run:
        run.until_started("rank 1").send(signal.SIGINT, "launcher")
        stderr = run.end()
    assert run.process.returncode == 130 and stderr.splitlines()[1:] == ["collbench: interrupted"]


@at_once
def test_ctrl_c_while_a_rank_waits_for_another(folder):
    with Run(folder, faults="absent") as run:
        run.until_a_rank_is_ready().send(signal.SIGINT, "launcher")
        stderr = run.end()
    assert run.process.returncode == 130 and stderr.splitlines()[1:] == ["collbench: interrupted"]


@at_once
def test_a_rank_killed_while_another_waits_for_it(folder):
    with Run(folder, faults="absent") as run:
        run.until_a_rank_is_ready().send(signal.SIGKILL, "rank 1")
        stderr = run.end()
    assert run.process.returncode == 3 and stderr.splitlines()[1:] == ["collbench: rank 1 was killed by SIGKILL"]


@at_once
def test_a_launcher_killed_while_torchrun_starts(folder):
    with Run(folder, faults="") as run:
        run.until_started("torchrun").send(signal.SIGKILL, "launcher")
        run.end()


@at_once
def test_a_torchrun_killed_while_its_ranks_import_torch(folder):
    with Run(folder, faults="") as run:
        run.until_started("rank 0").send(signal.SIGKILL, "torchrun")
        stderr = run.end()
    assert run.process.returncode == 3
    assert stderr.splitlines()[1:] == ["collbench: torchrun was killed by SIGKILL"]


# --- under the user's own torchrun -----------------------------------------------------------------------------------


@at_once
def test_under_torchrun_a_killed_rank_is_the_last_record_and_rank_0s_line(folder):
    with Run(folder, torchrun=True) as killed:
        killed.until_measured().send(signal.SIGKILL, "rank 1")
        stderr = killed.end()
    assert killed.process.returncode != 0
    last = records(killed.path)[-1]
    assert last["kind"] == "end" and last["exit_code"] == 3 and last["reason"].startswith("rank 1 (host")
    assert [line for line in stderr.splitlines() if line.startswith("collbench: ")] == [f"collbench: {last['reason']}"]
    return killed.path


@at_once
def test_under_torchrun_a_killed_rank_0_is_another_ranks_line(folder):
    with Run(folder, torchrun=True) as killed:
        killed.until_measured().send(signal.SIGKILL, "rank 0")
        stderr = killed.end()
    assert killed.process.returncode != 0 and "collbench: rank 0 (host" in stderr, stderr
    return killed.path


@at_once
def test_a_killed_torchrun_of_the_users_leaves_no_rank_behind(folder):
    with Run(folder, torchrun=True) as killed:
        killed.until_measured().send(signal.SIGKILL, "torchrun")
        killed.end()
    last = records(killed.path)[-1]
    assert last["exit_code"] == 3 and last["reason"] == "ended by its launcher"
    return killed.path


# --- the file --------------------------------------------------------------------------------------------------------


@at_once
def test_a_full_disk_ends_the_run_and_with_room_the_same_command_finishes_the_rest(folder):
    sweep = [*SWEEP[:4], "-b", "8", "-e", "4K", "-f", "8", "-n", "4", "-w", "1"]
    with small_disk(folder) as (disk, _):
        disk = disk or folder
        # All on one disk: the ranks must still be able to say what became of them.
        with Run(disk, sweep=sweep) as full:
            full.until_measured()
            if disk is not folder:
                fill(disk)
            else:  # the next best: this process may write no longer files
                room = max(full.path.stat().st_size + 300, 5000)
                resource.prlimit(full.processes()["rank 0"], resource.RLIMIT_FSIZE, (room, room))
            stderr = full.end()
        assert full.process.returncode == 3, stderr
        assert "cannot write (" in stderr and "make room" in stderr
        assert 2 <= len(measurements(full.path)) < 16
        (disk / "filling").unlink(missing_ok=True)
        finishes(full, sweep=sweep, cells=16)


@at_once
def test_a_read_only_disk_is_refused_before_ranks_start(folder):
    with small_disk(folder) as (disk, shell):
        if disk is None:
            pytest.skip("needs to mount a file system: root, or user name spaces")
        (disk / "r.jsonl").write_text("")
        assert shell(f"mount -o remount,ro {folder}")
        for name in ("r.jsonl", "new.jsonl", "new/r.jsonl"):
            refused = run(folder, path=disk / name)
            assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1
            assert "cannot be written (Read-only file system): name another file with -o" in refused.stderr


@at_once
def test_one_file_takes_one_run_at_a_time_and_another_sweep_only_if_told_to(folder):
    with Run(folder) as one, Run(folder) as other:  # both find the file free before either has ranks
        runs = [one, other]
        one.until(lambda: any(each.process.poll() is not None for each in runs))
        refused, first = sorted(runs, key=lambda each: each.process.poll() is None)
        assert "another run is writing this file" in refused.end() and refused.process.returncode == 2
        third = run(folder)  # refused before ranks start
        assert third.returncode == 2 and len(third.stderr.splitlines()) == 1
        assert "another run is writing this file" in third.stderr
        stderr = first.end()
    assert first.process.returncode == 0, stderr
    before = first.path.read_bytes()
    assert len(measurements(first.path)) == CELLS

    other_sweep = run(folder, "-n", "9")
    assert other_sweep.returncode == 2 and "iters" in other_sweep.stderr and "--append" in other_sweep.stderr
    other_size = run(folder, "--nproc", "3")
    assert other_size.returncode == 2 and "world size 2, now 3" in other_size.stderr and "--append" in other_size.stderr
    elsewhere = folder / "nccl.jsonl"
    elsewhere.write_bytes(before.replace(b'"backend":"gloo"', b'"backend":"nccl"'))
    other_backend = run(folder, path=elsewhere)
    assert other_backend.returncode == 2 and "backend nccl, now gloo" in other_backend.stderr
    assert "--append" in other_backend.stderr
    assert first.path.read_bytes() == before

    appended = run(folder, "--nproc", "1", "--append")
    assert appended.returncode == 0, appended.stderr
    assert first.path.read_bytes().startswith(before) and len(measurements(first.path)) == 2 * CELLS
    return first.path
