"""What happens to live branches when memory is short: whose pages go, and who waits for whom."""

from __future__ import annotations

import random
from array import array
from math import exp
from typing import Any

from lmprog import wire
from lmprog.radix import PageAllocator, RadixTree
from lmprog.runtime.scheduling.active_programs import ActivePrograms, Pins, ProgramPlace
from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.scheduling.generation import Generation, GenerationSettings
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup
from lmprog.runtime.scheduling.step_costs import FIRST_CHUNK, Growth, ProgramSizes, StepCosts
from lmprog.simulation.fake_engine import FakeEngine, LetterTokenizer
from tests.runtime.talk import GREEDY, Talk, done, text


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


def test_the_youngest_program_loses_its_pins_first_and_whole() -> None:
    tree, nodes = tree_with(1, 2, 3)
    pins = Pins(tree)
    pinned = {program: pins.pin(nodes[program], program) for program in (2, 1, 3)}  # type: ignore[arg-type]
    assert pins.drop_for(1) == [3]
    assert [pinned[program].active for program in (1, 2, 3)] == [True, True, False]
    assert tree.evict(2) == 2
    assert tree.match(array("i", [3] * 8)).length == 0
    assert tree.match(array("i", [2] * 8)).length == 8


def test_no_pin_is_dropped_while_other_pages_can_be_evicted() -> None:
    tree, nodes = tree_with(1, 2)
    pins = Pins(tree)
    pin = pins.pin(nodes[1], 1)  # type: ignore[arg-type]
    pins.drop_for(2)
    assert pin.active


def test_pins_of_programs_without_a_place_are_dropped_before_those_of_younger_ones() -> None:
    tree, nodes = tree_with(1, 2, 3)
    pins = Pins(tree)
    for program in (1, 2, 3):
        pins.pin(nodes[program], program)  # type: ignore[arg-type]
    for program in (1, 2):
        pins.demote(program)
    pins.restore(2)
    assert pins.drop_for(4) == [1, 3]


def test_a_demoted_program_is_forgotten_with_its_last_pin() -> None:
    tree, nodes = tree_with(1, 2)
    pins = Pins(tree)
    given_back = pins.pin(nodes[1], 1)  # type: ignore[arg-type]
    pins.demote(1)
    pins.unpin(given_back)
    pins.pin(nodes[1], 1)  # type: ignore[arg-type]
    pins.pin(nodes[2], 2)  # type: ignore[arg-type]
    assert pins.drop_for(1) == [2], "younger, and the other one is not demoted any more"


def test_a_program_that_pins_again_can_lose_its_pins_again() -> None:
    tree, nodes = tree_with(1, 2)
    pins = Pins(tree)
    first = pins.pin(nodes[1], 1)  # type: ignore[arg-type]
    assert pins.drop_for(4) == [1]
    second = pins.pin(nodes[2], 1)  # type: ignore[arg-type]
    assert pins.drop_for(4) == [1]
    assert (first.active, second.active) == (False, False)
    tree.check()


def test_a_pin_that_was_dropped_can_be_given_back_without_harm() -> None:
    tree, nodes = tree_with(1)
    pins = Pins(tree)
    pin = pins.pin(nodes[1], 1)  # type: ignore[arg-type]
    pins.drop_for(2)
    pins.unpin(pin)
    tree.check()


def test_unknown_programs_are_expected_to_grow_and_known_ones_by_what_ended() -> None:
    sizes = ProgramSizes(longest=4096)
    unknown = sizes.expected_growth(256)
    assert 256 < unknown < 4096 - 256
    assert sizes.expected_growth(4096) == 0
    for _ in range(200):
        sizes.ended(512)
    assert abs(sizes.expected_growth(256) - 256) < 10
    assert sizes.expected_growth(1024) > 500, "larger than all that ended: unknown again"
    for _ in range(300):
        sizes.ended(300)
    assert sizes.expected_growth(256) < 60, "only the last programs count"


def test_programs_need_no_memory_for_what_they_add_when_others_have_left() -> None:
    assert Growth(10.0, 500.0, 0.0).most == 10.0, "nobody grows"
    some = Growth(10.0, 100.0, 400.0)
    at_times = [n / 1000 for n in range(4000)]
    later = [(100.0 + 400.0 * t) * (1 + 2 * t) * exp(-2 * t) - 100.0 for t in at_times]
    assert abs(some.most - (10.0 + max(later))) < 0.1
    assert 10.0 < some.most < 10.0 + 400.0 / 2
    assert some.plus(Growth(1.0, 2.0, 3.0)).plus(Growth(1.0, 2.0, 3.0), -1) == some


