"""Streams a generation's text: whole characters only, with stops found across token borders.

Which stop wins does not depend on the tokens: the one that is complete first; of those complete
at the same character, the one that began earliest. The text ends before it. Exactly the text
that could still become a stop is held back. Work per token is proportional to its own text.

Stop strings are one Aho-Corasick automaton; a stop regex is two tables (`constraints.search`),
so that a character costs the same whatever the pattern is, and a match may be of any length. Its
syntax is that of `re` without what depends on text ahead or behind: `$`, `\\b`, lookarounds,
back references, possessive and atomic groups. It must not match the empty text. As a stop ends a
text at once, `+` and `*` are never greedy here.

Knows what bytes a token has; knows no calls and no branches.
"""

from __future__ import annotations

import codecs
import functools
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Protocol, TypeAlias, cast

from lmprog.constraints.constraint import Check, CompileTooLong, never_stop
from lmprog.constraints.pattern_sets import NotRegular
from lmprog.constraints.search import AFTER_BREAK, AT_START, INSIDE, TextSearch, text_search
from lmprog.errors import GrammarError, InvalidParameter, NotSupported
from lmprog.runtime.text.tokenizer import Tokenizer

_MAX_STRING_NETS = 16
"""Nets of stop strings that are kept; of 16 strings of 256 characters one takes a megabyte."""
_LOOKED_AT = 64
"""Characters back to which a possible match is looked for after every piece. Where one began
earlier, this is done so seldom that the whole costs `_LOOKS` look-ups a character."""
_LOOKS = 16

Stop: TypeAlias = tuple[int, int, str]
"""Where it ends, where it begins, and its string or pattern. The least of several counts."""
Counts: TypeAlias = Callable[[int], bool]
"""Whether a stop that begins at a position ends the text."""


class StopWatch(Protocol):
    """A cursor that finds stops of one kind; compiled automata are shared."""

    begin: int
    """No possible stop begins before; the text's end where there is none. Of strings it is where
    the earliest possible one begins, of a regex too unless that is far back."""

    def read(self, new: str, at: int, counts: Counts) -> Stop | None:
        """Reads `new`, which begins at position `at`, up to the first stop that counts. Of those
        that end at one character, the one that began first is asked for."""
        ...

    def skip(self, new: str, at: int) -> None:
        """Reads a piece in which no stop may begin; drops matches under way."""
        ...

    def copy(self) -> StopWatch: ...


def watch_strings(stops: tuple[str, ...]) -> StopWatch:
    """A watch for non-empty strings."""
    return _Strings(_string_net(stops))


def stop_search(pattern: str, check: Check = never_stop) -> TextSearch:
    """The tables of one regex. Raises InvalidParameter for an invalid one, or one beyond the
    limits, NotSupported as said above, and what `check` raises.
    """
    try:
        return text_search(pattern, check)
    except NotRegular as error:
        raise NotSupported(
            f"the stop regex {pattern!r} depends on text behind or ahead; a stop is found while "
            f"the text still grows: {error.message}."
        ) from error
    except CompileTooLong:
        raise
    except GrammarError as error:
        raise InvalidParameter(
            f"the stop regex {pattern!r} is refused: {error.message}.",
            name="stop_regex",
            value=pattern,
            allowed="regular expressions of at least one character that take few states",
        ) from error


def watch_search(search: TextSearch) -> StopWatch:
    """A watch for one regex."""
    return _Searching(search)


# --- stop strings


@dataclass(frozen=True, slots=True)
class _StringNet:
    """Aho-Corasick: a state is the longest end of the text that begins a stop."""

    moves: list[dict[str, int]]
    falls: list[int]
    depths: list[int]
    ends: list[str | None]
    """The longest stop string that is complete in this state."""


@functools.lru_cache(maxsize=_MAX_STRING_NETS)
def _string_net(stops: tuple[str, ...]) -> _StringNet:
    net = _StringNet([{}], [0], [0], [None])
    for stop in stops:
        state = 0
        for char in stop:
            if char not in net.moves[state]:
                net.moves[state][char] = len(net.moves)
                net.moves.append({})
                net.falls.append(0)
                net.depths.append(net.depths[state] + 1)
                net.ends.append(None)
            state = net.moves[state][char]
        net.ends[state] = stop
    todo = deque(net.moves[0].values())
    while todo:
        state = todo.popleft()
        net.ends[state] = net.ends[state] or net.ends[net.falls[state]]
        for char, child in net.moves[state].items():
            fall = net.falls[state]
            while fall and char not in net.moves[fall]:
                fall = net.falls[fall]
            net.falls[child] = net.moves[fall].get(char, 0)
            todo.append(child)
    return net


