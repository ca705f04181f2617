"""With the next step begun while one is computed, texts are the same as one step after the other:
over random programs with stops, constraints, forced text, forks, cancels and preemption.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from lmprog import wire
from lmprog.runtime.scheduling import logits_requests
from lmprog.runtime.scheduling.generation import Scoring
from lmprog.runtime.scheduling.logits_requests import LogitsRequests
from lmprog.runtime.scheduling.page_tables import PageTables
from lmprog.runtime.steps import EngineLost
from lmprog.runtime.steps_ahead import AheadPlanner, CurrentRows, StepsAhead
from lmprog.simulation.fake_engine import FakeDevice, FakeEngine, LetterTokenizer
from lmprog.simulation.plain_sampler import PlainSampler
from tests.runtime.talk import GREEDY, Talk, done, failed, text

SEEDS = range(12)
TURNS = 60
PAGE_SIZE, NUM_PAGES = 4, 40
Patch = pytest.MonkeyPatch
Script = dict[int, list[wire.Op]]


class Device(FakeDevice):
    """A fake device with memory of its own."""

    vocab_size = LetterTokenizer().vocab_size

    def __init__(self, seed: int, num_pages: int) -> None:
        self.engine = FakeEngine(num_pages, PAGE_SIZE, self.vocab_size)
        super().__init__(self.engine.forward, PlainSampler(), random.Random(seed))


def talk_with(seed: int, is_ahead: bool, **changes: Any) -> Talk:
    fields = {"page_size": PAGE_SIZE, "num_pages": NUM_PAGES, "speculation": "off", **changes}
    if not is_ahead:
        return Talk(is_forcing=True, **fields)
    device = Device(seed, fields["num_pages"])
    return Talk(engine=device, sampler=device, is_forcing=True, **fields)


def steps_of(talk: Talk) -> StepsAhead:
    steps = talk.loop._steps
    assert isinstance(steps, StepsAhead)
    return steps


def generate(dice: random.Random, branch: int, call: int) -> wire.Generate:
    sampling = wire.SamplingParams(
        temperature=dice.choice([0.0, 1.0]),
        seed=dice.randrange(99),
        max_tokens=dice.choice([1, 5, 12, 30]),
        min_tokens=dice.choice([0, 3]),
        stop=dice.choice([(), ("a",), ("ab", " ", "q")]),
        ignore_eos=dice.random() < 0.5,
        n=dice.choice([1, 1, 3]),
    )
    pattern = dice.choice([None, None, "[a-f]{2,9}", "yes, [a-d]{3} (please|later) and [a-d]{3}"])
    constraint = None if pattern is None else wire.Regex(pattern)
    heal = dice.random() < 0.5
    return wire.Generate(branch, call, sampling, constraint, heal=heal, stream=dice.random() < 0.5)


def script_of(seed: int, prompt_len: int = 9) -> Script:
    """What is said in which turn. Numbers of branches and calls are given out one by one."""
    dice = random.Random(seed)
    script: Script = {}
    branches = [1]
    script[0] = [wire.Open(1), text(1, "a common beginning ")]
    for number in range(2, 26):
        ops = script.setdefault(dice.randrange(TURNS) // 2, [])
        if dice.random() < 0.4:
            ops.append(wire.Fork(1, (number,)))
        else:
            ops.append(wire.Open(number))
        prompt = "".join(dice.choices("abc ", k=prompt_len))
        ops += [text(number, prompt), generate(dice, number, number)]
        branches.append(number)
        if dice.random() < 0.3:
            options = tuple("".join(dice.choices("abc ", k=prompt_len)) for _ in range(2))
            ops += [text(number, " and"), wire.Select(number, 100 + number, options)]
        if dice.random() < 0.2:
            script.setdefault(dice.randrange(TURNS), []).append(wire.Cancel(number))
    return script


def replies_to(talk: Talk, script: Script, preempt_every: int) -> list[wire.Reply]:
    replies: list[wire.Reply] = []
    for turn in range(TURNS):
        talk.say(*script.get(turn, ()))
        replies += talk.step()
        running = talk.scheduler.running
        if preempt_every and turn % preempt_every == 0 and running:
            talk.scheduler.preempt(running[-1])
    return replies + talk.until_idle()


def outcomes(replies: list[wire.Reply]) -> dict[int, Any]:
    """What each call brought, to the last token; the code of its failure."""
    found: dict[int, Any] = {}
    for reply in replies:
        if isinstance(reply, wire.CallDone):
            outputs = [(one.text, one.tokens, one.finish) for one in reply.outputs]
            found[reply.call] = (outputs, reply.usage.prompt, reply.usage.generated)
        elif isinstance(reply, wire.Chosen):
            found[reply.call] = (reply.index, [option.score for option in reply.options])
        elif isinstance(reply, wire.Failed) and reply.call is not None:
            found[reply.call] = reply.code
    return found


def changed_calls(one: dict[int, Any], other: dict[int, Any]) -> list[int]:
    """Those that end with something else, and were not cancelled: when that comes is no matter."""
    assert one.keys() == other.keys()
    return [
        call
        for call in one
        if one[call] != other[call] and "cancelled" not in (one[call], other[call])
    ]


def differing(seed: int, prompt_len: int = 9, **changes: Any) -> tuple[list[int], StepsAhead]:
    """Calls that end with something else, and how the steps were computed."""
    script, preempt_every = script_of(seed, prompt_len), 7 if seed % 3 == 0 else 0
    plain, ahead = (talk_with(seed, is_ahead, **changes) for is_ahead in (False, True))
    expected = outcomes(replies_to(plain, script, preempt_every))
    found = outcomes(replies_to(ahead, script, preempt_every))
    assert sum(not isinstance(one, str) for one in expected.values()) > 10
    return changed_calls(expected, found), steps_of(ahead)


def test_texts_are_those_of_one_step_after_the_other() -> None:
    num_ahead = num_steps = 0
    for seed in SEEDS:
        changed, steps = differing(seed)
        assert not changed, f"seed {seed}: calls {changed} end with something else"
        num_ahead += steps.num_ahead
        num_steps += steps._scheduler.stats.steps
    print(f"{num_ahead} of {num_steps} steps were begun ahead")
    assert num_ahead > num_steps / 5


class SeenPlans:
    """Counts the rows of steps planned ahead."""

    def __init__(self, patch: Patch) -> None:
        self.num_steps = self.num_chunks = self.num_scored = self.num_beside = 0
        original = AheadPlanner.after

        def after(planner: Any, plan: Any, current: Any, requests: Any) -> Any:
            ahead = original(planner, plan, current, requests)
            if ahead is not None:
                self._see(ahead.rows.plan.rows, requests)
            return ahead

        patch.setattr(AheadPlanner, "after", after)

    def _see(self, rows: Any, before: LogitsRequests) -> None:
        chunks = [row for row in rows if row.end < row.sequence.num_tokens_at_enqueue]
        self.num_steps += 1
        self.num_chunks += bool(chunks)
        self.num_beside += bool(chunks) and len(chunks) < len(rows)
        self.num_scored += bool(before.scores)


LONG: dict[str, Any] = {"prompt_len": 45, "token_budget": 20, "num_pages": 150}
"""Prompts are read in several chunks."""


def test_texts_are_the_same_where_prompts_are_read_ahead(monkeypatch: Patch) -> None:
    """Chunk by chunk, beside sequences that decode; and beside options that are scored."""
    seen = SeenPlans(monkeypatch)
    for seed in SEEDS[:5]:
        for max_chunk in (0, 7):
            changed, _ = differing(seed, max_chunk=max_chunk, **LONG)
            assert not changed, f"seed {seed}: calls {changed} end with something else"
    print(vars(seen))
    assert min(seen.num_chunks, seen.num_beside, seen.num_scored) > 50


def reading(is_ahead: bool) -> tuple[Talk, str]:
    """One sequence decodes while another's prompt is read in chunks."""
    talk = talk_with(0, is_ahead, num_pages=150, token_budget=10)
    sampling = wire.SamplingParams(max_tokens=60, ignore_eos=True)
    talk.say(wire.Open(1), text(1, "abc"), wire.Generate(1, 1, sampling))
    for _ in range(6):
        talk.step()
    prompt = "".join(random.Random(5).choices("abc ", k=100))
    talk.say(wire.Open(2), text(2, prompt), wire.Generate(2, 2, GREEDY))
    return talk, prompt


