"""The body of `/v1/programs`: the wire's ops as JSON, with names instead of numbers.

Branches and calls have names that the client chooses. Knows fields and ranges; knows no
connections.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from lmprog import wire
from lmprog.server.http.limits import within
from lmprog.server.openai.shared_fields import GenerationFields

Name = Annotated[str, within("name")]
Index = Annotated[int, Meta(ge=0, le=127)]


class ProgramPiece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of these: text, tokens, the result of an earlier call, what another branch gained, a chat
    turn's ends, or a whole turn (`role` with `text`)."""

    text: str | None = None
    quoted: bool = False
    """With text: names of special tokens in it are plain text, as they always are in chat turns and
    in results of other branches."""
    tokens: list[Annotated[int, within("prompt[]")]] | None = None
    rest: str = ""
    """With tokens: text after them, tokenised with what follows."""
    heals: bool = False
    """With tokens: they and the rest stand in place of the last token of the text before."""
    ref: Name | None = None
    index: Index = 0
    gained: Name | None = None
    begin: Name | None = None
    end: Name | None = None
    role: Name | None = None


class ProgramOpen(
    msgspec.Struct, frozen=True, tag_field="op", tag="open", forbid_unknown_fields=True
):
    """A new, empty branch."""

    branch: Name


class ProgramAppend(
    msgspec.Struct, frozen=True, tag_field="op", tag="append", forbid_unknown_fields=True
):
    """Adds to a branch. A plain text is a piece, too."""

    branch: Name
    pieces: str | Annotated[list[str | ProgramPiece], within("pieces")]


class ProgramGen(
    GenerationFields, kw_only=True, tag_field="op", tag="gen", forbid_unknown_fields=True
):
    """Generates on a branch, which goes on from the first of the `n` results. Fields as in
    `/v1/completions`.
    """

    branch: Name
    call: Name
    logprobs: Annotated[int, within("top_logprobs")] | None = None
    heal: bool = False
    """The last token of literal text is decided once more, by the model."""
    keep: wire.Keep = "first"
    """From which of the `n` results the branch goes on."""


class ProgramSelect(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="op",
    tag="select",
    forbid_unknown_fields=True,
):
    """Scores all choices as continuations of a branch, appends the winner."""

    branch: Name
    call: Name
    choices: Annotated[list[Annotated[str, within("choice[]")]], within("choice")]
    method: wire.SelectMethod = "token_length_normalized"
    temperature: Annotated[float, within("temperature")] = 0.0
    seed: Annotated[int, within("seed")] | None = None
    priority: Annotated[int, within("priority")] = 0


class ProgramFork(
    msgspec.Struct, frozen=True, tag_field="op", tag="fork", forbid_unknown_fields=True
):
    """New branches that start at the current end of `branch`."""

    branch: Name
    into: Annotated[list[Name], within("into")]


class ProgramRead(
    msgspec.Struct, frozen=True, tag_field="op", tag="read", forbid_unknown_fields=True
):
    """Asks for all text of a branch."""

    branch: Name
    call: Name


class ProgramClose(
    msgspec.Struct, frozen=True, tag_field="op", tag="close", forbid_unknown_fields=True
):
    """Ends a branch early, and the calls on it that still run. All branches end with the
    program.
    """

    branch: Name


Op: TypeAlias = (
    ProgramOpen
    | ProgramAppend
    | ProgramGen
    | ProgramSelect
    | ProgramFork
    | ProgramRead
    | ProgramClose
)


class ProgramBody(msgspec.Struct, frozen=True, kw_only=True):
    """A program. Ops of one branch run in their order, those of different branches at once."""

    ops: Annotated[list[Op], within("ops")]
    model: Annotated[str, within("model")] | None = None
    stream: bool = False
    cache_salt: Annotated[str, within("cache_salt")] | None = None
    fingerprint: Annotated[str, within("fingerprint")] | None = None
    """The digest, in `/v1/models`, of the model that it has begun with: another one refuses it."""
