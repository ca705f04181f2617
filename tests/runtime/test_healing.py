"""Healing: the last literal token is decided once more, exactly, where that can matter, and nowhere
else.
"""

from __future__ import annotations

import copy
import functools
import random
from array import array
from typing import NoReturn

import pytest

from lmprog import wire
from lmprog.runtime.programs.branch import RuntimeBranch
from lmprog.runtime.programs.call_builder import CallBuilder, CallLimits, Healer, ServedModel
from lmprog.runtime.programs.call_constraints import CallConstraints, begin_constraint
from lmprog.runtime.programs.clients import ActiveCall
from lmprog.runtime.programs.long_texts import LongTexts
from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.sequence import SequenceGroup
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.runtime.text.stream import TextStream
from lmprog.runtime.text.text_service import TextService
from lmprog.runtime.text.tokenizer import ChunkedEncoder, Cutter
from tests.constrained.small_model import PairTokenizer, random_tokenizer
from tests.runtime.talk import Talk, done, text
from tests.runtime.words import Words

LONGEST = 200

URL = Words("http", "://", ":", " ", " word", "the", " the", "é".encode()[:1], "9", "90")


HEALED = wire.Generate(1, 1, wire.SamplingParams(max_tokens=5), heal=True)


def _nothing() -> NoReturn:
    raise AssertionError("no call here has a template or a judge")


def built(
    tokenizer: Words | PairTokenizer,
    prompt: str,
    constraint: wire.Constraint | None = None,
    heal: bool = True,
    **sampling: object,
) -> SequenceGroup:
    """The call that a gen on a branch with this literal text becomes."""
    constraints = CallConstraints(tokenizer)
    limits = CallLimits(tokenizer.vocab_size, LONGEST, lambda prompt, most: None)
    encoder = ChunkedEncoder(tokenizer, Cutter(tokenizer))
    service = TextService(tokenizer, tokenizer.vocab_size, LONGEST)
    welcome = wire.Welcome(wire.PROTOCOL_VERSION, "none", LONGEST, tokenizer.vocab_size, 16, 1, 0)
    model = ServedModel(tokenizer, _nothing, welcome)
    texts, rng = LongTexts(encoder, service), random.Random(0)
    calls = CallBuilder(model, limits, texts, constraints.forcing, rng, _nothing)
    branch = RuntimeBranch(1)
    branch.open()
    branch.append(prompt)
    settings = wire.SamplingParams(**{"max_tokens": 5, **sampling})  # type: ignore[arg-type]
    op = wire.Generate(1, 1, settings, constraint, heal=heal)
    pending = begin_constraint(constraints, op, "", "")
    constraints.collect()
    return calls.build(ActiveCall(b"", op, branch, (), pending), 0.0).group


def seam_of(call: SequenceGroup) -> bytes | None:
    task = call.sequences[0].task
    assert isinstance(task, Generation)
    return task.settings.seam.text if task.settings.seam else None


# --- the distribution, enumerated -----------------------------------------------------------------


@functools.cache
def weight(seed: int, tokens: tuple[int, ...], token: int) -> float:
    """How much a made-up model likes a token after others."""
    return random.Random(repr((seed, tokens, token))).random() ** 3 + 0.01


def share(seed: int, tokens: array[int], allowed: list[int]) -> dict[int, float]:
    found = {token: weight(seed, tuple(tokens), token) for token in allowed}
    total = sum(found.values())
    return {token: one / total for token, one in found.items()}


