"""The driver of a GPU on streams and events with vector clocks: what it orders, what it captures,
and that a driver that forgets any of it is found.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lmprog.runtime.engine.device import cuda_driver
from lmprog.runtime.engine.device.driver import Launch
from tests.cuda.fake_streams import (
    FakeGpu,
    FakeTensor,
    NoArguments,
    Race,
    Refused,
    launching,
    pretend,
)

KERNELS = {
    "write pages": ("", "pages"),
    "attend": ("pages", "out"),
    "bring": ("store", "pages"),
    "store": ("pages", "store"),
}


def opened(gpu: FakeGpu, module: Any) -> Any:
    driver = module.CudaDriver.__new__(module.CudaDriver)
    driver.device, driver._driver = torch.device("cuda", 0), launching(gpu)
    driver._kernels, driver._side, driver._capturing = dict(KERNELS), None, None
    driver._graph_memory = None
    return driver


def launched(driver: Any, kernel: str) -> None:
    driver.launch(Launch(kernel, 1, 32, 0, NoArguments()))


def driver_is_right(gpu: FakeGpu, module: Any) -> None:
    """Steps as the engine has them: arrays go there, kernels and products, tokens come back; pages
    come and go beside; graphs.
    """
    driver = opened(gpu, module)
    host, there, tokens, pinned = (
        FakeTensor(gpu, name, is_host)
        for name, is_host in (
            ("arrays", True),
            ("there", False),
            ("out", False),
            ("tokens", True),
        )
    )

    def step(library: str = "cublas") -> None:
        launched(driver, "write pages")
        driver.compute(lambda: gpu.work("there", "x", library))
        launched(driver, "attend")

    graph = None
    for number in range(4):
        gpu.host(writes="arrays")
        driver.copy(there, host)
        sent = driver.event()
        if number > 1:
            mark = driver.aside(lambda: launched(driver, "bring"))
            driver.join(mark)
        if number % 2:
            graph = graph or driver.capture(lambda: step("cublasLt"))
            done = gpu.num_done
            graph.replay()
            assert gpu.num_done == done + 3, "a replay does what was captured, once"
        else:
            step()
        launched(driver, "store")
        driver.copy(pinned, tokens)
        ended = driver.event()
        sent.wait()
        gpu.host(writes="arrays")
        ended.wait()
        gpu.host(reads="tokens")
    assert gpu.num_copies == 8
    # pages that come beside a step that goes on with other things, twice
    for _ in range(2):
        mark = driver.aside(lambda: launched(driver, "bring"))
        driver.compute(lambda: gpu.work("x", "y"))
        driver.join(mark)
        launched(driver, "attend")
    first = driver.aside(lambda: driver.compute(lambda: gpu.work("", "beside")))
    assert first is not None
    driver.compute(lambda: gpu.work("y", "x"))  # and is not waited for by what does not need it
    clock = gpu.clocks["main"]
    assert all(at < gpu.clocks[name][name] for name, at in clock.items() if _is_side(gpu, name))


def _is_side(gpu: FakeGpu, name: str) -> bool:
    return name == gpu._writes["beside"][0]


def test_the_driver_orders_what_must_be_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    driver_is_right(pretend(monkeypatch), cuda_driver)


FAULTS = {
    "work aside does not wait for what was begun": (
        "        self._side.wait_stream(torch.cuda.current_stream(self.device))\n",
        "",
    ),
    "nothing waits for work aside": (
        "torch.cuda.current_stream(self.device).wait_event(mark.event)",
        "pass",
    ),
    "work aside is on the stream of steps": ("with torch.cuda.stream(self._side):", "if True:"),
    "the mark is of the stream of steps": (
        "_CudaMark(self._side.record_event())",
        "_CudaMark(torch.cuda.current_stream(self.device).record_event())",
    ),
    "the side is waited for by everything": (
        "return _CudaMark(self._side.record_event())",
        "mark = _CudaMark(self._side.record_event())\n        self.join(mark)\n        return mark",
    ),
    "an event is never recorded": (
        "        event.record(torch.cuda.current_stream(self.device))\n",
        "",
    ),
    "an event is recorded on another stream": (
        "event.record(torch.cuda.current_stream(self.device))",
        "event.record(torch.cuda.Stream(self.device))",
    ),
    "nobody waits for an event": ("self._event.synchronize()", "pass"),
    "a launch goes to a stream of its own": (
        "stream = torch.cuda.current_stream(self.device).cuda_stream",
        "stream = torch.cuda.Stream(self.device).cuda_stream",
    ),
    "a launch beside goes to the stream of steps": (
        "stream = torch.cuda.current_stream(self.device).cuda_stream",
        "stream = 'main'",
    ),
    "nothing is captured": (
        "            try:\n                work()\n",
        "            try:\n                pass\n",
    ),
    "a capture with cold libraries": (
        "            work()\n            self._capturing.synchronize()\n",
        "",
    ),
    "what is done before a capture waits for nothing": (
        "        self._capturing.wait_stream(here)\n",
        "",
    ),
    "what is done before a capture is not waited for": (
        "            self._capturing.synchronize()\n",
        "",
    ),
    "a capture on the stream of steps": ("with torch.cuda.stream(self._capturing):", "if True:"),
    "a capture that other threads end": ("thread_local", "global"),
    "a capture that never ends": (
        "                graph.capture_end()\n",
        "                pass\n",
    ),
    "a replay does nothing": ("self._graph.replay()", "pass"),
    "a copy for which the host waits": ("non_blocking=True", "non_blocking=False"),
    "nothing is copied": ("target.copy_(source, non_blocking=True)", "pass"),
    "nothing is computed": (
        "            with torch.inference_mode():\n                work()\n",
        "            pass\n",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_driver_that_forgets_it_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = FAULTS[name]
    text = Path(cuda_driver.__file__).read_text()
    assert text.count(old) == 1, name
    path = tmp_path / "faulty_driver.py"
    path.write_text(text.replace(old, new))
    spec = importlib.util.spec_from_file_location("faulty_driver", path)
    assert spec is not None
    assert spec.loader is not None
    faulty = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, faulty)  # dataclasses look their module up
    spec.loader.exec_module(faulty)
    with pytest.raises(AssertionError):
        driver_is_right(pretend(monkeypatch), faulty)


def test_a_missing_wait_is_an_error_whatever_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = pretend(monkeypatch)
    other = gpu.stream("other")
    gpu.work(writes="a")
    with pytest.raises(Race, match="other touches a, which main wrote"):
        gpu.work_on(other, "a", "")
    other.wait_stream(gpu.current)
    gpu.work_on(other, "a", "")
    with pytest.raises(Race, match="main touches a, which other reads"):
        gpu.work(writes="a")


@pytest.mark.parametrize("what", ["copy", "event", "join"])
def test_a_capture_refuses_what_a_graph_cannot_hold(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = pretend(monkeypatch)
    driver = opened(gpu, cuda_driver)
    mark = driver.aside(lambda: launched(driver, "bring"))
    verbs = {
        "copy": lambda: driver.copy(FakeTensor(gpu, "a"), FakeTensor(gpu, "b", is_host=True)),
        "event": driver.event,
        "join": lambda: driver.join(mark),
    }
    with pytest.raises(Refused, match="within a capture"):
        driver.capture(verbs[what])
