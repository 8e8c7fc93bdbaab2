"""Facts about this machine for the run record and for `collbench env`: allow-listed, never the whole environment."""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import collbench

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
    """What is known of this host without torch."""
    memory = _first_match("/proc/meminfo", r"MemTotal:\s+(\d+) kB")
    shared = os.statvfs("/dev/shm") if Path("/dev/shm").exists() else None
    return {
        "host": socket.gethostname(),
        "kernel": platform.release(),
        "cpu": _first_match("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_GB": round(int(memory) * 1024 / 1e9, 1) if memory else None,
        "shm_GB": round(shared.f_bavail * shared.f_frsize / 1e9, 1) if shared else None,
        "governor": _first_match("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", r"(\w+)"),
        "load_1min": round(os.getloadavg()[0], 2),
        "interfaces": sorted(p.name for p in Path("/sys/class/net").glob("*"))
        if Path("/sys/class/net").exists()
        else [],
    }


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


def problems(host: dict[str, Any], torch: dict[str, Any]) -> list[dict[str, str]]:
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
    if host["cpus"] < 2:
        add("one CPU: two ranks take turns, latencies are the scheduler's", "use a machine with two CPUs or more")
    if host["load_1min"] > host["cpus"]:
        add(f"load is {host['load_1min']} on {host['cpus']} CPUs: small-message times will be noise", "stop other work")
    if host["shm_GB"] is not None and host["shm_GB"] < 1 and torch.get("gpus"):
        add(f"/dev/shm has {host['shm_GB']} GB: NCCL may fail to start", "docker run --shm-size=8g, or --ipc=host")
    if host["governor"] not in (None, "performance"):
        add(
            f"CPU governor is {host['governor']}: latencies vary with the clock",
            "cpupower frequency-set -g performance",
        )
    try:
        address = socket.gethostbyname(host["host"])
        if address.startswith("127."):
            add(
                f"host name {host['host']} resolves to {address}: other nodes cannot reach it",
                "on several nodes set GLOO_SOCKET_IFNAME (NCCL_SOCKET_IFNAME) to the interface that joins them",
            )
    except OSError:
        add(
            f"host name {host['host']} does not resolve",
            "on several nodes set GLOO_SOCKET_IFNAME to the interface that joins them",
        )
    return found


def _first_match(path: str, pattern: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text())
    except OSError:
        return None
    return found[1].strip() if found else None
