"""The interpreter's rules, op by op."""

from __future__ import annotations

import pytest

from lmprog import wire
from lmprog.runtime.programs import interpreter
from lmprog.simulation import oracle
from lmprog.transport import Gone, Unreadable
from tests.runtime.talk import GREEDY, Talk, done, failed, text


def generated(prompt: str, count: int = 5) -> str:
    op = wire.Generate(
        0, 0, wire.SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    )
    return oracle.generated(prompt, op, 0).text


def test_hello_is_answered_with_a_welcome() -> None:
    talk = Talk()
    talk.say(wire.Hello(wire.PROTOCOL_VERSION), client=b"other")
    assert [type(reply) for reply in talk.step()] == [wire.Welcome]


def test_another_protocol_version_is_refused_with_both_numbers() -> None:
    talk = Talk()
    talk.say(wire.Hello(99), client=b"other")
    (reply,) = talk.step()
    assert isinstance(reply, wire.Failed)
    assert reply.code == "protocol"
    assert "99" in reply.message
    assert str(wire.PROTOCOL_VERSION) in reply.message


def test_ten_appends_have_the_tokens_of_one() -> None:
    one, ten = Talk(), Talk()
    whole = one.ask(wire.Open(1), text(1, "hello world"), wire.Generate(1, 1, GREEDY))
    pieces = ten.ask(
        wire.Open(1), *[text(1, letter) for letter in "hello world"], wire.Generate(1, 1, GREEDY)
    )
    assert done(whole)[1].outputs == done(pieces)[1].outputs
    assert one.scheduler.stats.computed_tokens == ten.scheduler.stats.computed_tokens


def test_a_generation_is_part_of_the_branch() -> None:
    talk = Talk()
    replies = talk.ask(
        wire.Open(1),
        text(1, "ab"),
        wire.Generate(1, 1, GREEDY),
        text(1, "cd"),
        wire.Generate(1, 2, GREEDY),
        wire.Read(1, 3),
    )
    first, second = done(replies)[1].outputs[0].text, done(replies)[2].outputs[0].text
    assert first == generated("ab")
    assert second == generated("ab" + first + "cd")
    assert replies[-1] == wire.TextIs(3, "ab" + first + "cd" + second, 14)


def test_a_closed_branch_gives_its_pin_back() -> None:
    talk = Talk()
    talk.ask(wire.Open(1), text(1, "hello world"), wire.Generate(1, 1, GREEDY))
    assert talk.scheduler.tree.num_pinned > 0
    talk.ask(wire.Close(1))
    assert talk.scheduler.tree.num_pinned == 0


def test_nothing_that_was_computed_is_computed_again() -> None:
    talk = Talk()
    talk.ask(wire.Open(1), text(1, "abcdefgh"), wire.Generate(1, 1, GREEDY))
    assert (
        talk.scheduler.stats.computed_tokens == 8 + 4
    )  # the last generated token is never computed
    replies = talk.ask(text(1, "xyz"), wire.Generate(1, 2, GREEDY))
    assert talk.scheduler.stats.computed_tokens == 12 + (1 + 3) + 4
    assert done(replies)[2].usage.cached == 12


def test_a_reference_is_filled_in_by_the_runtime() -> None:
    talk = Talk()
    replies = talk.ask(
        wire.Open(1),
        wire.Open(2),
        text(1, "abc"),
        wire.Generate(
            1, 1, wire.SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, n=2)
        ),
        wire.Append(2, (wire.TextPiece("x"), wire.Ref(1, 1), wire.TextPiece("y"))),
        wire.Generate(2, 2, GREEDY),
    )
    other = done(replies)[1].outputs[1].text
    assert done(replies)[2].outputs[0].text == generated("x" + other + "y")


def test_a_reference_to_nothing_spoils_the_branch_and_names_the_call() -> None:
    talk = Talk()
    replies = talk.ask(
        wire.Open(1), wire.Append(1, (wire.Ref(77),)), wire.Generate(1, 1, GREEDY), wire.Read(1, 2)
    )
    assert {call: reply.code for call, reply in failed(replies).items()} == {
        1: "unknown_name",
        2: "unknown_name",
    }
    assert "77" in failed(replies)[1].message


