"""Which network interface gloo and NCCL take on this host: from their variables, else by their own rules."""

from __future__ import annotations

import fcntl
import re
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collbench.measure.hardware import ROOT, text
from collbench.measure.names import few

_SIOCGIFADDR = 0x8915
_RUNNING = (None, "up", "unknown")  # operstate: the loopback's is unknown
_LOOPBACK_ADDRESS = "127.0.0.1"
# NCCL's own order where nothing is set: the first of these that matches anything.
_NCCL_ORDER = ("ib", "^docker,lo,virbr", "docker", "lo", "virbr")
_NCCL_MOST = 16
# NCCL_SOCKET_FAMILY -> what is in an address of the other family.
_OTHER_FAMILY = {"AF_INET": ":", "AF_INET6": "."}


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface in the kernel's order; its addresses IPv4 first."""

    name: str
    addresses: tuple[str, ...]
    running: bool = True


@dataclass(frozen=True, slots=True)
class Choice:
    """What a library takes: `names` of interfaces and the `address` others reach it at.

    `reason` is the variable or rule that chose. With a `problem` (and its `fix`), it is not what was meant, or, where
    `names` is empty, cannot work.
    """

    names: tuple[str, ...]
    address: str | None
    reason: str
    problem: str | None = None
    fix: str | None = None

    def __str__(self) -> str:
        return f"{few(self.names) or 'none'}{f' ({self.address})' if self.address else ''}"

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this host reach it."""
        return self.address is not None and (self.address.startswith("127.") or self.address == "::1")


def read_interfaces(root: Path = ROOT) -> list[Interface]:
    """This host's interfaces that have an address."""
    addresses: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                addresses[name] = [socket.inet_ntoa(answer[20:24])]
            except OSError:  # no IPv4 address
                addresses[name] = []
    for line in (text(root / "proc/net/if_inet6") or "").splitlines():
        digits, *_, name = line.split()
        addresses.setdefault(name, []).append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return [
        Interface(name, tuple(known), text(root / "sys/class/net" / name / "operstate") in _RUNNING)
        for name, known in addresses.items()
        if known
    ]


def usable_addresses(host: str) -> list[str]:
    """What a host name resolves to, without what this host cannot listen at: so torch asks it for gloo."""
    usable = []
    try:
        known = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    for family, kind, protocol, _, address in known:
        try:
            with socket.socket(family, kind, protocol) as listening:
                listening.bind(address)
        except OSError:
            continue
        usable.append(str(address[0]))
    return usable


def choose_for_gloo(
    environment: Mapping[str, str],
    host: str,
    interfaces: Sequence[Interface],
    addresses_of: Callable[[str], list[str]] = usable_addresses,
) -> Choice:
    """gloo of torch: exactly the names of GLOO_SOCKET_IFNAME, else the address that the host name resolves to."""
    by_name = {interface.name: interface for interface in interfaces}
    asked = environment.get("GLOO_SOCKET_IFNAME")
    if asked:
        names = asked.split(",")
        unknown = [name for name in names if name not in by_name]
        if unknown:
            return Choice(
                (),
                None,
                f"GLOO_SOCKET_IFNAME={asked}",
                f"GLOO_SOCKET_IFNAME={asked}: no interface {few(unknown)} with an address here",
                f"set it to one of {few(by_name)} (whole names: gloo knows no prefixes)",
            )
        return Choice(tuple(names), by_name[names[0]].addresses[0], f"GLOO_SOCKET_IFNAME={asked}")
    usable = addresses_of(host)
    address = usable[0] if usable else _LOOPBACK_ADDRESS
    names = [interface.name for interface in interfaces if address in interface.addresses]
    if not names and address.startswith("127."):
        names = ["lo"]  # all of 127/8 is its
    choice = Choice(tuple(names), address, f"host name {host}")
    others = [interface.name for interface in interfaces if _leaves_the_host(interface)]
    fix = f"on several nodes set GLOO_SOCKET_IFNAME to the interface that joins them{_of(others)}"
    if not usable:
        problem = f"host name {host} does not resolve to an address of this host: gloo takes {address}"
        return Choice(choice.names, address, choice.reason, problem, fix)
    if choice.is_loopback:
        problem = f"host name {host} resolves to {address}: other nodes cannot reach it"
        return Choice(choice.names, address, choice.reason, problem, fix)
    return choice


def choose_for_nccl(environment: Mapping[str, str], interfaces: Sequence[Interface]) -> Choice:
    """NCCL's sockets (its bootstrap takes the first): NCCL_SOCKET_IFNAME's rule, else NCCL's own order."""
    other_family = _OTHER_FAMILY.get(environment.get("NCCL_SOCKET_FAMILY", ""), " ")
    addresses = {
        interface.name: fitting[0]
        for interface in interfaces
        if interface.running
        and (fitting := [each for each in interface.addresses if other_family not in each and each != "::1"])
    }
    asked = environment.get("NCCL_SOCKET_IFNAME", "")
    if len(asked) < 2:  # as NCCL has it: one character is no name
        for rule in _NCCL_ORDER:
            names = matching(rule, list(addresses))[:_NCCL_MOST]
            if names:
                return Choice(tuple(names), addresses[names[0]], "NCCL's own order")
        return Choice((), None, "NCCL's own order", "NCCL finds no interface that is up", "bring one up (ip link)")
    reason = f"NCCL_SOCKET_IFNAME={asked}"
    names = matching(asked, list(addresses))[:_NCCL_MOST]
    if not names:
        problem = f"{reason} matches no interface that is up"
        return Choice((), None, reason, problem, f"set it to one of {few(addresses)}")
    ambiguous = prefix_note("NCCL_SOCKET_IFNAME", asked, list(addresses)) or (None, None)
    return Choice(tuple(names), addresses[names[0]], reason, *ambiguous)


def matching(rule: str, names: Sequence[str]) -> list[str]:
    """The names that a list in NCCL's syntax means: `eth,ib` prefixes, `=eth0` whole names, `^` all but those."""
    excludes = rule.startswith("^")
    rule = rule.removeprefix("^")
    exact = rule.startswith("=")
    words = _words(rule)
    return [
        name for name in names if any(name == word if exact else name.startswith(word) for word in words) != excludes
    ]


def prefix_note(variable: str, rule: str, names: Sequence[str]) -> tuple[str, str] | None:
    """(problem, fix) where a word of the rule is a prefix of several names."""
    if rule[:1] in ("^", "="):
        return None
    for word in _words(rule):
        several = [name for name in names if name.startswith(word)]
        if len(several) > 1:
            alone = word if word in several else several[0]
            return (
                f"{variable}={rule} is a prefix and matches {few(several)}",
                f"{variable}=={alone} means {alone} alone (the second = asks for whole names)",
            )
    return None


def _words(rule: str) -> list[str]:
    """A port may follow a name."""
    return [re.split(":", word)[0] for word in rule.removeprefix("=").split(",") if word]


def _leaves_the_host(interface: Interface) -> bool:
    inside = ("lo", "docker", "virbr", "veth", "br-", "cni")
    return interface.running and not interface.name.startswith(inside)


def _of(names: list[str]) -> str:
    return f" ({few(names)}?)" if names else ""