def test_a_long_prompt_does_not_keep_the_device_waiting() -> None:
    """All steps but the first with its chunks are begun ahead."""
    talk, _ = reading(is_ahead=True)
    talk.step()
    steps, stats = steps_of(talk), talk.scheduler.stats
    ahead, planned = steps.num_ahead, stats.steps
    while stats.computed_tokens < 100:
        talk.step()
    assert stats.steps - planned >= 8, "it takes so many steps"
    assert steps.num_ahead - ahead >= stats.steps - planned - 1


def test_what_was_read_ahead_is_shared_with_who_comes_meanwhile() -> None:
    def computed(is_ahead: bool) -> tuple[int, int]:
        talk, prompt = reading(is_ahead)
        for _ in range(9):
            talk.step()
        before = talk.scheduler.stats.computed_tokens
        talk.say(wire.Open(3), text(3, prompt + "!"), wire.Generate(3, 3, GREEDY))
        replies = talk.until_idle()
        return done(replies)[3].usage.cached, talk.scheduler.stats.computed_tokens - before

    (cached, least), (cached_ahead, most) = computed(False), computed(True)
    assert cached >= 72
    assert cached_ahead >= cached - PAGE_SIZE
    assert most <= least + 2 * PAGE_SIZE, "less than a page of it was not in the tree yet"


