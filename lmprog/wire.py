"""Every message between a client and a runtime: frozen, tagged, with declared ranges; how they become bytes and back.

A *frame* is one transport message: a msgpack list of these structs. A client's frame is a list of ops, so a whole
program, or its longest static stretch, is one frame; a runtime's frame is a list of replies. Branches and calls are
numbered by the client that uses them (numbers of two clients never meet) and a number is used once.

Rules of the protocol:

- The first message of a client is `Hello`; the runtime answers `Welcome`, or `Failed` with code `protocol`.
- Ops of one branch run in their order, those of different branches concurrently.
- Every call (`Gen`, `Select`, `Read`, `Describe`, `Flush`) gets exactly one last reply: `Done`, `Chosen`, `TextIs`,
  `Described` or `Failed`; `Delta`s come only before it. An op that is wrong but is no call (an `Append` of an unknown
  reference, say) spoils its branch: the branch's later calls fail with that cause.
- Frames that do not decode are counted and dropped by the receiver. Ranges declared here are checked while decoding;
  what depends on a model (vocabulary, context) is checked by the interpreter.

This module knows no sockets and no tokens beyond their being integers.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 32 * 1024 * 1024

Id: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
ShortText: TypeAlias = Annotated[str, Meta(max_length=256)]
Penalty: TypeAlias = Annotated[float, Meta(ge=-2.0, le=2.0)]
SelectMethod: TypeAlias = Literal[
    "token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"
]
Whitespace: TypeAlias = Literal["fixed", "compact", "indented", "flexible"]
FinishReason: TypeAlias = Literal["stop", "length", "constraint"]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all structs here; the tag is the class name."""


# --- constraints and sampling ------------------------------------------------------------------------------------


class Regex(Message, frozen=True):
    pattern: Annotated[str, Meta(max_length=65_536)]


class JsonSchema(Message, frozen=True):
    """`schema` is the JSON text of the schema, so that the order of its properties survives the way."""

    schema: Annotated[str, Meta(max_length=1_048_576)]
    whitespace: Whitespace = "fixed"
    any_order: bool = False


class Choices(Message, frozen=True):
    texts: Annotated[tuple[str, ...], Meta(min_length=1, max_length=65_536)]


class Grammar(Message, frozen=True):
    """A context-free grammar as text (Lark or GBNF)."""

    text: Annotated[str, Meta(max_length=1_048_576)]


Constraint: TypeAlias = Regex | JsonSchema | Choices | Grammar


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How tokens are chosen and when a generation ends. `None` for `max_tokens` means: up to the context's end."""

    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] = 1.0
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = 128
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    stop: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=16)] = ()
    stop_token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=64)] = ()
    stop_regex: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=4)] = ()
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=10.0)] = 1.0
    logit_bias: Annotated[
        tuple[tuple[TokenId, Annotated[float, Meta(ge=-100.0, le=100.0)]], ...], Meta(max_length=1024)
    ] = ()
    ignore_eos: bool = False
    logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] = 1


# --- pieces of text ----------------------------------------------------------------------------------------------


class Text(Message, frozen=True):
    text: str


class Ref(Message, frozen=True):
    """The text of an earlier call's result; `index` picks one of `n`. The branch waits until it is known."""

    call: Id
    index: Annotated[int, Meta(ge=0, le=127)] = 0


class Gained(Message, frozen=True):
    """All text that another branch gained since it was forked; waits until that branch has run its ops so far."""

    branch: Id


class RoleBegin(Message, frozen=True):
    """The opening of a chat turn, as the checkpoint's own template writes it."""

    role: ShortText


class RoleEnd(Message, frozen=True):
    role: ShortText


Piece: TypeAlias = Text | Ref | Gained | RoleBegin | RoleEnd


# --- ops: client to runtime --------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    version: int
    client: ShortText = ""


class Open(Message, frozen=True):
    """A new, empty branch. Branches of different `salt` never share a page."""

    branch: Id
    salt: ShortText = ""


