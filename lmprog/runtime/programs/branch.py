"""A branch: the text a program has gathered, the tokens of what has been settled of it, and the ops
that wait.

Canonical text: what was appended since the last generation is tokenised as one piece, so a prompt
built from ten appends has the same tokens as one built from one. What no later text can change may
be settled early (before a fork, say, so that it is tokenised once and not by each child again); the
rest waits as text. Generated tokens are kept as they are. Text of other calls arrives as a
`Promise`, and the branch's ops wait for it.

Knows text, tokens and the order of ops. It does not know how ops are carried out, nor pages; its
hold on the tree is kept for its owner, the interpreter.
"""

from __future__ import annotations

import enum
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from lmprog.errors import LmprogError
from lmprog.runtime.scheduling.pins import Pin
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.runtime.text.quoting import Span, joined, split_spans
from lmprog.runtime.text.tokenizer import Tokenizer
from lmprog.wire import (
    Conversation,
    Fork,
    Generate,
    Read,
    RoleBegin,
    RoleEnd,
    Select,
    TextPiece,
    TokensPiece,
)


class BranchState(enum.Enum):
    UNBORN = "unborn"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(eq=False, slots=True)
class Promise:
    """Text that will be known when a call has ended, or the reason why it never will. Branches wait
    for it.
    """

    text: str | None = None
    error: LmprogError | None = None
    quoted: bool = False
    """A call's own result, in which no special token is read; what a branch gained may hold a
    template's.
    """
    waiting: list[RuntimeBranch] = field(default_factory=list)

    @property
    def known(self) -> bool:
        return self.text is not None or self.error is not None


@dataclass(frozen=True, slots=True)
class Appending:
    """An append whose references are bound to promises already."""

    pieces: tuple[TextPiece | TokensPiece | Promise | RoleBegin | RoleEnd | Conversation, ...]


@dataclass(frozen=True, slots=True)
class Marking:
    """Keeps `promise`: the text that the branch has gained since its fork when this is reached."""

    promise: Promise


Queued = Appending | Marking | Generate | Select | Fork | Read


