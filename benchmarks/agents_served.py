"""Sessions of agents on `lmprog serve` and a real model, with OpenAI's client as their harness.

See `python -m benchmarks.agents serve --help`. Token ids of sessions become words, and lengths are
made so short that the longest call fits the model. Knows sessions and clients; knows no scheduler.
"""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, Literal

import httpx2

import lmprog
from benchmarks import runner
from benchmarks.agent_sessions import Call, Session, common_length, sessions_of
from benchmarks.endurance import served
from benchmarks.virtual_time import PAGE

FOR_ALL = 8192
"""Pages in which nothing is evicted."""
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Side:
    are_programs: bool = False
    are_named: bool = False
    """Requests say of which session they are."""
    policy: str = "lpm"


SIDES = {
    "programs": Side(are_programs=True),
    "requests": Side(),
    "with hints": Side(are_named=True),
    "requests, fcfs": Side(policy="fcfs"),
}


@dataclass(frozen=True, slots=True)
class Begun:
    """A session that begins so many seconds after the first one."""

    at: float
    calls: Session


@dataclass(frozen=True, slots=True)
class Measured:
    """`seconds`: of each session; `computed`: tokens; `busy`: processor seconds of the server or runtime."""

    seconds: list[float]
    computed: float
    busy: float


def text_of(tokens: array[int]) -> str:
    return "".join(f" {token % 1000}" for token in tokens)


def shortened(sessions: Iterable[Session], words: int, pauses: float) -> list[Session]:
    """All lengths in proportion, so that the longest call has so many words."""
    held = list(sessions)
    part = words / max(len(call.prompt) + call.answer for calls in held for call in calls)

    def short(call: Call) -> Call:
        answer = max(1, int(part * call.answer))
        return replace(
            call, prompt=_every(call.prompt, part), answer=answer, think=pauses * call.think
        )

    return [[short(call) for call in calls] for calls in held]


def _every(tokens: array[int], part: float) -> array[int]:
    """Such tokens as are the same where the beginnings of two texts are."""
    most = int(len(tokens) * part)
    return array("i", (tokens[int(at / part)] for at in range(most)))


def kept(calls: Session) -> list[int]:
    """Of each call, the tokens of its prompt that all later ones of its agent begin with."""
    found = [0] * len(calls)
    for agent in {call.agent for call in calls}:
        own = [number for number, call in enumerate(calls) if call.agent == agent]
        least = len(calls[own[-1]].prompt)
        found[own[-1]] = least
        for number, after in reversed([*pairwise(own)]):
            least = min(least, common_length(calls[number].prompt, calls[after].prompt))
            found[number] = least
    return found


@lmprog.function
async def session(s: lmprog.Branch, one: Begun) -> float:
    """Each agent is a branch, and each answer a fork of it."""
    await asyncio.sleep(one.at)
    began = time.perf_counter()
    agents = s.fork(1 + max(call.agent for call in one.calls))
    written = [0] * len(agents)
    for call, length in zip(one.calls, kept(one.calls), strict=True):
        await asyncio.sleep(call.think)
        branch, done = agents[call.agent], written[call.agent]
        branch.append(text_of(call.prompt[done:length]))
        written[call.agent] = max(done, length)
        async with branch.fork(1) as [fork]:
            fork.append(text_of(call.prompt[written[call.agent] :]))
            await fork.gen(max_tokens=call.answer, min_tokens=call.answer)
    return time.perf_counter() - began


