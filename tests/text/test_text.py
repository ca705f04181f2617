"""Streams of text and their stops against a plain search of the whole text, however tokens cut
it.
"""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmprog.constraints.search import TextSearch
from lmprog.errors import InvalidParameter, NotSupported
from lmprog.runtime.text.stream import Counts, Stop, StopWatch, TextEnd, TextStream, stop_search
from lmprog.runtime.text.tokenizer import ByteTokenizer


class Cuts(ByteTokenizer):
    """Token i is piece i of a text that was cut anywhere, also inside characters; None is a special
    token.
    """

    def __init__(self, pieces: list[bytes | None]) -> None:
        super().__init__()
        self.cuts = pieces

    def token_bytes(self, token: int) -> bytes | None:
        return self.cuts[token]


def cut(text: str | bytes, places: list[int]) -> Cuts:
    data = text.encode() if isinstance(text, str) else text
    borders = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    pieces: list[bytes | None] = [data[a:b] for a, b in itertools.pairwise(borders)]
    return Cuts(pieces)


def searches(regexes: tuple[str, ...]) -> list[TextSearch]:
    return [stop_search(regex) for regex in regexes]


def run(
    tokenizer: Cuts, stop: tuple[str, ...] = (), regex: tuple[str, ...] = ()
) -> tuple[list[str], TextStream, TextEnd]:
    stream = TextStream(tokenizer, stop, searches(regex))
    given_out = []
    for token in range(len(tokenizer.cuts)):
        given_out.append(stream.push(token))
        if stream.stopped_by is not None:
            break
    return given_out, stream, stream.finish()


def first_stop(
    text: str, stops: tuple[str, ...], regexes: tuple[str, ...], floor: int = 0
) -> tuple[int, int] | None:
    """Begin and end of the stop that is complete first, by trying everything; none begins before
    `floor`.
    """
    patterns = [re.compile(re.escape(stop)) for stop in stops] + [
        re.compile(regex) for regex in regexes
    ]
    for end in range(1, len(text) + 1):
        for begin in range(floor, end):
            if any(pattern.fullmatch(text, begin, end) for pattern in patterns):
                return begin, end
    return None


LETTERS = st.text("abc\né", max_size=14)
STOPS = st.lists(st.text("abc\né", min_size=1, max_size=4), max_size=3).map(tuple)
REGEXES = st.sampled_from(
    [
        (),
        ("a+b",),
        ("[^a]c",),
        ("(?:ab|ba){2}",),
        ("a.?c", "b{2,3}"),
        (r"\n+\w",),
        ("(?i)AB+?C",),
        ("^ab",),
        ("(?m:^b)", "(?s:a.b)"),
        (r"(a|b)*c[\w-]",),
        (r"\s[^\W\d_]",),
    ]
)


@settings(max_examples=1000, database=None)
@given(LETTERS, st.lists(st.integers(0, 40), max_size=8), STOPS, REGEXES)
def test_the_stop_that_is_complete_first_ends_the_text_wherever_tokens_are_cut(
    text: str, places: list[int], stop: tuple[str, ...], regex: tuple[str, ...]
) -> None:
    tokenizer = cut(text, places)
    given_out, stream, ended = run(tokenizer, stop, regex)
    found = first_stop(text, stop, regex)
    expected = text if found is None else text[: found[0]]
    assert ended.text == expected
    assert "".join(given_out) + ended.delta == expected
    assert (stream.stopped_by is None) == (found is None)
    kept = b"".join(tokenizer.cuts[token] or b"" for token in range(ended.num_tokens))
    assert kept.decode() + ended.rest == expected
    if found is not None and ended.num_tokens < len(tokenizer.cuts):
        more = kept + (tokenizer.cuts[ended.num_tokens] or b"")
        assert not expected.encode().startswith(more) or _ends_inside(more), (
            "one more token would have fitted"
        )


def _ends_inside(data: bytes) -> bool:
    return "\ufffd" in data.decode(errors="replace")