def test_a_fault_in_a_chunk_gives_back_what_was_begun_after_it() -> None:
    for num_steps in range(2, 9):
        talk, prompt = reading(is_ahead=True)
        for _ in range(num_steps):
            talk.step()
        talk.engine.engine.fail_next = True
        assert {one.code for one in failed(talk.until_idle()).values()} == {"model"}
        talk.scheduler.tree.clear()
        assert talk.scheduler.pages.num_free == 150
        again = talk.ask(wire.Open(3), text(3, prompt), wire.Generate(3, 3, GREEDY))
        expected = talk_with(0, False, num_pages=150).ask(
            wire.Open(3), text(3, prompt), wire.Generate(3, 3, GREEDY)
        )
        assert done(again)[3].outputs == done(expected)[3].outputs


@pytest.mark.parametrize("speculation", ["auto", "always"])
def test_texts_are_the_same_beside_drafts(speculation: str) -> None:
    for seed in SEEDS[:8]:
        assert not differing(seed, speculation=speculation)[0]


def test_an_end_found_late_costs_one_row() -> None:
    """The next step has begun when the stop is found in the text: that row is nobody's."""

    def asked(is_ahead: bool, stop: tuple[str, ...]) -> tuple[wire.CallDone, int]:
        talk = talk_with(0, is_ahead)
        sampling = wire.SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True, stop=stop)
        replies = talk.ask(wire.Open(1), text(1, "abc"), wire.Generate(1, 1, sampling))
        return done(replies)[1], talk.scheduler.stats.computed_tokens

    stop = asked(False, ())[0].outputs[0].text[9:12]
    (expected, computed), (found, computed_ahead) = (asked(one, (stop,)) for one in (False, True))
    assert found.outputs == expected.outputs
    assert found.outputs[0].finish == "stop"
    assert found.usage == expected.usage
    assert computed_ahead == computed + 1


def test_a_cancelled_call_gives_its_pages_back_while_its_row_is_computed() -> None:
    talk = talk_with(0, is_ahead=True)
    sampling = wire.SamplingParams(max_tokens=50, ignore_eos=True)
    talk.say(wire.Open(1), text(1, "abc"), wire.Generate(1, 1, sampling))
    for _ in range(6):
        talk.step()
    steps = steps_of(talk)
    assert steps._begun is not None, "a step is being computed"
    talk.ask(wire.Cancel(1), wire.Close(1))
    talk.scheduler.tree.clear()
    assert talk.scheduler.pages.num_free == NUM_PAGES
    assert done(talk.ask(wire.Open(2), text(2, "abc"), wire.Generate(2, 2, GREEDY)))[2]


def test_a_step_that_fails_fails_what_was_begun_after_it_too() -> None:
    talk = talk_with(0, is_ahead=True)
    sampling = wire.SamplingParams(max_tokens=50, ignore_eos=True)
    talk.say(wire.Open(1), text(1, "abc"), wire.Generate(1, 1, sampling))
    for _ in range(6):
        talk.step()
    talk.engine.engine.fail_next = True
    assert failed(talk.until_idle())[1].code == "model"
    talk.scheduler.tree.clear()
    assert talk.scheduler.pages.num_free == NUM_PAGES
    assert done(talk.ask(wire.Open(2), text(2, "abc"), wire.Generate(2, 2, GREEDY)))[2]


