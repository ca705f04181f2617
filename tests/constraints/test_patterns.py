"""The dialect: the same sets of texts as Python's `re`, and refusals that say where."""

from __future__ import annotations

import json
import random
import re
import warnings

import pytest

from lmprog import wire
from lmprog.constraints import charset
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.expression import Seq, whole
from lmprog.constraints.lower import EVERY, SHORTEST, STRICT, UTF8, class_leaf
from lmprog.constraints.net import Edge
from lmprog.constraints.pattern import parse_pattern
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import GrammarError, UnsatisfiableConstraint
from tests.constraints.oracle import Judged
from tests.constraints.random_patterns import LETTERS, random_pattern, random_text

DIALECT = [
    "",
    "a|",
    "|",
    "()",
    "(?:)*",
    "(a*)*",
    "(a*|b)*",
    "(a|a?)+",
    "((a?){3}){2}",
    "(a?){5}b",
    "x{",
    "x{}",
    "x{,}",
    "x{a}",
    "x{1",
    "[]a]",
    "[^]a]",
    "[a-]",
    "[-a]",
    r"[\d-]",
    r"[\w.]",
    "[[a]",
    "^ab$",
    "^a|b$",
    r"\Aab\Z",
    "(^a|b)c",
    "a(b$|c$)",
    "^(?:ab)$",
    "(?i)straße",
    "(?i)[k-l]",
    "(?i)K",
    "(?i)[^k]",
    "(?s).",
    ".",
    "(?a)\\w",
    "(?-s:.)",
    "(?i:a)B",
    "(?x) a  b # c",
    "(?x)[ ]a *",
    r"\x41",
    r"\u00e9",
    r"\U0001F600",
    r"\N{DIGIT ONE}",
    r"\0",
    r"\012",
    r"\101",
    r"[\1]",
    r"\$",
    r"\-",
    r"\ ",
    "(?P<n>a)b",
    "a(?#x)*",
    "(a{2}){0}",
    "[a-c]{2,3}?",
    "(?i)ſ",
    "(?i)[A-Z]",
    "\U0001f600+",
    "[\u0100-\U00010fff]",
    "[^\x00-\x7f]",
    "(?m)^a$",
    "(?su)a.",
]
REFUSED = [
    (r"(a)\1", 3, "back-reference"),
    ("(?P<n>a)(?P=n)", 8, "back-reference"),
    ("(a)?(?(1)b)", 4, "conditional"),
    ("(?>a)", 0, "atomic"),
    ("a*+", 1, "possessive"),
    ("a{2}+", 1, "possessive"),
    ("a**", 2, "multiple repeat"),
    ("*a", 0, "nothing to repeat"),
    ("a|*", 2, "nothing"),
    ("(a", 0, "unterminated"),
    ("a)", 1, "unbalanced"),
    ("[a", 0, "unterminated"),
    ("[b-a]", 1, "range"),
    (r"\q", 0, "escape"),
    ("a{3,2}", 1, "larger"),
    ("a\\", 1, "escape"),
    (r"\xg1", 0, "escape"),
    ("a(?i)b", 1, "flags"),
    ("(?P<n>a)(?P<n>b)", 8, "group name"),
    ("a{1000000000}", 1, "limit"),
    ("a{9999999999999999}", 1, "limit"),
    ("(" * 200 + ")" * 200, 100, "nest"),
    (r"[\d-z]", 1, "range"),
]
TEXTS = [
    "",
    "a",
    "b",
    "ab",
    "ac",
    "bc",
    "aab",
    "aaaaab",
    "x{",
    "x{}",
    "x",
    "xx",
    "x{,}",
    "x{a}",
    "x{1",
    "]",
    "-",
    "[",
    "k",
    "K",
    "\u212a",
    "s",
    "ſ",
    "S",
]
TEXTS += [
    "STRASSE",
    "straße",
    "\n",
    "a\n",
    "\n\n",
    "A",
    "B",
    "aB",
    "é",
    "É",
    "😀",
    "😀😀",
    "1",
    "\0",
    "\x01",
    "$",
    " ",
    " a",
    "  a",
    "ba",
    "xb",
    "\u0101",
    "c",
    "aaa",
]
TEXTS += ["abab", "cab", "l", "٣", "_", ".", "\x7f", "\x80", "\uffff"]