@settings(max_examples=400, database=None)
@given(LETTERS, st.lists(st.integers(0, 40), max_size=8), STOPS.filter(bool))
def test_what_is_held_back_of_stop_strings_is_exactly_what_could_become_one(
    text: str, places: list[int], stop: tuple[str, ...]
) -> None:
    tokenizer = cut(text, places)
    stream = TextStream(tokenizer, stop)
    streamed, read = "", b""
    for token, piece in enumerate(tokenizer.cuts):
        streamed += stream.push(token)
        if stream.stopped_by is not None:
            return
        read += piece or b""
        seen = read.decode(errors="ignore")
        longest = max(
            (n for one in stop for n in range(len(one)) if seen.endswith(one[:n])), default=0
        )
        assert streamed == seen[: len(seen) - longest]


def test_a_regex_holds_back_from_where_a_match_may_have_begun() -> None:
    tokenizer = cut("ab 12 34: x", list(range(20)))
    given_out, stream, ended = run(tokenizer, (), (r"\d+:",))
    assert given_out == ["a", "b", " ", "", "", "12 ", "", "", ""]
    assert stream.stopped_by == r"\d+:"
    assert ended == TextEnd("ab 12 ", 6, "", "")


@pytest.mark.parametrize(
    ("text", "stop", "kept", "by"),
    [
        ("xabcd", ("abcd", "bc"), "xa", "bc"),
        ("xabcd", ("bcd", "abcd"), "x", "abcd"),
        ("one\n\ntwo\n", ("\n", "\n\n"), "one", "\n"),
        ("stop", ("stop",), "", "stop"),
        ("aaab", ("aab",), "a", "aab"),
    ],
)
def test_of_several_stops_the_first_complete_one_wins_and_of_equals_the_one_that_began_first(
    text: str, stop: tuple[str, ...], kept: str, by: str
) -> None:
    for places in ([], [1, 2, 3, 4, 5, 6, 7, 8]):
        _, stream, ended = run(cut(text, places), stop)
        assert (ended.text, stream.stopped_by) == (kept, by)


def test_text_without_stops_is_given_out_at_once_but_for_cut_characters() -> None:
    given_out, _, ended = run(cut("aé👍z", [1, 2, 3, 4, 5, 6, 7]))
    assert given_out == ["a", "", "é", "", "", "", "👍", "z"]
    assert ended == TextEnd("aé👍z", 8, "", "")


def test_a_character_cut_off_by_the_end_is_replaced_only_then() -> None:
    given_out, _, ended = run(cut("a👍".encode()[:-1], [1, 2]))
    assert given_out == ["a", "", ""]
    assert ended == TextEnd("a\ufffd", 3, "", "\ufffd")


def test_what_was_held_back_comes_out_when_the_text_ends_without_a_stop() -> None:
    given_out, _, ended = run(cut("say EN", [4]), ("END",))
    assert given_out == ["say ", ""]
    assert ended == TextEnd("say EN", 2, "", "EN")


def test_a_stop_inside_a_token_leaves_the_tokens_before_it_and_a_rest() -> None:
    _, _, ended = run(Cuts([b"one ", b"two\nthr", b"ee"]), ("\n",))
    assert ended == TextEnd("one two", 1, "two", "")


def test_special_tokens_are_no_text_and_stay_where_they_stand() -> None:
    given_out, stream, ended = run(Cuts([b"a", None, b"EN", None, b"D"]), ("END",))
    assert given_out == ["a", "", "", "", ""]
    assert stream.stopped_by == "END"
    assert ended == TextEnd("a", 2, "", "")


def test_nothing_is_taken_after_a_stop() -> None:
    tokenizer = Cuts([b"a.", b"b"])
    stream = TextStream(tokenizer, (".",))
    assert stream.push(0) == "a"
    assert stream.push(1) == ""
    assert stream.finish() == TextEnd("a", 0, "a", "")


@settings(max_examples=300, database=None)
@given(LETTERS, LETTERS, LETTERS, STOPS, REGEXES)
def test_a_copy_goes_on_as_the_original_would_have(
    before: str, one: str, other: str, stop: tuple[str, ...], regex: tuple[str, ...]
) -> None:
    tokenizer = Cuts([before.encode(), one.encode(), other.encode()])
    stream = TextStream(tokenizer, stop, searches(regex))
    head = stream.push(0)
    copy = stream.copy()
    for branch, token, text in ((copy, 2, other), (stream, 1, one)):
        whole = TextStream(Cuts([before.encode(), text.encode()]), stop, searches(regex))
        expected = whole.push(0) + whole.push(1)
        assert head + branch.push(token) == expected
        assert branch.finish() == whole.finish()


