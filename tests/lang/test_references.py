"""Lazy references in strings: marks are found again, and never mistaken for text or text for
them.
"""

from __future__ import annotations

import json
import random
import re
import textwrap
import unicodedata
from collections.abc import Callable
from urllib.parse import quote

import pytest

import lmprog
from lmprog import wire
from lmprog.errors import ProgramError
from lmprog.lang.branches.marks import Mark, split
from lmprog.testing import Hold, Scripted
from tests.backends.scripted_api import until


def test_a_string_without_marks_is_one_piece() -> None:
    assert split("plain ⟦text⟧") == ["plain ⟦text⟧"]
    assert split("") == []


def test_marks_are_found_where_they_stand() -> None:
    assert split(f"a{Mark(7)}b{Mark(8)}") == ["a", Mark(7), "b", Mark(8)]


Edit = Callable[[str, random.Random], str]


def _cut(text: str, rng: random.Random) -> str:
    begin = rng.randrange(len(text) + 1)
    return text[begin : begin + rng.randrange(1, 40)]


def _without(text: str, rng: random.Random) -> str:
    return text.replace(rng.choice(text), rng.choice(("", "x", "??")))


def _swapped(text: str, rng: random.Random) -> str:
    one, other = sorted(rng.sample(range(len(text)), 2))
    return text[:one] + text[other] + text[one + 1 : other] + text[one] + text[other + 1 :]


def _put_in(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text))
    return text[:at] + rng.choice((" ", "\n", "a", text[at], text[:3])) + text[at:]


EDITS: dict[str, Edit] = {
    "a cut": _cut,
    "one character": lambda text, rng: rng.choice(text),
    "without a character": _without,
    "two characters swapped": _swapped,
    "something put in": _put_in,
    "reversed": lambda text, rng: text[::-1],
    "words shuffled": lambda text, rng: " ".join(rng.sample(text.split(), len(text.split()))),
    "white space around characters": lambda text, rng: " ".join(text),
    "word characters only": lambda text, rng: re.sub(r"\W", "", text),
    "other characters only": lambda text, rng: re.sub(r"\w", "", text),
    "letters of one kind": lambda text, rng: rng.choice((text.upper(), text.title())),
    "JSON": lambda text, rng: json.dumps(text),
    "a part of JSON": lambda text, rng: _cut(json.dumps(text), rng),
    "a literal": lambda text, rng: rng.choice((repr(text), ascii(text), repr(text.encode()))),
    "a URL": lambda text, rng: rng.choice((quote(text), quote(text).lower())),
    "XML": lambda text, rng: text.encode("ascii", "xmlcharrefreplace").decode(),
    "escapes": lambda text, rng: text.encode("ascii", "backslashreplace").decode(),
    "normalized": lambda text, rng: unicodedata.normalize(rng.choice(("NFC", "NFKD")), text),
    "ASCII": lambda text, rng: text.encode("ascii", "ignore").decode(),
    "lines": lambda text, rng: textwrap.fill(text, rng.randrange(5, 60)),
    "a template": lambda text, rng: "{} of {}".format(text, len(text)),  # noqa: UP032
}


@pytest.mark.parametrize("name", EDITS)
def test_of_a_mark_that_was_changed_nothing_is_sent(name: str) -> None:
    """500 edits of each kind: what is left has whole marks, is refused, or has nothing of them.
    What may be left is what the text has around its marks.
    """
    rng = random.Random(name)
    edit = EDITS[name]
    refused = 0
    for _ in range(500):
        marks = [Mark(rng.randrange(1, 10 ** rng.randrange(1, 7))) for _ in range(2)]
        text = f"The sea {marks[0]} is wide.\n{marks[1]}, and deep: "
        edited = edit(text, rng)
        try:
            pieces = split(edited)
        except ProgramError:
            refused += 1
            continue
        kept = [piece for piece in pieces if isinstance(piece, Mark)]
        assert set(kept) <= set(marks)
        words = "".join(piece for piece in pieces if isinstance(piece, str))
        words = re.sub(r"\\u?[0-9a-f]{0,3}$", "", words)  # less than one character, escaped
        plain = edit(text.replace(str(marks[0]), "").replace(str(marks[1]), ""), rng)
        assert words.isascii(), (name, words)
        assert not re.search(r"\\u|\\x|%F|&#", words), (name, words)
        assert plain.isascii()
    assert refused or name in (
        "letters of one kind",
        "normalized",
        "ASCII",
        "a template",
        "lines",
        "words shuffled",
        "word characters only",
        "other characters only",
    )