class Harness:
    """Each call is a request of OpenAI's client."""

    def __init__(self, url: str, are_named: bool) -> None:
        self._url = url
        self._are_named = are_named
        self.longest: dict[tuple[int, int], int] = {}
        """Tokens of the longest call, by session and agent."""

    async def run(self, sessions: list[Begun]) -> list[float]:
        """Seconds of each."""
        import openai

        async with openai.AsyncOpenAI(
            base_url=f"{self._url}/v1", api_key="none", max_retries=0, timeout=runner.PATIENCE
        ) as client:
            models = await client.models.list()
            ask = partial(client.completions.create, model=models.data[0].id, temperature=0.0)
            runs = (self._session(ask, number, one) for number, one in enumerate(sessions))
            return await asyncio.gather(*runs)

    async def _session(self, ask: Callable[..., Any], number: int, one: Begun) -> float:
        await asyncio.sleep(one.at)
        began = time.perf_counter()
        headers = {"x-session-id": f"session {number}"} if self._are_named else {}
        for call in one.calls:
            await asyncio.sleep(call.think)
            done = await ask(
                prompt=text_of(call.prompt),
                max_tokens=call.answer,
                extra_body={"ignore_eos": True},
                extra_headers=headers,
            )
            assert done.usage.completion_tokens == call.answer, "all of it was made"
            place = number, call.agent
            self.longest[place] = max(self.longest.get(place, 0), done.usage.total_tokens)
        return time.perf_counter() - began


def counter(url: str, name: str) -> float:
    """Of the server's `/metrics`, over all models."""
    text = httpx2.get(f"{url}/metrics", trust_env=False).text
    return sum(
        float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name}{{")
    )


def as_requests(
    side: Side, model: str, num_pages: int, sessions: list[Begun]
) -> tuple[Measured, list[int]]:
    """On a server of its own; and the pages of each agent's longest call."""
    options = ("--policy", side.policy, "--num-pages", str(num_pages))
    with served(*options, model=model) as server:
        harness, pids = Harness(server.url, side.are_named), (server.pid, server.runtime_pid())
        busy = runner.processor_time(*pids)
        seconds = asyncio.run(harness.run(sessions))
        busy = runner.processor_time(*pids) - busy
        computed = counter(server.url, "lmprog_computed_tokens_total")
    return Measured(seconds, computed, busy), [1 + one // PAGE for one in harness.longest.values()]


def as_programs(model: str, num_pages: int, sessions: list[Begun]) -> Measured:
    with lmprog.Runtime(model, threads=1, num_pages=num_pages) as backend:
        busy = runner.processor_time(backend.process.pid)
        asked = session.using(backend=backend, **GREEDY)
        seconds = list(asked.map(sessions, concurrency=len(sessions)))
        busy = runner.processor_time(backend.process.pid) - busy
        return Measured(seconds, lmprog.get_server_info(backend)["computed_tokens"], busy)


def serve(
    *,
    like: Literal["miniswe", "magentic", "chat"] = "miniswe",
    trace: Annotated[Path | None, "a folder of sessions instead"] = None,
    model: Annotated[str, "nano, random:768x12 or a folder"] = "nano",
    sessions: int = 8,
    rate: Annotated[float, "sessions that begin in a second"] = 1.0,
    words: Annotated[int, "of the longest call"] = 700,
    pauses: Annotated[float, "times those of the sessions"] = 0.3,
    memory: Annotated[float, "part of what all sessions need"] = 0.4,
) -> None:
    """Seconds of a session in the mean and the ninth decile, tokens computed over those with memory
    for all, and processor seconds of the server, or of the runtime of programs.
    """
    dice, at, begun = random.Random(1), 0.0, list[Begun]()
    for calls in shortened(sessions_of(like, trace, sessions), words, pauses):
        begun.append(Begun(at, calls))
        at += dice.expovariate(rate)
    num_calls = sum(len(one.calls) for one in begun)
    runner.head("side", "mean", "p90", "computed", "processor seconds")
    ample, longest = as_requests(Side(), model, FOR_ALL, begun)
    num_pages = max(int(memory * sum(longest)), max(longest) + 2)
    for name, side in {"memory for all": None, **SIDES}.items():
        if side is None:
            found = ample
        elif side.are_programs:
            found = as_programs(model, num_pages, begun)
        else:
            found, _ = as_requests(side, model, num_pages, begun)
        times = mean(found.seconds), runner.percentile(found.seconds, 0.9)
        part = f"{found.computed / ample.computed:.2f}"
        runner.say(name, *(f"{one:.1f}" for one in times), part, f"{found.busy:.1f}")
    print(f"\n{num_calls} calls of {len(begun)} sessions in {num_pages * PAGE:,} tokens of memory")