class Append(Message, frozen=True):
    branch: Id
    pieces: tuple[Piece, ...]


class Gen(Message, frozen=True):
    """Generate on `branch`, which goes on from the first of the `n` results."""

    branch: Id
    call: Id
    sampling: Sampling = Sampling()
    constraint: Constraint | None = None
    stream: bool = False
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    timeout: Annotated[float, Meta(gt=0.0, le=86_400.0)] | None = None


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


class Read(Message, frozen=True):
    """Asks for the branch's text since its opening, once it has run its ops so far."""

    branch: Id
    call: Id


class Describe(Message, frozen=True):
    """Asks for the runtime's figures: what `stats` counts, and the state of tree, pages and queue."""

    call: Id


class Flush(Message, frozen=True):
    """Forgets every page that no live branch stands on."""

    call: Id


Op: TypeAlias = Hello | Open | Append | Gen | Select | Fork | Close | Cancel | Read | Describe | Flush


# --- replies: runtime to client ----------------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    version: int
    model: str
    context_len: int
    vocab_size: int
    page_size: int
    num_pages: int
    pid: int


class TokenLogprob(Message, frozen=True):
    """One position: the token that stands there, its log-probability, and the most likely ones instead."""

    token: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()


class Usage(Message, frozen=True):
    """The work of one call. `prompt` counts its prompt once; `cached` and `computed` are sums over its lanes (the `n`
    results of a gen, the options of a select), which share the prompt."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    forced: int = 0
    computed: int = 0
    preemptions: int = 0
    queued_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0


class Output(Message, frozen=True):
    text: str
    tokens: tuple[int, ...]
    finish: FinishReason
    stopped_by: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


class Delta(Message, frozen=True):
    """More text of a running generation. Joined in order, an output's deltas are its text."""

    call: Id
    index: int
    text: str
    num_tokens: int


class Done(Message, frozen=True):
    call: Id
    outputs: tuple[Output, ...]
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


class Choice(Message, frozen=True):
    """One option of a select: its score under the method, its probability among the options, its tokens' logprobs."""

    score: float
    probability: float
    logprobs: tuple[float, ...] = ()
    baseline: tuple[float, ...] = ()


class Chosen(Message, frozen=True):
    call: Id
    index: int
    options: tuple[Choice, ...]
    usage: Usage


class TextIs(Message, frozen=True):
    call: Id
    text: str
    num_tokens: int


class Described(Message, frozen=True):
    call: Id
    figures: dict[str, float]


class Failed(Message, frozen=True):
    """The last reply of a call that did not end well. `code` and `details` are those of `lmprog.errors`."""

    call: Id | None
    code: str
    message: str
    details: dict[str, str | int | float | bool | None] = {}


Reply: TypeAlias = Welcome | Delta | Done | Chosen | TextIs | Described | Failed


# --- bytes -------------------------------------------------------------------------------------------------------

MalformedFrame = msgspec.DecodeError
"""What `decode_*` raises: its subclass `ValidationError` for values out of range. Text that is no UTF-8 raises Python's
own UnicodeDecodeError, and absurd nesting RecursionError: a receiver of foreign bytes expects these too."""

_encoder = msgspec.msgpack.Encoder()
_ops = msgspec.msgpack.Decoder(tuple[Op, ...])
_replies = msgspec.msgpack.Decoder(tuple[Reply, ...])


def encode(messages: tuple[Op, ...] | tuple[Reply, ...]) -> bytes:
    """One frame."""
    return _encoder.encode(messages)


def decode_ops(frame: bytes | memoryview) -> tuple[Op, ...]:
    """Raises `MalformedFrame` on anything that is not a list of ops within their ranges."""
    return _ops.decode(frame)


def decode_replies(frame: bytes | memoryview) -> tuple[Reply, ...]:
    """Raises `MalformedFrame` on anything that is not a list of replies."""
    return _replies.decode(frame)