def test_a_fork_starts_where_its_parent_stands_when_it_is_reached() -> None:
    talk = Talk()
    replies = talk.ask(
        wire.Open(1),
        text(1, "abc"),
        wire.Generate(1, 1, GREEDY),
        wire.Fork(1, (2, 3)),
        text(2, "x"),  # before the fork has been reached
        wire.Generate(2, 2, GREEDY),
        text(1, "later"),
        wire.Generate(3, 3, GREEDY),
    )
    first = done(replies)[1].outputs[0].text
    assert done(replies)[2].outputs[0].text == generated("abc" + first + "x")
    assert done(replies)[3].outputs[0].text == generated("abc" + first)


def test_calls_on_the_children_of_an_unknown_branch_are_answered() -> None:
    replies = Talk().ask(wire.Fork(9, (2,)), text(2, "x"), wire.Generate(2, 1, GREEDY))
    assert failed(replies)[1].code == "unknown_name"
    assert "branch 9" in failed(replies)[1].message


def test_a_fork_that_fails_answers_the_calls_of_its_children() -> None:
    talk = Talk()
    replies = talk.ask(
        wire.Open(1), text(1, "a" * 20_000), wire.Fork(1, (2,)), wire.Generate(2, 1, GREEDY)
    )
    assert failed(replies)[1].code == "context_overflow"


def test_closing_a_branch_looks_at_its_own_calls_only() -> None:
    talk = Talk()
    talk.ask(
        wire.Open(1),
        wire.Open(2),
        text(1, "ab"),
        text(2, "cd"),
        wire.Generate(1, 1, GREEDY),
        wire.Generate(2, 2, GREEDY),
    )
    talk.ask(wire.Close(1))
    calls = talk.interpreter.clients[b"me"].calls
    assert set(calls) == {2}
    talk.ask(wire.Close(2))
    assert not calls


def test_calls_of_an_unreadable_frame_are_answered_and_its_branches_fail() -> None:
    talk = Talk()
    talk.ask(wire.Open(1), text(1, "ab"))
    talk.say(Unreadable(calls=(5,), branches=(1, 99), reason="temperature"))
    replies = talk.ask(wire.Generate(1, 6, GREEDY))
    assert {call: reply.code for call, reply in failed(replies).items()} == {
        5: "invalid_parameter",
        6: "invalid_parameter",
    }
    assert "temperature" in failed(replies)[6].message


def test_what_a_child_gained_can_be_appended_to_its_parent() -> None:
    talk = Talk()
    replies = talk.ask(
        wire.Open(1),
        text(1, "abc"),
        wire.Fork(1, (2,)),
        text(2, "x"),
        wire.Generate(2, 1, GREEDY),
        wire.Append(1, (wire.Gained(2),)),
        wire.Read(1, 2),
    )
    assert replies[-1].text == "abcx" + done(replies)[1].outputs[0].text  # type: ignore[union-attr]


def test_roles_are_written_by_the_template() -> None:
    talk = Talk()
    turn = (
        wire.RoleBegin("user"),
        wire.TextPiece("hi"),
        wire.RoleEnd("user"),
        wire.RoleBegin("assistant"),
    )
    replies = talk.ask(wire.Open(1), wire.Append(1, turn), wire.Read(1, 1))
    assert replies[-1].text == "u:hi;a:"  # type: ignore[union-attr]


def test_an_unknown_role_spoils_the_branch() -> None:
    talk = Talk()
    replies = talk.ask(
        wire.Open(1),
        text(1, "a"),
        wire.Append(1, (wire.RoleBegin("wizard"),)),
        wire.Generate(1, 1, GREEDY),
    )
    assert "wizard" in failed(replies)[1].message


