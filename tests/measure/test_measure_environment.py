from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from collbench.measure import environment
from collbench.measure.environment import (
    allowed_environment,
    host_facts,
    problems,
    rdma_devices,
    torch_facts,
    usable_cpus,
)

KEPT = {
    "NCCL_DEBUG": "INFO",
    "NCCL_SOCKET_IFNAME": "eth0",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "FI_PROVIDER": "efa",
    "UCX_TLS": "rc",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "OMP_NUM_THREADS": "1",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_TOPOLOGY_ADDR": "s0.n1",
}
LEFT_OUT = {
    "MY_TOKEN": "secret-1",
    "AWS_SECRET_ACCESS_KEY": "secret-2",
    "NCCL_SOME_TOKEN": "secret-3",
    "NCCL_HOME_PASSWORD": "secret-4",
    "UCX_Auth_Cookie": "secret-5",
    "FI_API_KEY": "secret-6",
    "GLOO_CREDENTIALS": "secret-7",
    "MY_NCCL_DEBUG": "secret-8",
    "NCCLX": "secret-9",
    "NCCL_": "secret-10",
    "XCUDA_VISIBLE_DEVICES": "secret-11",
    "SLURM_JOB_USER": "secret-12",
    "SLURM_JWT": "secret-13",
    "HOME": "secret-14",
    "PATH": "secret-15",
    "LD_LIBRARY_PATH": "secret-16",
    "HF_HOME": "secret-17",
    "NCCL_DEBUG\nMY": "secret-18",
}


def test_only_what_changes_a_measurement_is_recorded():
    assert allowed_environment({**KEPT, **LEFT_OUT}) == KEPT


def test_the_real_environment_is_read_and_no_secret_of_it_kept(monkeypatch):
    for name, value in LEFT_OUT.items():
        if name != "PATH":
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    kept = allowed_environment()
    assert kept["NCCL_DEBUG"] == "WARN"
    assert not any(value.startswith("secret-") for value in kept.values())
    assert list(kept) == sorted(kept)


def test_facts_of_this_host():
    facts = host_facts()
    assert set(facts) == {
        "host", "kernel", "cpu", "cpus", "cpus_online", "cpu_quota", "numa_nodes", "memory_GB", "shm_GB", "governor",
        "load_1min", "driver", "interfaces", "gloo", "nccl", "rdma", "gpus", "nics",
    }  # fmt: skip
    assert facts["host"] == socket.gethostname()
    assert facts["cpus"] == len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    assert facts["memory_GB"] == pytest.approx(memory, rel=0.05)
    assert facts["gloo"]["address"] and set(facts["gloo"]["names"]) <= set(facts["interfaces"])
    json.dumps(facts, allow_nan=False)


FINE = {"names": ["eth0"], "address": "10.0.0.1", "reason": "host name n0", "problem": None, "fix": None}
HOST = {
    "host": "n0", "cpus": 8, "cpus_online": 8, "cpu_quota": None, "load_1min": 0.5, "shm_GB": 8.0,
    "governor": "performance", "gloo": FINE, "nccl": FINE, "gpus": [], "nics": [],
}  # fmt: skip
CPU_TORCH = {"torch": "2.13.0", "distributed": True, "gpus": [], "backends": ["gloo"]}
GPU_TORCH = {"torch": "2.13.0", "distributed": True, "gpus": ["NVIDIA H200"] * 8, "backends": ["nccl", "gloo"]}


def nic(name, state="ACTIVE", rdma=True):
    return {"name": name, "rdma": rdma, "state": state}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NCCL_IB_HCA"):
        monkeypatch.delenv(name, raising=False)


def test_a_healthy_machine_has_no_problems():
    assert problems(HOST, GPU_TORCH) == []
    assert problems({**HOST, "shm_GB": None, "governor": None}, GPU_TORCH) == []


@pytest.mark.parametrize(
    ("host", "torch", "what", "fix"),
    [
        ({}, {"error": "No module named 'torch'"}, "torch does not import: No module named", "pip install torch"),
        ({}, {**CPU_TORCH, "distributed": False}, "without torch.distributed", "official build"),
        ({}, {**GPU_TORCH, "backends": ["gloo"]}, "GPUs but has no NCCL", "CUDA build"),
        ({}, CPU_TORCH, "no GPU: runs use gloo", "figures are the CPU's"),
        ({"cpus": 1}, CPU_TORCH, "one CPU", "two CPUs"),
        ({"cpu_quota": 1.5}, CPU_TORCH, "control groups allow 1.5 of 8 CPUs", "CPU limit"),
        ({"cpus": 4}, GPU_TORCH, "8 GPUs but 4 usable CPUs", "a CPU for each GPU"),
        (
            {"gloo": {**FINE, "problem": "host name n0 resolves to 127.0.1.1", "fix": "set GLOO_SOCKET_IFNAME"}},
            CPU_TORCH,
            "resolves to 127.0.1.1",
            "GLOO_SOCKET_IFNAME",
        ),
        ({"nccl": {**FINE, "problem": "bond0 is a prefix", "fix": "=bond0"}}, GPU_TORCH, "is a prefix", "=bond0"),
        (
            {"gpus": [{"nics": ["mlx5_0"]}], "nics": [nic("mlx5_0", "DOWN")]},
            GPU_TORCH,
            "mlx5_0, nearest to GPU 0, is DOWN",
            "cable",
        ),
        ({"load_1min": 9.5}, GPU_TORCH, "load is 9.5 on 8 CPUs", "stop other work"),
        ({"shm_GB": 0.06}, GPU_TORCH, "/dev/shm has 0.06 GB", "--shm-size"),
        ({"governor": "powersave"}, GPU_TORCH, "governor is powersave", "cpupower"),
    ],
)
def test_each_problem_says_what_to_do(host, torch, what, fix):
    found = problems({**HOST, **host}, torch)
    assert [sorted(problem) for problem in found] == [["fix", "what"]] * len(found)
    assert any(what in problem["what"] and fix in problem["fix"] for problem in found)


