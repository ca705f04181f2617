"""A short program with the native engine in its process, whose memory thread is mostly at work.

`python exits.py WAY` ends in that way, and must end.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from array import array
from typing import Any

import numpy as np

from lmprog.config import RuntimeConfig
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.scheduling.batch import build_batch
from lmprog.runtime.scheduling.plan import Plan, Row

WAYS = (
    *("end", "raise", "exit", "interrupt", "close", "delete", "cycle", "fork", "thread"),
    *("daemon", "held"),
)


def step(engine: Any) -> None:
    row = Row(None, array("i", [1]), 0, 1, array("i", [0]), 0)  # type: ignore[arg-type]
    assert np.isfinite(engine.forward(build_batch(Plan((row,)), engine.memory.page_size))).all()


def loaded() -> Any:
    """After a step, so that its thread runs."""
    engine = load_engine(RuntimeConfig("dummy:64x2", kv_memory_mb=16, threads=2))
    step(engine)
    return engine


def work(num_steps: int) -> None:
    own = loaded()
    works.set()
    for _ in range(num_steps):
        step(own)


way = sys.argv[1]
assert way in WAYS
engine, works = loaded(), threading.Event()
if way == "raise":
    raise ValueError("told to fail")
if way == "exit":
    sys.exit(0)
if way == "interrupt":
    raise KeyboardInterrupt
if way == "close":
    engine.close()
if way == "delete":
    del engine
if way == "cycle":
    ring: list[Any] = [engine]
    ring.append(ring)
    del engine, ring
    gc.collect()
if way == "fork" and os.fork() == 0:
    sys.exit(0)
if way == "fork":
    os.wait()
if way in ("thread", "daemon"):
    steps = 1000 if way == "thread" else sys.maxsize
    threading.Thread(target=work, args=(steps,), daemon=way == "daemon").start()
    works.wait()
if way == "held":  # as the memory thread has it for moments, in which it may be frozen
    keeper = threading.Thread(target=engine._ahead._state.acquire)
    keeper.start()
    keeper.join()