def test_step_costs_are_those_of_the_line_through_the_steps() -> None:
    costs = StepCosts()
    for tokens in (8, 8, 300, 8, 9, 1000, 8):
        for _ in range(20):
            costs.observe(tokens, 0.004 + 0.0001 * tokens)
    assert abs(costs.per_token - 0.0001) < 1e-5
    assert abs(costs.fixed - 0.004) < 1e-3
    assert 300 < costs.tokens_within(0.05) < 400, "less than 460 until it is known how they vary"
    assert costs.tokens_within(0.001) == 0


def test_what_prefills_cost_is_not_forgotten_while_there_are_none() -> None:
    costs, dice = StepCosts(), random.Random(1)
    for tokens in (1000, 500, 1000):
        costs.observe(tokens, 0.004 + 0.0001 * tokens)
    for _ in range(2000):
        rows = dice.choice([8, 9])
        costs.observe(rows, 0.004 + 0.0001 * rows + dice.uniform(0.0, 0.002), rows)
    assert abs(costs.per_token - 0.0001) < 1e-5
    assert abs(costs.fixed - 0.005) < 0.5e-3


def test_the_first_step_of_a_kind_is_forgotten_with_the_second() -> None:
    costs = StepCosts()
    costs.observe(8, 1.0, 8)
    costs.observe(1000, 2.0)
    assert costs.fixed + 8 * costs.per_token > 0.5, "nothing else is known"
    for _ in range(20):
        costs.observe(1000, 0.104)
        costs.observe(8, 0.0048, 8)
    assert abs(costs.fixed - 0.004) < 1e-3
    assert costs.are_known


def bounded_steps(*factors: float) -> float:
    """The part of 50 ms that is planned after a hundred bounded steps, which take the factors times
    what tokens cost, in turn."""
    costs = StepCosts()
    for tokens in (8, 1000) * 50:
        costs.observe(tokens, 0.004 + 0.0001 * tokens)
    for index in range(100):
        tokens = costs.tokens_within(0.05)
        factor = factors[index % len(factors)]
        costs.observe(tokens, factor * (0.004 + 0.0001 * tokens), is_bounded=True)
    return (0.004 + 0.0001 * costs.tokens_within(0.05)) / 0.05


def test_the_less_bounded_steps_vary_the_more_of_their_time_is_planned() -> None:
    assert 0.95 < bounded_steps(1.0) <= 1.0
    assert 0.6 < bounded_steps(0.7, 1.0, 1.3) < 0.85


def test_bounded_steps_that_all_take_longer_than_expected_get_fewer_tokens() -> None:
    assert 0.6 < bounded_steps(1.5) < 0.69, "two thirds, at the old cost"


def test_one_or_two_disturbed_steps_change_little() -> None:
    assert bounded_steps(*[1.0] * 98, 50.0, 1.0) > 0.9
    assert bounded_steps(*[1.0] * 98, 50.0, 50.0) > 0.9


def test_steps_in_which_a_coarse_clock_sees_no_time_pass_are_planned_longer() -> None:
    assert bounded_steps(0.0) > 1.0


def test_steps_that_begin_to_vary_are_planned_shorter_within_seconds() -> None:
    assert 0.6 < bounded_steps(*[1.0] * 60, *[0.7, 1.0, 1.3, 1.0] * 10) < 0.9


def test_steps_of_one_size_are_all_tokens_and_larger_ones_are_tried_by_doubling() -> None:
    costs = StepCosts()
    for _ in range(50):
        costs.observe(8, 0.004)
    assert 0.0003 < costs.per_token < 0.00051
    assert StepCosts().tokens_within(10.0) == 2 * FIRST_CHUNK


def paused_programs(*sizes: int, capacity: int = 1 << 20) -> ActivePrograms:
    """Programs 1, 2, ... that added so many tokens each and pause since time 0."""
    costs = StepCosts()
    for tokens in (1, 1000) * 50:
        costs.observe(tokens, 0.01 + 0.001 * tokens)
    programs = ActivePrograms(4096, capacity, costs)
    for number, size in enumerate(sizes, 1):
        group = SequenceGroup(program=number)
        settings = GenerationSettings(wire.SamplingParams(), 1, (), size)
        sequence = Sequence(group, array("i", [7] * size), Generation(settings, 0))
        programs.submit(number, 1, 0.0)
        programs.admit(sequence)
        programs.end(sequence, True, 0.0)
    return programs


