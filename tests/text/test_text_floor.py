"""Where stops may not begin: in the first tokens of a text that must not be short, and in a seam
spelled again.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmprog.runtime.text.stream import TextEnd, TextStream
from tests.text.test_text import LETTERS, REGEXES, STOPS, Cuts, cut, first_stop, searches


def read(
    tokenizer: Cuts,
    stop: tuple[str, ...] = (),
    regex: tuple[str, ...] = (),
    min_tokens: int = 0,
    seam: str = "",
) -> tuple[str, TextEnd, str | None]:
    """What was given out piece by piece, what the end said, and which stop ended it."""
    stream = TextStream(tokenizer, stop, searches(regex), None, min_tokens, seam)
    given_out = ""
    for token in range(len(tokenizer.cuts)):
        given_out += stream.push(token)
        if stream.stopped_by is not None:
            break
    ended = stream.finish()
    return given_out + ended.delta, ended, stream.stopped_by


def test_a_stop_in_the_first_tokens_is_text() -> None:
    assert read(Cuts([b"a.", b"b.", b"c.", b"d"]), (".",), min_tokens=2)[1].text == "a.b.c"
    assert read(Cuts([b"a", b"b", b"c"]), ("bc",), min_tokens=2)[1].text == "abc"
    assert read(Cuts([b"a", b"b", b"c", b"bc"]), ("bc",), min_tokens=2)[1].text == "abc"
    assert read(Cuts([b"ab", b"b"]), ("ab", "b"), min_tokens=1) == (
        "ab",
        TextEnd("ab", 1, "", ""),
        "b",
    )
    assert read(Cuts([b"x\n", b"y"]), (), ("^y",), min_tokens=1)[2] is None, "a text begins once"
    assert read(Cuts([b"x\n", b"y"]), (), ("(?m:^y)",), min_tokens=1)[1].text == "x\n"


@given(LETTERS, st.lists(st.integers(0, 20), max_size=5), STOPS, REGEXES, st.integers(0, 4))
def test_the_first_tokens_are_never_part_of_a_stop(
    text: str, places: list[int], stops: tuple[str, ...], regexes: tuple[str, ...], min_tokens: int
) -> None:
    tokenizer = cut(text, places)
    before = b"".join(piece or b"" for piece in tokenizer.cuts[:min_tokens])
    floor = len(before.decode("utf-8", "ignore"))
    given_out, ended, _ = read(tokenizer, stops, regexes, min_tokens)
    expected = first_stop(text, stops, regexes, floor)
    assert given_out == ended.text == (text if expected is None else text[: expected[0]])


@given(LETTERS, LETTERS, st.lists(st.integers(0, 30), max_size=6), STOPS, REGEXES)
def test_a_seam_is_no_text_and_holds_no_stop(
    seam: str, text: str, places: list[int], stops: tuple[str, ...], regexes: tuple[str, ...]
) -> None:
    tokenizer = cut(seam + text, places)
    given_out, ended, _ = read(tokenizer, stops, regexes, seam=seam)
    expected = first_stop(text, stops, regexes)
    assert given_out == ended.text == (text if expected is None else text[: expected[0]])
    kept = b"".join(piece or b"" for piece in tokenizer.cuts[: ended.num_tokens]).decode()
    assert kept + ended.rest == seam + ended.text, (
        "tokens that are kept and the rest spell seam and text"
    )


def test_tokens_inside_the_seam_do_not_count() -> None:
    assert (
        read(Cuts([b"x", b".", b"a.", b"b.", b"c"]), (".",), min_tokens=1, seam="x.")[1].text
        == "a.b"
    )
    assert read(Cuts([b"x", b".a.", b"b."]), (".",), min_tokens=1, seam="x.")[1].text == "a.b"
    stream = TextStream(Cuts([b"x", b"yab", b"cd"]), seam="xy")
    for token in range(3):
        stream.push(token)
    assert stream.span(0, 1) == (0, 0)
    assert stream.span(1, 2) == (0, 2)
    assert stream.span(2, 3) == (2, 4)
