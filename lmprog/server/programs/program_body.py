"""The body of `/v1/programs`: the wire's ops as JSON with names instead of numbers, and what they
are on the wire.

Branches and calls have names that the client chooses: every name must be known, and be given once.
Mistakes are found before anything is sent, and the refusal names their place. Knows ops of both
kinds and their ranges; knows no replies and no connections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from lmprog import wire
from lmprog.server.http.http_errors import HttpError, refused
from lmprog.server.http.large_answers import IDS_PER_ENTRY, asked_entries
from lmprog.server.http.limits import INT31, LIMITS, within
from lmprog.server.http.option_fields import sampling_of
from lmprog.server.openai.output_constraint import constraint_of
from lmprog.server.openai.running_request import most_tokens
from lmprog.server.openai.shared_fields import GenerationFields, beams_of
from lmprog.wire.default_limits import default_limit

Name = Annotated[str, within("name")]
Index = Annotated[int, Meta(ge=0, le=127)]
_TURN_TOKENS = 64
"""What a template writes at one end of a turn; few write as much."""
_TAKEN = ("model", "cache_salt", "stream_options")
"""Fields of completions that belong to the whole program, and not to one gen."""


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


ProgramOp: TypeAlias = (
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

    ops: Annotated[list[ProgramOp], within("ops")]
    model: Annotated[str, within("model")] | None = None
    stream: bool = False
    cache_salt: Annotated[str, within("cache_salt")] | None = None
    fingerprint: Annotated[str, within("fingerprint")] | None = None
    """The digest, in `/v1/models`, of the model that it has begun with: another one refuses it."""


@dataclass(frozen=True, slots=True)
class NamedCall:
    """One call: its name, its place in the program, its kind, and its choices where it is a
    select.
    """

    name: str
    place: str
    kind: str
    choices: tuple[str, ...] = ()


@dataclass(slots=True)
class Translated:
    """A program as ops of the wire, and what its calls are."""

    ops: list[wire.Op] = field(default_factory=list)
    calls: dict[int, NamedCall] = field(default_factory=dict)
    entries: int = 0
    """Log-probabilities that its answer may have, at most."""
    widths: dict[int, int] = field(default_factory=dict)
    """Branch -> most results that one of its calls asks for."""

    @property
    def most_results(self) -> int:
        """How many results may be computed at once: a branch has one call at a time."""
        return max(1, sum(self.widths.values()))


class Translator:
    """Takes ops in their order. `branch` and `call` give new numbers."""

    def __init__(
        self,
        branch: Callable[[], int],
        call: Callable[[], int],
        salt: str,
        timeout: float | None,
        stream: bool,
        context: int,
    ) -> None:
        """`context`: the most tokens that a branch can have."""
        self._context = context
        self._tokens = 0
        """The most that any branch can have so far, if none had a limit."""
        self._new_branch = branch
        self._new_call = call
        self._salt = salt
        self._timeout = timeout
        self._stream = stream
        self._branches: dict[str, int] = {}
        self._closed: set[str] = set()
        self._in_turn: set[int] = set()
        """Branches in which a chat turn is open."""
        self._calls: dict[str, int] = {}
        self._results: dict[str, int] = {}
        self._at = ""
        self.model = ""
        """The digest of the model that the program has begun with; empty: any."""
        self.made = Translated()

    def take(self, at: int, op: ProgramOp) -> None:
        """The op at place `at` of the program. Raises HttpError."""
        self._at = f"ops[{at}]"
        self.made.ops.append(self._translated(op))

    def _translated(self, op: ProgramOp) -> wire.Op:
        match op:
            case ProgramOpen():
                branch = self._begin(op.branch, "branch")
                return wire.Open(branch, self._salt, model=self.model)
            case ProgramFork():
                parent = self._branch(op.branch)
                children = tuple(
                    self._begin(name, f"into[{at}]") for at, name in enumerate(op.into)
                )
                if parent in self._in_turn:
                    self._in_turn.update(children)
                return wire.Fork(parent, children)
            case ProgramAppend():
                pieces = [op.pieces] if isinstance(op.pieces, str) else op.pieces
                branch = self._branch(op.branch)
                made = [
                    one
                    for at, piece in enumerate(pieces)
                    for one in self._pieces(at, piece, op.branch)
                ]
                self._grow(sum(map(self._most_tokens, made)))
                for one in made:
                    if isinstance(one, wire.RoleBegin):
                        self._in_turn.add(branch)
                    elif isinstance(one, wire.RoleEnd):
                        self._in_turn.discard(branch)
                return wire.Append(branch, tuple(made))
            case ProgramGen():
                return self._gen(op)
            case ProgramSelect():
                branch = self._branch(op.branch)
                call = self._call(
                    op.call, branch, NamedCall(op.call, self._at, "select", tuple(op.choices)), 1
                )
                longest = max(len(choice.encode("utf-8", "surrogatepass")) for choice in op.choices)
                self._grow(longest + 1)
                self.made.entries += min(self._context, longest) * len(op.choices)
                seed = None if op.seed is None else op.seed % 2**63
                return wire.Select(
                    branch,
                    call,
                    tuple(op.choices),
                    op.method,
                    op.temperature,
                    seed,
                    op.priority,
                    self._timeout,
                )
            case ProgramRead():
                branch = self._branch(op.branch)
                self.made.entries += min(self._context, self._tokens) // IDS_PER_ENTRY
                return wire.Read(
                    branch, self._call(op.call, branch, NamedCall(op.call, self._at, "read"), 1)
                )
            case ProgramClose():
                number = self._branch(op.branch)
                self._closed.add(op.branch)
                return wire.Close(number)

    def _gen(self, op: ProgramGen) -> wire.Generate:
        for name in _TAKEN:
            if getattr(op, name) is not None:
                raise self._wrong(f"{name} belongs to the program, not to a gen", name)
        branch = self._branch(op.branch)
        count = op.n or 1
        call = self._call(op.call, branch, NamedCall(op.call, self._at, "gen"), count)
        try:
            beams = beams_of(op, count)
            constraint = constraint_of(op).constraint
            limit = op.max_tokens
            if limit is None:
                limit = default_limit(
                    constraint,
                    context_len=self._context,
                    is_turn=branch in self._in_turn and beams is None,
                    is_alone=op.keep == "first",
                )
            decided = {"max_tokens": limit, "logprobs": op.logprobs, "beams": beams}
            sampling = sampling_of(op, "openai", decided)
        except HttpError as error:
            problem = error.problem
            raise refused(
                f"{self._at}: {problem.message}", f"{self._at}.{problem.param}", problem.code
            ) from None
        self.made.entries += asked_entries(
            sampling, min(self._context, self._tokens), self._context
        )
        self._grow(self._context if limit is None else limit)
        stream = self._stream and op.stream is not False
        priority = op.priority or 0
        return wire.Generate(
            branch, call, sampling, constraint, stream, priority, self._timeout, op.heal, op.keep
        )

    def _pieces(self, at: int, piece: str | ProgramPiece, branch: str) -> tuple[wire.Piece, ...]:
        if isinstance(piece, str):
            return (wire.TextPiece(piece),)
        where = f"pieces[{at}]"
        if piece.role is not None and piece.text is not None:
            return (
                wire.RoleBegin(piece.role),
                wire.TextPiece(piece.text),
                wire.RoleEnd(piece.role),
            )
        names = ("text", "tokens", "ref", "gained", "begin", "end", "role")
        given = [name for name in names if getattr(piece, name) is not None]
        if len(given) != 1 or piece.role is not None:
            raise self._wrong(
                "a piece has one of text, tokens, ref, gained, begin and end, or role and text",
                where,
            )
        if piece.quoted and piece.text is None:
            raise self._wrong("quoted belongs to a piece with text", where)
        if piece.tokens is not None:
            return (wire.TokensPiece(tuple(piece.tokens), piece.rest, piece.heals),)
        if piece.rest or piece.heals:
            raise self._wrong("rest and heals belong to a piece with tokens", where)
        if piece.text is not None:
            return (wire.TextPiece(piece.text, piece.quoted),)
        if piece.ref is not None:
            return (self._ref(piece.ref, piece.index, where),)
        if piece.gained is not None:
            if piece.gained == branch:
                raise self._wrong("a branch cannot append what it has gained itself", where)
            return (wire.Gained(self._branch(piece.gained, where)),)
        if piece.begin is not None:
            return (wire.RoleBegin(piece.begin),)
        assert piece.end is not None, "a piece has one of these"
        return (wire.RoleEnd(piece.end),)

    def _grow(self, tokens: int) -> None:
        self._tokens = min(self._tokens + tokens, INT31)

    def _most_tokens(self, piece: wire.Piece) -> int:
        """Results and what branches have gained are at most all that there is so far."""
        if isinstance(piece, wire.RoleBegin | wire.RoleEnd):
            return _TURN_TOKENS
        if isinstance(piece, wire.Ref | wire.Gained):
            return self._tokens
        return most_tokens(piece)

    def _ref(self, name: str, index: int, where: str) -> wire.Ref:
        if name not in self._calls:
            raise self._wrong(f"unknown call {name!r}: no earlier op has this name", where)
        if index >= self._results[name]:
            raise self._wrong(
                f"call {name!r} has {self._results[name]} results, from index 0 on", where
            )
        return wire.Ref(self._calls[name], index)

    def _begin(self, name: str, where: str) -> int:
        if name in self._branches:
            raise self._wrong(f"there is a branch {name!r} already", where)
        most = int(LIMITS["branches"].maximum)
        if len(self._branches) >= most:
            raise self._wrong(f"a program has at most {most:,} branches", where)
        self._branches[name] = self._new_branch()
        return self._branches[name]

    def _branch(self, name: str, where: str = "branch") -> int:
        if name in self._closed:
            raise self._wrong(f"branch {name!r} was closed before this", where)
        if name not in self._branches:
            raise self._wrong(f"unknown branch {name!r}: no earlier op opens it", where)
        return self._branches[name]

    def _call(self, name: str, branch: int, asked: NamedCall, results: int) -> int:
        if name in self._calls:
            raise self._wrong(f"there is a call {name!r} already", "call")
        number = self._new_call()
        self._calls[name], self._results[name] = number, results
        self.made.calls[number] = asked
        self.made.widths[branch] = max(results, self.made.widths.get(branch, 0))
        return number

    def _wrong(self, what: str, where: str) -> HttpError:
        return refused(f"{self._at}: {what}.", f"{self._at}.{where}", "invalid_program")
