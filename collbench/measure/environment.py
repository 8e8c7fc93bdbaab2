"""Facts about this machine for the run record and for `collbench env`: allow-listed, never the whole environment."""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import collbench
from collbench.measure.hardware import cpu_quota, driver_version, gpus_and_nics, numa_nodes
from collbench.measure.interfaces import choose_for_gloo, choose_for_nccl, matching, prefix_note, read_interfaces

Problem = dict[str, str]  # {"what", "fix"}

_ALLOWED = re.compile(
    r"(NCCL|TORCH_NCCL|GLOO|FI|UCX|RCCL)_\w+|OMP_NUM_THREADS|CUDA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|TP_SOCKET_IFNAME"
    r"|TORCH_DISTRIBUTED_\w+|SLURM_(NNODES|NTASKS|NODEID|PROCID|LOCALID|NTASKS_PER_NODE|TOPOLOGY_ADDR\w*|JOB_NUM_NODES)"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH|API_?KEY", re.IGNORECASE)

# Asked of a child process, so that `collbench env` works where torch does not.
_TORCH_FACTS = """
import json, torch, torch.distributed as dist
cuda = torch.cuda.is_available()
facts = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": [], "nccl": None}
facts["distributed"] = dist.is_available()
facts["backends"] = [b for b in ("nccl", "gloo") if dist.is_available() and getattr(dist, f"is_{b}_available")()]
if cuda:
    facts["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
try:
    facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
except Exception:
    pass
print(json.dumps(facts))
"""


def allowed_environment(environment: dict[str, str] | None = None) -> dict[str, str]:
    """The variables that change a measurement, by allow-list; a value that may be a secret is left out."""
    environment = dict(os.environ) if environment is None else environment
    return {k: v for k, v in sorted(environment.items()) if _ALLOWED.fullmatch(k) and not _SECRET.search(k)}


def host_facts() -> dict[str, Any]:
    """What is known of this host without torch; None where it cannot be read."""
    memory = _first_match("/proc/meminfo", r"MemTotal:\s+(\d+) kB")
    shared = os.statvfs("/dev/shm") if Path("/dev/shm").exists() else None
    host, environment, interfaces = socket.gethostname(), dict(os.environ), read_interfaces()
    gpus, nics = gpus_and_nics()
    return {
        "host": host,
        "kernel": platform.release(),
        "cpu": _first_match("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "cpus_online": os.cpu_count(),
        "cpu_quota": cpu_quota(),
        "numa_nodes": numa_nodes(),
        "memory_GB": round(int(memory) * 1024 / 1e9, 1) if memory else None,
        "shm_GB": round(shared.f_bavail * shared.f_frsize / 1e9, 1) if shared else None,
        "governor": _first_match("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", r"(\w+)"),
        "load_1min": round(os.getloadavg()[0], 2),
        "driver": driver_version(),
        "interfaces": sorted(p.name for p in Path("/sys/class/net").glob("*"))
        if Path("/sys/class/net").exists()
        else [],
        "gloo": asdict(choose_for_gloo(environment, host, interfaces)),
        "nccl": asdict(choose_for_nccl(environment, interfaces)),
        "rdma": rdma_devices(environment, nics),
        "gpus": gpus,
        "nics": nics,
    }


def rdma_devices(environment: Mapping[str, str], nics: list[dict[str, Any]]) -> list[str]:
    """The RDMA devices that NCCL takes rather than sockets: those that are up, as NCCL_IB_HCA has it."""
    up = [nic["name"] for nic in nics if nic["rdma"] and nic["state"] == "ACTIVE"]
    if environment.get("NCCL_IB_DISABLE", "0") != "0" or environment.get("NCCL_NET") == "Socket":
        return []
    asked = environment.get("NCCL_IB_HCA")
    return matching(asked, up) if asked else up


def usable_cpus(host: dict[str, Any]) -> int:
    """CPUs that this process may keep busy: those it may run on, or its control group's share if that is less."""
    quota = host.get("cpu_quota")
    return int(min(host["cpus"], max(1, int(quota)) if quota else host["cpus"]))


def versions(torch: Any) -> dict[str, str | None]:
    """Versions for the run record; `torch` is the imported module."""
    try:
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, RuntimeError, TypeError):  # a CPU build
        nccl = None
    return {
        "collbench": collbench.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": nccl,
        "driver": driver_version(),
    }


def gpus_without_torch() -> int | None:
    """0 where no GPU driver is loaded; None where only torch can tell how many there are for this process."""
    drivers = [*Path("/dev").glob("nvidia[0-9]*"), *Path("/dev").glob("kfd"), *Path("/dev").glob("dxg")]
    return None if drivers else 0


def torch_facts() -> dict[str, Any]:
    """torch's own answers, from a child process: {"torch", "cuda", "nccl", "gpus", "backends"}, or {"error"}."""
    try:
        child = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _TORCH_FACTS], capture_output=True, text=True, timeout=120
        )
    except subprocess.TimeoutExpired:
        return {"error": "importing torch took longer than 120 s"}
    if child.returncode:
        return {"error": (child.stderr.strip().splitlines() or ["torch could not be imported"])[-1]}
    facts: dict[str, Any] = json.loads(child.stdout.strip().splitlines()[-1])
    return facts


