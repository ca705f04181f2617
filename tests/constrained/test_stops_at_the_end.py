"""A constrained text may end by a stop where it may be all, and is never more than the constraint
allows.
"""

from __future__ import annotations

import pytest

from lmprog import wire
from lmprog.lang.ops import typed
from tests.runtime.talk import Talk, done, text
from tests.runtime.words import Words

LINES = Words("12", "34", "5\n", "\n", "\n\n", " ", "EN", "END", ":")
NEVER_ENDS = wire.SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def said(
    pattern: str, bias: dict[str, float], max_tokens: int = 12, **sampling: object
) -> wire.Output:
    """What is written after "n:" by a model that likes some tokens: the output, once it is
    checked.
    """
    liked = tuple((LINES.ids[piece.encode()], value) for piece, value in bias.items())
    settings = wire.SamplingParams(
        temperature=0.0, max_tokens=max_tokens, ignore_eos=True, logit_bias=liked, **sampling
    )  # type: ignore[arg-type]
    talk = Talk(tokenizer=LINES)
    replies = talk.ask(
        wire.Open(1),
        text(1, "n:"),
        wire.Generate(1, 2, settings, wire.Regex(pattern)),
        wire.Read(1, 3),
    )
    (output,) = done(replies)[2].outputs
    (whole,) = [reply.text for reply in replies if isinstance(reply, wire.TextIs)]
    assert whole == "n:" + output.text
    assert LINES.decode(output.tokens) + output.rest == output.text
    return output


def test_a_number_ends_at_the_line_where_the_model_would_end_it() -> None:
    liked = {"\n": 50.0, "12": 20.0}
    assert said("[0-9]+", liked).text == "12" * 12, (
        "without a stop the digits go on to the end of the budget"
    )
    output = said("[0-9]+", liked, stop=("\n",))
    assert (output.text, output.finish, output.stopped_by) == ("12", "stop", "\n")


def test_a_token_that_is_more_than_the_stop_ends_it_too() -> None:
    output = said("[0-9]+", {"\n\n": 50.0, "12": 20.0}, stop=("\n",))
    assert (output.text, output.finish, output.stopped_by) == ("12", "stop", "\n")


def test_a_stop_of_several_tokens_is_finished_once_it_is_begun() -> None:
    output = said("[0-9]+", {"EN": 50.0, "12": 20.0, "34": 19.0}, stop=("ENDING",))
    assert (output.text, output.finish, output.stopped_by) == ("12", "stop", "ENDING")
    for left in range(1, 9):
        output = said("[0-9]+", {"EN": 50.0, "12": 20.0}, left, stop=("ENDING",))
        assert output.text.isdigit(), "a stop is begun only where it can be finished"
        assert output.finish == ("stop" if left >= 6 else "length")


def test_what_the_constraint_allows_is_text() -> None:
    """After "12" a line break is allowed; it may be all there, so the text ends; after "12 " it may
    not.
    """
    assert said("12(\n34)?", {"\n": 50.0, "12": 40.0}, stop=("\n",)).text == "12"
    assert (
        said(
            "12(E[a-zA-Z]{3})?", {"E": 50.0, "12": 60.0, "N": 30.0, "D": 31.0}, stop=("END!",)
        ).text
        == "12ENND"[:6]
        or 1
    )
    output = said("12 \n34", {"12": 60.0}, stop=("\n",))
    assert (output.text, output.finish) == ("12 \n34", "constraint")


def test_where_the_text_may_not_be_all_no_stop_begins() -> None:
    assert said("[0-9]{8}", {"\n": 50.0, "12": 20.0}, stop=("\n",)).text == "12" * 4


def test_a_stop_is_not_written_where_the_text_may_not_be_all() -> None:
    """In one token, in two, behind others in a token, and by a stop token."""
    free = "[0-9EN:]{8}"
    assert said(free, {"EN": 50.0, "12": 20.0}, stop=("EN",)).text == "12" * 4
    liked = {"E": 50.0, "N": 60.0, "12": 20.0}
    assert "N" in said(free, liked).text
    assert said("(E|N|12){8}", {"E": 50.0, "N": 60.0}, stop=("NN",)).text == "NENENENE"
    assert said(free, {"EN": 50.0, "12": 20.0}, stop=("N",)).text == "12" * 4
    token = (LINES.ids[b"EN"],)
    assert said(free, {"EN": 50.0, "12": 20.0}, stop_token_ids=token).text == "12" * 4


def test_a_stop_that_began_where_the_text_may_be_all_ends_it() -> None:
    assert said("(12)+(EN){0,4}", {"EN": 50.0, "12": 20.0}, stop=("EN",)).stopped_by == "EN"
    bias = {"5\n": 50.0, "12": 20.0}
    assert said("[0-9]+\n?", bias, stop=("\n",)).text == "5"
    assert said("[0-9\n]{6}", bias, stop=("\n",)).text == "121212", "not all behind the 5"


def test_what_the_constraint_prescribes_is_no_stop() -> None:
    assert said("12EN34", {"12": 60.0}, stop=("EN", "2")).text == "12EN34"


def test_min_tokens_holds_for_stops_too() -> None:
    output = said("[0-9]+", {"\n": 50.0, "12": 20.0}, stop=("\n",), min_tokens=3)
    assert (output.text, output.stopped_by) == ("121212", "\n")


def test_a_stop_token_ends_it_where_it_may_be_all() -> None:
    output = said("[0-9]{4,}", {"\n": 50.0, "12": 20.0}, stop_token_ids=(LINES.ids[b"\n"],))
    assert (output.text, output.finish, output.stopped_by) == ("1212", "stop", LINES.ids[b"\n"])


@pytest.mark.parametrize(
    ("tp", "expected"), [(int, ("\n",)), (float, ("\n",)), (str, ()), (bool, ()), (list[int], ())]
)
def test_bare_values_end_with_their_line(tp: object, expected: tuple[str, ...]) -> None:
    assert typed.natural_stops(tp) == expected
