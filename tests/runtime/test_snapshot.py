"""What an onlooker is told: the tree, who runs, who waits; nothing that is not theirs to know."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmprog import wire
from lmprog.runtime.programs import snapshot
from lmprog.runtime.programs.call_builder import ServedModel
from lmprog.runtime.programs.clients import output_of
from lmprog.runtime.scheduling.generation import Generation, GenerationSettings
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup
from lmprog.runtime.text.stream import TextStream
from lmprog.simulation.fake_engine import LetterTokenizer
from tests.constrained.writer import byte_tokenizer
from tests.runtime.talk import GREEDY, Talk, text


def look(talk: Talk, max_nodes: int = 500, with_text: bool = False) -> wire.Snapshot:
    replies = []
    talk.say(wire.Inspect(999, max_nodes, with_text))
    replies += talk.step()
    found = [reply for reply in replies if isinstance(reply, wire.Snapshot)]
    assert len(found) == 1
    return found[0]


def gen(branch: int, call: int, max_tokens: int = 5, priority: int = 0) -> wire.Generate:
    sampling = wire.SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return wire.Generate(branch, call, sampling, priority=priority)


def test_an_idle_runtime_shows_what_it_keeps_and_how_long_ago_it_was_used() -> None:
    talk = Talk(is_timed=True)
    talk.now = 10.0
    talk.ask(wire.Open(1), text(1, "abcdefgh"), wire.Generate(1, 2, GREEDY))
    talk.ask(wire.Close(1))
    talk.now = 13.0
    seen = look(talk)
    assert (seen.clock, seen.running, seen.waiting, seen.nodes_left_out) == (13.0, (), (), 0)
    assert (
        sum(node.num_tokens for node in seen.nodes) == 12
    )  # the last generated token has no keys and values
    assert (
        sum(node.num_pages for node in seen.nodes)
        == seen.figures["pages_cached"]
        == talk.scheduler.tree.num_cached
    )
    assert {(node.age, node.locks, node.pins, node.text) for node in seen.nodes} == {
        (3.0, 0, 0, "")
    }


def test_a_running_sequence_is_told_with_its_place_in_the_tree() -> None:
    talk = Talk()
    talk.say(wire.Open(1), text(1, "abcdefgh"), gen(1, 2, max_tokens=20))
    for _ in range(3):
        talk.step()
    talk.now += 2.0
    seen = look(talk)
    (sequence,) = seen.running
    assert (
        sequence.branch,
        sequence.call,
        sequence.kind,
        sequence.phase,
        sequence.prompt,
        sequence.max_tokens,
    ) == (
        1,
        2,
        "gen",
        "decode",
        8,
        20,
    )
    assert sequence.num_tokens == sequence.prompt + sequence.generated == sequence.computed + 1
    assert sequence.age == 2.0
    assert seen.nodes[sequence.node].locks == 1
    assert seen.nodes[sequence.node].age == 0.0


def test_a_long_prompt_in_chunks_is_prefill() -> None:
    talk = Talk(max_chunk=4)
    talk.say(wire.Open(1), text(1, "abcdefghijklmnop"), gen(1, 2))
    talk.step()
    (sequence,) = look(talk).running
    assert (sequence.phase, sequence.generated, sequence.num_tokens) == ("prefill", 0, 16)


def test_waiting_sequences_come_in_the_order_of_the_line_with_the_steps_that_they_waited() -> None:
    talk = Talk(max_rows=1, policy="fcfs")
    for number in (1, 2, 3):
        talk.say(
            wire.Open(number),
            text(number, "abcd" * number),
            gen(number, 10 + number, 20, priority=number == 3),
        )
    for _ in range(4):
        talk.step()
    seen = look(talk)
    assert [sequence.call for sequence in seen.running] == [13]
    assert [
        (sequence.call, sequence.phase, sequence.passes, sequence.node) for sequence in seen.waiting
    ] == [
        (11, "waiting", 4, -1),
        (12, "waiting", 4, -1),
    ]


def test_a_salt_is_told_as_a_hash_that_differs_from_runtime_to_runtime() -> None:
    names = []
    for _ in range(2):
        talk = Talk()
        talk.ask(wire.Open(1, salt="secret"), text(1, "abcdefgh"), wire.Generate(1, 2, GREEDY))
        talk.ask(wire.Open(3), text(3, "abcdefgh"), wire.Generate(3, 4, GREEDY))
        seen = look(talk)
        assert b"secret" not in wire.encode((seen,))
        names.append({node.salt for node in seen.nodes})
    assert [len(each) for each in names] == [2, 2]
    assert names[0] & names[1] == {""}


def test_text_is_told_only_where_it_is_asked_for() -> None:
    talk = Talk()
    talk.ask(wire.Open(1), text(1, "hello there"), wire.Generate(1, 2, GREEDY))
    assert {node.text for node in look(talk).nodes} == {""}
    assert "".join(node.text for node in look(talk, with_text=True).nodes).startswith("hello there")


def test_the_text_of_a_node_that_was_split_is_not_the_old_one() -> None:
    talk = Talk()
    talk.ask(wire.Open(1), text(1, "hello there"), wire.Generate(1, 2, GREEDY))
    assert "hello there" in "".join(node.text for node in look(talk, with_text=True).nodes)
    talk.ask(wire.Open(3), text(3, "help"), wire.Generate(3, 4, GREEDY))
    seen = look(talk, with_text=True)
    assert {node.text for node in seen.nodes if node.begin == 0} == {"hel"}
    assert look(talk, with_text=True).nodes == seen.nodes


def test_more_nodes_than_asked_for_are_counted_and_not_told() -> None:
    talk = Talk()
    for number, letter in enumerate("abcdef", 1):
        talk.ask(
            wire.Open(number), text(number, letter * 6), wire.Generate(number, 10 + number, GREEDY)
        )
    seen = look(talk, max_nodes=2)
    assert (len(seen.nodes), seen.nodes_left_out) == (2, talk.scheduler.tree.num_nodes - 2)
    shown = sum(node.num_pages for node in seen.nodes)
    assert shown + seen.pages_left_out == talk.scheduler.tree.num_cached


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 14), st.sampled_from(["", "s"])),
        max_size=6,
    ),
    st.integers(0, 12),
    st.sampled_from([0, 1, 5, 500]),
)
def test_a_snapshot_agrees_with_the_runtime_at_any_moment(
    prompts: list[tuple[str, int, str]], steps: int, max_nodes: int
) -> None:
    talk = Talk(num_pages=24, max_chunk=5)
    for number, (letter, length, salt) in enumerate(prompts, 1):
        talk.say(
            wire.Open(number, salt), text(number, letter * length), gen(number, 100 + number, 6)
        )
    for _ in range(steps):
        talk.step()
    replies: list[wire.Reply] = []
    talk.interpreter.handle(b"me", wire.Inspect(7, max_nodes))
    replies = [
        reply
        for _, reply in talk.interpreter._completion.take_replies()
        if isinstance(reply, wire.Snapshot)
    ]
    (seen,) = replies
    assert isinstance(seen, wire.Snapshot)
    scheduler = talk.scheduler
    assert len(seen.running) == len(scheduler.running)
    assert len(seen.waiting) == len(scheduler.waiting)
    assert len(seen.nodes) + seen.nodes_left_out == scheduler.tree.num_nodes
    assert (
        sum(node.num_pages for node in seen.nodes) + seen.pages_left_out
        == scheduler.tree.num_cached
    )
    if max_nodes == 500:
        standing = sum(node.locks for node in seen.nodes if node.parent < 0)
        assert standing == sum(
            sequence.node is not None and sequence.node.parent is not None
            for sequence in scheduler.running
        )
        known = [sequence.computed for sequence in seen.running if sequence.node >= 0]
        ends = [seen.nodes[sequence.node].begin for sequence in seen.running if sequence.node >= 0]
        assert all(begin <= computed for begin, computed in zip(ends, known, strict=True))
    assert wire.decode_replies(wire.encode((seen,))) == (seen,)


def ended(runs: list[tuple[int, int]], text_of: str, stop: tuple[str, ...] = ()) -> wire.Output:
    """The result of a generation that gave `text_of`, of which the tokens in `runs` were forced."""
    tokenizer = LetterTokenizer()
    tokens = tokenizer.encode(text_of)
    task = Generation(GenerationSettings(wire.SamplingParams(), 100, (), 1), 0)
    task.forced_runs = runs
    stream = TextStream(tokenizer, stop)
    for token in tokens:
        stream.push(token)
    sequence = Sequence(SequenceGroup(), array("i", [1, *tokens]), task)
    return output_of(sequence, stream.finish(), stream, tokenizer)


def test_an_output_says_where_each_of_its_tokens_ends() -> None:
    tokenizer = byte_tokenizer()
    stream = TextStream(tokenizer, ("xy",), seam="a")
    for token in tokenizer.encode("aé€bxy"):
        stream.push(token)
    assert (stream.finish().text, stream.ends_from(1)) == ("é€b", (0, 1, 1, 1, 2, 3, 4, 5))


@pytest.mark.parametrize(
    ("runs", "stop", "forced"),
    [
        ([], (), []),
        ([(0, 2), (4, 6)], (), ["ab", "ef"]),
        ([(0, 6)], (), ["abcdef"]),
        ([(0, 2), (3, 5)], ("e",), ["ab", "d"]),
        ([(4, 6)], ("d",), []),
    ],
)
def test_an_output_says_which_stretches_of_its_text_were_forced(
    runs: list[tuple[int, int]], stop: tuple[str, ...], forced: list[str]
) -> None:
    output = ended(runs, "abcdef", stop)
    assert [output.text[begin:end] for begin, end in output.forced] == forced


def seen_by(talk: Talk, op: wire.Inspect, client: bytes = b"me") -> wire.Snapshot:
    talk.interpreter.handle(client, op)
    taken = talk.interpreter._completion.take_replies()
    (seen,) = [reply for _, reply in taken if isinstance(reply, wire.Snapshot)]
    return seen


def test_a_part_of_the_tree_is_a_node_and_what_is_below_it() -> None:
    talk = Talk()
    for number, prompt in enumerate(("abcdefgh", "abcdxyz", "klmnop"), 1):
        talk.ask(wire.Open(number), text(number, prompt), wire.Generate(number, 9 + number, GREEDY))
    whole = look(talk, with_text=True)
    stem = next(node for node in whole.nodes if node.text == "abcd")
    part = seen_by(talk, wire.Inspect(7, 500, True, stem.number))
    assert part.nodes[0].number == stem.number
    assert [node.parent for node in part.nodes[:3]] == [-1, 0, 0]
    assert {node.number for node in part.nodes} < {node.number for node in whole.nodes}
    assert "klmn" not in "".join(node.text for node in part.nodes)
    assert seen_by(talk, wire.Inspect(8, 500, True, 10**6)).nodes == ()


def test_texts_are_as_long_as_they_are_asked_for_and_first_words_stay_short() -> None:
    talk = Talk()
    talk.ask(wire.Open(1), text(1, "abcdefgh" * 5), wire.Generate(1, 2, GREEDY))
    (stem, *_) = look(talk, with_text=True).nodes
    assert stem.text == ("abcdefgh" * 2) + "…"
    (longer, *_) = seen_by(talk, wire.Inspect(7, 1, True, stem.number, 24)).nodes
    assert longer.text == ("abcdefgh" * 3) + "…"
    (all_of_it, *_) = seen_by(talk, wire.Inspect(8, 1, True, stem.number, 4096)).nodes
    assert all_of_it.text.startswith("abcdefgh" * 5)


def test_a_client_reads_its_own_running_calls_and_nobody_elses() -> None:
    talk = Talk()
    talk.say(wire.Open(1), text(1, "abcdefgh"), gen(1, 2, max_tokens=20))
    for _ in range(4):
        talk.step()
    own = seen_by(talk, wire.Inspect(7, 0, texts_of=(2,)))
    (sequence,) = own.running
    assert sequence.is_own
    assert sequence.text[: sequence.prompt_chars] == "abcdefgh"
    assert len(sequence.text) == 8 + sequence.generated
    (end,) = seen_by(talk, wire.Inspect(8, 0, text_tokens=3, texts_of=(2,))).running
    assert end.text == sequence.text[-3:]
    (other,) = seen_by(talk, wire.Inspect(9, 0, texts_of=(2,)), b"another").running
    assert (other.is_own, other.text) == (False, "")


def turn(talk: Talk, number: int, letters: str, account: str = "") -> None:
    """A whole request of a harness."""
    talk.say(wire.Open(number, turn="", account=account), text(number, letters))
    talk.say(wire.Generate(number, number, GREEDY))
    talk.until_idle()
    talk.say(wire.Close(number))
    talk.until_idle()


def test_sessions_and_programs_are_told_while_they_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServedModel, "called_tool", lambda self, text: "make")
    talk = Talk(is_timed=True)
    turn(talk, 1, "x" * 30)
    assert look(talk).sessions == (), "nothing says that it comes back"
    turn(talk, 2, "x" * 40)
    ended = talk.now
    talk.say(wire.Open(3), text(3, "y" * 30), wire.Generate(3, 3, GREEDY))
    talk.until_idle()
    talk.now = ended + 2.0
    session, program = look(talk, with_text=True).sessions
    assert (session.turn, session.in_tool, session.tool, session.branches) == (2, True, "make", 1)
    assert session.waited == pytest.approx(2.0)
    assert session.expected > 0.0
    assert session.tokens == session.in_memory >= 40
    assert (program.turn, program.in_tool, program.is_own, program.stored) == (0, False, True, 0)
    assert [one.tool for one in look(talk).sessions] == ["", ""], "it is text"
    talk.scheduler.tree.clear()
    assert [one.in_memory for one in look(talk).sessions] == [0, 0]
    assert look(talk).sessions[0].tokens == session.tokens
    talk.say(wire.Close(3))
    talk.say(wire.Open(4, turn=""), text(4, "x" * 50), gen(4, 4))
    talk.step()
    assert look(talk).sessions == (), "one is over, the other one runs"
    talk.until_idle()


def test_each_account_has_some_of_the_sessions_that_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot, "MAX_SESSIONS", 3)
    talk = Talk(num_pages=400)
    for number, account in enumerate("aaaab", 1):
        talk.say(wire.Open(number, account=account), text(number, account * 8 * number))
        talk.say(wire.Generate(number, number, GREEDY))
        talk.until_idle()
    seen = look(talk)
    assert [(one.account, one.program) for one in seen.sessions] == [("a", 1), ("b", 5), ("a", 2)]
    assert seen.sessions_left_out == 2


def test_tokens_that_are_computed_again_since_they_were_evicted_are_counted() -> None:
    talk = Talk()
    (first,) = done(talk, wire.Open(1), text(1, "a" * 20), gen(1, 1))
    (second,) = done(talk, text(1, "b" * 4), gen(1, 2))
    talk.scheduler.tree.clear()
    (third,) = done(talk, text(1, "c" * 4), gen(1, 3))
    assert (first.usage.recomputed, second.usage.recomputed) == (0, 0)
    assert third.usage.computed == third.usage.prompt - 1 + third.usage.generated
    assert third.usage.prompt - third.usage.recomputed in (4, 5), "what is new is not among them"


def done(talk: Talk, *ops: wire.Op) -> list[wire.CallDone]:
    return [reply for reply in talk.ask(*ops) if isinstance(reply, wire.CallDone)]
