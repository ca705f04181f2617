"""The transcript of a branch, as items, and the prompts made from it: plain text, or chat messages.

An API renders chat roles itself, so text and generations of a chat must be inside turns. Knows no
requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from lmprog import wire
from lmprog.errors import NotSupported

Kind: TypeAlias = Literal["text", "chat", "both", "items"]
"""The kind of prompt a model takes: text to continue, messages, either of them, or the items as
they are here.
"""


@dataclass(frozen=True, slots=True)
class TurnBegin:
    role: str


@dataclass(frozen=True, slots=True)
class TurnEnd:
    role: str


@dataclass(frozen=True, slots=True)
class ResultText:
    """A result: of a generation, or, without `output`, an option that was chosen. A result of
    another branch counts as text (not `own`). Its calls are those that the service sent in fields;
    the text is content.
    """

    text: str
    output: wire.Output | None = None
    own: bool = True

    @property
    def calls(self) -> tuple[wire.SentCall, ...]:
        return () if self.output is None else self.output.calls

    @property
    def shown(self) -> str:
        """With its calls, where these have no fields."""
        return wire.text_with_calls(self.text, self.calls)

    def pieces(self, *, is_first: bool) -> tuple[wire.OwnPiece, ...]:
        """What it left in its branch, where branches are tokens."""
        if self.output is None:
            return wire.choice_pieces(self.text)
        return wire.output_pieces(self.output, is_first=is_first)


Item: TypeAlias = "str | ResultText | TurnBegin | TurnEnd"


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    role: str
    content: str
    calls: tuple[wire.SentCall, ...] = ()
    """The tools that it calls, in fields."""
    answers: str = ""
    """The id of the call whose result it is."""

    @property
    def shown(self) -> str:
        """Its text with its calls."""
        return wire.text_with_calls(self.content, self.calls)

    def plus(self, item: str | ResultText) -> TranscriptMessage:
        """With more in it. Only the assistant calls: elsewhere, calls are text."""
        if isinstance(item, str):
            return replace(self, content=self.content + item)
        if self.role != "assistant":
            return replace(self, content=self.content + item.shown)
        return replace(self, content=self.content + item.text, calls=(*self.calls, *item.calls))


@dataclass(frozen=True, slots=True)
class TextPrompt:
    text: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The complete messages, and the beginning of the assistant's turn to be generated."""

    messages: tuple[TranscriptMessage, ...]
    partial: str = ""


@dataclass(frozen=True, slots=True)
class ItemsPrompt:
    """All items of the branch, for a server that knows branches."""

    items: tuple[Item, ...]
    fingerprint: str = ""
    """Of the model that the program has begun with; empty: whichever is there."""


Prompt: TypeAlias = TextPrompt | ChatPrompt | ItemsPrompt


@dataclass(frozen=True, slots=True)
class Transcript:
    """The items of a branch, in order."""

    items: tuple[Item, ...] = ()
    role: str | None = None
    """The role of the open turn; None outside turns."""
    fingerprint: str = ""
    """See `ItemsPrompt`."""

    def plus(self, items: Sequence[Item], kind: Kind) -> Transcript:
        """A copy with `items` appended. Raises `NotSupported` if a model of this kind cannot take
        them.
        """
        role = self.role
        for item in items:
            if isinstance(item, TurnBegin):
                if kind == "text":
                    raise NotSupported(_NO_ROLES.format(role=item.role))
                role = item.role
            elif isinstance(item, TurnEnd):
                role = None
            elif role is None and isinstance(item, str) and item and kind == "chat":
                raise NotSupported(
                    _OUTSIDE.format(text=item if len(item) <= 60 else item[:57] + "...")
                )
        return replace(self, items=(*self.items, *items), role=role)

    def with_result(self, result: ResultText) -> Transcript:
        """A copy with a result appended."""
        return replace(self, items=(*self.items, result))

    @property
    def has_turns(self) -> bool:
        return any(isinstance(item, TurnBegin) for item in self.items)

    @property
    def has_result_in_turn(self) -> bool:
        """Whether the open turn contains a result."""
        last = next(
            item for item in reversed(self.items) if isinstance(item, ResultText | TurnBegin)
        )
        return isinstance(last, ResultText)

    @property
    def plain(self) -> str:
        """Everything as one text; only for display, since the API renders roles in its own way."""
        parts: list[str] = []
        for item in self.items:
            if isinstance(item, TurnBegin):
                parts.append(f"<|{item.role}|>\n")
            else:
                parts.append(
                    "\n"
                    if isinstance(item, TurnEnd)
                    else item.shown
                    if isinstance(item, ResultText)
                    else item
                )
        return "".join(parts)

    def prompt(self, kind: Kind) -> Prompt:
        """The prompt to continue. Raises `NotSupported` if the kind of model cannot take it."""
        if kind == "items":
            return ItemsPrompt(self.items, self.fingerprint)
        if kind == "text" or (kind == "both" and not self.has_turns):
            return TextPrompt(self.plain)
        if self.role not in (None, "assistant"):
            raise NotSupported(
                "a chat model writes only the assistant's turns, but this generation is "
                f"in a turn of {self.role!r}; "
                "put it into s.assistant(...)"
            )
        turns = self._turns()
        partial = turns.pop().shown if self.role is not None else ""
        if not turns:
            raise NotSupported(
                "a chat model answers messages, and there is none yet; begin with s.user(...)"
            )
        return ChatPrompt(tuple(turns), partial)

    def _turns(self) -> list[TranscriptMessage]:
        """The turns, including an open one. A result outside turns is a turn of the assistant."""
        turns: list[TranscriptMessage] = []
        inside = False
        for item in self.items:
            if isinstance(item, TurnBegin):
                turns.append(TranscriptMessage(item.role, ""))
                inside = True
            elif isinstance(item, TurnEnd):
                inside = False
            elif inside:
                turns[-1] = turns[-1].plus(item)
            elif isinstance(item, ResultText):
                turns.append(TranscriptMessage("assistant", "").plus(item))
            elif item:
                raise NotSupported(
                    _OUTSIDE.format(text=item if len(item) <= 60 else item[:57] + "...")
                )
        return turns


_OUTSIDE = (
    "the text {text!r} is outside of turns, but a chat model takes only turns; put it "
    "into s.user(...), "
    "s.system(...) or s.assistant(...), or use a completion model (is_chat_model=False)"
)
_NO_ROLES = (
    "a completion model has no turns, but this program begins one of {role!r}; append "
    "plain text, or use a chat "
    "model (is_chat_model=True)"
)
