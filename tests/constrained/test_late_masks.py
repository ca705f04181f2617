"""Masks that take too long for a step: their rows wait, others go on, and no text depends on it."""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Literal

import pytest

from lmprog import wire
from lmprog.constraints.automaton import Automaton
from lmprog.constraints.compiling.compiler import compile_constraint, regular_net
from lmprog.constraints.constraint import CompileLimits, State
from lmprog.constraints.net import UNREACHABLE
from lmprog.constraints.regular import RegularConstraint
from lmprog.errors import GrammarError
from lmprog.runtime.programs.call_constraints import CallConstraints, vocabulary_of
from lmprog.runtime.programs.compile_pool import CompilePool, MaskThread
from lmprog.simulation.fake_engine import FakeDevice, FakeEngine
from lmprog.simulation.plain_sampler import PlainSampler
from tests.constrained.writer import ME, Writer, byte_tokenizer, nano_tokenizer

WORDS = wire.Regex("([a-z]{2,7} ){3,9}[a-z]{1,200}")
JSON = wire.JsonSchema(
    '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "size":'
    ' {"type": "integer"}}, "required": ["name", "size"], "additionalProperties": false}'
)


class AtOnce(CompilePool):
    def submit(self, job: Callable[[], None], owner: Hashable = None) -> None:
        job()

    def turn(self, busy: bool) -> None:
        """There is nothing to wait for."""


class Held(MaskThread):
    """Every mask is late: made when the test says so."""

    def __init__(self, most_waiting: int = 64) -> None:
        super().__init__()
        self.left = 0
        self.jobs: list[Callable[[], None]] = []
        self.num_begun = 0
        self._most = most_waiting

    def turn(self) -> None:
        """No step has room."""

    def begin(self, job: Callable[[], None]) -> bool:
        if len(self.jobs) >= self._most:
            return False
        self.num_begun += 1
        self.jobs.append(job)
        return True


def writer(masks: MaskThread, speculation: Literal["off", "always", "ahead"] = "off") -> Writer:
    constraints = CallConstraints(byte_tokenizer(), workers=AtOnce())
    constraints.masks = masks
    if speculation != "ahead":
        return Writer(byte_tokenizer(), constraints=constraints, speculation=speculation)
    engine = FakeEngine(1024, 16, byte_tokenizer().vocab_size)
    device = FakeDevice(engine.forward, PlainSampler(), random.Random(1))
    return Writer(byte_tokenizer(), True, device, constraints, speculation="off", sampler=device)


class Calls:
    """Calls of one writer, by number: how many steps brought them text, and their last replies."""

    def __init__(self, on: Writer) -> None:
        self.on = on
        self.ended: dict[int | None, wire.Reply] = {}

    def gen(self, number: int, constraint: wire.Constraint | None, max_tokens: int) -> None:
        sampling = wire.SamplingParams(seed=number, max_tokens=max_tokens, ignore_eos=True)
        ops = (
            wire.Open(number),
            wire.Append(number, (wire.TextPiece(f"Text {number}: "),)),
            wire.Generate(number, number, sampling, constraint),
        )
        self.on.channel.inbox += [(ME, op) for op in ops]

    def turn(self) -> None:
        self.on.loop.step()
        for _, reply in self.on.channel.sent:
            if isinstance(reply, wire.CallDone | wire.Failed):
                self.ended[reply.call] = reply
        self.on.channel.sent = []

    def text(self, number: int) -> str:
        reply = self.ended[number]
        assert isinstance(reply, wire.CallDone), reply
        return reply.outputs[0].text


def test_a_row_waits_for_its_mask_and_others_go_on() -> None:
    masks = Held()
    calls = Calls(writer(masks))
    calls.gen(1, WORDS, 60)
    calls.gen(2, None, 20)
    for _ in range(24):  # a turn for the messages, one for each token
        calls.turn()
    assert set(calls.ended) == {2}
    assert masks.num_begun == 1, "it is asked for once"
    while 1 not in calls.ended:
        while masks.jobs:
            masks.jobs.pop()()
        calls.turn()
    assert masks.num_begun > 1
    assert len(calls.text(1)) > 5


@pytest.mark.parametrize("speculation", ["off", "always", "ahead"])
@pytest.mark.parametrize("seed", range(3))
def test_texts_are_the_same_however_late_masks_are(
    seed: int, speculation: Literal["off", "always", "ahead"]
) -> None:
    def texts(masks: MaskThread, ready: Callable[[], None]) -> list[str]:
        calls = Calls(writer(masks, speculation))
        asked = [(WORDS, 70), (JSON, 60), (None, 30), (WORDS, 40), (JSON, 45)]
        for number, (constraint, max_tokens) in enumerate(asked, 1):
            calls.gen(10 * seed + number, constraint, max_tokens)
        while len(calls.ended) < len(asked):
            calls.turn()
            ready()
        return [calls.text(10 * seed + number) for number in range(1, len(asked) + 1)]

    rng, held = random.Random(seed), Held(most_waiting=1)

    def sometimes() -> None:
        if held.jobs and rng.random() < 0.5:
            held.jobs.pop(rng.randrange(len(held.jobs)))()

    late = texts(held, sometimes)
    assert held.num_begun > 20
    assert late == texts(MaskThread(), lambda: None)