def texts_of(tokenizer: PairTokenizer, call: SequenceGroup, seed: int) -> dict[str, float]:
    """The probability of each text, by walking every path of the runtime's own generation."""
    sequence = call.sequences[0]
    assert isinstance(sequence.task, Generation)
    found: dict[str, float] = {}
    paths = [(sequence.task, sequence.tokens, 1.0)]
    while paths:
        task, tokens, chance = paths.pop()
        if task.finish is not None:
            written = tokenizer.decode(tokens)
            found[written] = found.get(written, 0.0) + chance
            continue
        row = task.mask()
        allowed = [
            token for token in range(tokenizer.vocab_size) if row is None or row.allows(token)
        ]
        for token, part in share(seed, tokens, allowed).items():
            other, longer = copy.copy(task), tokens[:]
            other.accept(token, longer)
            paths.append((other, longer, chance * part))
    return found


def texts_by_definition(
    tokenizer: PairTokenizer, prompt: str, max_tokens: int, seed: int
) -> dict[str, float]:
    """The same from the definition, with strings: no masks, no pieces, no guides."""
    standing = tokenizer.encode(prompt)
    names = [tokenizer.token_text(token) for token in range(tokenizer.vocab_size)]
    found: dict[str, float] = {}

    def go(tokens: array[int], seam: str, left: int, chance: float) -> None:
        if not seam and not left:
            written = tokenizer.decode(tokens)
            found[written] = found.get(written, 0.0) + chance
            return
        allowed = [
            t
            for t, name in enumerate(names)
            if name and (name.startswith(seam) or seam.startswith(name))
        ]
        for token, part in share(
            seed, tokens, allowed if seam else list(range(len(names)))
        ).items():
            name = names[token]
            longer = array("i", [*tokens, token])
            if not name:
                written = tokenizer.decode(tokens)
                found[written] = found.get(written, 0.0) + chance * part
            elif seam:
                go(longer, seam[len(name) :], left - (len(name) > len(seam)), chance * part)
            else:
                go(longer, "", left - 1, chance * part)

    seam = tokenizer.token_text(standing[-1])
    go(array("i", standing[:-1]), seam, max_tokens, 1.0)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_distribution_over_texts_is_that_of_the_last_token_decided_once_more(seed: int) -> None:
    rng = random.Random(seed)
    while True:
        tokenizer = random_tokenizer(rng, num_merges=7)
        prompt = "".join(rng.choices("abc", k=6))
        call = built(tokenizer, prompt, max_tokens=2)
        if seam_of(call) is not None:
            break
    found = texts_of(tokenizer, call, seed)
    expected = texts_by_definition(tokenizer, prompt, 2, seed)
    assert found.keys() == expected.keys()
    assert max(abs(found[one] - expected[one]) for one in found) < 1e-12
    assert abs(sum(found.values()) - 1) < 1e-9
    assert all(one.startswith(prompt) for one in found), "what was written stands"
    plain = texts_of(tokenizer, built(tokenizer, prompt, heal=False, max_tokens=2), seed)
    assert max(abs(found.get(one, 0.0) - plain.get(one, 0.0)) for one in {*found, *plain}) > 1e-3


@pytest.mark.parametrize("seed", range(20))
def test_with_a_constraint_every_text_is_the_prompt_and_a_whole_match(seed: int) -> None:
    rng = random.Random(100 + seed)
    language = list(
        dict.fromkeys("".join(rng.choices("abc", k=rng.randrange(1, 4))) for _ in range(5))
    )
    while True:
        tokenizer = random_tokenizer(rng, num_merges=7)
        prompt = "".join(rng.choices("abc", k=6))
        call = built(tokenizer, prompt, wire.Choices(tuple(language)), max_tokens=3)
        if seam_of(call) is not None:
            break
    found = texts_of(tokenizer, call, seed)
    assert set(found) == {prompt + one for one in language}
    assert abs(sum(found.values()) - 1) < 1e-9


# --- which seams ----------------------------------------------------------------------------------

SEAMS: dict[str, tuple[str, bytes | None]] = {
    "http: becomes ://": ("see http:", b":"),
    "a trailing space": ("the ", b" "),
    "a word with longer ones": ("it was the9", b"9"),
    "nothing longer begins with it": ("the word", None),
    "the only token": (":", None),
    "a special token": ("the<turn>", None),
    "the last part of a character": ("caf\u00e9", None),
}


