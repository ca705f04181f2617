"""What a client sends: pieces of text, and the ops of branches. See the package for the rules of
their use.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from lmprog.wire.generation_fields import Constraint, SamplingParams
from lmprog.wire.message import ContestRule, Id, Keep, Message, SelectMethod, ShortText, TokenId


class TextPiece(Message, frozen=True):
    """`quoted`: names of special tokens in it are text, as they always are inside of a chat
    turn.
    """

    text: str
    quoted: bool = False


class TokensPiece(Message, frozen=True):
    """Token ids, taken as they are: nothing is put before them. What text stands before them is
    tokenised by itself.
    """

    ids: tuple[TokenId, ...]


class Ref(Message, frozen=True):
    """The text of an earlier call's result; `index` picks one of `n`. The branch waits until it is
    known.
    """

    call: Id
    index: Annotated[int, Meta(ge=0, le=127)] = 0


class Gained(Message, frozen=True):
    """All text that another branch gained since it was forked; waits until that branch has run its
    ops so far.
    """

    branch: Id


class RoleBegin(Message, frozen=True):
    """The opening of a chat turn, as the checkpoint's own template writes it."""

    role: ShortText


class RoleEnd(Message, frozen=True):
    role: ShortText


class Conversation(Message, frozen=True):
    """A whole conversation as the checkpoint's own template writes it, up to where the assistant
    begins.

    `messages` and `tools` are JSON, in the shapes that templates know. A template whose source does
    not have `mark` writes `plain` instead, without tools. Turns that are opened after it know
    nothing of its turns. Special tokens are the template's alone: names of them in messages and
    tools are text.
    """

    messages: Annotated[str, Meta(max_length=33_554_432)]
    tools: Annotated[str, Meta(max_length=33_554_432)] = ""
    plain: Annotated[str, Meta(max_length=33_554_432)] = ""
    mark: ShortText = ""


Piece: TypeAlias = TextPiece | TokensPiece | Ref | Gained | RoleBegin | RoleEnd | Conversation


class Hello(Message, frozen=True):
    version: int
    client: ShortText = ""


class Open(Message, frozen=True):
    """A new, empty branch. Branches of different `salt` share no page, but for public prefixes
    (`SHARES_PUBLIC`).
    """

    branch: Id
    salt: ShortText = ""


class Append(Message, frozen=True):
    branch: Id
    pieces: tuple[Piece, ...]


class Judge(Message, frozen=True):
    """Asked about each result of a gen: how likely, after it and `text`, is the first of `choices`
    among them?
    """

    text: Annotated[str, Meta(max_length=65_536)]
    choices: Annotated[tuple[str, ...], Meta(min_length=2, max_length=16)] = (" yes", " no")


class Generate(Message, frozen=True):
    """Generate on `branch`, which goes on from the first of the `n` results.

    `heal`: the last token of literal text is decided once more, by the model.

    With `keep` the branch goes on from another one: the "best" (by mean log-probability), the
    "fastest" (whose end comes first), the earliest of the "majority" (of equal texts). Those that
    cannot be it any more are ended at once. That one is the first output then, the others that
    ended follow in their order; a reference has index 0, and text is streamed when it is known
    which it is. With a `judge` the best is the one that it finds best; nothing that it reads or
    says stays in the branch.
    """

    branch: Id
    call: Id
    sampling: SamplingParams = SamplingParams()
    constraint: Constraint | None = None
    stream: bool = False
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    timeout: Annotated[float, Meta(gt=0.0, le=86_400.0)] | None = None
    heal: bool = False
    keep: Keep = "first"
    judge: Judge | None = None


class Select(Message, frozen=True):
    """Score all `choices` as continuations of `branch`, append the winner."""

    branch: Id
    call: Id
    choices: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1024)]
    method: SelectMethod = "token_length_normalized"
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] = 0.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    timeout: Annotated[float, Meta(gt=0.0, le=86_400.0)] | None = None


class Fork(Message, frozen=True):
    """`children` start where `branch` stands when it has run its ops so far."""

    branch: Id
    children: Annotated[tuple[Id, ...], Meta(min_length=1, max_length=4096)]


class Close(Message, frozen=True):
    """The branch is not needed any more; its calls still waiting or running are cancelled."""

    branch: Id


class Cancel(Message, frozen=True):
    call: Id


class Contest(Message, frozen=True):
    """Of these calls (not yet referred to by another contest) one is wanted: the "first" that ends
    well, or the "majority" of equal texts. The others are cancelled as soon as it is known, and
    their branches let go of memory."""

    calls: Annotated[tuple[Id, ...], Meta(min_length=1, max_length=4096)]
    rule: ContestRule = "first"


class Read(Message, frozen=True):
    """Asks for the branch's text since its opening, once it has run its ops so far."""

    branch: Id
    call: Id


class Encode(Message, frozen=True):
    """Asks for the tokens of a text; `prefix`: with what the checkpoint puts before every text."""

    call: Id
    text: str
    prefix: bool = True


class Decode(Message, frozen=True):
    """Asks for the text of tokens; special ones have none unless `special` asks for their names."""

    call: Id
    tokens: tuple[TokenId, ...]
    special: bool = False


class Describe(Message, frozen=True):
    """Asks for the runtime's figures: what `stats` counts, and the state of tree, pages and
    queue.
    """

    call: Id


class Inspect(Message, frozen=True):
    """Asks for a picture of the runtime now: the tree's largest nodes, who runs, who waits. It
    counts as no use.

    `with_text` asks for the first words of each node: only for those who may read every prompt.
    """

    call: Id
    max_nodes: Annotated[int, Meta(ge=0, le=2000)] = 500
    with_text: bool = False


class Flush(Message, frozen=True):
    """Drops every page that no live branch stands on, and the cached constraints."""

    call: Id


Op: TypeAlias = (
    Hello
    | Open
    | Append
    | Generate
    | Select
    | Fork
    | Close
    | Cancel
    | Contest
    | Read
    | Encode
    | Decode
    | Describe
    | Inspect
    | Flush
)
