"""What runs at the same time slows what it runs beside: tasks played event by event. Pure arithmetic.

Two things are shared. A link: collectives that transfer over it at a time have equal parts of it, while their latencies
pass side by side. The device: where it was measured (model.slowdown), a collective beside computation takes
`comm` times as long and computation beside collectives `compute` times, the largest of theirs.

What is served at a time is the backend's rule. nccl serves each stream, a communicator, in turn: links are shared
between streams. torch's ProcessGroupGloo has two threads, whatever its options say: a group's collectives are served
in the order of issue, a third waits until one of the two has ended.

No more is done on a link than one after another would do, so without slowdowns a step takes no longer than its
computation and its communication; and where no more than two share a link, half the bandwidth never makes a step
faster. Where nothing is shared and nothing slows, tasks are placed as `timeline.play` places them.

Not in it: gloo gathers to one side and reduces to the other, so that the notices of one wait behind the data of the
other. Both at once take about a tenth longer than in turn, and over a far network hide little of each other's latency.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from collbench.model.slowdown import Slowdown
from collbench.predict.placement import Group
from collbench.predict.timeline import Call, Placed, Task

GLOO, NCCL = "gloo", "nccl"
_AT_ONCE = {GLOO: 2, NCCL: 1}


def shares_links(tasks: Iterable[Task]) -> bool:
    """Whether several streams' collectives use one link."""
    return any(len(streams) > 1 for streams in _streams_of_links(tasks).values())


def play_sharing(
    tasks: Sequence[Task],
    cost_ms: Callable[[Call], float],
    latency_share: Callable[[Call], float],
    *,
    rule: str = GLOO,
    slowdown: Callable[[Call], Slowdown] | None = None,
) -> list[Placed]:
    """Place every task, as `timeline.play` does. `latency_share`: the part of a call's cost that loads no link, 0..1.

    A stream issues its tasks in the order they were added, each once every task it comes after has ended. Groups
    inside a node and groups across nodes use different links.
    """
    return _Player(tasks, cost_ms, latency_share, rule, slowdown).play()


def _streams_of_links(tasks: Iterable[Task]) -> dict[bool, set[str]]:
    streams: dict[bool, set[str]] = {False: set(), True: set()}
    for task in tasks:
        if isinstance(task.work, Call):
            streams[task.work.group.crosses_nodes].add(task.stream)
    return streams


class _Running:
    """A task in service: until `end_ms` if nothing changes, `left_ms` of work at `since_ms`, slowed `factor`-fold."""

    __slots__ = (
        *("call", "end_ms", "factor", "left_ms", "link", "position", "since_ms", "slot", "slowdown", "start_ms"),
        "transfer_ms",
    )

    def __init__(self, position: int, call: Call | None, now_ms: float, left_ms: float) -> None:
        self.position, self.call, self.start_ms, self.slot = position, call, now_ms, 1
        self.transfer_ms = 0.0  # still to come once the latency has passed
        self.link: list[_Running] | None = None  # that its transfer shares
        self.slowdown: Slowdown | None = None  # of a call, where it has one
        self.begin(now_ms, left_ms)

    def begin(self, now_ms: float, left_ms: float) -> None:
        """A part of its work, at full pace."""
        self.since_ms, self.left_ms, self.factor, self.end_ms = now_ms, left_ms, 1.0, now_ms + left_ms

    def pace(self, now_ms: float, factor: float) -> None:
        """From now on it takes so many times as long as alone."""
        if factor != self.factor:
            self.left_ms -= (now_ms - self.since_ms) / self.factor
            self.since_ms, self.factor = now_ms, factor
            self.end_ms = now_ms + max(0.0, self.left_ms) * factor


