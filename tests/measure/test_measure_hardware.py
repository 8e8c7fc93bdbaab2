"""The map of GPUs, NICs and NUMA nodes, and CPU limits, read from copied trees of /sys and /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from collbench.measure.hardware import cpu_quota, driver_version, gpus_and_nics, map_text, numa_nodes


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


def pci(root: Path, place: str, vendor: str, kind: str, numa: int) -> Path:
    """A device at `place` below /sys/devices, e.g. pci0000:16/0000:16:01.0/0000:17:00.0."""
    device = root / "sys/devices" / place
    write(device / "vendor", vendor)
    write(device / "class", kind)
    write(device / "numa_node", numa)
    link(root / "sys/bus/pci/devices" / device.name, device)
    return device


def gpu(root: Path, place: str, numa: int, model: str | None = "NVIDIA H200") -> None:
    device = pci(root, place, "0x10de", "0x030200", numa)
    if model:
        write(root / "proc/driver/nvidia/gpus" / device.name / "information", f"Model: \t\t {model}\nIRQ: 12")


def rdma(root: Path, name: str, place: str, numa: int, state: str = "4: ACTIVE", interface: str | None = None) -> None:
    device = pci(root, place, "0x15b3", "0x020700", numa)
    nic = device / "infiniband" / name
    write(nic / "ports/1/state", state)
    write(nic / "ports/1/rate", "400 Gb/sec (4X NDR)")
    write(nic / "ports/1/link_layer", "InfiniBand")
    link(nic / "device", device)
    link(root / "sys/class/infiniband" / name, nic)
    if interface:
        ethernet(root, interface, place, numa, "up", 400000)


def ethernet(root: Path, name: str, place: str, numa: int, state: str, speed: int, below: str = "") -> None:
    device = pci(root, place, "0x15b3", "0x020000", numa) if not (root / "sys/devices" / place).exists() else None
    device = device or root / "sys/devices" / place
    interface = device / below / "net" / name
    write(interface / "operstate", state)
    write(interface / "speed", speed)
    write(interface / "type", 1)
    link(interface / "device", device / below)
    link(root / "sys/class/net" / name, interface)


@pytest.fixture
def server(tmp_path):
    """Two sockets; on each two GPUs and a NIC below one switch. A management NIC on its own root, a downed one."""
    for numa, bus in enumerate(("16", "96")):
        switch = f"pci0000:{bus}/0000:{bus}:01.0/0000:{bus}:02.0"
        gpu(tmp_path, f"{switch}/0000:{bus}:03.0/0000:{bus}:10.0", numa)
        gpu(tmp_path, f"{switch}/0000:{bus}:04.0/0000:{bus}:20.0", numa)
        rdma(tmp_path, f"mlx5_{numa}", f"{switch}/0000:{bus}:05.0/0000:{bus}:30.0", numa, interface=f"ib{numa}")
        write(tmp_path / f"sys/devices/system/node/node{numa}/cpulist", "0-1")
    ethernet(tmp_path, "eno1", "pci0000:00/0000:00:1f.0", 0, "up", 25000)
    rdma(tmp_path, "mlx5_9", "pci0000:00/0000:00:1e.0", 0, state="1: DOWN")
    pci(tmp_path, "pci0000:00/0000:00:02.0", "0x1a03", "0x030000", 0)  # the console's graphics
    pci(tmp_path, "pci0000:16/0000:16:06.0", "0x10de", "0x068000", 0)  # an NVSwitch
    (tmp_path / "sys/class/net/lo").mkdir()
    return tmp_path


def test_every_gpu_has_its_nearest_nics(server):
    gpus, nics = gpus_and_nics(server)
    assert [gpu["pci"] for gpu in gpus] == ["0000:16:10.0", "0000:16:20.0", "0000:96:10.0", "0000:96:20.0"]
    assert {gpu["model"] for gpu in gpus} == {"NVIDIA H200"}
    assert [(gpu["numa"], gpu["nics"], gpu["distance"]) for gpu in gpus] == [
        (0, ["mlx5_0"], "PIX"), (0, ["mlx5_0"], "PIX"), (1, ["mlx5_1"], "PIX"), (1, ["mlx5_1"], "PIX"),
    ]  # fmt: skip
    assert map_text(gpus) == "GPU 0-1: NUMA 0, mlx5_0 (PIX); GPU 2-3: NUMA 1, mlx5_1 (PIX)"
    assert numa_nodes(server) == 2
    assert [nic["name"] for nic in nics] == ["mlx5_0", "mlx5_1", "mlx5_9", "eno1"]  # an RDMA device's ib0 is its own


def test_a_nic_says_speed_state_and_place(server):
    nics = {nic["name"]: nic for nic in gpus_and_nics(server)[1]}
    assert nics["mlx5_0"] == {
        "name": "mlx5_0", "rdma": True, "interfaces": ["ib0"], "pci": "0000:16:30.0", "numa": 0,
        "state": "ACTIVE", "Gbit_per_s": 400.0, "link": "InfiniBand",
    }  # fmt: skip
    assert nics["mlx5_9"]["state"] == "DOWN"
    assert nics["eno1"] == {
        "name": "eno1", "rdma": False, "interfaces": ["eno1"], "pci": "0000:00:1f.0", "numa": 0,
        "state": "UP", "Gbit_per_s": 25.0, "link": "Ethernet",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("nic", "numa", "distance"),
    [
        ("pci0000:16/0000:16:01.0/0000:16:02.0/0000:16:05.0/0000:16:30.0", 0, "PIX"),
        ("pci0000:16/0000:16:01.0/0000:16:05.0/0000:16:06.0/0000:16:30.0", 0, "PXB"),
        ("pci0000:16/0000:16:08.0/0000:17:00.0", 0, "PHB"),
        ("pci0000:20/0000:20:00.0", 0, "NODE"),
        ("pci0000:20/0000:20:00.0", 1, "SYS"),
        ("pci0000:20/0000:20:00.0", -1, "SYS"),
    ],
)
def test_the_distance_is_nvidia_smis_word(tmp_path, nic, numa, distance):
    gpu(tmp_path, "pci0000:16/0000:16:01.0/0000:16:02.0/0000:16:03.0/0000:16:10.0", 0)
    ethernet(tmp_path, "eth0", nic, numa, "up", 100000)
    assert gpus_and_nics(tmp_path)[0][0]["distance"] == distance


def test_a_virtual_machine_says_less_and_that_is_no_error(tmp_path):
    """A virtio NIC lies below its PCI device and knows no speed; NUMA is -1; no driver files."""
    gpu(tmp_path, "pci0000:00/0000:00:05.0", -1, model=None)
    ethernet(tmp_path, "eth0", "pci0000:00/0000:00:03.0", -1, "up", -1, below="virtio2")
    [one], [nic] = gpus_and_nics(tmp_path)
    assert (one["model"], one["numa"], one["nics"], one["distance"]) == ("NVIDIA", None, ["eth0"], "PHB")
    assert (nic["pci"], nic["numa"], nic["Gbit_per_s"]) == ("0000:00:03.0", None, None)
    assert map_text([one]) == "GPU 0: NUMA ?, eth0 (PHB)"


def test_a_machine_without_sys_is_empty(tmp_path):
    assert gpus_and_nics(tmp_path) == ([], [])
    assert (numa_nodes(tmp_path), driver_version(tmp_path), cpu_quota(tmp_path)) == (None, None, None)
    assert map_text([]) == ""


def test_other_vendors_gpus(tmp_path):
    pci(tmp_path, "pci0000:00/0000:00:01.0", "0x1002", "0x120000", 0)
    pci(tmp_path, "pci0000:00/0000:00:02.0", "0x8086", "0x030000", 0)  # a CPU's own graphics
    pci(tmp_path, "pci0000:00/0000:00:03.0", "0x8086", "0x038000", 0)
    assert [gpu["model"] for gpu in gpus_and_nics(tmp_path)[0]] == ["AMD", "Intel"]
    assert map_text(gpus_and_nics(tmp_path)[0]) == "GPU 0-1: NUMA 0, no NIC"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build", "570.86.15"),
        ("something else", None),
    ],
)
def test_the_drivers_version(tmp_path, text, version):
    write(tmp_path / "proc/driver/nvidia/version", text)
    assert driver_version(tmp_path) == version


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/pod/box", {"pod/box/cpu.max": "max 100000", "pod/cpu.max": "250000 100000"}, 2.5),  # from above
        ("0::/pod/box", {"cpu.max": "50000 100000"}, 0.5),  # as a container sees its own
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("4:cpu:/x", {"cpu/x/cpu.cfs_quota_us": "400000", "cpu/x/cpu.cfs_period_us": "100000"}, 4),
        ("4:cpu,acct:/", {"cpu,acct/cpu.cfs_quota_us": "100000", "cpu,acct/cpu.cfs_period_us": "100000"}, 1),
        ("4:cpu:/x", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("3:cpuset:/x\n0::/x", {"x/cpu.max": "100000 50000"}, 2.0),
    ],
)  # fmt: skip
def test_the_cpu_quota_is_the_tightest_of_all_control_groups(tmp_path, groups, files, quota):
    write(tmp_path / "proc/self/cgroup", groups)
    for name, text in files.items():
        write(tmp_path / "sys/fs/cgroup" / name, text)
    assert cpu_quota(tmp_path) == quota
