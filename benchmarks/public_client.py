"""Clients of a runtime that use public names of lmprog only, so that the same work can be given to
another state of lmprog: `benchmarks.against` runs this file as a script, once for each side.

    PYTHONPATH=CHECKOUT python -P benchmarks/public_client.py < task.json > found.json

The task names a workload (`chats`, `prompts`), the model and the runtime's options, which each state
must have; a result says which lmprog was run. Seconds are processor time. Imports nothing of the
project but that lmprog.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import lmprog

GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
STREAMS, STREAM_TOKENS, FIRST_STEPS = 8, 1600, 16
POLL_SECONDS = 0.005
LEAST_STEP = 0.0005
"""Seconds of the runtime's processor time; no step of eight streams takes less."""


def processor_time(pid: int) -> float:
    """Seconds that the threads of a process have computed, those that ended too: the clock that
    Linux keeps of each process."""
    return time.clock_gettime(~pid << 3 | 2)


@dataclass(frozen=True)
class ChatTexts:
    """One program: it asks, and before each later question it thinks for so many seconds."""

    questions: list[str]
    pauses: list[float]
    answer: int


@lmprog.function
async def chat(s: lmprog.Branch, texts: ChatTexts) -> None:
    for turn, question in enumerate(texts.questions):
        if turn:
            await asyncio.sleep(texts.pauses[turn - 1])
        s.append(question)
        await s.gen(max_tokens=texts.answer, min_tokens=texts.answer)


@lmprog.function
async def answer(s: lmprog.Branch, text: str, num_tokens: int) -> None:
    s.append(text)
    await s.gen(max_tokens=num_tokens, min_tokens=num_tokens)


def chats(backend: lmprog.Runtime, task: dict[str, Any]) -> dict[str, Any]:
    """All chats at once: processor time of client and runtime, and what was computed."""
    pid = backend.process.pid
    items = [ChatTexts(**one) for one in task["chats"]]
    answer.using(backend=backend, **GREEDY).run(" warm up" * 8, 4)
    lmprog.flush_cache(backend)
    before = lmprog.get_server_info(backend)
    busy, began = time.process_time() + processor_time(pid), time.perf_counter()
    list(chat.using(backend=backend, **GREEDY).map(items, concurrency=len(items)))
    wall, busy = time.perf_counter() - began, time.process_time() + processor_time(pid) - busy
    after = lmprog.get_server_info(backend)
    counts = {name: after[name] - before[name] for name in ("steps", "computed_tokens")}
    return {"busy": busy, "wall": wall, **counts}


class StreamedSteps:
    """When the tokens of steps came, by the runtime's processor time. A second text of a stream is
    of a later step; texts of other streams that come after the first one are of the same. What this
    process reads late, several steps' texts at once, counts as one step, and as a longer wait.
    """

    def __init__(self, pid: int) -> None:
        self.at: list[float] = []
        self._pid = pid
        self._seen: set[int] = set()

    def came(self, stream: int) -> None:
        if not self.at or stream in self._seen:
            now = processor_time(self._pid)
            if not self.at or now - self.at[-1] >= LEAST_STEP:
                self._seen.clear()
                self.at.append(now)
        self._seen.add(stream)

    def between(self, began: float, ended: float) -> list[float]:
        """Seconds from one step's tokens to the next's, of those with their middle in that time."""
        pairs = zip(self.at, self.at[1:], strict=False)
        return [b - a for a, b in pairs if began <= (a + b) / 2 <= ended]


async def prompts(backend: lmprog.Runtime, task: dict[str, Any]) -> dict[str, Any]:
    """Prompts one after the other beside streams: what each takes of the runtime's processor time,
    and what the streams wait meanwhile from one token to the next."""
    pid = backend.process.pid
    asked = answer.using(backend=backend, **GREEDY)
    await asked.arun(" warm up" * 8, 4)
    steps = StreamedSteps(pid)

    async def read(number: int) -> None:
        async for event in asked.stream(f"Once upon {number}", STREAM_TOKENS):
            if isinstance(event, lmprog.Text):
                steps.came(number)

    streams = [asyncio.create_task(read(number)) for number in range(STREAMS)]
    while len(steps.at) < FIRST_STEPS:
        await asyncio.sleep(POLL_SECONDS)
    gaps, whole = [], 0.0
    for text in task["prompts"]:
        began = processor_time(pid)
        await asked.arun(text, 1)
        ended = processor_time(pid)
        whole += ended - began
        gaps += steps.between(began, ended)
    if any(stream.done() for stream in streams):
        raise RuntimeError("a stream ended before the last prompt; ask for fewer prompts")
    for stream in streams:
        stream.cancel()
    await asyncio.wait(streams)
    return {"gaps": gaps, "whole": whole}


def main() -> None:
    task = json.load(sys.stdin)
    with lmprog.Runtime(task["model"], **task["options"]) as backend:
        if task["workload"] == "chats":
            found = chats(backend, task)
        else:
            found = asyncio.run(prompts(backend, task))
    json.dump({"lmprog": lmprog.__file__, **found}, sys.stdout)


if __name__ == "__main__":
    main()
