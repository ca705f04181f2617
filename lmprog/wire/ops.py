"""What a client sends: ops, and pieces of text. See the package for the rules of their use."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, structs

from lmprog.wire.constraints import Constraint
from lmprog.wire.message import (
    MAX_PREFIX_KEYS,
    ContestRule,
    Id,
    Keep,
    Message,
    PrefixKey,
    SelectMethod,
    ShortText,
    TokenId,
)
from lmprog.wire.sampling_params import SamplingParams
from lmprog.wire.tool_calls import SentCall, ThoughtLimit, ToolOffer


class TextPiece(Message, frozen=True):
    """`quoted`: special tokens in it are plain text, as they always are inside a chat turn, and in
    results of other branches (`standing`). `calls`: those that an answer of this text made in a
    service's fields; for services only.
    """

    text: str
    quoted: bool = False
    calls: tuple[SentCall, ...] = ()


class TokensPiece(Message, frozen=True):
    """Token ids, taken as they are. Text before them is tokenised by itself; where there are none,
    that is all that happens, and an empty branch has what the checkpoint puts before every text.

    `rest`: text after them, tokenised with what follows; no special token is read in it. `heals`:
    they and the rest stand in place of the last token of the text before, and begin with its text.
    So a branch goes on exactly from an `Output` (`standing.own_pieces`).
    """

    ids: tuple[TokenId, ...]
    rest: str = ""
    heals: bool = False


class Ref(Message, frozen=True):
    """The text of an earlier call's result number `index`, as letters (`standing`). The branch
    waits until it is known.
    """

    call: Id
    index: Annotated[int, Meta(ge=0, le=127)] = 0


class Gained(Message, frozen=True):
    """All text that another branch gained since its fork; what was generated there, and what was
    said in turns, are letters here, and the rest is read as it was there. Waits until that branch
    has carried out its ops so far.
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

    `messages` and `tools` are JSON, in the shapes that templates know. `variables` is a JSON object
    of further names for the template. Turns opened later do not depend on these. Only the template
    writes special tokens: their names in messages, tools and variables are text.
    """

    messages: Annotated[str, Meta(max_length=33_554_432)]
    tools: Annotated[str, Meta(max_length=33_554_432)] = ""
    variables: Annotated[str, Meta(max_length=65_536)] = ""


Piece: TypeAlias = TextPiece | TokensPiece | Ref | Gained | RoleBegin | RoleEnd | Conversation


class Hello(Message, frozen=True):
    version: int
    client: ShortText = ""


class Open(Message, frozen=True):
    """A new, empty branch. Branches of different `salt` share no page, except of public prefixes
    (`SHARES_PUBLIC`). Where several runtimes serve, branches of one `session` run on the same one.
    The branches of one `account` together get `weight` shares of a runtime that is busy, whichever
    clients ask for them, as gateways do; without one those of a client are together. `lora` names
    the adapter that computes the branch; empty: the base alone.

    `turn`: the branch is one request of somebody whose next one comes on another branch; the text
    confirms which session it belongs to: one of that name, where it is not empty.

    `model`: the digest of the fingerprint of the model that the program began with (`Welcome`); a
    runtime with another one refuses. Empty: whichever model is there.

    `served_name`: where several models are served, the one that is meant; empty: the first. A
    runtime that is called otherwise refuses.
    """

    branch: Id
    salt: ShortText = ""
    session: ShortText = ""
    weight: Annotated[float, Meta(ge=0.001, le=1000.0)] = 1.0
    lora: ShortText = ""
    account: ShortText = ""
    turn: ShortText | None = None
    model: ShortText = ""
    served_name: ShortText = ""

    def named(self, served_name: str) -> Open:
        """The same on the model of that name."""
        return structs.replace(self, served_name=served_name)


class Append(Message, frozen=True):
    """`early`: more of it comes later, and meanwhile it may be computed, up to `UNSAID` where that
    is in it, as far as nobody else has anything to compute.
    """

    branch: Id
    pieces: tuple[Piece, ...]
    early: bool = False


class Judge(Message, frozen=True):
    """A question about each result of a gen: how likely, after it and `text`, is the first of
    `choices` among them?
    """

    text: Annotated[str, Meta(max_length=65_536)]
    choices: Annotated[tuple[str, ...], Meta(min_length=2, max_length=16)] = (" yes", " no")


class Generate(Message, frozen=True):
    """Generate on `branch`, which goes on from the first of the `n` results.

    `heal`: the last token of literal text is sampled again, together with what follows.

    With `keep` the branch goes on from another result: the "best" (by mean log-probability), the
    "fastest" (the first to end), the earliest of the "majority" (of equal texts). Results that
    cannot win any more are ended at once. The winner is the first output, the other complete ones
    follow in their order; a reference to it has index 0, and its text is streamed when it is known.
    With a `judge` the best is the one that the judge scores highest; the judge's question does not
    stay in the branch. `tools` are for services only. `thought`: how long it may think.
    `expected`: about so many tokens each result will have, as whoever asks guesses. `with_ends`:
    whether its outputs say where in the text each token ends.
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
    tools: ToolOffer | None = None
    thought: ThoughtLimit | None = None
    expected: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    with_ends: bool = False