@pytest.mark.parametrize(
    "op", [wire.Generate(9, 1, GREEDY), wire.Select(9, 1, ("a",)), wire.Read(9, 1)]
)
def test_a_call_on_an_unknown_branch_is_answered(op: wire.Op) -> None:
    assert failed(Talk().ask(op))[1].code == "unknown_name"


def test_a_call_number_is_used_once() -> None:
    talk = Talk()
    replies = talk.ask(
        wire.Open(1), text(1, "a"), wire.Generate(1, 1, GREEDY), wire.Generate(1, 1, GREEDY)
    )
    assert [type(reply) for reply in replies if getattr(reply, "call", None) == 1] == [
        wire.Failed,
        wire.CallDone,
    ]


def test_a_refused_call_leaves_its_branch_usable() -> None:
    talk = Talk()
    huge = wire.SamplingParams(temperature=0.0, max_tokens=10_000)
    replies = talk.ask(
        wire.Open(1), text(1, "abc"), wire.Generate(1, 1, huge), wire.Generate(1, 2, GREEDY)
    )
    assert failed(replies)[1].code == "context_overflow"
    assert failed(replies)[1].details == {"prompt": 3, "max_tokens": 10_000, "limit": 200}
    assert done(replies)[2].outputs[0].text == generated("abc")


def test_a_token_id_outside_the_vocabulary_is_refused_with_the_range() -> None:
    talk = Talk()
    bad = wire.SamplingParams(logit_bias=((1000, 1.0),))
    replies = talk.ask(wire.Open(1), text(1, "abc"), wire.Generate(1, 1, bad))
    assert failed(replies)[1].details == {"name": "logit_bias", "value": 1000, "allowed": "0..59"}


def test_an_empty_prompt_is_refused() -> None:
    assert (
        failed(Talk().ask(wire.Open(1), wire.Generate(1, 1, GREEDY)))[1].code == "invalid_parameter"
    )


def test_cancelling_frees_pages_within_one_step() -> None:
    talk = Talk()
    long = wire.SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    talk.say(wire.Open(1), text(1, "abc"), wire.Generate(1, 1, long))
    for _ in range(10):
        talk.step()
    talk.say(wire.Cancel(1))
    replies = talk.step()
    assert failed(replies)[1].code == "cancelled"
    assert talk.scheduler.idle
    assert talk.scheduler.tree.num_evictable == talk.scheduler.tree.num_cached


def test_closing_a_branch_ends_its_calls() -> None:
    talk = Talk()
    replies = talk.ask(
        wire.Open(1),
        text(1, "abc"),
        wire.Generate(1, 1, GREEDY),
        wire.Generate(1, 2, GREEDY),
        wire.Close(1),
    )
    assert {call: reply.code for call, reply in failed(replies).items()} == {
        1: "cancelled",
        2: "cancelled",
    }


def test_a_vanished_client_leaves_nothing_behind() -> None:
    talk = Talk()
    talk.say(
        wire.Open(1),
        text(1, "abc"),
        wire.Generate(1, 1, GREEDY),
        wire.Fork(1, (2, 3)),
        wire.Generate(2, 2, GREEDY),
    )
    talk.step()
    talk.say(Gone())
    assert talk.until_idle() == []
    assert not talk.interpreter.clients
    talk.scheduler.tree.clear()
    assert talk.scheduler.pages.num_free == talk.scheduler.pages.num_pages


def test_a_call_that_runs_out_of_time_fails_with_its_timeout() -> None:
    talk = Talk()
    talk.say(
        wire.Open(1),
        text(1, "abc"),
        wire.Generate(1, 1, wire.SamplingParams(max_tokens=100, ignore_eos=True), timeout=2.5),
    )
    talk.step()
    talk.now = 3.0
    reply = failed(talk.step())[1]
    assert reply.code == "deadline"
    assert "2.5 s" in reply.message
    assert talk.scheduler.idle