def test_text_from_outside_is_no_mark() -> None:
    """Not with our characters either: what they say must be signed."""
    begin, *_, end = str(Mark(7))
    middle = str(Mark(7))[2]
    digits = str(Mark(0x123456789ABCDEF))[1:16]
    with pytest.raises(ProgramError, match="cut or changed"):
        split(begin + digits[6] + middle + digits + digits[0] + end)


def test_a_mark_whose_number_was_changed_stands_for_nothing() -> None:
    one, other = str(Mark(0x12)), str(Mark(0x21))
    with pytest.raises(ProgramError, match="cut or changed"):
        split(one.replace(one[1:3], other[1:3]))


def test_a_pending_generation_in_an_f_string_is_sent_as_a_reference_without_waiting() -> None:
    @lmprog.function
    def grade(s: lmprog.Branch) -> str:
        s.append("Write.")
        draft = s.gen()
        s.append(f"Grade: {draft}!")
        answer = s.gen()
        until(lambda: len(appended()) == 2)  # what has come by then would be sent as a text
        assert not draft.done()
        scripted.release("a poem")
        return answer.value

    def appended() -> list[wire.Append]:
        return [op for frame in scripted.frames for op in frame if isinstance(op, wire.Append)]

    with Scripted(lambda prompt: Hold() if prompt == "Write." else "good") as scripted:
        assert grade.using(backend=scripted).run().value == "good"
    assert [type(piece) for piece in appended()[1].pieces] == [
        wire.TextPiece,
        wire.Ref,
        wire.TextPiece,
    ]
    assert scripted.prompts[-1] == "Write.a poemGrade: a poem!"


def test_a_reference_may_point_into_another_branch() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.append("x")
        async with s.fork(2) as (left, right):
            first = left.gen()
            right.append(f"[{first}]")
            return await right.gen()

    with Scripted(["one", "two"]) as scripted:
        assert program.using(backend=scripted).run().value == "two"
    assert scripted.prompts[1] == "x[one]"


def test_a_reference_outlives_the_fork_that_made_it() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.append("x")
        async with s.fork(1) as [child]:
            draft = child.gen()
            s.append(f"({draft})")
        return await s.gen()

    with Scripted(["one", "two"]) as scripted:
        program.using(backend=scripted).run()
    assert scripted.prompts[1] == "x(one)"


def test_str_of_a_result_outside_a_program_is_its_text() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> lmprog.Gen[str]:
        s.append("x")
        return s.gen()

    with Scripted(["one"]) as scripted:
        assert str(program.using(backend=scripted).run().value) == "one"


def test_a_pending_result_is_neither_true_nor_false() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("x")
        if s.gen():
            raise AssertionError

    with Scripted(["one"]) as scripted, pytest.raises(TypeError, match="neither true nor false"):
        program.using(backend=scripted).run()


def test_a_pending_result_is_not_compared_with_values() -> None:
    """`if s.select("a", "b") == "a"` would be false without a word, whatever was chosen."""

    @lmprog.function
    def program(s: lmprog.Branch) -> tuple[bool, bool]:
        s.append("x")
        chosen = s.gen("kind")
        with pytest.raises(TypeError, match="equal to no value"):
            assert chosen == "a"  # type: ignore[comparison-overlap]
        with pytest.raises(TypeError, match="equal to no value"):
            assert chosen in ["a", "b"]  # type: ignore[comparison-overlap]
        same = chosen
        return chosen == same, chosen.value == "a"

    with Scripted(["a"]) as scripted:
        assert program.using(backend=scripted).run().value == (True, True)


def test_a_variable_can_be_put_into_later_text_whatever_it_is() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s["topic"] = 7
        with s.var_scope("part"):
            s.append("<")
            s.gen(name="inside")
            s.append(">")
        s.append(
            " ", s.var("topic"), " ", s.var("inside"), " ", s.var("part")
        )  # nothing of it is waited for
        return await s.atext()

    with Scripted(["one"]) as scripted:
        assert program.using(backend=scripted).run().value == "<one> 7 one <one>"