def test_a_mask_that_is_too_large_fails_its_own_call_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Automaton, state: int, most: int) -> None:
        raise GrammarError("too large", position=None)

    monkeypatch.setattr(Automaton, "mask_apart", fails)
    masks = Held()
    calls = Calls(writer(masks))
    calls.gen(1, WORDS, 60)
    calls.gen(2, None, 20)
    while len(calls.ended) < 2:
        while masks.jobs:
            masks.jobs.pop()()
        calls.turn()
    assert isinstance(calls.ended[1], wire.Failed)
    assert calls.ended[1].message == "too large"
    assert isinstance(calls.ended[2], wire.CallDone)


def test_ordinary_masks_are_made_in_the_step_itself() -> None:
    class Never(MaskThread):
        def begin(self, job: Callable[[], None]) -> bool:
            raise AssertionError("this mask is little work")

    calls = Calls(writer(Never()))
    for number in range(1, 5):
        calls.gen(number, JSON if number % 2 else WORDS, 60)
    while len(calls.ended) < 4:
        calls.turn()


def test_other_calls_are_let_in_while_a_mask_is_made() -> None:
    vocabulary = vocabulary_of(nano_tokenizer())
    vocabulary.prepare()
    spec = wire.Regex("(?s)(.{0,90}(cat|dog|bird)){5,10}.{0,100}")
    net = regular_net(spec, vocabulary)
    shared, alone = (Automaton(net, vocabulary, CompileLimits()) for _ in range(2))
    text = b"a cat, a dog; birdcatdog"
    state = shared.run(shared.start, text)
    made = []
    thread = threading.Thread(target=lambda: made.append(shared.mask_apart(state, UNREACHABLE)))
    thread.start()
    rng = random.Random(0)
    texts = ["".join(rng.choices("catdogbird ", k=20)).encode() for _ in range(200)]
    costs = [shared.cost(shared.run(shared.start, one)) for one in texts]
    thread.join()
    assert costs == [alone.cost(alone.run(alone.start, one)) for one in texts]
    expected, work = alone.mask_within(alone.run(alone.start, text), UNREACHABLE, 1 << 40)
    assert expected is not None
    assert expected.row is not None
    assert made[0].row is not None
    assert (made[0].row.tokens == expected.row.tokens).all()
    fresh = Automaton(net, vocabulary, CompileLimits())
    late, used = fresh.mask_within(fresh.run(fresh.start, text), UNREACHABLE, work // 2)
    assert late is None
    assert used <= work // 2 + 10_000


def late(text: bytes) -> tuple[RegularConstraint, Held, State]:
    """A constraint behind a text, from where its mask is that of another state."""
    made = compile_constraint(wire.Regex("(?s).*a.{30}"), vocabulary_of(byte_tokenizer()))
    assert isinstance(made, RegularConstraint)
    made.work = held = Held()
    state = made.advance_bytes(made.start, text)
    assert state is not None
    return made, held, state


def test_a_mask_that_waits_for_others_is_not_waited_for() -> None:
    made, held, state = late(b"aba")
    assert not made.is_ready(state)
    assert made.mask(state).count, "made here, though the other thread never comes to it"
    assert not made.is_ready(made.start)
    made._collect()
    for job in held.jobs:
        job()
    assert made.start.row is None, "what was given up is not made"
    assert not made.is_ready(made.start)
    assert held.num_begun == 3


def test_the_mask_of_another_state_may_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only whoever asks for the mask is told so."""
    made, held, state = late(b"aba")
    assert not made.is_ready(state)
    held.jobs.pop()()
    assert not made.is_ready(state), "the mask of the other state is made now"

    def fails(self: Automaton, state: int, most: int) -> None:
        raise GrammarError("too large", position=None)

    monkeypatch.setattr(Automaton, "mask_apart", fails)
    held.jobs.pop()()
    held.left = 1000
    assert made.is_ready(state)
    with pytest.raises(GrammarError, match="too large"):
        made.mask(state)
    assert made.mask(state).count


def test_any_error_of_the_thread_is_the_calls_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Automaton, state: int, most: int) -> None:
        raise MemoryError("no room")

    made, held, state = late(b"aba")
    monkeypatch.setattr(Automaton, "mask_apart", fails)
    assert not made.is_ready(state)
    held.jobs.pop()()
    assert made.is_ready(state)
    with pytest.raises(GrammarError, match="MemoryError: no room"):
        made.mask(state)


def test_nothing_is_freed_at_the_end_of_the_process() -> None:
    """A thread may be in the midst of a mask there."""
    made, _, _ = late(b"aba")
    registry: dict[Any, object] = vars(weakref.finalize)["_registry"]
    ours = [one for one in registry if (found := one.peek()) and found[0] is made._engine]
    assert [one.atexit for one in ours] == [False]
