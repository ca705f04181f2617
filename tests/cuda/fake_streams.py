"""Streams, events and graphs as torch.cuda has them, with vector clocks in place of a GPU: work is
an account of what it reads and writes. An access that is not ordered behind an earlier one of
another stream, or of the host, is an error, in whatever order things happen to run; and so is what
a capture refuses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

Clock = dict[str, int]
HOST = "host"


class Race(AssertionError):
    """Two accesses, one of them a write, that nothing orders."""


class Refused(AssertionError):
    """What no capture allows, or a driver never does."""


class FakeGpu:
    """What happened, by name of memory: who wrote it last, and who has read it since."""

    def __init__(self) -> None:
        self.clocks: dict[str, Clock] = {HOST: {}}
        self.current = self.stream("main")
        self.capturing: FakeGraph | None = None
        self.begun_libraries: set[str] = set()
        self._writes: dict[str, tuple[str, int]] = {}
        self._reads: dict[str, dict[str, int]] = {}
        self.num_done = self.num_copies = 0

    def stream(self, name: str) -> FakeStream:
        self.clocks.setdefault(name, {})
        return FakeStream(self, name)

    def work(self, reads: str = "", writes: str = "", library: str = "") -> None:
        """On the current stream, or in the graph that is captured."""
        self.work_on(self.current, reads, writes, library)

    def work_on(self, stream: FakeStream, reads: str, writes: str, library: str = "") -> None:
        graph = self.capturing
        if graph is not None and graph.stream.name == stream.name:
            if library and library not in self.begun_libraries:
                raise Refused(f"{library} begins within a capture")
            graph.works.append((reads, writes))
            return
        self.begun_libraries |= {library} - {""}
        self._join(stream.name, self.clocks[HOST])  # it is issued now
        self._touch(stream.name, reads, writes)
        self.num_done += 1

    def host(self, reads: str = "", writes: str = "") -> None:
        self._touch(HOST, reads, writes)

    def _touch(self, who: str, reads: str, writes: str) -> None:
        clock = self.clocks[who]
        clock[who] = now = clock.get(who, 0) + 1
        for name in {*reads.split(), *writes.split()}:
            self._require(who, name, self._writes.get(name), "wrote")
        for name in writes.split():
            for reader, at in self._reads.get(name, {}).items():
                self._require(who, name, (reader, at), "reads")
            self._writes[name], self._reads[name] = (who, now), {}
        for name in reads.split():
            self._reads.setdefault(name, {})[who] = now

    def _require(self, who: str, name: str, before: tuple[str, int] | None, did: str) -> None:
        if before is not None and self.clocks[who].get(before[0], 0) < before[1]:
            raise Race(f"{who} touches {name}, which {before[0]} {did}, and waits for nothing")

    def _join(self, who: str, other: Clock) -> None:
        own = self.clocks[who]
        for name, at in other.items():
            own[name] = max(own.get(name, 0), at)

    def refuse_in_capture(self, what: str) -> None:
        if self.capturing is not None:
            raise Refused(f"{what} within a capture")


class FakeStream:
    def __init__(self, gpu: FakeGpu, name: str) -> None:
        self.gpu, self.name = gpu, name

    @property
    def cuda_stream(self) -> str:
        return self.name

    def wait_stream(self, other: FakeStream) -> None:
        self.wait_event(other.record_event())

    def wait_event(self, event: FakeEvent) -> None:
        self.gpu.refuse_in_capture("an event from outside")
        if event.clock is not None:  # as CUDA: one that was never recorded is over
            self.gpu._join(self.name, event.clock)

    def record_event(self) -> FakeEvent:
        event = FakeEvent(self.gpu)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.record_event().synchronize()


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.clock: Clock | None = None

    def record(self, stream: FakeStream | None = None) -> None:
        self.gpu.refuse_in_capture("an event that others wait for")
        own = self.gpu.current if stream is None else stream
        self.clock = dict(self.gpu.clocks[own.name])

    def synchronize(self) -> None:
        self.gpu.refuse_in_capture("waiting")
        if self.clock is not None:
            self.gpu._join(HOST, self.clock)


class FakeGraph:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.stream = gpu.current
        self.works: list[tuple[str, str]] = []
        self._is_whole = False

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        if self.gpu.current.name == "main":
            raise Refused("a capture on the stream of steps")
        if pool is None or capture_error_mode != "thread_local":
            raise Refused("other threads' calls would end the capture")
        self.stream, self.gpu.capturing = self.gpu.current, self

    def capture_end(self) -> None:
        self.gpu.capturing, self._is_whole = None, True

    def replay(self) -> None:
        if not (self._is_whole and self.works):
            raise Refused("there is nothing in the graph")
        for reads, writes in self.works:
            self.gpu.work(reads, writes)


class FakeTensor:
    """Memory by name; `is_host`: pinned."""

    def __init__(self, gpu: FakeGpu, name: str, is_host: bool = False) -> None:
        self.gpu, self.name, self.is_host = gpu, name, is_host

    def copy_(self, source: FakeTensor, non_blocking: bool = False) -> None:
        if self.is_host or source.is_host:
            self.gpu.refuse_in_capture("a copy from or to the host")
        if not non_blocking:
            raise Refused("the host waits for a copy")
        self.gpu.work(source.name, self.name)
        self.gpu.num_copies += 1


def pretend(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """torch.cuda is this from now on."""
    gpu = FakeGpu()
    made: Iterator[int] = iter(range(100))

    @contextmanager
    def on(stream: FakeStream) -> Iterator[None]:
        before, gpu.current = gpu.current, stream
        try:
            yield
        finally:
            gpu.current = before

    named: dict[str, Callable[..., Any]] = {
        "current_stream": lambda _=None: gpu.current,
        "Stream": lambda _=None: gpu.stream(f"stream {next(made)}"),
        "Event": lambda: FakeEvent(gpu),
        "stream": on,
        "CUDAGraph": lambda: FakeGraph(gpu),
        "graph_pool_handle": lambda: (0, 1),
    }
    for name, stands in named.items():
        monkeypatch.setattr(torch.cuda, name, stands)
    return gpu


def launching(gpu: FakeGpu) -> Any:
    """The bindings' module, as far as launches go: a kernel is what it reads and writes."""

    def launch(kernel: tuple[str, str], *given: Any) -> tuple[int]:
        (stream,) = (one for one in given if isinstance(one, str))
        gpu.work_on(gpu.stream(stream), *kernel)
        return (0,)

    return SimpleNamespace(
        cuLaunchKernel=launch, CUresult=SimpleNamespace(CUDA_SUCCESS=0, CUDA_ERROR_OUT_OF_MEMORY=2)
    )


class NoArguments(ctypes.Structure):
    _fields_ = (("nothing", ctypes.c_int),)