def accepts(pattern: str, text: str, vocabulary: Vocabulary) -> bool:
    constraint = compile_constraint(wire.Regex(pattern), vocabulary)
    state = constraint.advance_bytes(constraint.start, text.encode())
    return state is not None and constraint.is_final(state)


def test_random_patterns_mean_what_re_means(small: Vocabulary, rng: random.Random) -> None:
    pairs = 0
    while pairs < 24_000:
        pattern = random_pattern(rng)
        oracle = re.compile(pattern)
        try:
            constraint = compile_constraint(wire.Regex(pattern), small)
        except UnsatisfiableConstraint:
            continue
        judge = Judged.of(wire.Regex(pattern), small).oracle if rng.random() < 0.15 else None
        for _ in range(30):
            text = random_text(rng)
            state = constraint.advance_bytes(constraint.start, text.encode())
            expected = oracle.fullmatch(text) is not None
            assert (state is not None and constraint.is_final(state)) == expected, (pattern, text)
            if judge is not None:
                right = None in judge.run(judge.start, text.encode())
                assert right == expected, (pattern, text)
            pairs += 1


def test_random_patterns_agree_with_interegular(small: Vocabulary, rng: random.Random) -> None:
    interegular = pytest.importorskip("interegular")
    done = 0
    while done < 60:
        pattern = random_pattern(rng, depth=2)
        if any(part in pattern for part in ("(?", r"\W", r"\w", r"\s", r"\d", "{,")):
            continue
        machine = interegular.parse_pattern(pattern.replace(r"\n", "\n")).to_fsm()
        for _ in range(20):
            text = random_text(rng)
            assert accepts(pattern, text, small) == machine.accepts(text), (pattern, text)
        done += 1


@pytest.mark.parametrize("pattern", DIALECT)
def test_the_dialect_is_that_of_re(pattern: str, small: Vocabulary) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        oracle = re.compile(pattern)
    constraint = compile_constraint(wire.Regex(pattern), small)
    for text in TEXTS:
        state = constraint.advance_bytes(constraint.start, text.encode())
        found = state is not None and constraint.is_final(state)
        assert found == (oracle.fullmatch(text) is not None), (pattern, text)


@pytest.mark.parametrize(("pattern", "position", "word"), REFUSED)
def test_what_is_not_regular_or_malformed_is_refused_with_its_position(
    pattern: str, position: int, word: str, small: Vocabulary
) -> None:
    with pytest.raises(GrammarError) as caught:
        compile_constraint(wire.Regex(pattern), small)
    assert caught.value.position == position
    assert word in str(caught.value)
    assert f"at position {position} of the pattern" in str(caught.value)


def test_a_pattern_that_matches_nothing_is_refused(small: Vocabulary) -> None:
    for pattern in (r"[^\s\S]", r"a[^\w\W]b", r"\ud800"):
        with pytest.raises(UnsatisfiableConstraint):
            compile_constraint(wire.Regex(pattern), small)


def test_overlong_and_surrogate_sequences_are_refused(small: Vocabulary) -> None:
    constraint = compile_constraint(wire.Regex("(?s).*"), small)
    for bad in (
        b"\xc0\x80",
        b"\xc1\xbf",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf0\x80\x80\x80",
        b"\xf4\x90\x80\x80",
        b"\xff",
        b"\x80",
    ):
        assert constraint.advance_bytes(constraint.start, bad) is None
    for good in (
        "\x7f",
        "\x80",
        "\u07ff",
        "\u0800",
        "\ud7ff",
        "\ue000",
        "\uffff",
        "\U00010000",
        "\U0010ffff",
    ):
        state = constraint.advance_bytes(constraint.start, good.encode())
        assert state is not None
        assert constraint.is_final(state)


def test_choices_take_exactly_the_given_texts(small: Vocabulary) -> None:
    texts = ("yes", "yes please", "no", "né", "日本", "y", "a" * 50)
    constraint = compile_constraint(wire.Choices(texts), small)
    for text in (*texts, "", "ye", "yes ", "nope", "日", "n"):
        state = constraint.advance_bytes(constraint.start, text.encode())
        assert (state is not None and constraint.is_final(state)) == (text in texts), text


