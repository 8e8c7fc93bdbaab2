"""Groups and cells of a large job, on one rank of it; and groups of layouts in which ranks are in unequally many.

The large job is torch's fake process group, in a process of its own. Run as a script, this file is that process.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from conftest import ROOT, clean_environment

from collbench.topology import Layout, form_kinds, rounds

KINDS = ("world", "intra", "inter", "mesh:512x8")
LARGE = Layout.regular(nnodes=512, ranks_per_node=8)


def in_a_process(*arguments):
    """What this file prints, run as a script: one JSON document a line."""
    command = [sys.executable, __file__, *map(str, arguments)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = clean_environment(GLOO_SOCKET_IFNAME="lo", PYTHONPATH=path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def count_new_groups(dist):
    """From now on, the ranks of every group that torch is asked for."""
    asked, new_group = [], dist.new_group

    def counting(ranks=None, *args, **kwargs):
        asked.append(list(range(dist.get_world_size())) if ranks is None else list(ranks))
        return new_group(ranks, *args, **kwargs)

    dist.new_group = counting
    return asked


# --- 4096 ranks ----------------------------------------------------------------------------------------------------


def memory_bytes(line):
    """Of this process: VmRSS, what it has now, or VmHWM, the most it ever had."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{line}:")[1].split()[0]) * 1024


class SilentDevice:
    """A device whose backend says it has done what it has not."""

    backend, torch_device = "fake", "cpu"

    def synchronize(self):
        pass


def build(rank):
    """Build all groups and cells of the large job on one rank; what it took."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from collbench.collectives import COLLECTIVES
    from collbench.measure.groups import form_kind
    from collbench.sweep import Sweep, in_order, plan_cells

    asked = count_new_groups(dist)
    before_bytes = memory_bytes("VmRSS")
    begun = time.process_time()  # nothing waits here, so this is the time of a machine that is not busy
    dist.init_process_group("fake", rank=rank, world_size=LARGE.world_size, store=FakeStore())
    groups, unformed = form_kinds(KINDS, LARGE)
    formed = {kind: form_kind(rank, of_kind, SilentDevice(), 60.0) for kind, of_kind in groups.items()}
    sweep = Sweep(collective=tuple(COLLECTIVES), maxbytes=2**30)
    cells = in_order(sweep, plan_cells(sweep, groups))
    took_s = time.process_time() - begun
    grown_bytes = memory_bytes("VmHWM") - before_bytes
    mine = {kind: [group.ranks for group in each.groups if group is not None] for kind, each in formed.items()}
    found = {"asked": asked, "mine": mine, "unformed": unformed, "cells": len(cells)}
    print(json.dumps({**found, "took_s": took_s, "grown_bytes": grown_bytes}))


@pytest.fixture(scope="module", params=[0, 2047, 4095])
def built(request):
    return request.param, in_a_process("build", request.param)[0]


class TestOf4096Ranks:
    def test_groups_and_cells_take_under_2_s_and_200_MB(self, built):
        _, found = built
        assert found["took_s"] < 2
        assert found["grown_bytes"] < 200e6
        assert found["cells"] > 4000

    def test_a_rank_creates_only_the_groups_it_is_in(self, built):
        rank, found = built
        assert found["unformed"] == {}
        node, local = divmod(rank, 8)
        on_node, with_local = list(range(8 * node, 8 * node + 8)), list(range(local, 4096, 8))
        assert found["mine"] == {
            "world": [list(range(4096))],
            "intra": [on_node],
            "inter": [with_local],
            "mesh:512x8:shard": [on_node],
            "mesh:512x8:replicate": [with_local],
        }
        assert found["asked"] == [ranks for of_kind in found["mine"].values() for ranks in of_kind]


# --- real groups ---------------------------------------------------------------------------------------------------


def be_a_rank(rank, layout, kinds, store):
    """Form every group of the job and reduce once in each."""
    import torch
    import torch.distributed as dist

    from collbench.measure.device import open_device
    from collbench.measure.groups import form_kind

    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, layout.world_size),
        rank=rank,
        world_size=layout.world_size,
        timeout=timedelta(seconds=20),
    )
    device = open_device("gloo", local_rank=layout.local_rank_of[rank], local_world_size=layout.world_size)
    asked = count_new_groups(dist)
    groups, _ = form_kinds(kinds, layout)
    for kind, of_kind in groups.items():
        time.sleep(0.02 * (rank % 3))  # ranks come to the groups at different times
        formed = form_kind(rank, of_kind, device, 20.0)
        for together in rounds(of_kind):
            group = formed.mine(together)
            if group is not None:
                total = torch.tensor([rank])
                dist.all_reduce(total, group=group.handle)
                assert total.item() == sum(group.ranks), (kind, group.ranks, total)
    of_kinds = {kind: sum(rank in ranks for ranks in of_kind) for kind, of_kind in groups.items()}
    answer = json.dumps({"rank": rank, "asked": asked, "in_groups": of_kinds})
    os.write(sys.stdout.fileno(), f"{answer}\n".encode())  # at once, so that no other rank's comes in between
    os._exit(0)  # without waiting for the other ranks


def be_all_ranks(node_of, local_rank_of, kinds, store):
    layout = Layout(tuple(node_of), tuple(local_rank_of))
    import torch.distributed  # noqa: F401  once, for all ranks

    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=be_a_rank, args=(rank, layout, kinds, store)) for rank in range(layout.world_size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return max(abs(process.exitcode) for process in ranks)


ALL_KINDS = ("world", "intra", "inter", "pairs", "pairs:rank")


@pytest.mark.workers
@pytest.mark.parametrize(
    ("node_of", "kinds"),
    [
        ((0, 0, 1, 1, 2, 2, 3, 3), (*ALL_KINDS, "mesh:4x2")),
        ((0, 0, 0), ("world", "pairs:rank")),  # of an odd number, one rank is in no pair of a round
        ((0, 0, 1, 1, 2, 2), ALL_KINDS),
        ((0, 0, 0, 0, 1, 1, 2), ALL_KINDS),  # nodes of 4, 2 and 1 ranks
    ],
    ids=["4 nodes of 2", "1 node of 3", "3 nodes of 2", "uneven nodes"],
)
def test_all_groups_form_and_a_rank_creates_none_that_it_is_not_in(node_of, kinds, tmp_path):
    local_rank_of = [node_of[:rank].count(node) for rank, node in enumerate(node_of)]
    job = {"node_of": node_of, "local_rank_of": local_rank_of, "kinds": kinds, "store": str(tmp_path / "store")}
    answers = in_a_process("job", json.dumps(job))
    assert sorted(answer["rank"] for answer in answers) == list(range(len(node_of)))
    for answer in answers:
        assert all(answer["rank"] in ranks for ranks in answer["asked"])
        shared = [ranks for ranks in answer["asked"] if len(ranks) > 1]
        assert len(shared) == sum(answer["in_groups"].values())


if __name__ == "__main__":
    what, argument = sys.argv[1:]
    sys.exit(build(int(argument)) if what == "build" else be_all_ranks(**json.loads(argument)))
