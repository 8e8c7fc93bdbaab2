"""Names of clusters. Each carries the process that holds the cluster and when that one started, so that what a killed
run left can be told from what is in use, whatever became of the process id since."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .system import ClusterError, call, kill_in

_NAMESPACE = re.compile(r"(cbc-(\d+)-(\d+)-\d+)-(\w+)")
_FOLDER = re.compile(r"cbc-(\d+)-(\d+)-\d+")
_serial = itertools.count()


@dataclass(frozen=True)
class Found:
    """A cluster that exists on this machine. namespaces: those of its hosts, and "switch" where there is one."""

    name: str
    owner: int
    alive: bool
    namespaces: tuple[str, ...]

    @property
    def hosts(self) -> int:
        return sum("-host" in each for each in self.namespaces)


def missing() -> str | None:
    """Why no cluster can be made here, or None."""
    if sys.platform != "linux":
        return "the shaped cluster needs Linux"
    if os.geteuid() != 0:
        return "the shaped cluster needs root"
    for program in ("ip", "tc", "unshare"):
        if shutil.which(program) is None:
            return f"the shaped cluster needs {program} (apt-get install iproute2 util-linux)"
    allowed = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "true"], capture_output=True, text=True, check=False
    )
    if allowed.returncode:
        return f"the shaped cluster needs namespaces, which root may not make here: {allowed.stderr.strip()}"
    return None


def new_name() -> str:
    """For one more cluster of this process."""
    return f"cbc-{os.getpid()}-{_started(os.getpid())}-{next(_serial)}"


def folder_of(name: str) -> Path:
    """Where the cluster's files lie: its description, its hosts file, what its ranks print."""
    return Path(tempfile.gettempdir()) / name


def find() -> list[Found]:
    """All clusters on this machine, whole or what is left of them."""
    found: dict[str, list[str]] = {}
    for line in call("ip", "netns", "list").splitlines():
        if match := _NAMESPACE.fullmatch(line.split()[0]):
            found.setdefault(match[1], []).append(match[0])
    for folder in Path(tempfile.gettempdir()).glob("cbc-*"):
        if _FOLDER.fullmatch(folder.name):
            found.setdefault(folder.name, [])
    return [
        Found(name, _owner(name), _started(_owner(name)) == int(name.split("-")[2]), tuple(sorted(namespaces)))
        for name, namespaces in sorted(found.items())
    ]


def clean() -> list[str]:
    """Remove what killed runs left, never a cluster whose process lives. Returns the names of what was removed."""
    left = [each for each in find() if not each.alive]
    for each in left:
        remove(each.name, each.namespaces)
    return [each.name for each in left]


def remove(name: str, namespaces: tuple[str, ...]) -> None:
    """Take down a cluster: its processes, its namespaces with all links in them, its files."""
    kill_in(list(namespaces))
    for namespace in namespaces:
        with suppress(ClusterError):  # another run cleans at the same time, or it never came to be
            call("ip", "netns", "delete", namespace)
    shutil.rmtree(folder_of(name), ignore_errors=True)


def _owner(name: str) -> int:
    return int(name.split("-")[1])


def _started(pid: int) -> int | None:
    """When a process started, in clock ticks since the machine did; None where it is gone or dead."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[19]) if fields[0] not in "ZX" else None
    return None
