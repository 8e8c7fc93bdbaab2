"""What the cluster asks of Linux: the commands of iproute2, processes of a namespace, and a socket inside one."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_Made = TypeVar("_Made")


class ClusterError(RuntimeError):
    """The cluster cannot be made or used; one line that says why."""


def call(*command: str, script: str | None = None) -> str:
    """stdout of a command (with `script` on its stdin). Raises ClusterError where it fails."""
    try:
        done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        raise ClusterError(f"{command[0]}: {error.strerror}: the cluster needs iproute2") from None
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {' '.join(done.stderr.split())}")
    return done.stdout


def ip(namespace: str, *lines: str) -> None:
    """Commands of `ip`, one a line, all inside a namespace."""
    call("ip", "-n", namespace, "-batch", "-", script="\n".join(lines) + "\n")


def tc(namespace: str, *lines: str) -> None:
    """Commands of `tc`, one a line, all inside a namespace."""
    call("tc", "-n", namespace, "-batch", "-", script="\n".join(lines) + "\n")


def set_sysctl(namespace: str, name: str, value: str) -> None:
    """Where the kernel has it: one without IPv6 has no settings for that."""
    script = '[ ! -e "/proc/sys/$0" ] || echo "$1" > "/proc/sys/$0"'
    call("ip", "netns", "exec", namespace, "sh", "-c", script, name, value)


def pids_in(namespace: str) -> list[int]:
    """Of the processes inside a namespace, which may be gone."""
    with suppress(ClusterError):
        return [pid for word in call("ip", "netns", "pids", namespace).split() if (pid := int(word)) != os.getpid()]
    return []


def kill_in(namespaces: list[str]) -> None:
    """Leave no process inside these namespaces."""
    give_up = time.monotonic() + 5.0  # one that the kernel does not let die is not waited for
    while (left := [pid for each in namespaces for pid in pids_in(each)]) and time.monotonic() < give_up:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def inside(namespace: str, make: Callable[[], _Made]) -> _Made:
    """What `make` makes inside a network namespace, for use from outside: a socket, a device."""
    made: list[_Made] = []
    failed: list[OSError] = []

    def go() -> None:
        try:
            with Path("/run/netns", namespace).open() as handle:
                if _LIBC.setns(handle.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns failed")
            made.append(make())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=go)  # a thread of its own: this one stays where it is
    thread.start()
    thread.join()
    if failed:
        raise ClusterError(f"{namespace}: {failed[0]}")
    return made[0]


def socket_in(namespace: str, kind: socket.SocketKind) -> socket.socket:
    """An IPv4 socket inside a namespace. The caller closes it."""
    return inside(namespace, lambda: socket.socket(socket.AF_INET, kind))


def on_host(namespace: str, host_name: str, hosts_file: Path, command: list[str]) -> list[str]:
    """The command as it runs on a host: in its network, under its name, and knowing the others' names."""
    become = 'echo "$0" > /proc/sys/kernel/hostname && mount --bind "$1" /etc/hosts && shift && exec "$@"'
    named = ["unshare", "--uts", "sh", "-c", become, host_name, str(hosts_file), *command]
    return ["ip", "netns", "exec", namespace, *named]


def die_with(parent: int) -> Callable[[], None]:
    """A preexec_fn: the kernel kills the new process when `parent`, which starts it, dies."""

    def ask() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return ask
