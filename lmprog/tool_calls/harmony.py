"""Answers that are messages in channels: the harmony format, which gpt-oss's models write.

An answer is one message or several, each with a header that names its channel and, for a call, the
function that it is for: thoughts are in `analysis`, calls in `commentary`, and what the user reads
in `final`, or in `commentary` without a function. Knows texts; knows no requests and no branches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lmprog import wire
from lmprog.tool_calls.reading import MALFORMED, Parameters, ParsedCall, json_object
from lmprog.tool_calls.writing import as_json

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
_CONSTRAIN = "<|constrain|>"
MARKS = (START, CHANNEL, MESSAGE, END, _CONSTRAIN)
FINAL = f"{CHANNEL}final{MESSAGE}"
"""The header of what the user reads."""
HARMONY = wire.CallForm(
    literals=(f"{CHANNEL}commentary to=functions.", f" {_CONSTRAIN}json{MESSAGE}", ""),
    slots=("name", "arguments"),
    is_parallel=False,
    harmony=True,
)
"""As the models were trained to call; templates write earlier calls with another header."""

THOUGHT_LIMIT = wire.ThoughtLimit(f"{CHANNEL}analysis{MESSAGE}", END, f"{END}{START}assistant", 0)

Stretch: TypeAlias = tuple[int, int]
"""Characters of a text: the first one, and the one behind the last."""
ENDLESS = 2**31 - 1
"""Where a stretch ends that goes on to the end of the text."""

_DECODER = json.JSONDecoder()
_ENDS = (END, START)
_HEADS = (START, CHANNEL, "to=")
_LONGEST_HEAD = 512
"""The most characters of a header; what is longer is text."""
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
_IN = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")


def shown_marks(form: wire.CallForm) -> str:
    """The tags of a model's answers, which are part of its texts even where its tokenizer calls
    them special.
    """
    marks = MARKS if form.harmony else ()
    return "".join((form.begin, *form.literals, form.between, form.end, *marks))


@dataclass(frozen=True, slots=True)
class ThoughtText:
    """More of what the model thinks before it answers."""

    text: str


class HarmonyStream:
    """One answer that comes in pieces. `opening` was written before it began.

    Calls are given when they are whole; all other text goes out as it comes.
    """

    def __init__(
        self,
        tools: Parameters,
        opening: str = "",
        *,
        tells_wrong: bool = False,
        special: Sequence[str] = (),
        is_held: bool = False,
    ) -> None:
        """`tells_wrong`, `special` and `is_held`: see `CallStream`."""
        self._tools = tools
        self._is_held = is_held
        self._are_tokens = MESSAGE in special
        """Marks that are spelled in other tokens are text."""
        self._tags = set(range(len(opening)))
        """Where special tokens begin."""
        self._num_told = 0
        """Characters before the held text."""
        self._num_written = len(opening)
        self._began = 0
        """Where the message begins that is being read."""
        self.thoughts: list[Stretch] = []
        """At the end: where in the answer thoughts are, each with its header and its end."""
        self._tells_wrong = tells_wrong
        self.is_cut = False
        """At the end: whether that came within a call."""
        self._held = opening
        self._head: str | None = None
        """Of the message that is being read; None between two."""
        self._called: str | None = None
        """The tool that it calls."""
        self._is_thought = False
        self._shown = ""
        """The header's text: a message that turns out to be no call is content together with its
        header.
        """
        self._said: set[bool] = set()
        """Whether there were thoughts (True), and text for the user (False)."""
        self._is_begun = False
        """Something of this message was given."""
        self._searched = 0
        """Characters of the held text without an end in them."""

    def feed(self, text: str, tags: Sequence[int] = ()) -> list[str | ParsedCall | ThoughtText]:
        """What is certain now. `tags`: where in `text` special tokens begin."""
        if tags:
            begin = self._num_told + len(self._held)
            self._tags.update(begin + at for at in tags)
        self._held += text
        return self._settled(is_end=False)

    def finish(self, output: wire.Output | None = None) -> list[str | ParsedCall | ThoughtText]:
        """The text has ended. How it ended (`output`) makes no difference, since arguments are
        JSON: they are complete or they are no arguments.
        """
        found = self._settled(is_end=True)
        if self._head is not None and self._is_thought:
            self.thoughts.append((self._began - self._num_written, ENDLESS))
        return found

    def _settled(self, is_end: bool) -> list[str | ParsedCall | ThoughtText]:
        found: list[str | ParsedCall | ThoughtText] = []
        while self._held:
            if self._head is None and not self._read_head(is_end):
                break
            goes_on = self._read_body(found, is_end)
            if not goes_on:
                break
        return found

    def _read_head(self, is_end: bool) -> bool:
        """Whether a message's text begins now."""
        held = self._held.lstrip()
        heads = _HEADS if self._is_mark(len(self._held) - len(held)) else _HEADS[-1:]
        is_head = any(held.startswith(one) or one.startswith(held) for one in heads)
        limit = _LONGEST_HEAD + len(MESSAGE)
        at = self._find(MESSAGE, 0, limit) if is_head else -1
        if at < 0 and is_head and len(self._held) < limit:
            if is_end:  # the answer was cut within a header, which is nobody's text
                self._held = ""
            return False
        head, self._began = self._held[: max(at, 0)], self._num_told
        self._cut(at + len(MESSAGE) if at >= 0 else 0)
        self._head, self._is_begun = head, False
        is_text = at < 0 and self._held.startswith(START)  # else it would end what it begins
        self._searched = len(START) + 1 if is_text else 0
        channel, recipient = _IN.search(head), _RECIPIENT.search(head)
        name = recipient[1] if recipient is not None else None
        is_told = self._tells_wrong and "to=functions." in head
        self._called = name if name in self._tools or is_told else None
        self._is_thought = name is None and channel is not None and channel[1] == "analysis"
        self._shown = head + MESSAGE if name is not None else ""
        return True

    def _read_body(self, found: list[str | ParsedCall | ThoughtText], is_end: bool) -> bool:
        """Adds to `found` what is certain of the message; whether the next one can be read."""
        begin: int | None = max(0, self._searched - len(START))
        if self._is_held and self._called is not None:
            begin = self._end_of_value()
        found_at = [] if begin is None else [self._find(end, begin) for end in _ENDS]
        places = [at for at in found_at if at >= 0]
        if not places and not is_end and self._called is not None:
            self._searched = len(self._held)
            return False
        at = min(places) if places else len(self._held)
        if not places and not is_end:
            at -= _unsure(self._held)
        body, self._searched = self._cut(at), 0
        arguments = json_object(body) if self._called is not None else None
        if self._called is not None and arguments is not None:
            found.append(ParsedCall(self._called, as_json(arguments)))
        elif self._called is not None and self._tells_wrong:
            self.is_cut = not places
            found.append(ParsedCall(self._called, body, problem=MALFORMED))
        else:
            self.is_cut |= self._called is not None and not places
            self._tell(found, body)
        if places:
            self._cut(len(END) if self._held.startswith(END) else 0)
            self._head = None
            if self._is_thought:
                begin, end = self._began - self._num_written, self._num_told - self._num_written
                self.thoughts.append((begin, end))
        return bool(places)

    def _end_of_value(self) -> int | None:
        """Where the arguments end, whose strings may spell marks; None: not yet."""
        if "}" not in self._held[self._searched :]:
            return None
        begin = len(self._held) - len(self._held.lstrip())
        try:
            return _DECODER.raw_decode(self._held, begin)[1]
        except (ValueError, RecursionError):
            return None

    def _find(self, mark: str, begin: int, end: int | None = None) -> int:
        at = self._held.find(mark, begin, end)
        while at >= 0 and not self._is_mark(at):
            at = self._held.find(mark, at + 1, end)
        return at

    def _is_mark(self, place: int) -> bool:
        """Whether what looks like a mark there is one."""
        return not self._are_tokens or self._num_told + place in self._tags

    def _cut(self, size: int) -> str:
        """Drops the first characters of the held text."""
        cut, self._held = self._held[:size], self._held[size:]
        self._num_told += size
        return cut

    def _tell(self, found: list[str | ParsedCall | ThoughtText], text: str) -> None:
        text, self._shown = self._shown + text, ""
        if not text:
            return
        if not self._is_begun and self._is_thought in self._said:
            text = "\n\n" + text
        self._is_begun = True
        self._said.add(self._is_thought)
        found.append(ThoughtText(text) if self._is_thought else text)


