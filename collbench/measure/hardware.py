"""What /sys and /proc tell of this host without any library: GPUs, NICs, which of them are near each other, CPU limits.

Every function takes the root of the file system, so that a copied tree of another machine reads the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from collbench.measure.names import spans

ROOT = Path("/")

Facts = dict[str, Any]

_PCI_DEVICE = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PCI_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
# Vendor -> name, and the PCI classes of its compute devices: NVSwitches, an Intel CPU's own graphics and a server's
# console are no GPUs.
_GPUS = {
    "0x10de": ("NVIDIA", ("0x0300", "0x0302")),
    "0x1002": ("AMD", ("0x0300", "0x0302", "0x0380", "0x1200")),
    "0x8086": ("Intel", ("0x0380",)),
}
# How far a NIC is from a GPU, in nvidia-smi's words: one PCI switch, several, one host bridge, one NUMA node, none.
_DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")
_SWITCH_DEPTH = 2  # a device and the switch port above it


def gpus_and_nics(root: Path = ROOT) -> tuple[list[Facts], list[Facts]]:
    """GPUs by PCI address, each with its nearest NICs, and all NICs that are hardware.

    A GPU is {"pci", "model", "numa", "nics": [names], "distance"}; a NIC {"name", "interfaces", "pci", "numa", "state",
    "Gbit_per_s", "link"}. What cannot be read is None. Where there are RDMA devices, the nearest NICs are of those.
    """
    places = {nic["name"]: (nic, path) for nic, path in _nics(root)}
    rdma = {name for name, (nic, _) in places.items() if nic["rdma"]}
    gpus = []
    for gpu, path in _gpus(root):
        near: dict[str, list[str]] = {}
        for name, (nic, other) in places.items():
            if name in rdma or not rdma:
                near.setdefault(_distance(path, other, gpu["numa"], nic["numa"]), []).append(name)
        distance = next((word for word in _DISTANCES if word in near), None)
        gpus.append({**gpu, "nics": near.get(distance or "", []), "distance": distance})
    return gpus, [nic for nic, _ in places.values()]


def numa_nodes(root: Path = ROOT) -> int | None:
    """How many NUMA nodes; None where the kernel does not say."""
    return len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None


def map_text(gpus: list[Facts]) -> str:
    """`GPU 0-3: NUMA 0, mlx5_0 (PIX); GPU 4-7: NUMA 1, mlx5_1 (PIX)`: GPUs in the order of their PCI addresses."""
    alike: dict[str, list[int]] = {}
    for index, gpu in enumerate(gpus):
        numa = "NUMA ?" if gpu["numa"] is None else f"NUMA {gpu['numa']}"
        nics = f"{' '.join(gpu['nics'])} ({gpu['distance']})" if gpu["nics"] else "no NIC"
        alike.setdefault(f"{numa}, {nics}", []).append(index)
    return "; ".join(f"GPU {spans(indices)}: {place}" for place, indices in alike.items())


def driver_version(root: Path = ROOT) -> str | None:
    """The GPU driver's version; None without one."""
    nvidia = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d[\d.]+)", text(root / "proc/driver/nvidia/version") or "")
    return nvidia[1] if nvidia else text(root / "sys/module/amdgpu/version")


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs' worth of time that control groups leave this process (the tightest of its own and those above it)."""
    quotas = [quota / period for quota, period in _quotas(root) if quota > 0 and period > 0]
    return round(min(quotas), 2) if quotas else None


