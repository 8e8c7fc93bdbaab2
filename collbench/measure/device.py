"""The one interface to the hardware a collective runs on. A new accelerator is one new class here.

torch is imported by the worker before anything here is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import torch

from collbench.errors import InputError
from collbench.measure.clock import now_ns


class Device(Protocol):
    """What the timed loops need of a device.

    issues_async: the collective is called with async_op=True and then waited for, so that the moment its call returns
    is the moment this rank has entered it (a CPU backend would otherwise return only when it has left).
    cache_bytes: the last-level cache, 0 where it is not known.
    """

    backend: str
    name: str
    torch_device: torch.device
    issues_async: bool
    cache_bytes: int

    def synchronize(self) -> None:
        """Return when all work queued on the device has ended."""

    def free_bytes(self) -> int:
        """Memory this rank may still take."""

    def used_bytes(self) -> int:
        """Memory in use: the whole device's for a GPU, this process's for a CPU."""

    def mark(self) -> Any:
        """A moment on the device, when all that was queued before it has ended."""

    def between_marks_ns(self, marks: list[Any]) -> list[int]:
        """The times between marks that follow one another; after `synchronize`."""

    def start(self, issue: Callable[[bool], Any]) -> Callable[[], Any]:
        """Issue a collective that runs beside what the caller does or queues next. What this returns waits for its end,
        and gives it as a mark."""

    def record(self, calls: Callable[[], None]) -> Callable[[], None]:
        """`calls` recorded as a CUDA graph, as a function that replays it. RuntimeError where the device has none."""


class Cpu:
    """gloo on host memory."""

    backend = "gloo"
    name = "cpu"
    issues_async = True

    def __init__(self, local_rank: int, local_world_size: int) -> None:
        self.torch_device = torch.device("cpu")
        self.cache_bytes = _last_level_cache_bytes()
        self._ranks_sharing = local_world_size
        self._waiting = ThreadPoolExecutor(1)  # for `start`

    def synchronize(self) -> None:
        pass

    def free_bytes(self) -> int:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 // self._ranks_sharing
        return 2**62  # unknown: let the allocation itself decide

    def used_bytes(self) -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def mark(self) -> int:
        return now_ns()

    def between_marks_ns(self, marks: list[int]) -> list[int]:
        return [later - earlier for earlier, later in pairwise(marks)]

    def start(self, issue: Callable[[bool], Any]) -> Callable[[], int]:
        """gloo's own thread calls back at the end; one that waits for it wakes late, above all on a busy CPU. That must
        do where gloo has no such call (reduce_scatter, send, recv), or where `wait` itself does the last part."""
        work = issue(True)
        ended: Future[int] = Future()
        if work is None:
            ended.set_result(now_ns())
            return ended.result
        try:
            work.get_future().add_done_callback(lambda _: ended.set_result(now_ns()))
        except (RuntimeError, AttributeError):
            return self._waiting.submit(_end_of, work).result

        def end() -> int:
            work.wait()  # raises what went wrong
            return ended.result()

        return end

    def record(self, calls: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("a CPU records no CUDA graphs")


def _end_of(work: Any) -> int:
    work.wait()
    return now_ns()


def _last_level_cache_bytes(caches: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """The largest cache that CPU 0 has a part in; 0 where Linux does not say."""
    sizes = [path.read_text().strip() for path in caches.glob("index*/size")]
    return max((int(size.removesuffix("K")) * 1024 for size in sizes if size.removesuffix("K").isdigit()), default=0)


class Cuda:
    """nccl on one GPU a rank. A call only queues work, so it returns when this rank has entered the collective."""

    backend = "nccl"
    issues_async = False

    def __init__(self, local_rank: int, local_world_size: int) -> None:
        gpus = torch.cuda.device_count()
        if gpus <= local_rank:
            raise InputError(
                f"backend nccl: rank {os.environ.get('RANK', '0')} (local rank {local_rank}) has no GPU of its own, "
                f"torch sees {gpus}: start at most {gpus} ranks a node, or use --backend gloo"
            )
        self.torch_device = torch.device("cuda", local_rank)
        torch.cuda.set_device(self.torch_device)
        properties = torch.cuda.get_device_properties(self.torch_device)
        self.name = properties.name
        self.cache_bytes = int(getattr(properties, "L2_cache_size", 0))
        self._beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # for `start`

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def free_bytes(self) -> int:
        return int(torch.cuda.mem_get_info(self.torch_device)[0])

    def used_bytes(self) -> int:
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return int(total - free)

    def mark(self) -> Any:
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between_marks_ns(self, marks: list[Any]) -> list[int]:
        return [round(earlier.elapsed_time(later) * 1e6) for earlier, later in pairwise(marks)]

    def start(self, issue: Callable[[bool], Any]) -> Callable[[], Any]:
        """On a stream of its own: since torch 2.8 NCCL's kernels of a blocking call run on the current stream."""
        self._beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._beside):
            work = issue(False)
            if work is not None:
                work.wait()  # the stream waits, not this thread
            end = self.mark()

        def ended() -> Any:
            end.synchronize()
            return end

        return ended

    def record(self, calls: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's watchdog thread asks for events
            calls()
        replay: Callable[[], None] = graph.replay
        return replay


_DEVICES: dict[str, Any] = {"gloo": Cpu, "nccl": Cuda}


def default_backend() -> str:
    """nccl where torch sees a GPU, else gloo."""
    return "nccl" if torch.cuda.is_available() else "gloo"


def open_device(backend: str, local_rank: int, local_world_size: int) -> Device:
    """The device of this rank. Raises InputError where the backend has none here."""
    device: Device = _DEVICES[backend](local_rank, local_world_size)
    return device