class Select(Message, frozen=True):
    """Scores all `choices` as continuations of `branch` and appends the winner."""

    branch: Id
    call: Id
    choices: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1024)]
    method: SelectMethod = "token_length_normalized"
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] = 0.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    timeout: Annotated[float, Meta(gt=0.0, le=86_400.0)] | None = None


class Fork(Message, frozen=True):
    """`children` start as copies of `branch` after its ops so far. With `lora` another adapter
    computes them, their text so far included; empty: the base alone.
    """

    branch: Id
    children: Annotated[tuple[Id, ...], Meta(min_length=1, max_length=4096)]
    lora: ShortText | None = None


class Close(Message, frozen=True):
    """The branch is not needed any more; its calls still waiting or running are cancelled.

    What it has computed stays in the cache until memory is needed; with `forget` what only it stood
    on, back to where it was forked, is given up at once. What `next` begins with, up to `UNSAID`,
    is computed where nobody else needs the runtime, at the branch's expense.
    """

    branch: Id
    forget: bool = False
    next: Conversation | None = None


UNSAID = "QZUNSAIDZQ"
"""In a conversation: stands for what nobody has said yet."""


class Cancel(Message, frozen=True):
    call: Id


class Suspend(Message, frozen=True):
    """The reader of a generation does not take what there is: it makes no tokens until it may go on
    (`is_on` is false). What it has computed stays while nobody needs the memory.
    """

    call: Id
    is_on: bool = True


class Contest(Message, frozen=True):
    """One of these calls is wanted: the "first" that succeeds, or the "majority" of equal texts.

    The others are cancelled as soon as it is known, and their branches give up their memory. A call
    may be in one contest.
    """

    calls: Annotated[tuple[Id, ...], Meta(min_length=1, max_length=4096)]
    rule: ContestRule = "first"


class Read(Message, frozen=True):
    """Reads the branch's text since its opening, after its ops so far; `with_tokens`: its tokens
    too, where a runtime has them.
    """

    branch: Id
    call: Id
    with_tokens: bool = False


class Encode(Message, frozen=True):
    """Tokenises a text; `prefix`: with what the checkpoint puts before every text. `served_name`,
    `account`: as of `Open`.
    """

    call: Id
    text: str
    prefix: bool = True
    served_name: ShortText = ""
    account: ShortText = ""


class Decode(Message, frozen=True):
    """Decodes tokens; `special`: special tokens by their names, which otherwise have no text.
    `served_name`, `account`: as of `Open`.
    """

    call: Id
    tokens: tuple[TokenId, ...]
    special: bool = False
    served_name: ShortText = ""
    account: ShortText = ""


class Describe(Message, frozen=True):
    """Reads the runtime's figures: its counters, and the state of tree, pages and queue."""

    call: Id


class Inspect(Message, frozen=True):
    """Takes a snapshot of the runtime: the tree's largest nodes, running and waiting sequences.
    Does not count as a use of the tree.

    `with_text`: with the first words of each node, for clients that may read every prompt.
    """

    call: Id
    max_nodes: Annotated[int, Meta(ge=0, le=2000)] = 500
    with_text: bool = False
    below: Annotated[int, Meta(ge=0)] = 0
    """Only the node of this number and those below it; 0: the whole tree."""
    text_tokens: Annotated[int, Meta(ge=1, le=4096)] = 16
    """At most so many tokens of each text, and of all texts together no more than the runtime
    decodes in one step without holding up others."""
    texts_of: Annotated[tuple[Id, ...], Meta(max_length=64)] = ()
    """Calls of the asking client: their sequences come with the ends of their texts."""


class Flush(Message, frozen=True):
    """Evicts every page that is neither locked nor pinned, and drops the cached constraints."""

    call: Id


class SharePrefix(Message, frozen=True):
    """A program was sent here, of whose text these are the blocks' keys (`fleet.prefix_memory`).
    The runtime makes nothing of it: it tells its other clients that await it.
    """

    keys: Annotated[tuple[PrefixKey, ...], Meta(min_length=1, max_length=MAX_PREFIX_KEYS)]


class AwaitPrefixes(Message, frozen=True):
    """What other clients have shared since this one asked last; answered when there is any."""

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
    | Suspend
    | Contest
    | Read
    | Encode
    | Decode
    | Describe
    | Inspect
    | Flush
    | SharePrefix
    | AwaitPrefixes
)
