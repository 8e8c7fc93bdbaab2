"""Playing tasks on streams."""

from __future__ import annotations

from collbench.predict.placement import Group
from collbench.predict.timeline import Call, Schedule, last_end_ms, play

WORLD = Group(name="world", nranks=2, nnodes=1)


def call(size_bytes, group=WORLD):
    return Call(collective="all_reduce", size_bytes=size_bytes, group=group, dtype="float32")


def make():
    """compute: a 3 ms, b 4 ms; comm: x 10 ms after a, y 1 ms after nothing; compute: c 2 ms after x."""
    schedule = Schedule()
    a = schedule.add("a", 3.0, stream="compute", phase="forward")
    schedule.add("b", 4.0, stream="compute", phase="forward")
    x = schedule.call("x", call(10), after=(a,), stream="comm", phase="gradients")
    schedule.call("y", call(1), after=(), stream="comm", phase="gradients")
    schedule.add("c", 2.0, after=x, stream="compute", phase="optimizer")
    return schedule


def times(placed):
    return {each.task.name: (each.start_ms, each.end_ms) for each in placed}


def test_a_task_starts_after_its_stream_and_what_it_comes_after():
    placed = play(make().tasks, lambda request: float(request.size_bytes))
    # y waits for x though it could have gone first: a stream runs in the order of issue
    assert times(placed) == {"a": (0, 3), "b": (3, 7), "x": (3, 13), "y": (13, 14), "c": (13, 15)}
    assert last_end_ms(placed) == 15
    assert last_end_ms(placed, "gradients") == 14
    assert last_end_ms(placed, "nothing of the kind") == 0


def test_without_overlap_tasks_run_one_by_one_as_listed():
    placed = play(make().tasks, lambda request: float(request.size_bytes), overlap=False)
    assert times(placed) == {"a": (0, 3), "b": (3, 7), "x": (7, 17), "y": (17, 18), "c": (18, 20)}


def test_a_group_of_one_rank_sends_nothing():
    schedule = Schedule()
    alone = Group(name="world", nranks=1, nnodes=1)
    assert schedule.call("x", call(8, alone), after=(), stream="comm", phase="gradients") == ()
    assert not schedule.tasks
