"""The largest of every rank's numbers, agreed on between the ranks' main threads over sockets of their own.

Through gloo one such agreement is handed from thread to thread on every rank, and each of them must first be woken:
0.3 ms, and often a tick of the scheduler (4 ms) more. Here each rank wakes once: 0.02 ms for two ranks. Every sample
needs one, so it decides how many samples there are, and whether ranks come late to them.
"""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Callable
from typing import Any

_CHILDREN = 8  # of a rank: 4096 ranks are four steps from rank 0
_TOKEN_BYTES = 16
_HELLO = struct.Struct(f"{_TOKEN_BYTES}sq")


class Tree:
    """Rank r hears ranks 8r+1 to 8r+8 and tells rank (r-1)/8; the answer comes back the same way.

    address: where the other ranks reach this one. everyones: every rank's value, in the order of ranks. Raises
    RuntimeError where another rank cannot be reached, is gone, or says nothing for `timeout_s`.
    """

    def __init__(
        self, rank: int, world_size: int, address: str, everyones: Callable[[Any], list[Any]], timeout_s: float
    ) -> None:
        self._timeout_s = timeout_s
        self._parent: tuple[int, socket.socket] | None = None
        self._children: list[tuple[int, socket.socket]] = []
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server((address, 0), family=family, backlog=_CHILDREN) as listening:
            token = secrets.token_bytes(_TOKEN_BYTES)
            places = everyones((address, listening.getsockname()[1], token))
            if rank > 0:
                self._parent = (rank - 1) // _CHILDREN, self._connect(rank, places)
            expected = {*range(_CHILDREN * rank + 1, min(_CHILDREN * (rank + 1) + 1, world_size))}
            listening.settimeout(timeout_s)
            while expected:
                child, connection = self._accept(listening, token, expected)
                if child is not None:
                    expected.remove(child)
                    self._children.append((child, connection))
        self._children.sort(key=lambda each: each[0])

    def maximum(self, values: list[int]) -> list[int]:
        """The largest of every rank's values, place by place; as many values on each. Called by all ranks together."""
        form = struct.Struct(f"{len(values)}q")
        largest = values
        for child in self._children:
            largest = [max(pair) for pair in zip(largest, form.unpack(self._receive(child, form.size)), strict=True)]
        data = form.pack(*largest)
        if self._parent is not None:
            self._send(self._parent, data)
            data = self._receive(self._parent, form.size)
        for child in self._children:
            self._send(child, data)
        return list(form.unpack(data))

    def close(self) -> None:
        """Leave; the ranks that this one was connected to learn of it."""
        for _, connection in [*self._children, *([self._parent] if self._parent is not None else [])]:
            connection.close()

    def _connect(self, rank: int, places: list[Any]) -> socket.socket:
        parent = (rank - 1) // _CHILDREN
        address, port, token = places[parent]
        try:
            connection = socket.create_connection((address, port), timeout=self._timeout_s)
        except OSError as error:
            raise RuntimeError(f"no connection to rank {parent} at {address}:{port}: {error}") from error
        self._prepare(connection)
        connection.sendall(_HELLO.pack(token, rank))
        return connection

    def _accept(self, listening: socket.socket, token: bytes, expected: set[int]) -> tuple[int | None, socket.socket]:
        """A child that has connected; None for a stranger."""
        try:
            connection, _ = listening.accept()
        except TimeoutError as error:
            raise RuntimeError(f"timed out: no connection from rank {min(expected)}") from error
        self._prepare(connection)
        try:
            said, child = _HELLO.unpack(self._receive((min(expected), connection), _HELLO.size))
        except RuntimeError:
            said, child = b"", -1
        if said == token and child in expected:
            return child, connection
        connection.close()
        return None, connection

    def _prepare(self, connection: socket.socket) -> None:
        connection.settimeout(self._timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _send(self, peer: tuple[int, socket.socket], data: bytes) -> None:
        rank, connection = peer
        try:
            connection.sendall(data)
        except OSError as error:
            raise RuntimeError(f"lost the connection to rank {rank}: {error}") from error

    def _receive(self, peer: tuple[int, socket.socket], size: int) -> bytes:
        rank, connection = peer
        data = b""
        while len(data) < size:
            try:
                part = connection.recv(size - len(data))
            except TimeoutError as error:
                raise RuntimeError(f"timed out: no word from rank {rank} for {self._timeout_s:g} s") from error
            except OSError as error:
                raise RuntimeError(f"lost the connection to rank {rank}: {error}") from error
            if not part:
                raise RuntimeError(f"connection closed by rank {rank}")
            data += part
        return data
