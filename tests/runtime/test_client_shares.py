"""Rules of fair sharing between clients."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from lmprog import wire
from lmprog.config import SchedulerConfig
from lmprog.errors import Overloaded
from lmprog.runtime.scheduling.generation import Generation, GenerationSettings
from lmprog.runtime.scheduling.logits_requests import collect_requests
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup
from lmprog.runtime.scheduling.stats import MOST_WAITED_FOR, AccountTotals
from lmprog.runtime.scheduling.step_costs import UNKNOWN, StepCosts
from lmprog.runtime.scheduling.waiting_queue import (
    HALF_LIFE,
    MOST_CREDIT,
    MOST_IDLE,
    MOST_NAMES,
    ClientShares,
    StepBill,
)
from lmprog.runtime.steps_ahead import AheadPlanner
from lmprog.simulation.fake_engine import LetterTokenizer
from tests.runtime.rig import Rig
from tests.runtime.talk import ME, Talk, done, failed, text


def test_who_was_served_least_goes_first() -> None:
    shares = ClientShares()
    for client in "ab":
        shares.submit(client, 1)
    shares.serve("a", 10)
    assert shares.least_served_first("ab") == ["b", "a"]


def test_a_newcomer_starts_where_the_least_served_is_and_has_nothing_saved_up() -> None:
    shares = ClientShares()
    for client in "ab":
        shares.submit(client, 1)
    shares.serve("a", 100)
    shares.serve("b", 40)
    shares.submit("new", 1, waiting="ab")
    assert shares.served("new") == 40
    shares.serve("new", 1)
    assert shares.least_served_first(["a", "b", "new"]) == ["b", "new", "a"]


def test_who_leaves_and_comes_back_has_saved_no_more_than_a_bounded_credit() -> None:
    shares = ClientShares()
    for client in "ab":
        shares.submit(client, 1)
    shares.serve("b", 40)
    shares.end("a")
    shares.serve("b", 60)
    shares.submit("a", 1, waiting="b")
    assert shares.served("a") == 100 - MOST_CREDIT


def test_who_leaves_and_comes_back_owes_what_it_was_served() -> None:
    shares = ClientShares()
    for client in "ab":
        shares.submit(client, 1)
    shares.serve("a", 100)
    shares.end("a")
    shares.submit("a", 1, waiting="b")
    assert shares.least_served_first("ab") == ["b", "a"]
    shares.serve("b", 99)
    assert shares.least_served_first("ab") == ["b", "a"]


def test_nobody_owes_what_it_was_served_while_nobody_waited() -> None:
    shares = ClientShares()
    for _ in range(10):
        shares.submit("a", 1)
        assert shares.least_served_first("a") == ["a"]  # it is admitted
        shares.serve("a", 100)
        shares.end("a")
    shares.submit("b", 1)
    assert shares.served("b") == 900, "all but the newest call"


def test_a_newcomer_does_not_go_before_one_whose_calls_wait() -> None:
    shares = ClientShares()
    shares.submit("a", 2)
    shares.serve("a", 500)
    shares.submit("new", 1, waiting="a")
    assert shares.served("new") == 500


def test_accounts_of_clients_with_nothing_open_are_bounded_and_the_largest_stay() -> None:
    shares = ClientShares()
    for number in range(3 * MOST_IDLE):
        shares.submit(number, 1)
        shares.serve(number, 100_000 if number < 9 else 1 + number % 50)
        shares.end(number)
        assert len(shares) <= MOST_IDLE + 1
    assert all(shares.served(number) == 100_000 for number in range(9))


def test_the_account_of_an_open_client_is_never_forgotten() -> None:
    shares = ClientShares()
    shares.submit("open", 1)
    for number in range(2 * MOST_IDLE):
        shares.submit(number, 1)
        shares.serve(number, 10)
        shares.end(number)
    shares.serve("open", 5)
    assert shares.served("open") == 5


def test_a_weight_is_a_multiple_of_the_tokens_that_others_get() -> None:
    shares = ClientShares()
    shares.submit("heavy", 1, 3.0)
    shares.submit("light", 1, 1.0)
    served = {"heavy": 0, "light": 0}
    for _ in range(400):
        first = str(shares.least_served_first(["heavy", "light"])[0])
        shares.serve(first, 5)
        served[first] += 5
    assert served == {"heavy": 1500, "light": 500}


def test_a_client_that_left_has_no_weight_any_more() -> None:
    shares = ClientShares()
    shares.submit("a", 1, 10.0)
    shares.end("a")
    shares.submit("a", 1)
    shares.serve("a", 10)
    assert shares.served("a") == 10.0


@pytest.mark.parametrize("judge", [None, wire.Judge("?")])
def test_forks_and_judges_have_the_weight_and_the_account_of_their_branch(
    judge: wire.Judge | None,
) -> None:
    talk = Talk()
    sampling = wire.SamplingParams(n=2, max_tokens=4, ignore_eos=True)
    talk.say(
        wire.Open(1, weight=2.5, account="key"),
        text(1, "abcd"),
        wire.Fork(1, (2,)),
        wire.Generate(2, 1, sampling, keep="first" if judge is None else "best", judge=judge),
    )
    seen = set()
    while not seen or not talk.scheduler.idle:
        talk.step()
        seen |= {(one.group.weight, one.group.client) for one in talk.scheduler.running}
    assert seen == {(2.5, (b"", "key"))}


def test_branches_of_any_salt_are_on_the_account_that_their_client_names() -> None:
    talk = Talk()
    sampling = wire.SamplingParams(max_tokens=4, ignore_eos=True)
    for number, account in enumerate(["", "", "key"]):
        talk.say(
            wire.Open(number, salt=f"salt {number}", account=account),
            text(number, "abcd"),
            wire.Generate(number, number, sampling),
        )
    talk.step()
    clients = sorted(one.group.client for one in talk.scheduler.running)
    assert clients == [(b"", "key"), (ME, ""), (ME, "")]


def test_a_new_connection_opens_no_new_account_of_the_same_name() -> None:
    talk = Talk(is_timed=True)
    for number in range(3):
        name = b"gateway %d" % number
        talk.say(wire.Hello(wire.PROTOCOL_VERSION), client=name)
        talk.say(wire.Open(1, account="key"), text(1, "abcd"), client=name)
        talk.say(wire.Generate(1, 1, wire.SamplingParams(max_tokens=2)), client=name)
    talk.step()
    assert {one.group.client for one in talk.scheduler.running} == {(b"", "key")}


def test_while_a_client_has_nothing_open_half_of_what_it_was_served_more_is_forgotten() -> None:
    shares = ClientShares()
    for client in "ab":
        shares.submit(client, 1)
    shares.serve("a", 80)
    shares.end("a", now=100.0)
    shares.submit("a", 1, waiting="b", now=100.0)
    assert shares.served("a") == 80, "to close and ask again is of no use"
    shares.end("a", now=100.0)
    shares.submit("a", 1, waiting="b", now=100.0 + 2 * HALF_LIFE)
    assert shares.served("a") == 20


def test_who_comes_while_nobody_waits_has_as_much_as_the_least_served_that_runs() -> None:
    shares = ClientShares()
    shares.submit("a", 1)
    assert shares.least_served_first("a") == ["a"]
    shares.serve("a", 3600)  # hours on an idle machine
    shares.submit("b", 1)
    assert shares.served("b") == 3600, "or it would go before a for as long"


def test_a_step_is_charged_by_what_it_was_expected_to_take_and_then_by_what_it_took() -> None:
    shares = ClientShares()
    for client in "ab":
        shares.submit(client, 1)
    bill = StepBill(shares, (2.0, 0.5))
    bill.charge("a", 1, 4)
    bill.charge("b", 1, 2)
    bill.charge("a", 1, 0)
    assert (shares.served("a"), shares.served("b")) == (6.0, 3.0)
    shares.settle(bill.parts(), 18.0, lambda _: (2.0, 0.5))
    assert (shares.served("a"), shares.served("b")) == (12.0, 6.0)
    assert shares.totals[""].step_seconds == 18.0


def test_rows_share_what_a_step_takes_by_itself_and_pay_for_their_tokens() -> None:
    costs = StepCosts()
    assert costs.price(4) == (0.0, UNKNOWN)
    for _ in range(20):
        costs.observe(1, 0.05)
        costs.observe(101, 0.15, 1)
    row, token = costs.price(5)
    assert row == pytest.approx(0.049 / 5, rel=0.1)
    assert token == pytest.approx(0.001, rel=0.1)


class SlowTokenizer(LetterTokenizer):
    """Takes a millisecond for each letter."""

    talk: Talk

    def encode(self, text: str, start: bool = True) -> list[int]:
        self.talk.now += 0.001 * len(text)
        return super().encode(text, start)


def test_work_of_the_host_is_on_the_account_it_is_done_for() -> None:
    tokenizer = SlowTokenizer()
    tokenizer.talk = talk = Talk(tokenizer=tokenizer, is_timed=True)
    for number, account in enumerate(["one", "two"]):
        talk.say(
            wire.Open(number, account=account),
            text(number, "abcdefgh" * (1 + 3 * number)),
            wire.Generate(number, number, wire.SamplingParams(max_tokens=1)),
        )
    talk.until_idle()
    talk.say(wire.Describe(9))
    (found,) = (one for one in talk.step() if isinstance(one, wire.Described))
    seconds = {name: figures["host_seconds"] for name, figures in found.accounts.items()}
    assert seconds["one"] >= 0.008
    assert seconds["two"] >= 4 * seconds["one"]
    assert seconds.keys() == {"one", "two"}


def test_whoever_asks_for_a_constraint_pays_for_its_compiling() -> None:
    talk = Talk(is_timed=True)
    sampling = wire.SamplingParams(max_tokens=4)
    talk.say(wire.Open(1, account="one"), text(1, "ab"))
    talk.say(wire.Generate(1, 1, sampling, constraint=wire.Regex("(abc|bcd)*")))
    assert done(talk.until_idle()).keys() == {1}
    assert talk.scheduler.shares.totals["one"].host_seconds > 0.0, "no other clock has moved"


def test_an_account_knows_how_long_its_calls_waited_and_for_what() -> None:
    talk = Talk(is_timed=True, max_rows=1)
    sampling = wire.SamplingParams(max_tokens=4, ignore_eos=True)
    for number, account in enumerate(["one", "two"]):
        talk.say(wire.Open(number, account=account), text(number, "abcd"))
        talk.say(wire.Generate(number, number, sampling))
    while not talk.scheduler.idle or not talk.scheduler.stats.steps:
        talk.now += 0.5
        talk.step()
    waited = {name: one.figures() for name, one in talk.scheduler.shares.totals.items()}
    assert sum(v for name, v in waited["one"].items() if name.startswith("waited")) == 0.0
    assert waited["two"]["waited_seconds_step"] == pytest.approx(4 * 0.5)
    assert waited["two"]["waited_seconds_memory"] == 0.0


def test_an_account_knows_for_whose_work_its_calls_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(is_timed=True, max_rows=1)
    forward = talk.engine.forward

    def slow(*given: Any) -> Any:
        talk.now += 0.5
        return forward(*given)

    monkeypatch.setattr(talk.engine, "forward", slow)
    sampling = wire.SamplingParams(max_tokens=4, ignore_eos=True)
    for number, account in enumerate(["one", "two", "two"]):
        talk.say(wire.Open(number, account=account), text(number, "abcd"))
        talk.say(wire.Generate(number, number, sampling))
    talk.until_idle()
    totals = talk.scheduler.shares.totals
    one, two = totals["one"], totals["two"]
    assert one.step_seconds == pytest.approx(4 * 0.5)
    assert one.waited_for == {"two": pytest.approx(two.step_seconds / 2)}, "of its first call"
    assert two.waited_for.keys() == {"one"}, "what its own calls wait for each other is not there"
    assert one.step_seconds < two.figures()["waited_for_one"] <= 2 * one.step_seconds


def test_those_for_whom_an_account_waited_are_bounded() -> None:
    totals = AccountTotals("own")
    for number in range(MOST_WAITED_FOR + 8):
        totals.wait_for([("own", 1.0), (f"name {number}", 1.0)], 2)
    assert len(totals.waited_for) == MOST_WAITED_FOR + 1
    assert totals.waited_for[""] == 16.0, "the others together"
    assert "own" not in totals.waited_for


def test_what_is_kept_compiled_is_held_for_who_had_it_compiled() -> None:
    talk = Talk()
    sampling = wire.SamplingParams(max_tokens=4, stop_regex=("q+",))
    talk.say(wire.Open(1, account="one"), text(1, "ab"))
    talk.say(wire.Generate(1, 1, sampling, constraint=wire.Regex("(abc|bcd)*")))
    assert done(talk.until_idle()).keys() == {1}
    talk.say(wire.Open(2, account="two"), text(2, "ab"))
    talk.say(wire.Generate(2, 2, sampling, constraint=wire.Regex("(abc|bcd)*")))
    assert done(talk.until_idle()).keys() == {2}

    def held() -> dict[str, float]:
        talk.say(wire.Describe(9))
        (described,) = [one for one in talk.until_idle() if isinstance(one, wire.Described)]
        return {
            f"{name} {kind}": value
            for name, figures in described.accounts.items()
            for kind, value in figures.items()
            if kind.startswith("bytes_")
        }

    assert held().keys() == {"one bytes_constraints", "one bytes_stops"}, "found by the second"
    assert min(held().values()) > 1000
    talk.say(wire.Flush(10))
    talk.until_idle()
    assert held() == {}


def test_names_of_accounts_that_are_told_apart_are_bounded() -> None:
    shares = ClientShares()
    for number in range(MOST_NAMES + 50):
        shares.work((b"", f"name {number}"), 1.0)
    assert len(shares.totals) == MOST_NAMES + 1
    assert shares.totals[""].host_seconds == 50.0


def test_what_is_computed_for_a_call_that_is_cancelled_counts() -> None:
    talk = Talk(token_budget=8)
    talk.say(wire.Open(1), text(1, "abcdefghijklmnop"), wire.Generate(1, 1, wire.SamplingParams()))
    talk.step()
    (sequence,) = talk.scheduler.running
    client, before = sequence.group.client, talk.scheduler.shares.served(sequence.group.client)
    talk.say(wire.Cancel(1))
    talk.step()
    assert talk.scheduler.idle
    assert before == 9, "a second for the step and each of its tokens"
    assert talk.scheduler.shares.served(client) == before


def test_what_is_computed_ahead_for_a_call_that_ends_meanwhile_counts() -> None:
    rig = Rig(SchedulerConfig(num_pages=64))
    planner = AheadPlanner(rig.scheduler)
    sequence = rig.gen([1, 2, 3], 8, client="a")
    plan = rig.scheduler.plan()
    ahead = planner.after(plan, [0], collect_requests(plan))
    assert ahead is not None
    rig.scheduler.end(sequence)
    begun = [part.charged for one in (plan, ahead.rows.plan) for part in one.parts]
    assert len(begun) == 2
    assert rig.scheduler.shares.served("a") == sum(begun), "though nobody took their results"


def test_a_step_that_had_no_memory_counts_for_nobody() -> None:
    rig = Rig(SchedulerConfig(num_pages=64))
    rig.gen([1, 2, 3], 8, client="a")
    plan = rig.scheduler.plan()
    assert rig.scheduler.shares.served("a") > 0
    rig.scheduler.fail_newest(plan, Overloaded("no memory", retry_after=1.0))
    assert rig.scheduler.shares.served("a") == 0


def test_a_long_prompt_lets_prompts_of_others_go_first() -> None:
    rig = Rig(SchedulerConfig(num_pages=256, token_budget=16))
    long = rig.gen(range(400), 1, client="a")
    rig.step()
    rig.step()
    short = rig.gen([90] * 5, 1, client="b")
    rig.step()
    assert short.num_generated == 1
    assert long.computed == 2 * 16 + 11, "and what is left of the budget is its own"
    rig.run()
    assert long.num_generated == 1


def test_of_calls_that_are_admitted_in_one_step_each_client_has_its_part() -> None:
    rig = Rig(SchedulerConfig(num_pages=256, max_rows=8))
    for client in "ab":
        for number in range(12):
            rig.gen([number, 1, 2, ord(client)], 30, client=client)
    rig.step()
    assert sorted(one.group.client for one in rig.scheduler.running) == [*"aaaabbbb"]


# --- a full queue


def waiting_of(rig: Rig) -> dict[str, list[int]]:
    """By client: the first tokens of its waiting calls."""
    found: dict[str, list[int]] = {}
    for sequence in rig.scheduler.waiting:
        found.setdefault(str(sequence.group.client), []).append(sequence.tokens[0])
    return {client: sorted(firsts) for client, firsts in found.items()}


def submit(rig: Rig, first: int, client: str, num_results: int = 1, weight: float = 1.0) -> None:
    """As the programs do it: what loses its place is ended."""
    call = SequenceGroup(client=client, weight=weight)
    settings = GenerationSettings(wire.SamplingParams(), 4, (), 1)
    for _ in range(num_results):
        call.sequences.append(Sequence(call, array("i", [first]), Generation(settings, 0)))
    for displaced in rig.scheduler.submit(call):
        for sequence in displaced.sequences:
            assert rig.scheduler.end(sequence) is None


def test_in_a_full_queue_the_newest_calls_of_who_has_most_make_room_for_others() -> None:
    rig = Rig(SchedulerConfig(num_pages=64, max_waiting=6))
    for first in range(6):
        submit(rig, first, "flood")
    submit(rig, 50, "one")
    submit(rig, 60, "two")
    assert waiting_of(rig) == {"flood": [0, 1, 2, 3], "one": [50], "two": [60]}
    submit(rig, 51, "one")
    submit(rig, 61, "two")
    everybody = {"flood": [0, 1], "one": [50, 51], "two": [60, 61]}
    assert waiting_of(rig) == everybody
    for client in everybody:
        with pytest.raises(Overloaded, match=r"6 calls are waiting, the limit is 6"):
            submit(rig, 70, client)
    assert waiting_of(rig) == everybody


def test_in_a_full_queue_calls_of_several_results_lose_their_places_whole_or_not_at_all() -> None:
    rig = Rig(SchedulerConfig(num_pages=64, max_waiting=6))
    for first in range(2):
        submit(rig, first, "flood", 3)
    submit(rig, 50, "one")
    assert waiting_of(rig) == {"flood": [0, 0, 0], "one": [50]}
    submit(rig, 51, "one", 2)
    with pytest.raises(Overloaded):
        submit(rig, 60, "two", 4)
    assert waiting_of(rig) == {"flood": [0, 0, 0], "one": [50, 51, 51]}


def test_in_a_full_queue_a_weight_is_a_multiple_of_the_places() -> None:
    rig = Rig(SchedulerConfig(num_pages=64, max_waiting=9))
    for first in range(9):
        submit(rig, first, "light")
    for first in range(50, 56):
        submit(rig, first, "heavy", weight=2.0)
    assert [len(firsts) for firsts in waiting_of(rig).values()] == [3, 6]


def test_what_was_begun_never_loses_its_place() -> None:
    rig = Rig(SchedulerConfig(num_pages=64, max_waiting=2, max_rows=2))
    begun = [rig.gen([first, 1], 30, client="flood") for first in (1, 2)]
    rig.step()
    for sequence in begun:
        rig.scheduler.preempt(sequence)
    with pytest.raises(Overloaded):
        submit(rig, 50, "one")
    rig.run()
    assert [one.num_generated for one in begun] == [30, 30]


def test_a_call_that_loses_its_place_is_answered_as_one_that_finds_none() -> None:
    talk = Talk(max_waiting=2)
    sampling = wire.SamplingParams(max_tokens=4, ignore_eos=True)
    talk.say(wire.Hello(wire.PROTOCOL_VERSION), client=b"other")
    for number in range(3):
        talk.say(wire.Open(number), text(number, "ab"), wire.Generate(number, number, sampling))
    talk.say(wire.Open(9), text(9, "cd"), wire.Generate(9, 9, sampling), client=b"other")
    replies = talk.until_idle()
    errors = failed(replies)
    assert {number: error.code for number, error in errors.items()} == dict.fromkeys(
        (1, 2), "overloaded"
    )
    assert done(replies).keys() == {0, 9}