def harmony_calls(tools: Sequence[tuple[str, wire.Constraint]]) -> wire.Constraint:
    """An answer that calls one of `tools`, each with the constraint of its arguments, after a
    thought or without one.
    """
    before, between, _ = HARMONY.literals
    called = wire.AnyOf(
        tuple(
            wire.InOrder((wire.Choices((name + between,)), arguments)) for name, arguments in tools
        )
    )
    return _perhaps_thought((wire.Choices((before,)), called))


def harmony_answer(answer: wire.Constraint) -> wire.Constraint:
    """An answer whose text for the user is constrained, after a thought or without one."""
    return _perhaps_thought((wire.Choices((FINAL,)), answer))


def harmony_turn(tools: Sequence[tuple[str, wire.Constraint]]) -> wire.Constraint:
    """Thoughts and texts for the user in any number, of which the last may be cut, or a call as
    above behind them.
    """
    channels = wire.AnyOf((_message("analysis"), _message("commentary")))
    heads = tuple(f"{CHANNEL}{one}{MESSAGE}" for one in ("analysis", "commentary", "final"))
    text = wire.InOrder((wire.Choices(heads), wire.FreeText(MARKS)))
    last = wire.AnyOf((wire.Repeated(text, 0, 1), harmony_calls(tools)))
    return wire.InOrder((wire.Repeated(channels, 0, None), last))


def _perhaps_thought(then: tuple[wire.Constraint, ...]) -> wire.Constraint:
    return wire.InOrder((wire.Repeated(_message("analysis"), 0, 1), *then))


def _message(channel: str) -> wire.Constraint:
    """A message of this channel, and the beginning of the next one."""
    avoided = tuple(mark for mark in MARKS if mark != END)
    head, next_one = f"{CHANNEL}{channel}{MESSAGE}", f"{START}assistant"
    return wire.InOrder(
        (wire.Choices((head,)), wire.FreeText(avoided, END), wire.Choices((next_one,)))
    )


def _unsure(text: str) -> int:
    """How many characters at the end of `text` may begin a mark that ends the message."""
    at = text.rfind("<", max(0, len(text) - len(START)))
    return len(text) - at if at >= 0 and any(end.startswith(text[at:]) for end in _ENDS) else 0