def problems(host: dict[str, Any], torch: dict[str, Any]) -> list[Problem]:
    """What would go wrong here, each with what to do about it."""
    found = []

    def add(what: str, fix: str) -> None:
        found.append({"what": what, "fix": fix})

    if "error" in torch:
        add(f"torch does not import: {torch['error']}", "pip install torch, or use the environment that has it")
    elif not torch["distributed"]:
        add("this torch was built without torch.distributed", "install an official build of torch")
    elif torch["gpus"] and "nccl" not in torch["backends"]:
        add("torch sees GPUs but has no NCCL", "install a CUDA build of torch")
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        add(
            "RANK and WORLD_SIZE are set: run and validate take themselves for a launcher's rank and wait for others",
            "unset RANK WORLD_SIZE, unless torchrun or srun started this process",
        )
    if not torch.get("gpus"):
        add("no GPU: runs use gloo on the CPU", "nothing, if that is what you want to measure; figures are the CPU's")
    gpus = len(torch.get("gpus", []))
    found += _cpu_problems(host, gpus) + host_problems(host, gpus)
    if host["gloo"]["problem"]:
        found.append(_problem_of(host["gloo"]))
    return found


def _cpu_problems(host: dict[str, Any], gpus: int) -> list[Problem]:
    found = []

    def add(what: str, fix: str) -> None:
        found.append({"what": what, "fix": fix})

    cpus = usable_cpus(host)
    if cpus < 2:
        add("one CPU: two ranks take turns, latencies are the scheduler's", "use a machine with two CPUs or more")
    if cpus < host["cpus"]:
        add(
            f"control groups allow {host['cpu_quota']:g} of {host['cpus']} CPUs: ranks that use them up are stopped",
            "raise the container's CPU limit",
        )
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    if ranks.isdigit() and cpus < int(ranks):
        add(f"{ranks} ranks on {cpus} usable CPUs: they take turns", "start fewer ranks, or give the job more CPUs")
    if cpus < gpus:
        add(f"{gpus} GPUs but {cpus} usable CPUs: ranks take turns", "give the job a CPU for each GPU at least")
    return found


def host_problems(host: dict[str, Any], gpus: int) -> list[Problem]:
    """What makes measurements on this host noisy, but for its CPUs' number; `gpus` is how many of them torch sees."""
    found = []

    def add(what: str, fix: str) -> None:
        found.append({"what": what, "fix": fix})

    online = host["cpus_online"]
    if host["load_1min"] > online:
        add(f"load is {host['load_1min']} on {online} CPUs: small-message times will be noise", "stop other work")
    if host["shm_GB"] is not None and host["shm_GB"] < 1 and gpus:
        add(f"/dev/shm has {host['shm_GB']} GB: NCCL may fail to start", "docker run --shm-size=8g, or --ipc=host")
    if host["governor"] not in (None, "performance"):
        add(
            f"CPU governor is {host['governor']}: latencies vary with the clock",
            "cpupower frequency-set -g performance",
        )
    if gpus:
        found += _nccl_problems(host)
    return found


def _nccl_problems(host: dict[str, Any]) -> list[Problem]:
    found = [_problem_of(host["nccl"])] if host["nccl"]["problem"] else []
    asked = os.environ.get("NCCL_IB_HCA", "")
    ambiguous = prefix_note("NCCL_IB_HCA", asked, [nic["name"] for nic in host["nics"] if nic["rdma"]])
    if ambiguous:
        found.append({"what": ambiguous[0], "fix": ambiguous[1]})
    states = {nic["name"]: nic["state"] for nic in host["nics"]}
    for index, gpu in enumerate(host["gpus"]):
        if gpu["nics"] and all(states[name] not in ("ACTIVE", "UP") for name in gpu["nics"]):
            down = f"{', '.join(gpu['nics'])}, nearest to GPU {index}, is {states[gpu['nics'][0]]}"
            found.append({"what": f"{down}: its traffic goes a longer way", "fix": "check the cable and the port"})
    return found


def _problem_of(choice: dict[str, Any]) -> Problem:
    return {"what": choice["problem"], "fix": choice["fix"]}


def _first_match(path: str, pattern: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text())
    except OSError:
        return None
    return found[1].strip() if found else None