def test_a_step_that_raises_fails_its_calls_and_nothing_else() -> None:
    talk = Talk()
    talk.engine.fail_next = True
    replies = talk.ask(wire.Open(1), text(1, "abc"), wire.Generate(1, 1, GREEDY))
    assert failed(replies)[1].code == "model"
    again = talk.ask(wire.Open(2), text(2, "abc"), wire.Generate(2, 2, GREEDY))
    assert done(again)[2].outputs[0].text == generated("abc")


def test_deltas_joined_are_the_text_and_hold_back_a_possible_stop() -> None:
    talk = Talk()
    whole = generated("abc", 30)
    stop = whole[10:14]
    sampling = wire.SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, stop=(stop,))
    replies = talk.ask(wire.Open(1), text(1, "abc"), wire.Generate(1, 1, sampling, stream=True))
    deltas = [reply.text for reply in replies if isinstance(reply, wire.Delta)]
    assert "".join(deltas) == done(replies)[1].outputs[0].text == whole[: whole.find(stop)]
    assert done(replies)[1].outputs[0].stopped_by == stop


def test_a_select_scores_all_options_in_one_step_over_one_prefix() -> None:
    talk = Talk()
    replies = talk.ask(wire.Open(1), text(1, "abcdefgh"), wire.Select(1, 1, ("xyz", "q", "r")))
    (reply,) = [one for one in replies if isinstance(one, wire.Chosen)]
    expected = oracle.scores("abcdefgh", wire.Select(1, 1, ("xyz", "q", "r")))
    assert [option.score for option in reply.options] == pytest.approx(expected, abs=1e-6)
    assert talk.scheduler.stats.steps == 1
    # 8 of the text; "xy" of the first option; "q" and "r" are read off the text's last token,
    # computed once for both.
    assert talk.scheduler.stats.computed_tokens == 8 + 2 + 1


def test_a_select_that_is_repeated_scores_the_same() -> None:
    talk = Talk()
    options = ("xyz", "xa")
    greedy = wire.Select(1, 1, options, method="greedy_token_selection")
    replies = talk.ask(
        wire.Open(1), text(1, "ab"), wire.Fork(1, (2,)), greedy, wire.Select(2, 2, options)
    )
    chosen = {one.call: one for one in replies if isinstance(one, wire.Chosen)}
    assert [option.logprobs for option in chosen[1].options] == [
        option.logprobs for option in chosen[2].options
    ]


def test_a_select_goes_on_from_its_choice() -> None:
    talk = Talk()
    replies = talk.ask(
        wire.Open(1), text(1, "ab"), wire.Select(1, 1, ("xyz", "q")), wire.Generate(1, 2, GREEDY)
    )
    (chosen,) = [one for one in replies if isinstance(one, wire.Chosen)]
    prompt = "ab" + ("xyz", "q")[chosen.index]
    assert done(replies)[2].outputs[0].text == generated(prompt)
    assert done(replies)[2].usage.cached == len(prompt) - 1


def test_the_time_of_the_first_step_counts_as_prefill() -> None:
    talk = Talk()
    forward = talk.engine.forward

    def slowly(batch: object) -> object:
        talk.now += 0.25
        return forward(batch)  # type: ignore[arg-type]

    talk.engine.forward = slowly  # type: ignore[method-assign,assignment]
    talk.now = 1.0
    usage = done(talk.ask(wire.Open(1), text(1, "abc"), wire.Generate(1, 1, GREEDY)))[1].usage
    assert usage.queued_ms == 0.0
    assert usage.prefill_ms == pytest.approx(250)
    assert usage.decode_ms == pytest.approx(1000)


def test_a_flush_gives_freed_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[bool] = []
    monkeypatch.setattr(interpreter.heap, "collect", lambda: trimmed.append(True))
    talk = Talk()
    talk.ask(wire.Open(1), text(1, "hello"), wire.Generate(1, 1, GREEDY))
    assert talk.scheduler.tree.num_evictable > 0
    talk.ask(wire.Flush(2))
    assert talk.scheduler.tree.num_evictable == 0
    assert trimmed == [True]