@pytest.mark.parametrize("name", SEAMS)
def test_the_seam_is(name: str) -> None:
    prompt, expected = SEAMS[name]
    call = built(URL, prompt)
    assert seam_of(call) == expected
    tokens = URL.encode(prompt)
    assert list(call.sequences[0].tokens) == (tokens if expected is None else tokens[:-1])
    assert call.prompt_len == len(tokens)


INSIDE = Words(
    "caf",
    "\u20ac".encode()[2:] + b"s",
    "\u00e9s",
    "\u00e9",
    "\u20ac".encode()[:2],
    "\u20ac.",
    "a\u00e9",
)
"""Tokens that begin or end inside of a character."""


@pytest.mark.parametrize(
    ("prompt", "last", "expected"),
    [
        ("caf\u00e9", "\u00e9", "\u00e9"),  # a whole character that a longer token goes on from
        ("a\u20ac", "", None),  # its last byte, which a longer token begins with: that is no text
        ("caf\u00eas", "s", None),
        ("\u00eaa", "a", "a"),
    ],
)
def test_a_character_of_several_bytes_is_healed_whole_or_not_at_all(
    prompt: str, last: str, expected: str | None
) -> None:
    standing = INSIDE.encode(prompt)
    if last:
        assert INSIDE.token_text(standing[-1]) == last
    else:
        assert INSIDE.token_text(standing[-1]) == "\ufffd", "the character is split among tokens"
    call = built(INSIDE, prompt)
    assert seam_of(call) == (None if expected is None else expected.encode())
    if expected is not None:
        task = call.sequences[0].task
        assert isinstance(task, Generation)
        row = task.mask()
        assert row is not None
        pieces = {INSIDE.pieces[token] for token in range(INSIDE.vocab_size) if row.allows(token)}
        begun = {
            piece
            for piece in pieces
            if piece is not None and not piece.startswith(expected.encode())
        }
        assert all(expected.encode().startswith(piece) for piece in begun)
        assert any(piece is not None and len(piece) > len(expected.encode()) for piece in pieces)


def test_nothing_is_healed_unasked_nor_where_the_prompt_itself_is_scored() -> None:
    assert seam_of(built(URL, "see http:", heal=False)) is None
    assert seam_of(built(URL, "see http:", prompt_logprobs=0)) is None
    assert seam_of(built(URL, "see http:", max_tokens=LONGEST - 3)) is None, "it would not fit"


def test_a_constraint_says_what_may_stand_beyond_the_seam() -> None:
    assert seam_of(built(URL, "see http:", wire.Regex("[a-z]+"))) is None, "only :// is longer"
    call = built(URL, "see http:", wire.Regex("//[a-z]"))
    task = call.sequences[0].task
    assert isinstance(task, Generation)
    row = task.mask()
    assert row is not None
    assert {URL.pieces[token] for token in range(URL.vocab_size) if row.allows(token)} == {
        b":",
        b"://",
    }
    tokens = call.sequences[0].tokens
    assert task.accept(URL.ids[b"://"], tokens) == 1
    row = task.mask()
    assert row is not None
    assert row.count == 26
    assert (task.generated, task.num_seam_tokens) == (1, 0)


def test_a_stop_token_may_be_in_the_seam_and_not_go_beyond_it() -> None:
    inside = built(URL, "see http:", stop_token_ids=(URL.ids[b":"],))
    task = inside.sequences[0].task
    assert isinstance(task, Generation)
    assert task.accept(URL.ids[b":"], inside.sequences[0].tokens) == 1
    assert task.finish is None
    assert (task.generated, task.num_seam_tokens, task.prompt_len) == (
        0,
        1,
        len(URL.encode("see http:")),
    )
    assert seam_of(built(URL, "see http:", stop_token_ids=(URL.ids[b"://"],))) is None


