"""Which interface gloo and NCCL would take."""

from __future__ import annotations

import socket

import pytest

from collbench.measure.interfaces import (
    Interface,
    choose_for_gloo,
    choose_for_nccl,
    matching,
    read_interfaces,
    usable_addresses,
)

LO = Interface("lo", ("127.0.0.1", "::1"))
ETH0 = Interface("eth0", ("10.0.0.1", "fe80::1"))
ETH1 = Interface("eth1", ("10.1.0.1",))
BOND, VLAN = Interface("bond0", ("10.2.0.1",)), Interface("bond0.2093", ("10.3.0.1",))
DOCKER, VIRBR = Interface("docker0", ("172.17.0.1",)), Interface("virbr0", ("192.168.122.1",))
IB = Interface("ib0", ("10.9.0.1",))
DOWN = Interface("eth9", ("10.4.0.1",), running=False)
V6 = Interface("net0", ("2001:db8::1",))


def gloo(environment, interfaces, *resolves):
    return choose_for_gloo(environment, "n0", interfaces, lambda host: list(resolves))


def test_gloo_takes_what_the_host_name_resolves_to():
    choice = gloo({}, [LO, ETH0, ETH1], "10.1.0.1", "10.0.0.1")
    assert (choice.names, choice.address, choice.reason) == (("eth1",), "10.1.0.1", "host name n0")
    assert choice.problem is None and not choice.is_loopback
    assert str(choice) == "eth1 (10.1.0.1)"


@pytest.mark.parametrize("address", ["127.0.1.1", "127.0.0.1"])
def test_a_host_name_of_the_loopback_names_the_interface_that_would_do(address):
    choice = gloo({}, [LO, DOCKER, ETH0], address)
    assert choice.names == ("lo",) and choice.is_loopback
    assert choice.problem == f"host name n0 resolves to {address}: other nodes cannot reach it"
    assert choice.fix == "on several nodes set GLOO_SOCKET_IFNAME to the interface that joins them (eth0?)"


def test_a_host_name_that_resolves_to_nothing_of_this_host_is_the_loopback():
    choice = gloo({}, [LO, ETH0])
    assert (choice.names, choice.address) == (("lo",), "127.0.0.1")
    assert "does not resolve to an address of this host" in choice.problem


def test_gloo_socket_ifname_is_whole_names():
    assert gloo({"GLOO_SOCKET_IFNAME": "eth1,eth0"}, [LO, ETH0, ETH1]).names == ("eth1", "eth0")
    assert gloo({"GLOO_SOCKET_IFNAME": "lo"}, [LO, ETH0]).problem is None  # asked for
    wrong = gloo({"GLOO_SOCKET_IFNAME": "eth"}, [LO, ETH0])
    assert wrong.names == () and "no interface eth with an address here" in wrong.problem
    assert "one of lo, eth0 (whole names" in wrong.fix


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        ("eth", ["eth0", "eth1"]),
        ("eth1,ib", ["eth1", "ib0"]),
        ("=eth", []),
        ("=eth0,ib0", ["eth0", "ib0"]),
        ("^eth", ["lo", "ib0"]),
        ("^=eth0", ["lo", "eth1", "ib0"]),
        ("eth0:4000", ["eth0"]),
    ],
)
def test_nccls_syntax(rule, names):
    assert matching(rule, ["lo", "eth0", "eth1", "ib0"]) == names


@pytest.mark.parametrize(
    ("interfaces", "names"),
    [
        ([LO, ETH0, IB], ("ib0",)),
        ([LO, DOCKER, ETH0, ETH1, VIRBR], ("eth0", "eth1")),
        ([LO, DOCKER, VIRBR], ("docker0",)),
        ([LO, VIRBR], ("lo",)),
        ([LO, DOWN], ("lo",)),
        ([], ()),
    ],
)
def test_nccls_own_order(interfaces, names):
    choice = choose_for_nccl({}, interfaces)
    assert choice.names == names and (choice.problem is None) == bool(names)


def test_a_prefix_that_matches_several_is_said_with_the_syntax_for_one():
    choice = choose_for_nccl({"NCCL_SOCKET_IFNAME": "bond0"}, [LO, VLAN, BOND])
    assert choice.names == ("bond0.2093", "bond0") and choice.address == "10.3.0.1"  # bootstrap on the wrong one
    assert choice.problem == "NCCL_SOCKET_IFNAME=bond0 is a prefix and matches bond0.2093, bond0"
    assert choice.fix.startswith("NCCL_SOCKET_IFNAME==bond0 means bond0 alone")
    assert choose_for_nccl({"NCCL_SOCKET_IFNAME": "=bond0"}, [LO, VLAN, BOND]).problem is None
    assert choose_for_nccl({"NCCL_SOCKET_IFNAME": "^lo"}, [LO, VLAN, BOND]).problem is None


def test_a_variable_that_matches_nothing_is_a_problem():
    choice = choose_for_nccl({"NCCL_SOCKET_IFNAME": "ens"}, [LO, ETH0, DOWN])
    assert choice.names == () and "matches no interface that is up" in choice.problem
    assert choice.fix == "set it to one of lo, eth0"


def test_the_address_family_is_nccls_variable():
    assert choose_for_nccl({"NCCL_SOCKET_FAMILY": "AF_INET6"}, [LO, ETH0, V6]).address == "fe80::1"
    assert choose_for_nccl({"NCCL_SOCKET_FAMILY": "AF_INET"}, [LO, V6]).names == ("lo",)
    assert choose_for_nccl({}, [LO, V6]).address == "2001:db8::1"


def test_this_host_has_a_loopback_that_it_can_listen_at():
    assert any("127.0.0.1" in interface.addresses and interface.running for interface in read_interfaces())
    assert "127.0.0.1" in usable_addresses("localhost")
    assert usable_addresses("nosuch.invalid") == []


def test_an_address_of_another_host_is_not_usable(monkeypatch):
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.77", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    assert usable_addresses("n0") == []
