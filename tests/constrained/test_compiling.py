"""A branch waits for its constraint as for a promise, and nobody else does."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
import weakref
from array import array
from collections import Counter
from collections.abc import Callable, Hashable

import pytest

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.constraint import CompileTooLong
from lmprog.errors import GrammarError, RequestRejected
from lmprog.runtime.programs import call_constraints, compile_pool
from lmprog.runtime.programs.call_constraints import CallConstraints, SearchCache
from lmprog.runtime.programs.compile_pool import CompilePool
from lmprog.runtime.text.stream import stop_search
from lmprog.transport import Gone
from tests.constrained.writer import ME, Writer, byte_tokenizer

FIVE = wire.SamplingParams(max_tokens=5)


class Later(CompilePool):
    """Runs jobs when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Callable[[], None]] = []

    def submit(self, job: Callable[[], None], owner: Hashable = None) -> None:
        self.jobs.append(job)

    def turn(self, busy: bool) -> None:
        """Nobody waits for it."""


class Counting:
    """A worker whose job calls a function again and again."""

    def __init__(self) -> None:
        self.workers = CompilePool()
        self.calls = 0
        self.stopped = threading.Event()
        self.workers.submit(self._count)

    def stands_still(self) -> bool:
        """Whether no call is made for 50 ms, within two minutes."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            before = self.calls
            time.sleep(0.05)
            if self.calls == before > 0:
                return True
        return False

    def end(self) -> None:
        self.stopped.set()
        self.workers.turn(busy=False)

    def _count(self) -> None:
        while not self.stopped.is_set():
            self._one()

    def _one(self) -> None:
        self.calls += 1
        self.workers.pause()


class Slow:
    """A writer whose constraints are compiled when the test says so."""

    def __init__(self, made: CallConstraints | None = None) -> None:
        workers = Later()
        self.jobs = workers.jobs
        self.made = made or CallConstraints(byte_tokenizer(), workers=workers)
        self.writer = Writer(byte_tokenizer(), constraints=self.made)

    def say(self, *ops: wire.Op | Gone) -> None:
        self.writer.channel.inbox += [(ME, op) for op in ops]

    def gen(
        self, number: int, pattern: str | wire.Constraint | None, timeout: float | None = None
    ) -> None:
        constraint = wire.Regex(pattern) if isinstance(pattern, str) else pattern
        self.say(
            wire.Open(number),
            wire.Append(number, (wire.TextPiece("x"),)),
            wire.Generate(number, number, FIVE, constraint, timeout=timeout),
        )

    def replies(self, steps: int = 12) -> dict[int | None, wire.Reply]:
        """The last replies of so many turns, by call."""
        found: list[wire.Reply] = []
        for _ in range(steps):
            self.writer.loop.step()
            found += [reply for _, reply in self.writer.channel.sent]
            self.writer.channel.sent = []
        return {
            reply.call: reply for reply in found if isinstance(reply, wire.CallDone | wire.Failed)
        }

    def compile(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


def text_of(reply: wire.Reply) -> str:
    assert isinstance(reply, wire.CallDone), reply
    return reply.outputs[0].text


def code_of(reply: wire.Reply) -> str:
    assert isinstance(reply, wire.Failed), reply
    return reply.code


def test_a_branch_waits_for_its_constraint_and_others_go_on() -> None:
    slow = Slow()
    slow.gen(1, "abc")
    slow.gen(2, None)
    assert set(slow.replies()) == {2}
    assert slow.writer.interpreter.awaits_thread
    slow.compile()
    assert text_of(slow.replies()[1]) == "abc"
    assert not slow.writer.interpreter.awaits_thread


def test_two_calls_with_one_constraint_compile_it_once() -> None:
    slow = Slow()
    slow.gen(1, "abc")
    slow.gen(2, "abc")
    slow.replies(2)
    assert len(slow.jobs) == 1
    slow.compile()
    assert {text_of(reply) for reply in slow.replies().values()} == {"abc"}
    slow.gen(3, "abc")
    assert text_of(slow.replies()[3]) == "abc", "what is there already is not waited for"
    assert not slow.jobs


def test_a_wrong_constraint_fails_its_own_calls_only() -> None:
    slow = Slow()
    slow.gen(1, "(")
    slow.gen(2, "abc")
    slow.replies(2)
    slow.compile()
    replies = slow.replies()
    assert code_of(replies[1]) == "grammar"
    assert text_of(replies[2]) == "abc"


def test_a_call_that_waits_for_its_constraint_can_be_cancelled_and_its_branch_goes_on_to_say_so() -> (
    None
):
    slow = Slow()
    slow.gen(1, "abc")
    slow.replies(2)
    slow.say(wire.Cancel(1), wire.Read(1, 9))
    replies = slow.replies()
    assert (code_of(replies[1]), code_of(replies[9])) == ("cancelled", "cancelled")
    slow.compile()
    assert slow.replies() == {}


def test_a_deadline_holds_while_a_constraint_is_compiled() -> None:
    slow = Slow()
    slow.gen(1, "abc", timeout=3.0)
    slow.replies(2)
    slow.writer.now = 4.0
    assert code_of(slow.replies()[1]) == "deadline"


@pytest.mark.parametrize("end", [wire.Close(1), Gone()])
def test_nobody_hears_of_a_constraint_whose_branch_is_gone(end: wire.Op | Gone) -> None:
    slow = Slow()
    slow.gen(1, "abc")
    slow.replies(2)
    slow.say(end)
    slow.replies(2)
    slow.compile()
    assert slow.replies() == {}
    slow.writer.scheduler.check()
    assert slow.writer.scheduler.idle


def test_a_compile_that_took_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_constraints, "MAX_COMPILE_SECONDS", 0.0)
    slow = Slow()
    slow.gen(1, "abc|" * 100)
    slow.gen(2, "abc")
    slow.replies(2)
    slow.jobs.pop(0)()
    monkeypatch.undo()
    slow.compile()
    replies = slow.replies()
    assert code_of(replies[1]) == "grammar"
    assert text_of(replies[2]) == "abc"


def test_what_is_compiled_in_place_of_what_took_too_long_has_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Late(compile_pool.TimeLimit):
        num_begun = num_calls = 0

        def begin(self) -> None:
            super().begin()
            self.num_begun += 1

        def __call__(self) -> None:
            self.num_calls += 1
            if self.num_begun == 1 and self.num_calls > 1:
                raise CompileTooLong("it takes too long", position=None)

    monkeypatch.setattr(call_constraints, "TimeLimit", Late)
    slow = Slow()
    slow.gen(1, wire.Preferred(wire.Regex("abc|" * 100), wire.Regex("xyz")))
    slow.gen(2, "abc|" * 100)
    slow.replies(2)
    slow.compile()
    replies = slow.replies()
    assert text_of(replies[1]) == "xyz"
    assert isinstance(replies[1], wire.CallDone)
    assert "too long" in replies[1].left_out[0]
    assert code_of(replies[2]) == "grammar"


def test_what_breaks_in_a_worker_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RecursionError("too deep")

    slow = Slow()
    slow.gen(1, "abc")
    slow.replies(2)
    monkeypatch.setattr(call_constraints, "compile_constraint", broken)
    slow.compile()
    assert code_of(slow.replies()[1]) == "grammar"


def test_workers_run_jobs_on_threads_of_their_own_in_order() -> None:
    ran: list[tuple[int, bool]] = []
    finished = threading.Event()
    workers = CompilePool()
    caller = threading.get_ident()
    for number in range(20):
        workers.submit(lambda number=number: ran.append((number, threading.get_ident() != caller)))  # type: ignore[misc]
    workers.submit(finished.set)
    assert finished.wait(10)
    assert ran == [(number, True) for number in range(20)]


def test_clients_take_turns_in_compiling() -> None:
    ran: list[str] = []
    begin, finished = threading.Event(), threading.Event()
    workers = CompilePool()
    workers.submit(lambda: None if begin.wait(10) else ran.append("late"), "first")
    for client, names in (("greedy", "abcd"), ("modest", "x"), ("other", "yz")):
        for name in names:
            workers.submit(lambda name=name: ran.append(name), client)  # type: ignore[misc]
    workers.submit(finished.set, "greedy")
    begin.set()
    assert finished.wait(10)
    assert ran == ["a", "x", "y", "b", "z", "c", "d"]


class Work:
    """Jobs that run until they are told to end, or say that they ran."""

    def __init__(self) -> None:
        self.pool = CompilePool()
        self.begun, self.may_end = threading.Semaphore(0), threading.Event()
        self.ended: list[str] = []
        self.short_ended = threading.Event()

    def compute(self) -> None:
        """A long job that comes to `pause`."""
        self.begun.release()
        while not self.may_end.is_set():
            self.pool.pause()
        self.ended.append("long")

    def stand(self) -> None:
        """One that is in one call all the time."""
        self.begun.release()
        self.may_end.wait(60)
        self.ended.append("long")

    def short(self) -> None:
        self.ended.append("short")
        self.short_ended.set()


@pytest.mark.parametrize("num_long", [1, 5])
def test_a_short_compile_is_over_before_the_long_ones_that_began_before_it(num_long: int) -> None:
    work = Work()
    for _ in range(num_long):
        work.pool.submit(work.compute, "greedy")
    for _ in range(num_long):
        assert work.begun.acquire(timeout=60)
    work.pool.submit(work.short, "modest")
    assert work.short_ended.wait(60)
    assert work.ended == ["short"]
    work.may_end.set()


def test_a_compile_that_never_pauses_holds_up_no_others_for_long() -> None:
    work = Work()
    work.pool.submit(work.stand, "greedy")
    assert work.begun.acquire(timeout=60)
    work.pool.submit(work.short, "modest")
    deadline = time.monotonic() + 60
    while not work.short_ended.is_set() and time.monotonic() < deadline:
        work.pool.turn(busy=False)  # as the loop does while something is compiled
        time.sleep(0.005)
    assert work.ended == ["short"]
    work.may_end.set()


def test_there_are_never_more_threads_than_may_be() -> None:
    work = Work()
    before = threading.active_count()
    for _ in range(3 * compile_pool.MAX_THREADS):
        work.pool.submit(work.compute)
    for _ in range(compile_pool.MAX_THREADS):
        assert work.begun.acquire(timeout=60)
    assert threading.active_count() <= before + compile_pool.MAX_THREADS
    work.may_end.set()
    work.pool.submit(work.short)
    assert work.short_ended.wait(60)


def test_a_job_waits_until_the_system_has_a_thread_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    workers, done = CompilePool(), threading.Event()
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", refuse)
        workers.submit(done.set)
        workers.turn(busy=True)
    assert not done.is_set()
    workers.turn(busy=False)
    assert done.wait(10)
    again = threading.Event()
    workers.submit(again.set)
    assert again.wait(10)


def test_the_loop_goes_on_where_the_system_has_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = CompilePool()
    made = CallConstraints(byte_tokenizer(), workers=pool)
    slow = Slow(made)
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", refuse)
        slow.gen(1, "abc")
        slow.gen(2, None)
        assert set(slow.replies()) == {2}
    slow.gen(3, "abc")
    replies: dict[int | None, wire.Reply] = {}
    deadline = time.monotonic() + 30
    while len(replies) < 2 and time.monotonic() < deadline:
        replies |= slow.replies()
    assert [text_of(replies[number]) for number in (1, 3)] == ["abc", "abc"]


def test_what_nobody_waits_for_any_more_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[wire.Constraint] = []
    real = compile_constraint
    monkeypatch.setattr(
        call_constraints,
        "compile_constraint",
        lambda spec, *args, **options: compiled.append(spec) or real(spec, *args, **options),
    )
    slow = Slow()
    slow.gen(1, "abc")
    slow.gen(2, "xyz")
    slow.gen(3, "xyz")
    slow.replies(2)
    slow.say(wire.Cancel(1), wire.Cancel(2))
    slow.replies(2)
    slow.compile()
    assert text_of(slow.replies()[3]) == "xyz"
    assert wire.Regex("abc") not in compiled
    slow.gen(4, "abc")
    slow.replies(2)
    slow.compile()
    assert text_of(slow.replies()[4]) == "abc", "who asks later is served"


def test_a_compile_ends_when_its_last_caller_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    def endless(spec: wire.Constraint, vocabulary: object, check: Callable[[], None]) -> None:
        begun.set()
        try:
            while True:
                check()
        finally:
            ended.set()

    workers = CompilePool()
    room = CallConstraints(byte_tokenizer(), workers=workers)
    _ = room.vocabulary
    monkeypatch.setattr(call_constraints, "compile_constraint", endless)
    monkeypatch.setattr(call_constraints, "MAX_COMPILE_SECONDS", 1e9)
    pending = room.begin(wire.Regex("abc"))
    assert begun.wait(60)
    pending.let_go()
    assert ended.wait(60)


def stop_gen(slow: Slow, number: int, *patterns: str) -> None:
    sampling = wire.SamplingParams(max_tokens=5, stop_regex=patterns)
    slow.say(
        wire.Open(number),
        wire.Append(number, (wire.TextPiece("x"),)),
        wire.Generate(number, number, sampling),
    )


def test_a_call_waits_for_its_stop_patterns_and_others_go_on() -> None:
    slow = Slow()
    stop_gen(slow, 1, "never!", "ever!")
    slow.gen(2, None)
    assert set(slow.replies()) == {2}
    assert len(slow.jobs) == 2
    slow.compile()
    assert text_of(slow.replies()[1])
    stop_gen(slow, 3, "never!")
    assert text_of(slow.replies()[3]), "what is there already is not waited for"
    assert not slow.jobs


@pytest.mark.parametrize("pattern", ["(", "[ab]*a[ab]{24}c", "a*"])
def test_a_stop_pattern_that_is_refused_fails_its_own_call_only(pattern: str) -> None:
    slow = Slow()
    stop_gen(slow, 1, "never!", pattern)
    stop_gen(slow, 2, "never!")
    slow.replies(2)
    slow.compile()
    replies = slow.replies()
    assert code_of(replies[1]) == "invalid_parameter"
    assert text_of(replies[2])


def test_stop_patterns_are_kept_up_to_their_bytes() -> None:
    one = stop_search("a{1,9}b")
    cache = SearchCache(3 * one.num_bytes)
    for number in range(20):
        cache.put(stop_search(f"a{{1,9}}{number % 10}"))
        assert cache.num_bytes <= 3 * one.num_bytes
    assert cache.find("a{1,9}9") is not None
    assert cache.find("a{1,9}0") is None


def test_compiling_installs_no_profile_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks: list[object] = []
    monkeypatch.setattr(
        call_constraints,
        "compile_constraint",
        lambda *args, **options: (
            hooks.append(sys.getprofile()),
            compile_constraint(*args, **options),
        )[1],
    )
    slow = Slow()
    slow.gen(1, "abc")
    slow.replies(2)
    slow.compile()
    assert text_of(slow.replies()[1]) == "abc"
    assert set(hooks) == {None}


SLOW_SCHEMAS = {
    "conjunction": {"type": "string", "allOf": [{"pattern": f"a.{{{n}}}b"} for n in (9, 10, 11)]},
    "nested": {"oneOf": [{"properties": {f"p{i}": {"type": "string"}}} for i in range(14)]},
    "texts": {"enum": [f"{i} " * 30 for i in range(5_000)]},
}


@pytest.mark.parametrize("name", SLOW_SCHEMAS)
def test_a_compile_is_looked_at_often_whatever_it_is_busy_with(name: str) -> None:
    """On average; a single stretch is as long as the longest call into C or of the collector."""
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls > 100_000:
            raise GrammarError("enough", position=None)

    room = CallConstraints(byte_tokenizer())
    spec = wire.JsonSchema(json.dumps(SLOW_SCHEMAS[name]))
    vocabulary = room.vocabulary
    begin = time.thread_time()
    with contextlib.suppress(RequestRejected):
        compile_constraint(spec, vocabulary, check=check)
    assert calls > 100
    assert (time.thread_time() - begin) / calls < 0.01


def test_the_worker_stands_still_while_a_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        compile_pool, "STANDSTILL", 60.0
    )  # however slowly this machine runs the test
    counting = Counting()
    counting.workers.turn(busy=True)
    assert counting.stands_still()
    before = counting.calls
    counting.workers.turn(busy=True)
    assert counting.stands_still()
    assert counting.calls > before
    counting.end()


def test_the_worker_goes_on_by_itself_after_a_standstill() -> None:
    counting = Counting()
    counting.workers.turn(busy=True)
    before = counting.calls
    deadline = time.monotonic() + 120
    while counting.calls < before + 10_000 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert counting.calls >= before + 10_000
    counting.end()


def test_tokens_without_logits_are_never_allowed() -> None:
    tokenizer = byte_tokenizer()
    few = CallConstraints(tokenizer, num_logits=ord("c") + 1)
    mask = few.compile(wire.Regex("[a-z]")).mask(few.compile(wire.Regex("[a-z]")).start)
    assert [token for token in range(tokenizer.vocab_size) if mask.allows(token)] == [
        ord(letter) for letter in "abc"
    ]
    with pytest.raises(GrammarError):
        few.compile(wire.Regex("("))


def test_forced_tokens_keep_no_constraint_alive_that_the_cache_has_dropped() -> None:
    room = CallConstraints(byte_tokenizer())
    made = room.compile(wire.Regex("abc[0-9]"))
    assert room.forcing(made, made.start, array("i")) != ()
    gone = weakref.ref(made)
    room.flush()
    del made
    assert gone() is None


def test_what_is_compiled_for_one_salt_is_not_found_by_another_and_everybody_pays() -> None:
    """Else whoever sends the same choices a moment later finds out by the time that takes."""
    room, paid = CallConstraints(byte_tokenizer()), Counter[str]()
    spec = wire.Regex("(abc|abd)+")

    def compile_for(owner: str, salt: str) -> tuple[object, object]:
        asked = room.begin(spec, owner, salt), room.begin_stop("x+y", owner, salt)
        room.collect(lambda payer, seconds: paid.update([str(payer)]))
        return asked[0].result(), asked[1].result()

    first = compile_for("one", "salt")
    assert compile_for("one", "salt") == first
    other = compile_for("two", "other salt")
    assert other[0] is not first[0]
    assert other[1] is not first[1]
    assert compile_for("three", "salt") == first, "a salt may be shared"
    assert paid == {"one": 2, "two": 2}


def test_what_is_being_compiled_for_one_salt_is_not_awaited_by_another() -> None:
    workers = Later()
    room = CallConstraints(byte_tokenizer(), workers=workers)
    spec = wire.Regex("abc")
    one = room.begin(spec, "one", "salt")
    assert room.begin(spec, "two", "salt") is one
    assert room.begin(spec, "two", "other salt") is not one
    assert len(workers.jobs) == 2


def test_the_children_of_a_fork_have_its_salt_before_the_fork_is_carried_out() -> None:
    """Their constraints are compiled from then on."""
    slow = Slow()
    slow.say(
        wire.Open(1, "salt", account="key"),
        wire.Append(1, (wire.TextPiece("a"),)),
        wire.Generate(1, 1, FIVE),
        wire.Fork(1, (2,)),
        wire.Fork(2, (3,)),
    )
    slow.replies(1)
    branches = slow.writer.loop.interpreter.clients[ME].branches
    assert {(one.salt, one.payer) for one in branches.values()} == {("salt", (b"", "key"))}
