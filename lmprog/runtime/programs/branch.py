"""A branch of a program: its text, the tokens of what has been tokenised of it, and its queued ops.

Canonical text: what was appended since the last generation is tokenised as one piece, so a prompt
built from ten appends has the same tokens as one built from one. A beginning that no later text can
change may be tokenised early (before a fork, say, so that the children need not do it again); the
rest stays pending as text. Generated tokens are kept as they are.

Knows text, tokens and the order of ops. It does not know how ops are carried out, nor pages; the
pin on the tree is kept here for the interpreter, which owns it.
"""

from __future__ import annotations

import enum
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from lmprog.errors import Cancelled, InvalidParameter, LmprogError, UnknownName
from lmprog.runtime.scheduling.active_programs import Pin
from lmprog.runtime.scheduling.namespaces import BASE_ALONE, NamedAdapter
from lmprog.runtime.scheduling.sequence import Client, SessionTurn
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.runtime.text.quoting import Span, joined, split_spans
from lmprog.runtime.text.special_tokens import Passage
from lmprog.runtime.text.tokenizer import ChunkedEncoder, TextEncoder, TextPart
from lmprog.wire import Conversation, RoleBegin, RoleEnd, TextPiece, TokensPiece

PieceOf = Callable[[int], bytes | None]
"""The bytes of a token; None where it has none."""


class BranchState(enum.Enum):
    PENDING = "pending"
    """Named by a fork that its parent has not carried out yet."""
    OPEN = "open"
    CLOSED = "closed"


class Awaited:
    """Something that will be known later. `waiting` are the branches to wake up then."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[RuntimeBranch] = []

    @property
    def is_known(self) -> bool:
        raise NotImplementedError


class QueuedOp:
    """What a branch does when its earlier ops are done."""

    __slots__ = ()

    def missing(self) -> Awaited | None:
        """What must be known before the op can be carried out; None where nothing."""
        return None

    @property
    def needs_tokens(self) -> bool:
        """Whether the branch's pending text is tokenised for it ..."""
        return False

    @property
    def endings(self) -> tuple[str, ...]:
        """... and with each of these after it."""
        return ()

    @property
    def is_for_others(self) -> bool:
        """Others want what it gives: it is carried out before the branch is closed."""
        return False


class Promise(Awaited):
    """The text of a call's result or of a branch, or the error because of which there is none.

    A call's result is letters (`wire.standing`); what a branch gained may hold a template's special
    tokens.
    """

    __slots__ = ("error", "passage")

    def __init__(self, *, error: LmprogError | None = None) -> None:
        super().__init__()
        self.passage: Passage | None = None
        self.error = error

    @property
    def is_known(self) -> bool:
        return self.passage is not None or self.error is not None


BoundPiece = TextPiece | TokensPiece | Promise | RoleBegin | RoleEnd | Conversation


@dataclass(frozen=True, slots=True)
class BoundAppend(QueuedOp):
    """An append whose references have become promises."""

    pieces: tuple[BoundPiece, ...]

    def missing(self) -> Promise | None:
        for piece in self.pieces:
            if isinstance(piece, Promise) and not piece.is_known:
                return piece
        return None

    @property
    def is_for_others(self) -> bool:
        """The calls behind it say why it failed."""
        return any(isinstance(one, Promise) and one.error is not None for one in self.pieces)

    @property
    def needs_tokens(self) -> bool:
        return bool(self.pieces) and isinstance(self.pieces[0], TokensPiece)


