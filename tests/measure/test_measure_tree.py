"""The ranks' own tree of sockets, with ranks that are threads."""

from __future__ import annotations

import socket
import threading

import pytest

from collbench.measure.tree import Tree


class Ranks:
    """`everyones` for ranks that are threads of one process, and their trees."""

    def __init__(self, world_size, timeout_s=10.0, before=lambda places: None):
        self.said = [None] * world_size
        self.meeting = threading.Barrier(world_size)
        self.trees, self.errors = [None] * world_size, [None] * world_size
        self.before = before

        def join(rank):
            def everyones(value):
                self.said[rank] = value
                if self.meeting.wait(timeout=10) == 0:
                    self.before(self.said)
                self.meeting.wait(timeout=10)
                return list(self.said)

            self.trees[rank] = Tree(rank, world_size, "127.0.0.1", everyones, timeout_s)

        self.each(join, range(world_size))

    def each(self, do, ranks):
        def guarded(rank):
            try:
                do(rank)
            except RuntimeError as error:
                self.errors[rank] = str(error)

        threads = [threading.Thread(target=guarded, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert not any(thread.is_alive() for thread in threads)

    def maximum(self, values_of, ranks=None):
        answers = {}

        def agree(rank):
            answers[rank] = self.trees[rank].maximum(values_of(rank))

        self.each(agree, range(len(self.trees)) if ranks is None else ranks)
        return answers


@pytest.fixture
def join():
    """Ranks whose sockets are closed at the end."""
    joined = []

    def ranks(*args, **kwargs):
        joined.append(Ranks(*args, **kwargs))
        return joined[-1]

    yield ranks
    for tree in [tree for each in joined for tree in each.trees]:
        tree.close()


@pytest.mark.parametrize("world_size", [1, 2, 9, 10, 75])  # one, two and three levels
def test_all_ranks_learn_the_largest_of_each_value(join, world_size):
    ranks = join(world_size)
    for turn in range(3):
        answers = ranks.maximum(lambda rank, turn=turn: [rank * turn, -rank, -(2**62), 7])
        assert answers == {rank: [(world_size - 1) * turn, 0, -(2**62), 7] for rank in range(world_size)}
    assert ranks.errors == [None] * world_size


def test_strangers_at_the_door_are_turned_away(join):
    strangers = []

    def knock(places):
        for said in (b"", b"GET / HTTP/1.0\r\n\r\n" + bytes(20), bytes(24)):
            stranger = socket.create_connection(places[0][:2])
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            strangers.append(stranger)

    ranks = join(3, before=knock)
    assert ranks.maximum(lambda rank: [rank]) == {0: [2], 1: [2], 2: [2]}
    for stranger in strangers:
        stranger.close()


def test_a_rank_that_is_gone_is_named_by_those_it_was_connected_to(join):
    ranks = join(10)
    ranks.trees[1].close()
    ranks.maximum(lambda rank: [rank], ranks=[0, 9])
    assert "rank 1" in ranks.errors[0] and "rank 1" in ranks.errors[9]
    assert "connection" in ranks.errors[0] and "connection" in ranks.errors[9]


def test_a_rank_that_says_nothing_is_named_in_time(join):
    ranks = join(3, timeout_s=0.2)
    ranks.maximum(lambda rank: [rank], ranks=[0, 2])
    assert ranks.errors[0] == "timed out: no word from rank 1 for 0.2 s"
    assert ranks.errors[2] == "timed out: no word from rank 0 for 0.2 s"
