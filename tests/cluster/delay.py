"""The delay between hosts, from outside: a process (relay.py) makes their NICs and stands in for the switch."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from .system import ClusterError, die_with

_ROOT = Path(__file__).parents[2]


def mac(host: int) -> str:
    """The address of a host's NIC; its last byte is the host, by which the relay knows where a packet goes."""
    return f"02:88:00:00:00:{host:02x}"


def start(path: Path, namespaces: list[str], rates_mbit: list[float], delay_ms: float) -> subprocess.Popen[str]:
    """Make every host's eth0 and begin to relay. `path`: where `tell` reaches it."""
    words = json.dumps([str(path), namespaces, rates_mbit, delay_ms])
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.relay", words], cwd=_ROOT, env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=die_with(os.getpid()),
    )  # fmt: skip
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise ClusterError(f"the relay did not start: {' '.join(process.communicate()[1].split())}")
    return process


def tell(path: Path, **what: Any) -> None:
    """Change something: rate=[host, rate_mbit, burst_bytes], or link=[host, up]. Done when this returns."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.settimeout(5)
        line.connect(str(path))
        line.send(json.dumps(what).encode())
        line.recv(16)


def stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
