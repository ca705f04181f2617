"""`allowed_token_ids`, `bad_words`, `skip_special_tokens` and `max_tokens=0`: rules of single tokens,
alone and together with constraints and healing.
"""

from __future__ import annotations

import random
import re
from array import array
from typing import Any

import pytest

from lmprog import wire
from lmprog.constraints.constraint import NARROW, MaskRow
from lmprog.constraints.seam import both, mask_row
from lmprog.runtime.scheduling.generation import BannedSequences, Generation
from lmprog.runtime.text.tokenizer import ByteTokenizer
from lmprog.simulation.fake_engine import LetterTokenizer
from tests.runtime import talk as talking
from tests.runtime.talk import Talk, text
from tests.runtime.test_healing import built
from tests.runtime.words import Words

LETTERS = LetterTokenizer()


def asked(
    talk: Talk, constraint: wire.Constraint | None = None, **options: Any
) -> list[wire.Reply]:
    settings: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 60, "ignore_eos": True}
    sampling = wire.SamplingParams(**{**settings, **options})
    gen = wire.Generate(1, 2, sampling, constraint)
    replies = talk.ask(wire.Open(1), text(1, "once upon a time"), gen)
    talk.ask(wire.Close(1))
    return replies


def done(replies: list[wire.Reply]) -> wire.CallDone:
    return talking.done(replies)[2]


def failed(replies: list[wire.Reply]) -> wire.Failed:
    return talking.failed(replies)[2]


def ids(letters: str) -> tuple[int, ...]:
    return tuple(LETTERS.encode(letters))


def tokens_in(row: MaskRow) -> set[int]:
    return {token for token in range(row.num_words * 32) if row.allows(token)}


# --- allowed_token_ids


def test_only_allowed_tokens_are_sampled_however_often_they_are_named() -> None:
    said = done(asked(Talk(), allowed_token_ids=ids("abca"))).outputs[0]
    assert len(said.tokens) == 60
    assert set(said.tokens) == set(ids("abc"))


def test_the_models_end_is_allowed_only_where_it_is_named() -> None:
    [end] = LETTERS.eos_ids[:1]
    without = done(asked(Talk(), allowed_token_ids=ids("ab"), ignore_eos=False)).outputs[0]
    assert (without.finish, len(without.tokens)) == ("length", 60)
    named = done(asked(Talk(), allowed_token_ids=(*ids("a"), end), ignore_eos=False)).outputs[0]
    assert (named.finish, named.stopped_by) == ("stop", end)


def test_a_constraint_and_allowed_tokens_hold_both_and_the_constraint_says_where_to_end() -> None:
    pattern = wire.Regex("[a-e]{4}[f-j]{1,3}")
    said = done(asked(Talk(), pattern, allowed_token_ids=ids("adgz"), ignore_eos=False)).outputs[0]
    assert re.fullmatch("[ad]{4}g{1,3}", said.text)
    assert said.finish == "constraint"


def test_text_that_a_constraint_forces_is_not_written_where_it_is_not_allowed() -> None:
    error = failed(asked(Talk(), wire.Regex("[ab]cat"), allowed_token_ids=ids("abc")))
    assert error.code == "unsatisfiable"
    assert "allowed_token_ids" in error.message


def test_an_id_that_the_model_does_not_have_is_refused() -> None:
    error = failed(asked(Talk(), allowed_token_ids=(1, 10_000)))
    assert (error.code, error.details["name"]) == ("invalid_parameter", "allowed_token_ids")