def test_every_letter_of_the_test_alphabet_is_one_that_patterns_can_meet() -> None:
    assert all(re.fullmatch(r"[\w\s.]", letter) for letter in LETTERS)


def test_parts_that_are_written_alike_are_read_once() -> None:
    """So a format that names the same part often costs what it has of different text."""
    found = parse_pattern(r"(x[\w-]|(?:ab|c)*)y(x[\w-]|(?:ab|c)*)", CompileLimits())
    assert isinstance(found, Seq)
    assert found.items[0] is found.items[2]
    other = parse_pattern(r"(x[\w-]|(?:ab|c)*)", CompileLimits())
    assert found.items[0] == other


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        ("((a))(((a)))(((((a)))))", 17),
        ("(?P<n>a)(?P<n>a)", 8),
        ("(a)(a", 3),
        ("[ab][ab][b-a]", 9),
        ("([ab]^)x([ab]^)", 5),
    ],
)
def test_what_was_read_before_is_refused_at_its_place(pattern: str, position: int) -> None:
    with pytest.raises(GrammarError) as caught:
        whole(parse_pattern(pattern, CompileLimits(max_nesting=5)))
    assert caught.value.position == position


ESCAPES = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


def spellings(char: str) -> set[bytes]:
    """All that JSON allows within a string."""
    plain = {char.encode()} if char >= " " and char not in '"\\' else set()
    short = {b"\\" + ESCAPES[char].encode()} if char in ESCAPES else set()
    data = char.encode("utf-16-be")
    units = ["\\u" + data[at : at + 2].hex() for at in range(0, len(data), 2)]
    mixed = [unit[:2] + unit[2].upper() + unit[3:] for unit in units]
    long = {"".join(one).encode() for one in (units, mixed)}
    return plain | short | long | {"".join("\\u" + unit[2:].upper() for unit in units).encode()}


def takes(states: list[tuple[bool, list[Edge]]], text: bytes) -> bool:
    state: int | None = 0
    for byte in text:
        edges = states[state][1] if state is not None else []
        state = next((to for low, high, to in edges if low <= byte <= high), None)
    return state is not None and states[state][0]


def test_a_class_takes_its_characters_in_all_their_spellings(rng: random.Random) -> None:
    letters = [charset.python_class(letter) for letter in "dsw"]
    sets = [charset.ALL, *letters, *map(charset.complement, letters)]
    for highest in (0x80, 0x900, 0x10FFFF):
        for _ in range(15):
            bounds = [sorted(rng.choices(range(highest + 1), k=2)) for _ in range(4)]
            sets.append(charset.charset((low, high) for low, high in bounds))
    for chars in filter(None, sets):
        ways = [list(class_leaf(chars, way).states()) for way in (UTF8, EVERY, STRICT, SHORTEST)]
        plain, in_json, strict, shortest = ways
        edges = [code for pair in rng.sample(chars, min(len(chars), 20)) for code in pair]
        some = [*(code + step for code in edges for step in (-1, 0, 1)), *range(0x30)]
        some += [*(rng.randrange(1 << bits) for bits in (7, 11, 16, 20)), 0xFFFF, 0x10000, 0x10FFFF]
        for code in some:
            if not 0 <= code <= charset.MAX_CODE or 0xD800 <= code <= 0xDFFF:
                continue
            is_member = charset.contains(chars, code)
            assert takes(plain, chr(code).encode()) == is_member, code
            bare = " " <= chr(code) <= "\x7f" and chr(code) not in '"\\'
            one_way = json.dumps(chr(code), ensure_ascii=False)[1:-1].encode()
            for text in {*spellings(chr(code)), one_way}:
                assert takes(in_json, text) == is_member, (code, text)
                may = is_member and (text == chr(code).encode() or not bare)
                assert takes(strict, text) == may, (code, text)
                assert takes(shortest, text) == (is_member and text == one_way), (code, text)
        overlong = [b"\xc0\x80", b"\xe0\x80\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b""]
        assert not any(takes(states, text) for states in ways for text in overlong)
        halves = [b'"', b"\\", b"\n", b"\\ud800", b"\\udc00\\ud800", b"\\u00", b"\\x"]
        assert not any(takes(states, text) for states in ways[1:] for text in halves)