class _Strings:
    """A cursor in a net of stop strings."""

    __slots__ = ("_net", "_state", "begin")

    def __init__(self, net: _StringNet, state: int = 0, begin: int = 0) -> None:
        self._net, self._state = net, state
        self.begin = begin

    def read(self, new: str, at: int, counts: Counts) -> Stop | None:
        moves, falls, ends, state = self._net.moves, self._net.falls, self._net.ends, self._state
        for end, char in enumerate(new, at + 1):
            while state and char not in moves[state]:
                state = falls[state]
            state = moves[state].get(char, 0)
            stop = ends[state]
            if stop is not None and counts(end - len(stop)):
                return end, end - len(stop), stop
        self._state = state
        self.begin = at + len(new) - self._net.depths[state]
        return None

    def skip(self, new: str, at: int) -> None:
        self._state, self.begin = 0, at + len(new)

    def copy(self) -> _Strings:
        return _Strings(self._net, self._state, self.begin)


# --- stop regexes


class _Searching:
    """The possible matches of one stop regex."""

    __slots__ = ("_before", "_looks", "_search", "_state", "_text", "begin")

    def __init__(self, search: TextSearch) -> None:
        self._search = search
        self._state = search.starts[AT_START]
        self._text = ""
        """From `begin` on."""
        self._before = AT_START
        """What precedes it."""
        self._looks = 0
        """Look-ups that were allowed and not made."""
        self.begin = 0

    def read(self, new: str, at: int, counts: Counts) -> Stop | None:
        search, state = self._search, self._state
        moves, ascii_classes, class_of = search.forward, search.ascii_classes, search.class_of
        first_final = search.first_final
        if not self._text:
            self.begin = at
        for index, char in enumerate(new, 1):
            state = moves[state + (ascii_classes[ord(char)] if char < "\x80" else class_of(char))]
            if state >= first_final:
                text = self._text + new[:index]
                begin = self.begin + search.first_begin(text, search.of_ends, self._before)
                if counts(begin):
                    return at + index, begin, search.pattern
        self._state = state
        self._text += new
        self._looks += _LOOKS * len(new)
        if not search.is_under_way[state // search.width]:
            self._forget(len(self._text))
        elif len(self._text) <= max(_LOOKED_AT, self._looks):
            self._looks = 0
            self._forget(search.first_begin(self._text, search.of_any, self._before))
        return None

    def _forget(self, count: int) -> None:
        """No match under way begins in the first `count` characters."""
        if count:
            self._before = AFTER_BREAK if self._text[count - 1] == "\n" else INSIDE
            self._text = self._text[count:]
            self.begin += count

    def skip(self, new: str, at: int) -> None:
        if new:
            self._before = AFTER_BREAK if new[-1] == "\n" else INSIDE
            self._state, self._text = self._search.starts[self._before], ""
            self.begin = at + len(new)

    def copy(self) -> _Searching:
        other = _Searching(self._search)
        other._state, other._text, other._before = self._state, self._text, self._before
        other._looks, other.begin = self._looks, self.begin
        return other


@dataclass(frozen=True, slots=True)
class TextEnd:
    """The end of a generation. `text` is all of it, cut before the stop.

    The first `num_tokens` tokens spell the seam, if there is one, and `text`, without the end of
    both, `rest`, which is to be tokenised anew with what follows. `delta` is the text that `push`
    held back.
    """

    text: str
    num_tokens: int
    rest: str
    delta: str


class TextCheck(Protocol):
    """Which texts may be whole, asked of one text that grows. Immutable."""

    def after(self, text: str) -> TextCheck:
        """The check of what follows `text`."""
        ...

    @property
    def may_end(self) -> bool:
        """Whether the text so far may be whole."""
        ...


class TextStream:
    """The text of one generation, which a stop string or a match of a stop regex ends.

    `check` says whether the generation may end with the text before a stop; where it may not,
    the stop is ordinary text. No stop begins before the end of the first `min_tokens` tokens.
    `seam` is prompt text that the first tokens repeat (`Healer`): it is not given out again, no
    stop is found in it, and tokens inside it do not count. With `names_special` the text of a
    special token is its name.
    """

    __slots__ = (
        "_borders",
        "_check",
        "_checked",
        "_decoder",
        "_ended",
        "_given",
        "_held",
        "_is_simple",
        "_length",
        "_min_tokens",
        "_names_special",
        "_num_certain",
        "_seam",
        "_stop_at",
        "_tag_places",
        "_tokenizer",
        "_told",
        "_unread",
        "_watches",
        "num_shown",
        "num_tokens",
        "tags",
    )

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...] = (),
        searches: Iterable[TextSearch] = (),
        check: TextCheck | None = None,
        min_tokens: int = 0,
        seam: str = "",
        names_special: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self.tags: frozenset[int] = frozenset()
        """Special tokens whose places are kept; see `watch_tags`."""
        self._tag_places: list[int] = []
        """Characters of the text before each of them."""
        self._told = 0
        """Characters of the text for which `tags_of` was asked."""
        self._names_special = names_special
        self._check = check
        """Of what follows the first `_checked` pieces of the text given out."""
        self._checked = 0
        self._min_tokens = min_tokens
        self._seam = seam
        self._unread = len(seam.encode())
        """Bytes of the seam that are not generated yet."""
        self.num_tokens = 0
        """Tokens so far that reach beyond the seam ..."""
        self.num_shown = 0
        """... and of these, those that came with or before text that was given to a client."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._watches: list[StopWatch] = [watch_search(search) for search in searches]
        if stop:
            self._watches.append(watch_strings(stop))
        self._is_simple = not self._watches and not self._unread
        """A token whose bytes are whole characters is text at once, and no tag."""
        self._given: list[str] = []
        self._held = ""
        self._length = 0
        """Characters so far, with the seam's and those held back."""
        self._borders: array[int] = array("q")
        """Per token: characters up to its end; -1 where it ends inside one."""
        self._num_certain = 0
        self._stop_at: tuple[int, str] | None = None
        """Where the stop begins, and its string or pattern."""
        self._ended = False

    @property
    def is_stopped(self) -> bool:
        return self._stop_at is not None

    @property
    def stopped_by(self) -> str | None:
        """The stop string or regex that ended the text; None while it goes on."""
        return self._stop_at[1] if self._stop_at else None

    def push(self, token: int) -> str:
        """Takes a token; returns the text that is certain now. After a stop it does nothing."""
        piece = self._tokenizer.token_bytes(token)
        if piece is None:
            piece = self._tokenizer.token_text(token).encode() if self._names_special else b""
        if self._is_simple:
            try:
                new = piece.decode()
            except UnicodeDecodeError:  # part of a character: the decoder keeps it
                return self._take(piece)
            self.num_tokens += 1
            self._length += len(new)
            self._borders.append(self._length)
            self._given.append(new)
            return new
        if self._stop_at is not None:
            return ""
        if token not in self.tags:
            return self._take(piece)
        new = self._take(piece)  # half a character before it becomes one, U+FFFD
        self._tag_places.append(self._length - len(piece.decode()) - len(self._seam))
        return new

    def push_all(self, tokens: Sequence[int]) -> str:
        """Takes tokens one after the other, up to a stop."""
        pieces = list(map(self._tokenizer.token_bytes, tokens)) if self._is_simple else [None]
        text = b"" if None in pieces else b"".join(cast(list[bytes], pieces))
        if not text or not text.isascii():
            new = ""
            for token in tokens:
                if self._stop_at is not None:
                    break
                new += self.push(token)
            return new
        begin, new = self._length, text.decode()
        ends = accumulate(map(len, cast(list[bytes], pieces)), initial=begin)
        self._borders.extend(islice(ends, 1, None))
        self.num_tokens += len(tokens)
        self._length += len(new)
        self._given.append(new)
        return new

    def _take(self, piece: bytes) -> str:
        """Takes the bytes of a token, which may end inside a character, the seam or a stop."""
        if not self._unread or len(piece) > self._unread:
            self.num_tokens += 1
        self._unread = max(0, self._unread - len(piece))
        new = self._decoder.decode(piece) if piece else ""
        start = self._length
        self._length += len(new)
        is_whole = not self._decoder.getstate()[0]
        self._borders.append(self._length if is_whole else -1)
        if start < len(self._seam):
            start, new = len(self._seam), new[len(self._seam) - start :]
        if not self._watches:
            is_read = not self._unread and self._length >= len(self._seam)
            self._is_simple = is_whole and is_read and not self.tags
            self._given.append(new)
            return new
        return self._release(new, start)

    def _release(self, new: str, start: int) -> str:
        """Finds stops in `new`, which begins at character `start`; returns what is in none."""
        begin = self._find(new, start)
        before = start - len(self._held)
        self._held += new
        certain = self._held[: max(0, begin - before)]
        self._held = self._held[len(certain) :]
        self._given.append(certain)
        return certain

    def _find(self, new: str, start: int) -> int:
        """Where the stop begins; without one, before which place none does."""
        if self.num_tokens <= self._min_tokens:
            for watch in self._watches:
                watch.skip(new, start)
            return start + len(new)
        if not new:
            return start - len(self._held)
        first: Stop | None = None
        for watch in self._watches:
            piece = new if first is None else new[: first[0] - start]
            stop = watch.read(piece, start, lambda begin: self._counts(begin, new, start))
            if stop is not None and (first is None or stop < first):
                first = stop
        if first is not None:
            self._stop_at = first[1], first[2]
            return first[1]
        return min(watch.begin for watch in self._watches)

    def _counts(self, cut: int, new: str, start: int) -> bool:
        """Whether the text may end at character `cut`; `new` begins at character `start`.

        No stop begins in text that was given out, so all of it is looked at once only.
        """
        if self._check is None:
            return True
        self._check = self._check.after("".join(self._given[self._checked :]))
        self._checked = len(self._given)
        before = start - len(self._held)
        return self._check.after((self._held + new)[: cut - before]).may_end

    def finish(self) -> TextEnd:
        """Ends the text. A character cut by the end becomes U+FFFD; no more stop is found."""
        if self._stop_at is not None:
            cut = self._stop_at[0]
            text = "".join(self._given)
            kept = next(
                (
                    at + 1
                    for at in reversed(range(len(self._borders)))
                    if 0 <= self._borders[at] <= cut
                ),
                0,
            )
            return TextEnd(
                text, kept, (self._seam + text)[self._borders[kept - 1] if kept else 0 : cut], ""
            )
        delta = self._held + self._decoder.decode(b"", final=True)
        self._held, self._ended = "", True
        self._given.append(delta)
        return TextEnd("".join(self._given), len(self._borders), "", delta)

    def watch_tags(self, tags: frozenset[int]) -> None:
        """Before the first token: keeps where these special tokens stand, which are part of texts
        by names that other tokens may spell, too.
        """
        self.tags = tags
        self._is_simple &= not tags

    def tags_of(self, text: str) -> tuple[int, ...]:
        """Where tags begin in `text`, which is given out next."""
        begin, self._told = self._told, self._told + len(text)
        if not self._tag_places:
            return ()
        return tuple(at - begin for at in self._tag_places if begin <= at < self._told)

    def tags_in(self, text: str) -> tuple[int, ...]:
        """The same of the whole text."""
        return tuple(at for at in self._tag_places if 0 <= at < len(text))

    def span(self, begin: int, end: int) -> tuple[int, int]:
        """The characters wholly spelled by the tokens `begin .. end`."""
        first, last = self._border(begin) - len(self._seam), self._border(end) - len(self._seam)
        return max(0, first), max(0, first, last)

    def ends_from(self, first: int) -> tuple[int, ...]:
        """The whole characters behind the seam up to the end of each token from `first` on."""
        begin = len(self._seam)
        highest = accumulate(self._borders[first:], max, initial=begin)
        return tuple([max(0, end - begin) for end in islice(highest, 1, None)])

    def seam_after(self, count: int) -> str:
        """The part of the seam after the first `count` tokens."""
        return self._seam[self._border(count) :]

    @property
    def num_certain(self) -> int:
        """Tokens, with the seam's, wholly inside the text given out; all at an end without a
        stop.
        """
        if self._ended:
            return len(self._borders)
        certain = self._length - len(self._held) if self._stop_at is None else self._stop_at[0]
        for at in range(self._num_certain, len(self._borders)):  # it never becomes less
            if self._borders[at] > certain:
                break
            if self._borders[at] >= 0:
                self._num_certain = at + 1
        return self._num_certain

    def _border(self, count: int) -> int:
        """Whole characters of the first `count` tokens."""
        at = min(count, len(self._borders)) - 1
        while at >= 0 and self._borders[at] < 0:
            at -= 1
        return self._borders[at] if at >= 0 else 0

    def num_before_stop(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` might be pushed before one completes a stop."""
        other = self.copy()
        for count, token in enumerate(tokens):
            other.push(token)
            if other.is_stopped:
                return count
        return len(tokens)

    def copy(self) -> TextStream:
        """An independent stream that has read the same tokens."""
        other = TextStream(
            self._tokenizer,
            check=self._check,
            min_tokens=self._min_tokens,
            seam=self._seam,
            names_special=self._names_special,
        )
        other.tags, other._tag_places = self.tags, self._tag_places[:]
        other._told = self._told
        other._unread, other.num_tokens = self._unread, self.num_tokens
        other.num_shown = self.num_shown
        other._is_simple, other._checked = self._is_simple, self._checked
        other._num_certain = self._num_certain
        other._decoder.setstate(self._decoder.getstate())
        other._watches = [watch.copy() for watch in self._watches]
        other._given, other._held, other._length = self._given[:], self._held, self._length
        other._borders, other._stop_at = self._borders[:], self._stop_at
        return other