def test_what_pausing_programs_will_add_is_reckoned_by_their_sizes() -> None:
    """A step asks for it, and there may be thousands of them."""
    rng, sizes = random.Random(3), [0, 1, 63, 64, 4095]
    sizes += [rng.randrange(1, 4096) for _ in range(3000)]
    programs = paused_programs(*sizes)
    looked_at = 0
    grown = programs.sizes.expected_growth

    def counted(size: float) -> float:
        nonlocal looked_at
        looked_at += 1
        return grown(size)

    programs.sizes.expected_growth = counted  # type: ignore[method-assign]
    for number in range(1, 301):
        programs.deactivate(number, is_kept=False)
        del sizes[0]
    growth = programs.expected_growth(())
    assert growth.size == sum(sizes), "exactly"
    each = sum(map(grown, sizes))
    assert abs(growth.later - each) < 0.02 * each
    assert looked_at < 300
    assert programs.expected_growth(()) == growth
    assert looked_at < 300, "nothing has changed since"
    programs.sizes.ended(100)
    assert programs.expected_growth(()).later != growth.later
    programs.check((), ())


def test_a_pausing_program_loses_its_place_when_its_tokens_cost_less_than_idling() -> None:
    programs = paused_programs(1000)
    assert programs.replaceable(0, 0.5, force=False) == []
    assert [place.number for place in programs.replaceable(0, 1.5, force=False)] == [1]
    assert programs.replaceable(4, 1.5, force=False) == [], "the machine is busy"


def test_small_programs_go_first_and_of_equals_the_youngest() -> None:
    programs = paused_programs(100, 100, 3000)
    assert [place.number for place in programs.replaceable(0, 1.0, force=False)] == [2, 1]
    assert [place.number for place in programs.replaceable(0, 0.0, force=True)] == [3, 2, 1]


def test_a_program_that_hardly_comes_back_loses_its_place_the_sooner() -> None:
    """Its tokens will have to be computed again only if it does."""
    programs = paused_programs(1000, 1000)
    programs.expect(1, 0.1, lambda seconds: 0.05 if seconds > 0.2 else 0.9)
    assert programs.replaceable(0, 0.1, force=False) == []
    assert [place.number for place in programs.replaceable(0, 0.3, force=False)] == [1]


def test_paused_programs_lose_no_more_than_memory_holds() -> None:
    """They added more over time, on branches that have ended."""
    programs = paused_programs(4000, capacity=1000)
    assert programs.replaceable(0, 0.5, force=False) == []
    assert [place.number for place in programs.replaceable(0, 1.5, force=False)] == [1]
    two = paused_programs(4000, 4000, capacity=1000)
    assert two.replaceable(0, 0.5, force=False) == []
    assert [place.number for place in two.replaceable(0, 1.5, force=False)] == [2, 1]


def exceeding(
    fixed: float, per_token: float, num_running: int, sizes: tuple[int, ...], pause: float = 0.0
) -> bool:
    """Whether a sequence of 100 tokens that will generate 100 runs, without memory for 100, where
    others have paused for so many seconds."""
    costs = StepCosts()
    for tokens in sizes * 50:
        costs.observe(tokens, fixed + per_token * tokens, 1)
    settings = GenerationSettings(wire.SamplingParams(), 100, (), 100)
    sequence = Sequence(SequenceGroup(program=1), array("i", [7] * 100), Generation(settings, 0))
    programs = ActivePrograms(4096, 1 << 20, costs)
    other = Sequence(SequenceGroup(program=2), array("i", [7]), Generation(settings, 0))
    for turn in range(100):
        programs.submit(2, 1, turn * pause)
        programs.end(other, False, turn * pause)
    return programs.is_worth_exceeding(sequence, 100.0, num_running)


def test_a_program_that_does_not_fit_runs_where_shared_steps_save_more_than_lost_tokens_cost() -> (
    None
):
    assert exceeding(0.01, 0.001, 1, (1, 1000)), "5 ms a token against 4"
    assert not exceeding(0.01, 0.001, 2, (1, 1000)), "3.3 ms a token"
    assert exceeding(0.01, 0.001, 2, (1, 1000), pause=1.0), "against 2: there is memory in pauses"
    assert not exceeding(0.01, 0.001, 9, (1, 1000), pause=1.0)
    assert not exceeding(0.01, 0.01, 2, (1, 1000)), "computing again is dear"
    assert not exceeding(0.01, 0.0001, 2, (1,)), "nobody knows yet what prefills cost"


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
            else:
                talk.say(wire.Close(number))
        if talk.scheduler.idle and not talk.channel.inbox:
            break
    assert set(asked.values()) == {turns}, "everybody is answered"
    return found / prompts


def test_programs_that_take_turns_over_too_little_memory_find_their_pages() -> None:
    plenty = chats(Talk(num_pages=400, ageing=1e6), programs=8, turns=4)
    scarce = chats(Talk(num_pages=80, ageing=1e6), programs=8, turns=4)
    unlimited = chats(Talk(num_pages=80, ageing=1e6, admission="unlimited"), programs=8, turns=4)
    assert scarce > 0.9 * plenty
    assert scarce > unlimited