class RuntimeBranch:
    """One growing token sequence of a program."""

    __slots__ = (
        "busy",
        "cause",
        "chat",
        "ends_literal",
        "id",
        "num_forked",
        "ops",
        "pending",
        "pin",
        "program",
        "quoted",
        "role",
        "role_start",
        "salt",
        "state",
        "text",
        "tokens",
    )

    def __init__(self, branch_id: int, salt: str = "") -> None:
        self.id = branch_id
        self.salt = salt
        self.state = BranchState.UNBORN
        self.ops: deque[Queued] = deque()
        self.tokens: array[int] = array("i")
        self.pending = ""
        self.quoted: tuple[Span, ...] = ()
        """Stretches of `pending` in which a special token is text: what stands inside of chat
        turns.
        """
        self.ends_literal = False
        """The last text was the program's own: neither generated, nor a template's, nor given as
        tokens.
        """
        self.text: list[str] = []
        """All text since the opening, in pieces; joined only when somebody asks."""
        self.num_forked = 0
        """Pieces of `text` that were there when the branch was forked."""
        self.chat: list[dict[str, str]] = []
        """Finished chat turns."""
        self.role: str | None = None
        self.role_start = 0
        self.program = 0
        """Number of the program that it belongs to, in the order of their beginning; forks inherit
        it.
        """
        self.pin: Pin | None = None
        """Its hold on where its settled tokens end in the tree; None where nothing of it has been
        computed.
        """
        self.busy = False
        """A call of it is in flight."""
        self.cause: LmprogError | None = None
        """Why the branch is spoiled: every later call of it fails with this."""

    def birth(self, parent: RuntimeBranch | None = None) -> None:
        """Opens the branch, empty or as a copy of `parent`. The node's pin is the interpreter's
        business.
        """
        self.state = BranchState.OPEN
        if parent is None:
            return
        self.salt, self.program = parent.salt, parent.program
        self.tokens = parent.tokens[:]
        self.pending, self.quoted, self.ends_literal = (
            parent.pending,
            parent.quoted,
            parent.ends_literal,
        )
        self.text = parent.text[:]
        self.num_forked = len(parent.text)
        self.chat = parent.chat[:]
        self.role, self.role_start = parent.role, parent.role_start
        self.cause = parent.cause

    def append(self, text: str, quoted: Sequence[Span] = ()) -> None:
        """Adds literal text, to be tokenised when it is needed. Inside of a chat turn all of it is
        quoted.
        """
        if text:
            length = len(self.pending)
            spans = [(0, len(text))] if self.role is not None else quoted
            if spans:
                first, *others = [(length + begin, length + end) for begin, end in spans]
                self.quoted = (*joined(self.quoted, first), *others)
            self.pending += text
            self.text.append(text)
            self.ends_literal = True

    def append_tokens(self, tokens: array[int], text: str, tokenizer: Tokenizer) -> None:
        """Adds tokens as they are, which spell `text`; text that waits before them is tokenised
        now.
        """
        if self.pending:
            self.tokens, self.pending, self.quoted = self.tokens_with(tokenizer), "", ()
        self.tokens.extend(tokens)
        self.text.append(text)
        self.ends_literal = False

    def begin_role(self, role: str, template: ChatTemplate) -> None:
        """Opens a chat turn. Raises RequestRejected where the template does not know the role."""
        self.append(template.begin(self.chat, role))
        self.ends_literal = False
        self.role, self.role_start = role, len(self.text)

    def end_role(self, role: str, template: ChatTemplate) -> None:
        """Closes the turn that `begin_role` opened."""
        content = "".join(self.text[self.role_start :])
        closing = template.end(self.chat, role, content)
        self.chat = [*self.chat, {"role": role, "content": content}]
        self.role = None
        self.append(closing)
        self.ends_literal = False

    def gained(self) -> str:
        """Text since the fork, or since the opening."""
        return "".join(self.text[self.num_forked :])

    def settle(self, tokenizer: Tokenizer, cut: int) -> None:
        """Tokenises the first `cut` characters of the pending text, which no later text can
        change.
        """
        self.pending, rest = self.pending[:cut], self.pending[cut:]
        self.quoted, later = split_spans(self.quoted, cut)
        self.tokens, self.pending, self.quoted = self.tokens_with(tokenizer), rest, later

    def tokens_with(self, tokenizer: Tokenizer, more: str = "") -> array[int]:
        """The branch's tokens with its pending text and `more` tokenised as one piece; changes
        nothing.
        """
        tokens = self.tokens[:]
        encoded = self._encoded(tokenizer, more) if self.pending or more else []
        if not tokens:
            prefix = tokenizer.prefix
            if tuple(encoded[: len(prefix)]) != prefix:
                tokens.extend(prefix)
        tokens.extend(encoded)
        return tokens

    def _encoded(self, tokenizer: Tokenizer, more: str) -> list[int]:
        quoted, length = self.quoted, len(self.pending)
        if self.role is not None:
            quoted = joined(quoted, (length, length + len(more)))
        if quoted:
            return tokenizer.encode_quoting(self.pending + more, quoted, start=not self.tokens)
        return tokenizer.encode(self.pending + more, start=not self.tokens)

    def adopt(self, tokens: array[int], text: str, rest: str = "") -> None:
        """A call has settled the branch: `tokens` are its tokens now, `text` was added, of which
        `rest` (the part after the last whole token) is to be tokenised anew with what follows.
        Where none was, what stood at the end stands there still, literal text too."""
        self.tokens = tokens
        self.pending, self.ends_literal = rest, self.ends_literal and not text
        self.quoted = joined((), (0, len(rest)))
        if text:
            self.text.append(text)