# --- in the runtime -------------------------------------------------------------------------------

GREEDY = wire.SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


LONGER = ((URL.ids[b"://"], 90.0),)
SAME = ((URL.ids[b":"], 90.0),)


def asked(
    prompt: str, logit_bias: tuple[tuple[int, float], ...], **more: object
) -> tuple[Talk, wire.CallDone, list[str]]:
    """A healed generation after `prompt`; also what was streamed."""
    talk = Talk(tokenizer=URL)
    settings = wire.SamplingParams(
        **{
            "temperature": 0.0,
            "max_tokens": 3,
            "ignore_eos": True,
            "logit_bias": logit_bias,
            **more,
        }  # type: ignore
    )
    replies = talk.ask(
        wire.Open(1),
        text(1, prompt),
        wire.Generate(1, 7, settings, stream=True, heal=True),
        wire.Read(1, 8),
    )
    (whole,) = [reply for reply in replies if isinstance(reply, wire.TextIs)]
    assert whole.text == prompt + done(replies)[7].outputs[0].text
    deltas = [reply.text for reply in replies if isinstance(reply, wire.Delta)]
    return talk, done(replies)[7], deltas


def test_only_what_is_new_is_given_out_and_counted() -> None:
    _, longer, deltas = asked("see http:", LONGER, logprobs=1)
    (output,) = longer.outputs
    assert output.text.startswith("//")
    assert "".join(deltas) == output.text
    assert output.tokens[0] == URL.ids[b"://"]
    assert len(output.tokens) == len(output.logprobs) == longer.usage.generated == 3
    assert [one.token for one in output.logprobs] == list(output.tokens)
    _, same, deltas = asked("see http:", SAME, logprobs=1)
    (output,) = same.outputs
    assert "".join(deltas) == output.text == ":::"
    assert len(output.tokens) == len(output.logprobs) == same.usage.generated == 3
    assert longer.usage.prompt == same.usage.prompt == len(URL.encode("see http:"))


def test_a_stop_in_what_goes_beyond_leaves_the_prompt_as_it_was() -> None:
    talk, answer, _ = asked("see http:", LONGER, stop=("//",))
    (output,) = answer.outputs
    assert (output.text, output.finish, output.stopped_by, output.tokens) == ("", "stop", "//", ())
    branch = talk.interpreter.clients[b"me"].branches[1]
    assert list(branch.tokens_with(URL)) == URL.encode("see http:")


def test_a_stop_is_not_found_in_the_seam() -> None:
    _, answer, _ = asked("see http:", LONGER, stop=("http://",))
    assert answer.outputs[0].text == "//://://"
    _, answer, _ = asked("see http:", LONGER, stop=("/:",))
    assert (answer.outputs[0].text, answer.outputs[0].stopped_by) == ("/", "/:")


def test_tokens_inside_the_seam_do_not_count_for_the_least_number() -> None:
    stream = TextStream(URL, stop=("//",), min_tokens=1, seam="http:")
    stream.push(URL.ids[b"http"])
    stream.push(URL.ids[b"://"])
    assert (stream.num_tokens, stream.is_stopped) == (1, False)
    stream.push(URL.ids[b"://"])
    assert (stream.num_tokens, stream.stopped_by) == (2, "//")


def test_taken_as_it_was_the_answer_is_that_without_healing() -> None:
    """The old token wins, so all that follows is the same, also in a branch that goes on."""
    for prompt in ("see http:", "the ", "a9"):
        last = URL.encode(prompt)[-1]
        _, healed, _ = asked(prompt, ((last, 60.0),), max_tokens=1)
        talk = Talk(tokenizer=URL)
        settings = wire.SamplingParams(
            temperature=0.0, max_tokens=1, ignore_eos=True, logit_bias=((last, 60.0),)
        )
        plain = done(talk.ask(wire.Open(1), text(1, prompt), wire.Generate(1, 7, settings)))[7]
        assert healed.outputs[0].text == plain.outputs[0].text