def sessions_that_never_return(admission: str) -> float:
    """Work until 40 programs are answered after 12 that stay open fill the memory."""
    talk = Talk(num_pages=60, admission=admission)
    short = wire.SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    for number in range(12):
        talk.ask(
            wire.Open(number),
            text(number, f"{'abcdefghijkl'[number]}" * 14),
            wire.Generate(number, number, short),
        )
    stats = talk.scheduler.stats
    before = stats.steps + stats.computed_tokens
    for number in range(100, 140):
        talk.say(
            wire.Open(number),
            text(number, "xyzuvw"[number % 6] * 14),
            wire.Generate(number, number, short),
        )
    assert len(done(talk.until_idle())) == 40
    return stats.steps + stats.computed_tokens - before


def test_programs_that_never_return_cost_the_others_little() -> None:
    assert sessions_that_never_return("programs") < 1.5 * sessions_that_never_return("unlimited")


def size_of_a_program(*, as_tokens: bool) -> tuple[int, int]:
    """What a chat of three turns counts as, and what it has in memory: every word is new."""
    talk = Talk(num_pages=100)
    talk.say(wire.Open(1))
    for turn in range(1, 4):
        words = " ".join(f"{chr(96 + turn)}{letter} and" for letter in "abcdefghijkl")
        tokens = wire.TokensPiece(tuple(talk.tokenizer.encode(words)))
        talk.say(wire.Append(1, (tokens if as_tokens else wire.TextPiece(words),)))
        talk.say(wire.Generate(1, turn, GREEDY))
        talk.until_idle()
    (place,) = talk.scheduler.programs._places.values()
    return place.size, talk.scheduler.tree.num_cached * talk.scheduler.config.page_size


def test_a_program_is_as_large_as_what_it_added_however_it_was_appended() -> None:
    """What was tokenised before its call was counted as if it had been there before."""
    for as_tokens in (False, True):
        size, in_memory = size_of_a_program(as_tokens=as_tokens)
        assert in_memory - 4 <= size <= in_memory


class SlowEngine(FakeEngine):
    """10 ms a token, on the clock of `talk`."""

    talk: Talk
    vocab_size = LetterTokenizer.vocab_size

    def forward(self, batch: Batch) -> Any:
        self.talk.now += 0.02 + 0.01 * batch.num_tokens
        return super().forward(batch)


def test_nobody_waits_for_a_machine_that_has_been_idle_for_a_second() -> None:
    """Memory is full of calls that have ended, of a request whose last ones wait for memory."""
    engine = SlowEngine(512, 4, LetterTokenizer.vocab_size)
    config: dict[str, Any] = {"page_size": 4, "num_pages": 512, "token_budget": 64}
    talk = engine.talk = Talk(engine=engine, context_len=600, is_timed=True, **config)
    talk.say(wire.Hello(wire.PROTOCOL_VERSION))
    for number in range(1, 9):
        prompt = "".join(random.Random(number).choices("abcdefghij", k=380))
        sampling = wire.SamplingParams(max_tokens=1, ignore_eos=True)
        talk.say(wire.Open(number), text(number, prompt), wire.Generate(number, number, sampling))
    idle, longest = 0.0, 0.0
    while sum(isinstance(reply, wire.CallDone) for _, reply in talk.channel.sent) < 8:
        before = talk.now
        talk.loop.step()
        idle = 0.0 if talk.now > before else idle + 0.05
        talk.now += 0.0 if talk.now > before else 0.05
        longest = max(longest, idle)
        assert longest < 1.2
    assert longest > 0.5, "memory was full"


def test_what_will_be_missing_is_weighed_by_the_chances_that_programs_come_back() -> None:
    programs = ActivePrograms(4096, 1 << 20, StepCosts())
    assert programs.expected_missing(100.0, 0.0, ()) == 100.0, "nobody pauses"
    for number, size in ((1, 400), (2, 400)):
        place = ProgramPlace(number, size=size, is_active=True)
        programs._active[number] = programs._places[number] = place
    assert programs.expected_missing(100.0, 0.0, ()) == 100.0, "all come back"
    for place in programs._active.values():
        place.returns = lambda seconds: 1.0 if seconds < 1.0 else 0.0
    assert programs.expected_missing(100.0, 2.0, ()) == 0.0, "they have left more than that"
    assert programs.expected_missing(900.0, 2.0, ()) == 100.0
    left_out = [programs._active[1]]
    assert programs.expected_missing(900.0, 2.0, left_out) == 500.0, "its pages are counted already"
    for place in programs._active.values():
        place.returns = lambda _: 0.5
    assert 80.0 < programs.expected_missing(400.0, 2.0, ()) < 130.0, "both may come back"
    assert 390.0 < programs.expected_missing(800.0, 2.0, ()) < 440.0