def text(path: Path) -> str | None:
    """A file's text without the blanks around it; None where it cannot be read (a speed of a link that is down)."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _gpus(root: Path) -> Iterator[tuple[Facts, list[str]]]:
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor, classes = _GPUS.get(text(device / "vendor") or "", ("", ()))
        if (text(device / "class") or "")[:6] not in classes:
            continue
        known = text(root / "proc/driver/nvidia/gpus" / device.name / "information") or ""
        model = re.search(r"Model:\s*(.+)", known)
        yield (
            {"pci": device.name, "model": model[1].strip() if model else vendor, "numa": _numa(device)},
            _pci_path(device),
        )


def _nics(root: Path) -> Iterator[tuple[Facts, list[str]]]:
    """RDMA devices first, then the interfaces that are hardware and none of theirs."""
    taken: set[str] = set()
    for nic in sorted((root / "sys/class/infiniband").glob("*")):
        interfaces = sorted(path.name for path in (nic / "device/net").glob("*"))
        taken |= set(interfaces)
        ports = sorted((nic / "ports").glob("*"))
        port = next((each for each in ports if "ACTIVE" in (text(each / "state") or "")), ports[0] if ports else nic)
        rate = re.match(r"[\d.]+", text(port / "rate") or "")
        yield (
            {
                "name": nic.name,
                "rdma": True,
                "interfaces": interfaces,
                "pci": _pci_address(nic / "device"),
                "numa": _numa(nic / "device"),
                "state": (text(port / "state") or "?").split(":")[-1].strip(),
                "Gbit_per_s": float(rate[0]) if rate else None,
                "link": text(port / "link_layer"),
            },
            _pci_path(nic / "device"),
        )
    for interface in sorted((root / "sys/class/net").glob("*")):
        if interface.name in taken or not (interface / "device").exists():
            continue
        speed = text(interface / "speed") or ""
        yield (
            {
                "name": interface.name,
                "rdma": False,
                "interfaces": [interface.name],
                "pci": _pci_address(interface / "device"),
                "numa": _numa(interface / "device"),
                "state": (text(interface / "operstate") or "?").upper(),
                "Gbit_per_s": int(speed) / 1000 if speed.isdigit() else None,  # -1 where the driver does not know
                "link": "Ethernet" if text(interface / "type") == "1" else None,
            },
            _pci_path(interface / "device"),
        )


def _pci_path(device: Path) -> list[str]:
    """From the host bridge down to the device, as /sys nests them."""
    return [part for part in device.resolve().parts if _PCI_ROOT.fullmatch(part) or _PCI_DEVICE.fullmatch(part)]


def _pci_address(device: Path) -> str | None:
    return next((part for part in reversed(_pci_path(device)) if _PCI_DEVICE.fullmatch(part)), None)


def _numa(device: Path) -> int | None:
    """The NUMA node of a device, or of the PCI device it is part of (a virtio NIC says none itself)."""
    for place in (device.resolve(), *device.resolve().parents):
        node = text(place / "numa_node")
        if node is not None:
            return int(node) if node.isdigit() else None
        if _PCI_ROOT.fullmatch(place.name):
            break
    return None


def _distance(gpu: list[str], nic: list[str], gpu_numa: int | None, nic_numa: int | None) -> str:
    common = 0
    while common < min(len(gpu), len(nic)) and gpu[common] == nic[common]:
        common += 1
    if common > 1:
        return "PIX" if max(len(gpu), len(nic)) - common <= _SWITCH_DEPTH else "PXB"
    if common == 1:
        return "PHB"
    return "NODE" if gpu_numa is not None and gpu_numa == nic_numa else "SYS"


def _quotas(root: Path) -> Iterator[tuple[int, int]]:
    """(quota, period) of every control group this process is in, of version 1 and 2."""
    mount = root / "sys/fs/cgroup"
    for line in (text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        homes = (mount, mount / "unified") if not controllers else (mount / "cpu", mount / controllers)
        below = Path(group.lstrip("/"))
        for home in homes:
            for folder in (home / below, *(home / parent for parent in below.parents), home):
                if controllers:
                    words = [text(folder / "cpu.cfs_quota_us") or "", text(folder / "cpu.cfs_period_us") or ""]
                else:
                    words = (text(folder / "cpu.max") or "").split()
                if len(words) == 2 and all(word.isdigit() for word in words):
                    yield int(words[0]), int(words[1])