def test_where_nothing_can_heal_no_step_and_no_cached_token_is_lost() -> None:
    figures = []
    for heal in (False, True):
        talk = Talk(tokenizer=URL)
        talk.ask(wire.Open(1), text(1, "the word the word"), wire.Generate(1, 1, GREEDY, heal=heal))
        again = talk.ask(
            wire.Open(2), text(2, "the word the word"), wire.Generate(2, 2, GREEDY, heal=heal)
        )
        usage = done(again)[2].usage
        figures.append((usage.cached, usage.computed, usage.generated, talk.scheduler.step))
    assert figures[0] == figures[1]


def test_a_branch_that_ends_in_anything_but_literal_text_is_not_healed() -> None:
    talk = Talk(tokenizer=URL)
    talk.ask(wire.Open(1), text(1, "see http:"), wire.Generate(1, 1, GREEDY))
    branch = talk.interpreter.clients[b"me"].branches[1]
    assert not branch.ends_literal, "generated"
    talk.ask(wire.Append(1, (wire.TextPiece("the "),)))
    assert branch.ends_literal
    talk.ask(wire.Append(1, (wire.TextPiece(""),)))
    assert branch.ends_literal, "nothing was appended"
    talk.ask(wire.Append(1, (wire.RoleBegin("user"),)))
    assert not branch.ends_literal, "a template's"
    talk.ask(wire.Append(1, (wire.TextPiece("x:"), wire.RoleEnd("user"))))
    assert not branch.ends_literal, "a template's"
    talk.ask(wire.Append(1, (wire.TokensPiece(tuple(URL.encode("http:"))),)))
    assert not branch.ends_literal, "given as tokens"
    talk.ask(wire.Append(1, (wire.TextPiece(":"),)), wire.Select(1, 2, (":", "the")))
    assert not branch.ends_literal, "selected"


def test_forks_and_results_share_all_before_the_seam() -> None:
    talk = Talk(tokenizer=URL)
    prompt = "the word " * 6 + "http:"
    tokens = URL.encode(prompt)
    many = wire.SamplingParams(temperature=1.0, seed=3, max_tokens=2, ignore_eos=True, n=4)
    usage = done(talk.ask(wire.Open(1), text(1, prompt), wire.Generate(1, 1, many, heal=True)))[
        1
    ].usage
    assert usage.computed <= len(tokens) - 1 + 4 * 3 + 4
    talk.ask(wire.Open(2), text(2, prompt), wire.Fork(2, (3, 4)))
    replies = talk.ask(
        wire.Generate(3, 5, GREEDY, heal=True), wire.Generate(4, 6, GREEDY, heal=True)
    )
    for call in (5, 6):
        assert done(replies)[call].usage.cached >= len(tokens) - 1 - 4


def test_neither_a_template_nor_the_end_of_a_result_is_healed() -> None:
    """Both end in text that is still to be tokenised, as literal text does, which is healed."""

    def seam(branch: RuntimeBranch) -> object:
        prompt = branch.tokens_with(URL)
        return Healer(URL, URL.vocab_size, LONGEST).seam(branch, prompt, HEALED, 5, None)

    literal, after_result = RuntimeBranch(1), RuntimeBranch(2)
    for branch in (literal, after_result):
        branch.open()
        branch.append("the http:")
    assert seam(literal) is not None
    after_result.adopt(array("i", URL.encode("the word")), " http:", rest="http:")
    assert seam(after_result) is None
    turns = "{% for m in messages %}the http:{{ m['content'] }} word{% endfor %}"
    in_turn = RuntimeBranch(3)
    in_turn.open()
    in_turn.append("the word")
    in_turn.begin_role("user", ChatTemplate(turns, {}))
    assert in_turn.pending.endswith("http:")
    assert seam(in_turn) is None
