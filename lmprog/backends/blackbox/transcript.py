"""What stands in a branch, as items; the prompts that are made of them: a text, or the messages of
a chat.

An API writes chat roles itself, so text and generations of a chat stand inside of turns. Knows no
requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from lmprog.errors import NotSupported

Kind: TypeAlias = Literal["text", "chat", "both", "items"]
"""What a model is asked by: a text to go on from, messages to answer, either of them, or items as
they stand here.
"""


@dataclass(frozen=True, slots=True)
class TurnBegin:
    role: str


@dataclass(frozen=True, slots=True)
class TurnEnd:
    role: str


@dataclass(frozen=True, slots=True)
class SaidText:
    """A result. Where a server tells them its tokens, with what of the text before they spell once
    more (`seam`), and the end of the text that they do not spell (`rest`). One of another branch is
    text to this one (not `own`)."""

    text: str
    tokens: tuple[int, ...] = ()
    seam: str = ""
    rest: str = ""
    own: bool = True


Item: TypeAlias = "str | SaidText | TurnBegin | TurnEnd"


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class TextPrompt:
    text: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The finished messages, and what stands already in the assistant's turn that is to be
    written.
    """

    messages: tuple[TranscriptMessage, ...]
    partial: str = ""


@dataclass(frozen=True, slots=True)
class ItemsPrompt:
    """All that stands in the branch, for a server that knows branches."""

    items: tuple[Item, ...]


Prompt: TypeAlias = TextPrompt | ChatPrompt | ItemsPrompt


@dataclass(frozen=True, slots=True)
class Transcript:
    """The items of a branch, in order."""

    items: tuple[Item, ...] = ()
    role: str | None = None
    """Of the turn that is open; None outside of turns."""

    def plus(self, items: Sequence[Item], kind: Kind) -> Transcript:
        """With `items` at its end. Raises `NotSupported` where a model of this kind cannot be told
        that.
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
        return Transcript((*self.items, *items), role)

    def said(self, result: SaidText) -> Transcript:
        """With a result at its end."""
        return Transcript((*self.items, result), self.role)

    @property
    def has_turns(self) -> bool:
        return any(isinstance(item, TurnBegin) for item in self.items)

    @property
    def has_said_in_turn(self) -> bool:
        """Whether a result stands in the turn that is open."""
        last = next(item for item in reversed(self.items) if isinstance(item, SaidText | TurnBegin))
        return isinstance(last, SaidText)

    @property
    def plain(self) -> str:
        """Everything as one text; for reading only, since the API writes roles in its own way."""
        parts: list[str] = []
        for item in self.items:
            if isinstance(item, TurnBegin):
                parts.append(f"<|{item.role}|>\n")
            else:
                parts.append(
                    "\n"
                    if isinstance(item, TurnEnd)
                    else item.text
                    if isinstance(item, SaidText)
                    else item
                )
        return "".join(parts)

    def prompt(self, kind: Kind) -> Prompt:
        """What the model is asked to go on from. Raises `NotSupported` where there is no such
        request.
        """
        if kind == "items":
            return ItemsPrompt(self.items)
        if kind == "text" or (kind == "both" and not self.has_turns):
            return TextPrompt(self.plain)
        if self.role not in (None, "assistant"):
            raise NotSupported(
                "a chat model writes the assistant's turns only, and this generation stands "
                f"in one of {self.role!r}; "
                "put it into s.assistant(...)"
            )
        turns = self._turns()
        partial = turns.pop().content if self.role is not None else ""
        if not turns:
            raise NotSupported(
                "a chat model answers messages, and there is none yet; begin with s.user(...)"
            )
        return ChatPrompt(tuple(turns), partial)

    def _turns(self) -> list[TranscriptMessage]:
        """The turns, an open one included. A result that stands outside of them is the assistant's
        turn.
        """
        turns: list[TranscriptMessage] = []
        inside = False
        for item in self.items:
            if isinstance(item, TurnBegin):
                turns.append(TranscriptMessage(item.role, ""))
                inside = True
            elif isinstance(item, TurnEnd):
                inside = False
            elif inside:
                last = turns[-1]
                turns[-1] = TranscriptMessage(
                    last.role, last.content + (item.text if isinstance(item, SaidText) else item)
                )
            elif isinstance(item, SaidText):
                turns.append(TranscriptMessage("assistant", item.text))
            elif item:
                raise NotSupported(
                    _OUTSIDE.format(text=item if len(item) <= 60 else item[:57] + "...")
                )
        return turns


_OUTSIDE = (
    "the text {text!r} stands outside of turns, and a chat model is told turns only; put it "
    "into s.user(...), "
    "s.system(...) or s.assistant(...), or use a completion model (is_chat_model=False)"
)
_NO_ROLES = (
    "a completion model knows no turns, and this program begins one of {role!r}; append "
    "plain text, or use a chat "
    "model (is_chat_model=True)"
)