# --- planted bugs


def tokens_are_fed_to_the_next_row(patch: Patch) -> None:
    original = Device.forward_after

    def forward_after(self: Device, batch: Any, before: Any, picks: Any) -> None:
        original(self, batch, before, (*picks[1:], picks[0]))

    patch.setattr(Device, "forward_after", forward_after)


def rows_that_are_not_current_count(patch: Patch) -> None:
    patch.setattr(CurrentRows, "current", lambda self: list(range(len(self.plan.rows))))


def logits_keep_their_numbers(patch: Patch) -> None:
    patch.setattr(LogitsRequests, "moved", lambda self, logit_of: self)


def samples_are_asked_for_before_the_tokens_are_known(patch: Patch) -> None:
    original = logits_requests.plain_request

    def request(row: Any, task: Any, logit: int, ahead: int = 0) -> Any:
        return original(row, task, logit, ahead)._replace(step=max(0, task.steps + ahead - 1))

    patch.setattr(logits_requests, "plain_request", request)


def next_tokens(patch: Patch, changed: Callable[[Any], dict[str, int]]) -> None:
    """Has the planner see other figures of a sequence."""
    original = AheadPlanner._next_tokens

    def planned(self: Any, rows: Any, current: list[int], requests: Any) -> Any:
        found = []
        for index in current:
            sequence = rows[index].sequence
            kept = {name: getattr(sequence, name) for name in changed(sequence)}
            for name, value in changed(sequence).items():
                setattr(sequence, name, value)
            found += original(self, rows, [index], requests)
            for name, value in kept.items():
                setattr(sequence, name, value)
        return found

    patch.setattr(AheadPlanner, "_next_tokens", planned)


def forced_text_is_not_looked_at(patch: Patch) -> None:
    original = AheadPlanner._next_tokens

    def planned(self: Any, rows: Any, current: list[int], requests: Any) -> Any:
        found = original(self, rows, current, requests)
        return [(row, array("i", [0]), max(0, pick)) for row, _, pick in found]

    patch.setattr(AheadPlanner, "_next_tokens", planned)


def a_shared_page_is_written(patch: Patch) -> None:
    next_tokens(patch, lambda sequence: {"shared": 0})


def a_chunk_is_taken_twice(patch: Patch) -> None:
    original = AheadPlanner._cut

    def cut(self: Any, steps: Any) -> Any:
        found = original(self, steps)
        if found is None:
            return None
        return [
            one._replace(tokens=one.row.tokens[:1] * len(one.tokens))
            if len(one.tokens) > 1
            else one
            for one in found[0]
        ], found[1]

    patch.setattr(AheadPlanner, "_cut", cut)


def logits_of_options_are_taken_for_read(patch: Patch) -> None:
    patch.setattr(Scoring, "logits_after", lambda self, end, num_tokens: num_tokens - 1)


def a_page_is_missing(patch: Patch) -> None:
    patch.setattr(PageTables, "pages_after", lambda self, row, count: 0)


BUGS: list[Callable[[Patch], None]] = [
    tokens_are_fed_to_the_next_row,
    rows_that_are_not_current_count,
    logits_keep_their_numbers,
    samples_are_asked_for_before_the_tokens_are_known,
    forced_text_is_not_looked_at,
    a_shared_page_is_written,
    a_page_is_missing,
    a_chunk_is_taken_twice,
    logits_of_options_are_taken_for_read,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    chunked = {name: value for name, value in LONG.items() if name != "prompt_len"}
    cases: list[tuple[int, Script, dict[str, Any]]] = [
        *((seed, script_of(seed), {}) for seed in (1, 2, 4)),
        *((seed, script_of(seed, LONG["prompt_len"]), chunked) for seed in (1, 2)),
    ]
    plain = [
        outcomes(replies_to(talk_with(seed, False, **changes), script, 0))
        for seed, script, changes in cases
    ]
    bug(monkeypatch)
    for expected, (seed, script, changes) in zip(plain, cases, strict=True):
        try:
            found = outcomes(replies_to(talk_with(seed, True, **changes), script, 0))
        except (AssertionError, LookupError, EngineLost):
            return
        if changed_calls(expected, found):
            return
    pytest.fail("nothing noticed it")