@dataclass(frozen=True, slots=True)
class BoundGained(QueuedOp):
    """Resolves `promise` to the text that the branch has gained since its fork."""

    promise: Promise

    @property
    def is_for_others(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class BoundFork(QueuedOp):
    """Opens `children` as copies of the branch, computed by the adapter `lora`; None: by that of
    the branch.
    """

    children: tuple[RuntimeBranch, ...]
    lora: str | None = None

    @property
    def needs_tokens(self) -> bool:
        return True

    @property
    def is_for_others(self) -> bool:
        return True


@dataclass(eq=False, slots=True)
class RuntimeBranch:
    """One growing token sequence of a program."""

    id: int
    salt: str = ""
    adapter: NamedAdapter = BASE_ALONE
    """What computes all of its tokens."""
    weight: float = 1.0
    """Of its client's account among others, when the machine is busy."""
    payer: Client = None
    """On whose account its work is, as `payer_of` says; forks inherit it."""
    program: int = 0
    """Number of its program, in the order of arrival; forks inherit it."""
    turn: SessionTurn | None = None
    """It is a request of a harness, whose session goes on elsewhere."""
    state: BranchState = BranchState.PENDING
    queue: deque[QueuedOp] = field(default_factory=deque)
    tokens: array[int] = field(default_factory=lambda: array("i"))
    num_settled: int = 0
    """Of these, those that a call of it or of its parent has computed."""
    pending: str = ""
    """Text after `tokens` that is not tokenised yet."""
    quoted: tuple[Span, ...] = ()
    """Stretches of `pending` in which special tokens are plain text: the contents of chat turns."""
    ends_literal: bool = False
    """The last text was the program's own: neither generated, nor a template's, nor given as
    tokens.
    """
    said: list[Passage] = field(default_factory=list)
    """All text since the opening, in pieces; joined only when somebody reads it."""
    num_inherited: int = 0
    """Pieces of `said` that came from the parent."""
    fork_len: int = 0
    """Tokens that came from the parent."""
    chat: list[dict[str, str]] = field(default_factory=list)
    """Finished chat turns."""
    role: str | None = None
    """Role of the open chat turn."""
    role_start: int = 0
    """Index into `said` of the open turn's content."""
    pin: Pin | None = None
    """Soft pin on the tree node where its computed tokens end; None where nothing is computed."""
    is_busy: bool = False
    """A call of it is in the scheduler."""
    not_before: int = 0
    """Ends of its account that come before it goes on, by their number (`ReadyBranches`)."""
    tokenising: Awaited | None = None
    """Its long pending text, while that is tokenised a part in each step."""
    refusal: LmprogError | None = None
    """Why the pending text cannot be tokenised: it is too long, say. It only gets longer."""
    failure: LmprogError | None = None
    """Why the branch failed: every later call of it fails with this."""

    def open(self, parent: RuntimeBranch | None = None) -> None:
        """Opens the branch, empty or as a copy of `parent`. The pin is the interpreter's part."""
        self.state = BranchState.OPEN
        if parent is None:
            return
        self.salt, self.program = parent.salt, parent.program
        self.payer, self.weight = parent.payer, parent.weight
        self.adapter = parent.adapter
        self.tokens, self.num_settled = parent.tokens, parent.num_settled  # never changed in place
        self.fork_len = len(parent.tokens)
        self.pending, self.quoted = parent.pending, parent.quoted
        self.ends_literal = parent.ends_literal
        self.said = parent.said[:]
        self.num_inherited = len(parent.said)
        self.chat = parent.chat[:]
        self.role, self.role_start = parent.role, parent.role_start
        self.failure = parent.failure

    def append(self, text: str, quoted: Sequence[Span] = ()) -> None:
        """Adds literal text, to be tokenised when needed. Inside a chat turn all of it is
        quoted.
        """
        if text:
            length = len(self.pending)
            spans = [(0, len(text))] if self.role is not None else quoted
            if spans:
                first, *others = [(length + begin, length + end) for begin, end in spans]
                self.quoted = (*joined(self.quoted, first), *others)
            self.pending += text
            self.said.append(Passage(text, tuple(spans)))
            self.ends_literal = True

    def append_tokens(
        self, tokens: array[int], text: str, encoder: TextEncoder, rest: str = ""
    ) -> None:
        """Adds tokens as they are, which spell `text`, and `rest`, to be tokenised with what
        follows; pending text is tokenised now. Tokens that are a whole prompt begin as they like.
        """
        is_prompt = bool(tokens) and not (self.tokens or self.pending)
        known = self.tokens if is_prompt else self.tokens_with(encoder)
        self._stand(known + tokens, text + rest, rest)
        self.ends_literal = False

    def heal(
        self, tokens: array[int], text: str, encoder: TextEncoder, piece_of: PieceOf, rest: str
    ) -> None:
        """The same in place of the last token of the pending text, whose own text `text` and
        `rest` begin with. Raises `InvalidParameter` where they do not.
        """
        known = self.tokens_with(encoder) if self.pending else array("i")
        old = (piece_of(known[-1]) or b"").decode(errors="replace") if known else ""
        if not (old and self.pending.endswith(old) and (text + rest).startswith(old)):
            raise InvalidParameter(
                f"tokens that heal stand in place of the last token of the text before them, and "
                f"begin with its text: that is {old!r}, and they are {text + rest!r}.",
                name="heals",
                value=True,
            )
        self._stand(known[:-1] + tokens, (text + rest)[len(old) :], rest)

    def begin_role(self, role: str, template: ChatTemplate) -> None:
        """Opens a chat turn. Raises RequestRejected where the template does not know the role."""
        self.append(template.begin(self.chat, role))
        self.ends_literal = False
        self.role, self.role_start = role, len(self.said)

    def end_role(self, role: str, template: ChatTemplate) -> None:
        """Closes the turn that `begin_role` opened."""
        content = whole(self.said[self.role_start :]).text
        closing = template.end(self.chat, role, content)
        self.chat = [*self.chat, {"role": role, "content": content}]
        self.role = None
        self.append(closing)
        self.ends_literal = False

    def text(self) -> str:
        """All of it since the opening."""
        return "".join(text for text, _ in self.said)

    def gained(self) -> Passage:
        """Text since the fork, or since the opening."""
        return whole(self.said[self.num_inherited :])

    def tokenise_up_to(self, cut: int, encoder: TextEncoder) -> None:
        """Tokenises the first `cut` characters of the pending text, which no later text changes."""
        self.pending, rest = self.pending[:cut], self.pending[cut:]
        self.quoted, later = split_spans(self.quoted, cut)
        self.tokens, self.pending, self.quoted = self.tokens_with(encoder), rest, later

    def take_tokenised(self, cut: int, encoded: array[int], encoder: TextEncoder) -> None:
        """`encoded` are the tokens of the first `cut` characters of the pending text, which no
        later text changes.
        """
        prefix = encoder.prefix
        if not self.tokens and tuple(encoded[: len(prefix)]) != prefix:
            encoded = array("i", prefix) + encoded
        self.tokens = self.tokens + encoded
        self.pending, self.quoted = self.pending[cut:], split_spans(self.quoted, cut)[1]

    def tokens_with(self, encoder: TextEncoder, more: str = "") -> array[int]:
        """The tokens of the branch with `more` after its text; the branch does not change."""
        tokens = self.tokens[:]
        encoded = self._encoded(encoder, more) if self.pending or more else []
        if not tokens:
            prefix = encoder.prefix
            if tuple(encoded[: len(prefix)]) != prefix:
                tokens.extend(prefix)
        tokens.extend(encoded)
        return tokens

    def parts_with(self, encoder: ChunkedEncoder, more: str = "") -> Iterator[TextPart]:
        """The parts in which `encoder` encodes the pending text with `more` after it."""
        return encoder.parts(self.pending + more, self._quoted_with(more), start=not self.tokens)

    def _encoded(self, encoder: TextEncoder, more: str) -> list[int]:
        quoted = self._quoted_with(more)
        if quoted:
            return encoder.encode_quoting(self.pending + more, quoted, start=not self.tokens)
        return encoder.encode(self.pending + more, start=not self.tokens)

    def _quoted_with(self, more: str) -> tuple[Span, ...]:
        length = len(self.pending)
        if self.role is not None:
            return joined(self.quoted, (length, length + len(more)))
        return self.quoted

    def adopt(self, tokens: array[int], text: str, rest: str = "") -> None:
        """A call has ended: `tokens` are the branch's tokens now and `text` was added to it.

        `rest` is the end of `text` after the last whole token, to be tokenised anew with what
        follows. Where `text` is empty the branch ends as it did before, in literal text too.
        """
        self._stand(tokens, text, rest)
        self.num_settled = len(tokens)

    def choose(self, tokens: array[int], choice: str) -> None:
        """A select has ended with `choice`, which is the program's own text."""
        spans = ((0, len(choice)),) if self.role is not None else ()
        self.adopt(tokens, "")
        self.said.append(Passage(choice, spans))
        self.ends_literal = False

    def _stand(self, tokens: array[int], text: str, rest: str) -> None:
        """`tokens` and `rest`, and nothing else, are the branch now; `text` was added to it."""
        self.tokens = tokens
        self.pending, self.ends_literal = rest, self.ends_literal and not text
        self.quoted = ((0, len(rest)),) if rest else ()
        if text:
            self.said.append(letters(text))


def unknown_branch(number: int) -> UnknownName:
    """The error for a branch that is not open."""
    return UnknownName(f"branch {number} is not open.", name=str(number))


def closed(branch: RuntimeBranch) -> Cancelled:
    """Why what the branch had still to do ends."""
    return Cancelled(f"branch {branch.id} was closed.")


def letters(text: str) -> Passage:
    """A result in the text of another branch, as `wire.letters` says it."""
    return Passage(text, ((0, len(text)),) if text else ())


def whole(passages: Sequence[Passage]) -> Passage:
    """All of them as one."""
    length, spans = 0, list[Span]()
    for text, quoted in passages:
        for begin, end in quoted:
            if spans and spans[-1][1] == length + begin:  # touching spans are one
                spans[-1] = (spans[-1][0], length + end)
            else:
                spans.append((length + begin, length + end))
        length += len(text)
    return Passage("".join(text for text, _ in passages), tuple(spans))
