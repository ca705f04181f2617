"""What happens to live branches when memory is short: whose pages go, and who waits for whom."""

from __future__ import annotations

from array import array

from lmprog import wire
from lmprog.radix import PageAllocator, RadixTree
from lmprog.runtime.scheduling.admission_delay import EARNED, MOST, AdmissionDelay
from lmprog.runtime.scheduling.pins import Pins
from tests.runtime.talk import Talk, done, text


def tree_with(*prefixes: int) -> tuple[RadixTree, dict[int, object]]:
    """A tree with a path of eight tokens for each of `prefixes`, each on two pages."""
    pages = PageAllocator(16)
    tree = RadixTree(4, pages)
    nodes = {}
    for first in prefixes:
        taken = pages.allocate(2)
        assert taken is not None
        nodes[first] = tree.insert(array("i", [first] * 8), taken).node
    return tree, nodes


def test_the_youngest_program_loses_its_hold_first_and_whole() -> None:
    tree, nodes = tree_with(1, 2, 3)
    pins = Pins(tree)
    pinned = {program: pins.pin(nodes[program], program) for program in (2, 1, 3)}  # type: ignore[arg-type]
    pins.drop_for(1)
    assert [pinned[program].active for program in (1, 2, 3)] == [True, True, False]
    assert tree.evict(2) == 2
    assert tree.match(array("i", [3] * 8)).length == 0
    assert tree.match(array("i", [2] * 8)).length == 8


def test_no_hold_is_taken_while_other_pages_can_be_evicted() -> None:
    tree, nodes = tree_with(1, 2)
    pins = Pins(tree)
    pin = pins.pin(nodes[1], 1)  # type: ignore[arg-type]
    pins.drop_for(2)
    assert pin.active


def test_a_hold_that_was_lost_can_be_given_back_without_harm() -> None:
    tree, nodes = tree_with(1)
    pins = Pins(tree)
    pin = pins.pin(nodes[1], 1)  # type: ignore[arg-type]
    pins.drop_for(2)
    pins.unpin(pin)
    tree.check()


def test_patience_is_spent_by_waiting_and_earned_by_returns() -> None:
    patience = AdmissionDelay()
    for _ in range(EARNED):
        assert patience.left
        patience.spend()
    assert not patience.left
    for _ in range(100):
        patience.earn()
    for _ in range(MOST):
        patience.spend()
    assert not patience.left


def chats(talk: Talk, programs: int, turns: int) -> float:
    """Programs that take turns, each asking as soon as it was answered; the share of prompt tokens
    that was found.
    """
    short = wire.SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    asked, found, prompts = dict.fromkeys(range(programs), 0), 0, 0
    for number in range(programs):
        talk.say(
            wire.Open(number),
            text(number, "abcdefghijklmnop"[number % 8 :] * 2),
            wire.Generate(number, number, short),
        )
    for _ in range(2000):
        for call, reply in done(talk.step()).items():
            found, prompts = found + reply.usage.cached, prompts + reply.usage.prompt
            number = call % programs
            asked[number] += 1
            if asked[number] < turns:
                talk.say(text(number, "question"), wire.Generate(number, call + programs, short))
        if talk.scheduler.idle and not talk.channel.inbox:
            break
    assert set(asked.values()) == {turns}, "everybody is answered"
    return found / prompts


def test_programs_that_take_turns_over_too_little_memory_find_their_pages() -> None:
    plenty = chats(Talk(num_pages=400), programs=8, turns=4)
    scarce = chats(Talk(num_pages=80), programs=8, turns=4)
    assert scarce > plenty / 2


def test_idle_branches_hold_nobody_up_for_long() -> None:
    """Sessions that never come back fill the memory; new ones are admitted all the same, several at a
    time.
    """
    talk = Talk(num_pages=60)
    short = wire.SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    for number in range(12):
        talk.ask(
            wire.Open(number),
            text(number, f"{'abcdefghijkl'[number]}" * 14),
            wire.Generate(number, number, short),
        )
    before = talk.scheduler.stats.steps
    for number in range(100, 140):
        talk.say(
            wire.Open(number),
            text(number, "xyzuvw"[number % 6] * 14),
            wire.Generate(number, number, short),
        )
    talk.until_idle()
    assert talk.scheduler.stats.steps - before < 40 * 6 / 2