@pytest.mark.parametrize("seed", range(3))
def test_what_two_masks_both_allow_is_their_intersection(seed: int) -> None:
    rng = random.Random(seed)
    size = 4 * NARROW
    for first, second in ((9, 11), (20, 3 * NARROW), (3 * NARROW, 20), (3 * NARROW, 2 * NARROW)):
        sets = [set(rng.sample(range(size), count)) for count in (first, second)]
        made = both(*(mask_row(sorted(one), size // 32) for one in sets))
        assert tokens_in(made) == sets[0] & sets[1]
        assert made.count == len(sets[0] & sets[1])


# --- bad_words


def test_bad_words_are_never_in_a_result_and_their_parts_may_be() -> None:
    letters = {"allowed_token_ids": ids("ab ")}
    free = done(asked(Talk(), **letters)).outputs[0].text
    assert "aab" in free
    assert "bb" in free
    said = done(asked(Talk(), bad_words=("aab", "bb"), **letters)).outputs[0].text
    assert "aab" not in said
    assert "bb" not in said
    assert "aa" in said
    assert "ab" in said


def test_a_bad_word_of_one_token_is_banned_everywhere() -> None:
    said = done(asked(Talk(), bad_words=("a",), allowed_token_ids=ids("ab"))).outputs[0].text
    assert said == "b" * 60


def test_bad_words_count_what_was_generated_and_not_the_prompt() -> None:
    """The prompt ends with "time": its "e" begins no banned sequence."""
    said = done(asked(Talk(), bad_words=("ex",), allowed_token_ids=ids("x"), max_tokens=2))
    assert said.outputs[0].text == "xx"


def test_a_bad_word_that_a_constraint_demands_is_written() -> None:
    """Bans give way where nothing else is allowed: the text keeps its constraint."""
    said = done(asked(Talk(), wire.Regex("(cat|dog){3}"), bad_words=("at", "o"))).outputs[0].text
    assert re.fullmatch("(cat|dog){3}", said)


def test_the_healed_end_of_a_prompt_is_not_a_bad_word() -> None:
    """It is " ", which may go on as " word" or " worm"."""
    tokenizer = Words(" ", " word", " worm", "word")
    group = built(tokenizer, "once upon a ", bad_words=(" ", "word"))
    (sequence,) = group.sequences
    task = sequence.task
    assert isinstance(task, Generation)
    assert task.is_healing
    space, word, bare = (tokenizer.ids[piece] for piece in (b" ", b" word", b"word"))
    assert set(task.banned(sequence.tokens)) == {word, bare}
    task.accept(space, sequence.tokens)
    assert not task.is_healing
    assert set(task.banned(sequence.tokens)) == {space, word, bare}


def test_allowed_tokens_keep_the_prompt_as_it_is() -> None:
    for rules, heals in (({}, True), ({"allowed_token_ids": (5,)}, False)):
        (sequence,) = built(Words(" ", " word"), "once upon a ", **rules).sequences
        assert isinstance(sequence.task, Generation)
        assert sequence.task.is_healing is heals


def test_banned_sequences_look_back_as_far_as_they_must() -> None:
    banned = BannedSequences([(1,), (2, 3), (4, 2, 5), (2, 3)])
    assert banned.after(array("i", [9, 4, 2]), 1) == (1, 3, 5)
    assert banned.after(array("i", [9, 4, 2]), 2) == (1, 3)
    assert banned.after(array("i", [9, 4, 2]), 3) == (1,)
    assert banned.after(array("i", [7]), 0) == (1,)


class WithoutTokens(LetterTokenizer):
    def encode(self, text: str, start: bool = True) -> list[int]:
        return super().encode(text.replace("~", ""), start)


def test_a_bad_word_without_tokens_is_refused_by_name() -> None:
    error = failed(asked(Talk(WithoutTokens()), bad_words=("a", "~")))
    assert error.details["value"] == "~"


# --- skip_special_tokens


def test_special_tokens_have_their_names_only_where_they_are_asked_for() -> None:
    tokenizer = ByteTokenizer()
    special = tokenizer.encode("<|user|>a")
    texts = []
    for skip in (True, False):
        talk = Talk(tokenizer)
        reply = done(
            asked(talk, allowed_token_ids=tuple(special), skip_special_tokens=skip, max_tokens=12)
        )
        assert set(reply.outputs[0].tokens) == set(special)
        texts.append(reply.outputs[0].text)
        assert texts[-1] == tokenizer.decode(reply.outputs[0].tokens, skip_special=skip)
    assert texts[0] == texts[1].replace("<|user|>", "")


# --- nothing to generate


def test_max_tokens_0_computes_the_prompt_and_tells_the_likeliest_next_tokens() -> None:
    talk = Talk()
    nothing = done(asked(talk, max_tokens=0, logprobs=3))
    (output,) = nothing.outputs
    assert (output.text, output.tokens, output.finish, output.logprobs) == ("", (), "length", ())
    assert nothing.usage.generated == 0
    one = done(asked(Talk(), max_tokens=1, logprobs=3))
    assert nothing.next_logprobs == one.outputs[0].logprobs[0].top
    again = done(asked(talk, max_tokens=1))
    assert again.usage.cached > 0, "the prompt was left in the cache"


def test_max_tokens_0_is_cut_short_and_not_stopped_whatever_the_model_wants() -> None:
    [end] = LETTERS.eos_ids[:1]
    for wanted in ({}, {"logit_bias": ((end, 100.0),), "ignore_eos": False}, {"stop": ("a",)}):
        reply = done(asked(Talk(), max_tokens=0, n=2, **wanted))
        assert [(one.text, one.finish, one.stopped_by) for one in reply.outputs] == [
            ("", "length", None)
        ] * 2
        assert reply.next_logprobs == ()


def test_max_tokens_0_leaves_no_room_for_a_constraint() -> None:
    assert failed(asked(Talk(), wire.Regex("a+"), max_tokens=0)).code == "unsatisfiable"