class _Player:
    """What is issued, waits and runs at one moment, and what has been placed."""

    def __init__(
        self,
        tasks: Sequence[Task],
        cost_ms: Callable[[Call], float],
        latency_share: Callable[[Call], float],
        rule: str,
        slowdown: Callable[[Call], Slowdown] | None,
    ) -> None:
        self._tasks, self._cost_ms, self._latency_share, self._slowdown = tasks, cost_ms, latency_share, slowdown
        self._at_once = _AT_ONCE[rule]
        self._waits_for = [len(task.after) for task in tasks]
        self._followers: list[list[int]] = [[] for _ in tasks]
        self._to_issue: dict[str, deque[int]] = {}
        for position, task in enumerate(tasks):
            self._to_issue.setdefault(task.stream, deque()).append(position)
            for before in task.after:
                self._followers[before].append(position)
        self._queues: dict[str | Group, deque[int]] = {}  # of each computing stream and each group (nccl: each stream)
        self._serving: dict[str | Group, int] = {}
        self._slots: dict[str, set[int]] = {stream: set() for stream in self._to_issue}
        streams = _streams_of_links(tasks)
        # A link that one stream uses, one collective at a time, is shared with nothing.
        self._links: dict[bool, list[_Running] | None] = {
            crosses: [] if self._at_once > 1 or len(streams[crosses]) > 1 else None for crosses in (False, True)
        }
        self._running: list[_Running] = []
        self._placed: list[Placed | None] = [None] * len(tasks)

    def play(self) -> list[Placed]:
        self._start(0.0, list(self._to_issue))
        self._pace(0.0)
        while self._running:
            # Of several that end now, the first issued goes first.
            ending = min(self._running, key=_ends)
            now_ms = ending.end_ms
            if ending.transfer_ms:
                self._transfer(ending)
            else:
                self._end(ending)
            self._pace(now_ms)
        return [placed for placed in self._placed if placed is not None]

    def _start(self, now_ms: float, streams: list[str]) -> None:
        """Issue what these streams can issue, and serve what there is room for."""
        for stream in streams:
            waiting = self._to_issue[stream]
            while waiting and not self._waits_for[waiting[0]]:
                position = waiting.popleft()
                server = self._server(self._tasks[position])
                self._queues.setdefault(server, deque()).append(position)
                self._serve(server, now_ms)

    def _serve(self, server: str | Group, now_ms: float) -> None:
        queue = self._queues[server]
        room = 1 if isinstance(server, str) else self._at_once
        while queue and self._serving.get(server, 0) < room:
            position = queue.popleft()
            self._serving[server] = self._serving.get(server, 0) + 1
            running = self._serviced(position, now_ms)
            slots = self._slots[self._tasks[position].stream]
            while running.slot in slots:
                running.slot += 1
            slots.add(running.slot)
            self._running.append(running)

    def _serviced(self, position: int, now_ms: float) -> _Running:
        work = self._tasks[position].work
        if not isinstance(work, Call):
            return _Running(position, None, now_ms, work)
        total_ms = self._cost_ms(work)
        shares = self._links[work.group.crosses_nodes] is not None
        running = _Running(position, work, now_ms, total_ms * self._latency_share(work) if shares else total_ms)
        running.transfer_ms = total_ms - running.left_ms
        running.slowdown = None if self._slowdown is None else self._slowdown(work)
        return running

    def _transfer(self, running: _Running) -> None:
        """Its latency has passed: it joins those that share its link."""
        assert running.call is not None
        running.link = self._links[running.call.group.crosses_nodes]
        assert running.link is not None
        running.link.append(running)
        running.begin(running.end_ms, running.transfer_ms)
        running.transfer_ms = 0.0

    def _end(self, running: _Running) -> None:
        position, now_ms = running.position, running.end_ms
        task = self._tasks[position]
        self._running.remove(running)
        if running.link is not None:
            running.link.remove(running)
        self._slots[task.stream].remove(running.slot)
        self._placed[position] = Placed(task=task, start_ms=running.start_ms, end_ms=now_ms, slot=running.slot)
        server = self._server(task)
        self._serving[server] -= 1
        self._serve(server, now_ms)
        for follower in self._followers[position]:
            self._waits_for[follower] -= 1
        # In the order of issue: followers of one task may be on several streams.
        self._start(now_ms, list(dict.fromkeys(self._tasks[each].stream for each in self._followers[position])))

    def _pace(self, now_ms: float) -> None:
        """Everything that runs goes on at the pace that what runs beside it leaves."""
        computing = any(each.call is None for each in self._running)
        of_calls = max((each.slowdown.compute for each in self._running if each.slowdown is not None), default=1.0)
        for each in self._running:
            if each.call is None:
                each.pace(now_ms, of_calls)
                continue
            factor = 1.0 if each.link is None else float(len(each.link))
            each.pace(now_ms, factor * each.slowdown.comm if each.slowdown is not None and computing else factor)

    def _server(self, task: Task) -> str | Group:
        return task.work.group if isinstance(task.work, Call) and self._at_once > 1 else task.stream


def _ends(running: _Running) -> tuple[float, int]:
    return running.end_ms, running.position