def test_a_small_shm_is_no_problem_without_gpus():
    assert not any("shm" in problem["what"] for problem in problems({**HOST, "shm_GB": 0.06}, CPU_TORCH))


def test_nccls_interface_is_no_problem_without_gpus():
    assert not any(
        "prefix" in each["what"] for each in problems({**HOST, "nccl": {**FINE, "problem": "prefix"}}, CPU_TORCH)
    )


def test_a_launchers_variables_are_a_problem_of_a_shell(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert any("RANK and WORLD_SIZE are set" in problem["what"] for problem in problems(HOST, GPU_TORCH))


def test_ranks_that_outnumber_the_cpus_are_a_problem(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "9")
    assert any("9 ranks on 8 usable CPUs" in problem["what"] for problem in problems(HOST, GPU_TORCH))


@pytest.mark.parametrize(("cpus", "quota", "usable"), [(8, None, 8), (8, 2.5, 2), (8, 0.5, 1), (2, 64.0, 2)])
def test_usable_cpus_are_those_allowed_within_the_quota(cpus, quota, usable):
    assert usable_cpus({"cpus": cpus, "cpu_quota": quota}) == usable


def test_rdma_devices_are_those_nccl_would_take(monkeypatch):
    nics = [nic("mlx5_1"), nic("mlx5_10"), nic("mlx5_2", "DOWN"), nic("eth0", "UP", rdma=False)]
    assert rdma_devices({}, nics) == ["mlx5_1", "mlx5_10"]
    assert rdma_devices({"NCCL_IB_HCA": "=mlx5_1"}, nics) == ["mlx5_1"]
    assert rdma_devices({"NCCL_IB_DISABLE": "1"}, nics) == rdma_devices({"NCCL_NET": "Socket"}, nics) == []
    monkeypatch.setenv("NCCL_IB_HCA", "mlx5_1")
    [problem] = problems({**HOST, "nics": nics}, GPU_TORCH)
    assert problem["what"] == "NCCL_IB_HCA=mlx5_1 is a prefix and matches mlx5_1, mlx5_10"
    assert "NCCL_IB_HCA==mlx5_1" in problem["fix"]


def child_that(monkeypatch, returncode=0, stdout="", stderr=""):
    def run(command, **_):
        assert command[0] == sys.executable
        return subprocess.CompletedProcess(command, returncode, stdout, stderr)

    monkeypatch.setattr(environment.subprocess, "run", run)


def test_torchs_facts_are_the_childs_last_line(monkeypatch):
    child_that(monkeypatch, stdout="a library's banner\n" + json.dumps(CPU_TORCH) + "\n")
    assert torch_facts() == CPU_TORCH


def test_a_torch_that_does_not_import_is_an_answer(monkeypatch):
    child_that(monkeypatch, 1, stderr="Traceback ...\nModuleNotFoundError: No module named 'torch'\n")
    assert torch_facts() == {"error": "ModuleNotFoundError: No module named 'torch'"}
    child_that(monkeypatch, -11)
    assert torch_facts() == {"error": "torch could not be imported"}

    def hang(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(environment.subprocess, "run", hang)
    assert torch_facts() == {"error": "importing torch took longer than 120 s"}


def test_the_program_the_child_runs_is_right():
    # compiled and run against a torch that is only pretended, so that no second real import is paid for
    fake = "import sys, types\nfor name in ('torch', 'torch.distributed'): sys.modules[name] = types.ModuleType(name)\n"
    fake += (
        "t = sys.modules['torch']; t.distributed = d = sys.modules['torch.distributed']; t.__version__ = '9.9'\n"
        "t.version = types.SimpleNamespace(cuda='12.8')\n"
        "t.cuda = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 2,\n"
        "    get_device_name=lambda i: f'GPU {i}', nccl=types.SimpleNamespace(version=lambda: (2, 27, 3)))\n"
        "d.is_available = d.is_nccl_available = lambda: True; d.is_gloo_available = lambda: False\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", fake + environment._TORCH_FACTS], capture_output=True, text=True, check=True
    )
    assert json.loads(child.stdout) == {
        "torch": "9.9",
        "cuda": "12.8",
        "gpus": ["GPU 0", "GPU 1"],
        "nccl": "2.27.3",
        "distributed": True,
        "backends": ["nccl"],
    }