@pytest.mark.parametrize("pattern", ["(", "a{3,1}", "*"])
def test_a_stop_regex_that_is_none_is_refused_with_its_text(pattern: str) -> None:
    with pytest.raises(InvalidParameter, match="stop regex") as raised:
        stop_search(pattern)
    assert raised.value.value == pattern


@pytest.mark.parametrize("pattern", ["a*", "", "(a|)", "x{0}"])
def test_a_stop_regex_that_matches_nothing_at_all_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidParameter, match="empty text"):
        stop_search(pattern)


@pytest.mark.parametrize(
    "pattern", ["a$", r"a\b", "a(?=b)", "(?<!a)b", r"(a)\1", "(?>a+)b", "a++b", r"a\Z"]
)
def test_a_stop_regex_that_looks_around_is_refused(pattern: str) -> None:
    with pytest.raises(NotSupported, match="ahead"):
        stop_search(pattern)


def test_a_stop_regex_of_too_many_states_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="states"):
        stop_search("(?:a{100}){100}")


def test_a_pattern_that_would_backtrack_for_ever_takes_linear_time() -> None:
    """`re` needs about 2**300 steps for this; the test ends because the stream does not
    backtrack.
    """
    _, stream, ended = run(cut("a" * 300 + "c", list(range(300))), (), ("(a+)+b",))
    assert stream.stopped_by is None
    assert len(ended.text) == 301


def test_a_token_costs_its_own_text_and_not_the_text_before() -> None:
    """Counted: every character is read once by every watch, and only what is held back is touched
    again.
    """
    stream = TextStream(Cuts([b"ab" * 50]), ("abc",))
    counted = Counting(stream._watches[0])
    stream._watches = [counted]
    for _ in range(200):
        stream.push(0)
        assert len(stream._held) == 2
    assert counted.taken == 200 * 100


class Counting:
    """A watch that counts what it is given."""

    def __init__(self, watch: StopWatch) -> None:
        self.watch, self.taken, self.begin = watch, 0, 0

    def read(self, new: str, at: int, counts: Counts) -> Stop | None:
        self.taken += len(new)
        stop = self.watch.read(new, at, counts)
        self.begin = self.watch.begin
        return stop

    def skip(self, new: str, at: int) -> None:
        raise AssertionError("no character is passed over")

    def copy(self) -> Counting:
        return self


@pytest.mark.parametrize("stop", [(), ("zz",)])
def test_where_a_tag_is_a_token_is_told_apart_from_where_it_is_spelled(
    stop: tuple[str, ...],
) -> None:
    tokenizer = ByteTokenizer()
    tokenizer.show("<|tool|>")
    (tag,) = tokenizer.shown
    stream = TextStream(tokenizer, stop)
    stream.watch_tags(frozenset(tokenizer.shown))
    tokens = [*b"a <|tool|> ", tag, *b"z<", tag]
    text, told = "", []
    for token in tokens:
        delta = stream.push(token)
        told += [len(text) + at for at in stream.tags_of(delta)]
        text += delta
    ended = stream.finish()
    told += [len(text) + at for at in stream.tags_of(ended.delta)]
    assert ended.text == "a <|tool|> <|tool|>z<<|tool|>"
    assert told == list(stream.tags_in(ended.text)) == [11, 21]
    assert stream.copy().tags_in(ended.text) == (11, 21)


def test_a_tag_behind_half_a_character_is_told_where_it_stands() -> None:
    tokenizer = ByteTokenizer()
    tokenizer.show("<|tool|>")
    stream = TextStream(tokenizer)
    stream.watch_tags(frozenset(tokenizer.shown))
    deltas = [stream.push(token) for token in [*b"a\xe2\x82", *tokenizer.shown, *b"b"]]
    assert "".join(deltas) == "a\ufffd<|tool|>b"
    assert stream.tags_of("".join(deltas)) == stream.tags_in(stream.finish().text) == (2,)


def test_a_tag_behind_a_stop_is_not_told() -> None:
    tokenizer = ByteTokenizer()
    tokenizer.show("<|tool|>")
    stream = TextStream(tokenizer, ("<|to",))
    stream.watch_tags(frozenset(tokenizer.shown))
    deltas = [stream.push(token) for token in [*b"a", *tokenizer.shown, *b"b"]]
    assert stream.tags_of("".join(deltas)) == stream.tags_in(stream.finish().text) == ()
