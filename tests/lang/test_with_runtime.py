"""Programs on the real interpreter, scheduler and tree in this process, with the fake model: the two halves agree."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator

import pytest

import lmprog
from lmprog import wire
from lmprog.config import SchedulerConfig
from lmprog.errors import ContextOverflow, DeadlineExceeded, InvalidParameter, NotSupported, RuntimeGone
from lmprog.lang.backends.runtime import RuntimeBackend, describe
from lmprog.runtime.calls import CallBuilder, Limits
from lmprog.runtime.chat import ChatTemplate
from lmprog.runtime.interpreter import Interpreter
from lmprog.runtime.loop import Loop
from lmprog.runtime.scheduler import Scheduler
from lmprog.runtime.simulation.letters import LetterTokenizer
from lmprog.runtime.simulation.model import FakeEngine
from lmprog.runtime.simulation.sampler import PlainSampler
from lmprog.transport import LocalRuntimeChannel

CONTEXT = 400


def _no_constraints(asked: wire.Constraint) -> object:
    raise NotSupported(f"no constraints here: {asked}")


def _no_template() -> ChatTemplate:
    raise NotSupported("no chat template here")


class Small:
    """A runtime in a thread: everything real but the model."""

    def __init__(self) -> None:
        tokenizer = LetterTokenizer()
        config = SchedulerConfig(page_size=4, num_pages=2000)
        self.scheduler = Scheduler(config, CONTEXT)
        engine = FakeEngine(config.num_pages, config.page_size, tokenizer.vocab_size)
        limits = Limits(tokenizer.vocab_size, self.scheduler.longest_lane, self.scheduler.check_fits)
        calls = CallBuilder(tokenizer, limits, _no_constraints, None, random.Random(1))  # type: ignore[arg-type]
        welcome = wire.Welcome(wire.PROTOCOL_VERSION, "fake", CONTEXT, tokenizer.vocab_size, 4, 2000, 0)
        self.interpreter = Interpreter(self.scheduler, calls, _no_template, welcome, time.monotonic)
        self.channel = LocalRuntimeChannel()
        loop = Loop(self.channel, self.interpreter, self.scheduler, engine, PlainSampler(), time.monotonic)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(loop,))
        self._thread.start()

    def _serve(self, loop: Loop) -> None:
        try:
            while not self._ended.is_set():
                loop.step()
        finally:
            self.channel.close()  # whoever waits hears of it, also when a step raised

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


@pytest.fixture
def small() -> Iterator[Small]:
    made = Small()
    yield made
    made.end()


@pytest.fixture
def backend(small: Small) -> Iterator[RuntimeBackend]:
    with RuntimeBackend(small.channel.connect()) as made:
        yield made
        assert describe(made)["open_branches"] == 0, "every branch is closed by whoever opened it"


@lmprog.function
async def agreed(s: lmprog.Branch, question: str) -> tuple[str, list[str], str]:
    s.append(question)
    first = s.gen(name="first", max_tokens=5)
    s.append(f" so {first} then ")
    async with s.fork(3, temperature=1.0) as branches:
        drafts = await branches.map(lambda b: b.gen(max_tokens=4))
    kind = await s.select("yes", "no")
    return await first, drafts, kind


def test_a_program_with_gen_reference_fork_and_select_runs(backend: RuntimeBackend) -> None:
    run = agreed.using(backend=backend, temperature=0, ignore_eos=True).run("the question")
    first, drafts, kind = run.value
    assert len(first) == 5
    assert [len(draft) for draft in drafts] == [4, 4, 4]
    assert run.text() == f"the question{first} so {first} then {kind}"
    assert isinstance(kind, lmprog.Selected)
    assert sum(kind.probabilities.values()) == pytest.approx(1)
    assert run.usage.generated == 5 + 12
    assert run.usage.cached > 0


def test_a_seed_replays_a_run(backend: RuntimeBackend) -> None:
    seeded = agreed.using(backend=backend, seed=3, ignore_eos=True)
    assert seeded.run("the question").value == seeded.run("the question").value


def test_the_double_and_the_runtime_read_the_same_text(backend: RuntimeBackend) -> None:
    """What the client puts together itself is what the runtime has."""

    @lmprog.function
    def program(s: lmprog.Branch) -> tuple[str, str]:
        s += "a" + lmprog.gen("x", max_tokens=3) + "b"
        forks = s.fork(2)
        forks += lambda index: "cd"[index] + lmprog.gen("y", max_tokens=2)
        forks.join("concate_and_append")
        s += lmprog.select("z", ["u", "v"])
        reply = s.cursor.read().wait(10)
        assert isinstance(reply, wire.TextIs)
        return s.text(), reply.text

    ours, theirs = program.using(backend=backend, ignore_eos=True).run().value
    assert ours == theirs


def test_what_the_runtime_streams_is_the_value(backend: RuntimeBackend) -> None:
    events = list(agreed.using(backend=backend, ignore_eos=True).stream("the question"))
    text = "".join(event.delta for event in events if isinstance(event, lmprog.Text) and event.var == "first")
    [value] = [event.value for event in events if isinstance(event, lmprog.Value) and event.var == "first"]
    assert text == value
    assert isinstance(events[-1], lmprog.Done)


def test_refusals_of_the_runtime_are_raised_and_leave_the_branch_usable(backend: RuntimeBackend) -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.append("abc")
        with pytest.raises(ContextOverflow) as caught:
            await s.gen(max_tokens=10_000)
        assert caught.value.limit is not None
        with pytest.raises(InvalidParameter):
            await s.gen(stop_token_ids=[999])
        return await s.gen(max_tokens=2, ignore_eos=True)

    assert len(program.using(backend=backend).run().value) == 2


def test_a_call_out_of_time_raises(backend: RuntimeBackend) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("abc")
        return s.gen(max_tokens=390, ignore_eos=True, timeout=0.0001).value

    with pytest.raises(DeadlineExceeded):
        program.using(backend=backend).run()


def test_cancelling_a_task_frees_its_branches_in_the_runtime(backend: RuntimeBackend, small: Small) -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> None:
        s.append("abc")
        async with s.fork(4) as branches:
            await branches.map(lambda b: b.gen(max_tokens=380, ignore_eos=True))

    async def main() -> None:
        task = asyncio.ensure_future(program.using(backend=backend).arun())
        while describe(backend)["running"] < 1:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert describe(backend)["running"] == 0


def test_when_the_runtime_ends_every_waiting_program_hears_of_it(small: Small) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("abc")
        while True:
            s.gen(max_tokens=100).value

    with RuntimeBackend(small.channel.connect()) as backend:
        threading.Timer(0.05, small.end).start()
        with pytest.raises((RuntimeGone, ContextOverflow)):
            program.using(backend=backend).run()


def test_many_programs_share_one_prefix(backend: RuntimeBackend) -> None:
    @lmprog.function
    async def program(s: lmprog.Branch, word: str) -> str:
        s.append("a long prefix that all of them have in common, and then ")
        s.append(word)
        return await s.gen(max_tokens=3, ignore_eos=True)

    results = program.map(["one", "two", "three"] * 10, backend=backend, temperature=0)
    assert len(set(results)) == 3
    assert results.usage.cached > results.usage.prompt / 2


def test_plain_programs_in_many_threads_leave_nothing_behind(backend: RuntimeBackend) -> None:
    """Joins close branches while other threads ask: every value is right, and the fixture finds no branch open."""

    @lmprog.function
    def program(s: lmprog.Branch, word: str) -> bool:
        s += word + lmprog.gen("a", max_tokens=2)
        for mode in ("gather_variable", "concate_and_append"):
            forks = s.fork(3)
            forks += lmprog.gen("part", max_tokens=2) + " so "
            s += f"{forks[0].var('part')} and "
            forks.join(mode)
            s += lmprog.gen("after", max_tokens=2)
        reply = s.cursor.read().wait(20)
        return isinstance(reply, wire.TextIs) and reply.text == s.text()

    words = [f"word {'abcdefghij'[index % 10]} " for index in range(60)]
    results = program.map(words, backend=backend, concurrency=16, ignore_eos=True)
    assert list(results) == [True] * 60
