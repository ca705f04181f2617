"""Patterns made of pieces: what they match, what they capture, and where they are refused."""

from __future__ import annotations

import pytest

import lmprog
from lmprog import grammar, wire
from lmprog.errors import IncompleteValue, InvalidParameter, ValidationFailed
from lmprog.testing import Scripted

ORDER = (
    grammar.select("buy", "sell", name="side")
    + " "
    + grammar.regex(r"[1-9]\d{0,3}", name="count", example="7")
    + grammar.optional(" at " + grammar.regex(r"\d+\.\d\d", name="price", example="1.00"))
)


@lmprog.function
def order(s: lmprog.Branch, text: str) -> dict[str, str | None]:
    s.append(f"{text}\n")
    s.gen(ORDER)
    return {name: s[name] for name in ORDER.names}


def test_one_call_fills_every_name() -> None:
    with Scripted(["sell 20 at 3.50"]) as scripted:
        run = order.using(backend=scripted).run("Get rid of twenty.")
        assert run.value == {"side": "sell", "count": "20", "price": "3.50"}
        [asked] = scripted.asked
    assert isinstance(asked.op, wire.Generate)
    assert asked.op.constraint == wire.Regex(ORDER.source)


def test_a_part_that_was_left_out_is_none() -> None:
    with Scripted(["buy 1"]) as scripted:
        assert order.using(backend=scripted).run("x").value["price"] is None


async def _captures(s: lmprog.Branch) -> tuple[str, dict[str, str | None]]:
    gen = s.gen(ORDER, name="order")
    return await gen, gen.captures


def test_the_value_is_the_text_and_a_result_has_its_captures() -> None:
    with Scripted(["buy 5"]) as scripted:
        run = lmprog.function(_captures).using(backend=scripted).run()
    assert run.value == ("buy 5", {"side": "buy", "count": "5", "price": None})


def test_a_text_that_the_limit_cut_is_incomplete() -> None:
    endless = "count" + grammar.one_or_more(grammar.regex(" [a-z]+"), name="words")

    @lmprog.function
    def program(s: lmprog.Branch) -> str | None:
        s.append("Say words.")
        s.gen(endless, ignore_eos=True, max_tokens=12)
        return s["words"]

    with lmprog.Runtime("nano") as backend, pytest.raises(IncompleteValue):
        program.using(backend=backend).run()


def test_the_same_pattern_is_appended_as_a_gen() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> tuple[str, str]:
        s += "Order: " + lmprog.gen(ORDER)
        return s.text(), s["side"]

    with Scripted(["buy 3"]) as scripted:
        assert program.using(backend=scripted).run().value == ("Order: buy 3", "buy")


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (grammar.text("a.b") + "*", ["a.b*"], ["axb*", "a.b"]),
        (grammar.one_or_more(grammar.select("ab", "c")), ["ab", "cab", "ccc"], ["", "b"]),
        (grammar.zero_or_more("x") + "!", ["!", "xx!"], ["x"]),
        (grammar.repeat("x", at_least=2, at_most=3), ["xx", "xxx"], ["x", "xxxx"]),
        ("[" + grammar.optional("|") + "]", ["[]", "[|]"], ["||"]),
        (grammar.select("a", grammar.text("b") + "c"), ["a", "bc"], ["ac", "b"]),
        (grammar.regex("a|b") + "c", ["ac", "bc"], ["a", "c"]),
        (grammar.capture("one", "n") + grammar.text(" ") + "two", ["one two"], ["one"]),
    ],
)
def test_pieces_mean_what_they_say(
    pattern: grammar.TextPattern, good: list[str], bad: list[str]
) -> None:
    compiled = lmprog.constraint(regex=pattern.source)
    for text in good:
        pattern.captured(text)
        assert compiled.accepts(text), text
    for text in bad:
        with pytest.raises(ValidationFailed):
            pattern.captured(text)
        assert not compiled.accepts(text), text


def test_what_the_runtime_generates_is_captured() -> None:
    with lmprog.Runtime("nano") as backend:
        run = order.using(backend=backend, temperature=0).run("Sell 20 pears.")
    side, count = run.value["side"], run.value["count"]
    assert side in ("buy", "sell")
    assert count is not None
    assert count.isdecimal()


def test_wrong_pieces_are_refused_where_they_are_written() -> None:
    for make, message in (
        (lambda: grammar.one_or_more(grammar.select("a", name="x")), "without names"),
        (lambda: grammar.regex("("), "a regular expression"),
        (lambda: grammar.regex("(?P<x>a)"), "without named groups"),
        (lambda: grammar.regex("a", example="b"), "a text that matches a"),
        (lambda: grammar.select("a", name="no name"), "an identifier"),
        (lambda: grammar.select(), "at least one"),
        (lambda: grammar.repeat("a", at_least=3, at_most=2), "3 <= x"),
        (lambda: grammar.capture("a", "x") + grammar.capture("b", "x"), "does not have yet"),
        (lambda: lmprog.gen(ORDER, regex="a"), "cannot be combined"),
    ):
        with pytest.raises(InvalidParameter, match=message):
            make()


def test_a_rehearsal_takes_the_examples() -> None:
    assert ORDER.example == "buy 7 at 1.00"
    seen: list[dict[str, str | None]] = []

    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("x")
        s.gen(ORDER)
        seen.append({name: s[name] for name in ORDER.names})

    program.trace()
    assert seen == [{"side": "buy", "count": "7", "price": "1.00"}]


def test_an_example_needs_one_of_every_piece() -> None:
    digits = grammar.regex(r"\d+")
    assert (grammar.text("a") + digits).example is None
    assert grammar.one_or_more(digits).example is None
    assert (
        grammar.text("a") + grammar.optional(digits) + grammar.zero_or_more(digits)
    ).example == "a"
