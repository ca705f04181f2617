"""The transcript of a branch, and the prompts made from it: plain text, or chat messages.

An API renders chat roles itself, so text and generations of a chat must be inside turns. Knows no
requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from lmprog import wire
from lmprog.backends.branch_text import BranchPiece, LeftBehind, shown
from lmprog.errors import NotSupported

Kind: TypeAlias = Literal["text", "chat", "both", "pieces"]
"""The kind of prompt a model takes: text to continue, messages, either of them, or the pieces of a
branch.
"""


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

    def plus(self, piece: wire.TextPiece | LeftBehind) -> TranscriptMessage:
        """With more in it. Only the assistant calls: elsewhere, calls are text."""
        if self.role != "assistant":
            return replace(self, content=self.content + shown((piece,)))
        calls = (*self.calls, *piece.calls)
        return replace(self, content=self.content + piece.text, calls=calls)


@dataclass(frozen=True, slots=True)
class TextPrompt:
    text: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The complete messages, and the beginning of the assistant's turn to be generated."""

    messages: tuple[TranscriptMessage, ...]
    partial: str = ""


@dataclass(frozen=True, slots=True)
class PiecesPrompt:
    """All pieces of the branch, for a server that knows branches."""

    pieces: tuple[BranchPiece, ...]
    fingerprint: str = ""
    """Of the model that the program has begun with; empty: whichever is there."""


Prompt: TypeAlias = TextPrompt | ChatPrompt | PiecesPrompt


@dataclass(frozen=True, slots=True)
class Transcript:
    """The pieces of a branch, in order."""

    pieces: tuple[BranchPiece, ...] = ()
    role: str | None = None
    """The role of the open turn; None outside turns."""
    fingerprint: str = ""
    """See `PiecesPrompt`."""

    def plus(self, pieces: Sequence[BranchPiece], kind: Kind) -> Transcript:
        """A copy with `pieces` appended. Raises `NotSupported` if a model of this kind cannot take
        them.
        """
        role = self.role
        for piece in pieces:
            if isinstance(piece, wire.RoleBegin):
                if kind == "text":
                    raise NotSupported(_NO_ROLES.format(role=piece.role))
                role = piece.role
            elif isinstance(piece, wire.RoleEnd):
                role = None
            elif isinstance(piece, wire.TokensPiece | wire.Conversation):
                raise NotSupported(f"an API as a backend does not support {type(piece).__name__}")
            elif (
                kind == "pieces" and isinstance(piece, wire.TextPiece | LeftBehind) and piece.calls
            ):
                raise NotSupported("a runtime has no fields for calls; append them as text")
            elif role is None and kind == "chat" and not _is_result(piece):
                _refuse_outside(piece)
        return replace(self, pieces=(*self.pieces, *pieces), role=role)

    @property
    def has_turns(self) -> bool:
        return any(isinstance(piece, wire.RoleBegin) for piece in self.pieces)

    @property
    def has_result_in_turn(self) -> bool:
        """Whether the open turn contains a result."""
        for piece in reversed(self.pieces):
            if isinstance(piece, wire.RoleBegin):
                return False
            if _is_result(piece):
                return True
        return False

    def prompt(self, kind: Kind) -> Prompt:
        """The prompt to continue. Raises `NotSupported` if the kind of model cannot take it."""
        if kind == "pieces":
            return PiecesPrompt(self.pieces, self.fingerprint)
        if kind == "text" or (kind == "both" and not self.has_turns):
            return TextPrompt(shown(self.pieces))
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
        for piece in self.pieces:
            if isinstance(piece, wire.RoleBegin):
                turns.append(TranscriptMessage(piece.role, ""))
                inside = True
            elif isinstance(piece, wire.RoleEnd):
                inside = False
            elif not isinstance(piece, wire.TextPiece | LeftBehind):
                continue
            elif inside:
                turns[-1] = turns[-1].plus(piece)
            elif _is_result(piece):
                turns.append(TranscriptMessage("assistant", "").plus(piece))
            else:
                _refuse_outside(piece)
        return turns


def _is_result(piece: BranchPiece) -> bool:
    """Of this branch or of another: a text with calls was one."""
    return isinstance(piece, LeftBehind) or (
        isinstance(piece, wire.TextPiece) and bool(piece.calls)
    )


def _refuse_outside(piece: BranchPiece) -> None:
    """Raises `NotSupported` for text that is in no turn of a chat."""
    if isinstance(piece, wire.TextPiece) and piece.text:
        text = piece.text if len(piece.text) <= 60 else piece.text[:57] + "..."
        raise NotSupported(_OUTSIDE.format(text=text))


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
