"""What a runtime answers: exactly one last reply per call; `Delta`s come only before it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import Literal, TypeAlias

import msgspec

from lmprog.wire.message import FinishReason, Id, Message
from lmprog.wire.sampling_params import SuggestedSampling
from lmprog.wire.tool_calls import SentCall, ToolSupport


class Fingerprint(Message, frozen=True):
    """What decides the tokens that a runtime gives, in parts that have names; its adapters are
    beside it in `Welcome`. A program goes on with another runtime only where all parts are the
    same. Empty for doubles and services, which have no model of their own.
    """

    weights: str = ""
    """A digest of the files with weights: of their content, not of their names."""
    config: str = ""
    """A digest of what config.json says besides positions."""
    rope: str = ""
    """The same, of rotary positions."""
    tokenizer: str = ""
    """A digest of vocabulary, special tokens and ends."""
    template: str = ""
    """A digest of the chat template and of the tokens that it writes; empty where there is none."""
    context: int = 0
    """Tokens, before memory bounds them."""
    engine: str = ""
    """The engine that computes (native, torch or a device) and the version of its sampler, as in
    native/1. Processors with other instruction sets count as the same.
    """
    weight_type: str = ""
    """The number format in which weights are kept: int4, bfloat16 ..."""
    kv_type: str = ""
    """As keys and values are kept."""

    @property
    def parts(self) -> dict[str, str | int]:
        """By their names."""
        return msgspec.structs.asdict(self)

    @property
    def documents(self) -> dict[str, str]:
        """The parts that are the same wherever and in whatever types the model is computed; none
        where there is no model.
        """
        names = ("weights", "config", "rope", "tokenizer", "template")
        return {name: getattr(self, name) for name in names} if self.weights else {}


class Welcome(Message, frozen=True, dict=True, gc=True):  # `dict` keeps the digest
    version: int
    model: str
    context_len: int
    vocab_size: int
    page_size: int
    num_pages: int
    pid: int
    suggested: SuggestedSampling = SuggestedSampling()
    tools: ToolSupport = ToolSupport()
    infill: tuple[str, ...] = ()
    """The texts that a model which fills gaps expects before the beginning, between beginning and
    end, and after the end; empty for other models."""
    adapters: dict[str, str] = msgspec.field(default_factory=dict)
    """The LoRA adapters that branches may name, each with a digest of its content."""
    fingerprint: Fingerprint = Fingerprint()
    template_variables: tuple[str, ...] = ()
    """The names that its chat template uses besides the conversation (`enable_thinking`, say)."""
    generation: int = 0
    """As its operator numbers updates of the model: a fleet goes over to a later one, and refuses
    another model of its own."""
    served_name: str = ""
    """What its operator calls the model: a fleet may have several of different names, and each is
    one model."""

    @property
    def parts(self) -> dict[str, str | int]:
        """The fingerprint with its adapters, by the names of its parts."""
        adapters = {f"adapter {name}": one for name, one in sorted(self.adapters.items())}
        return self.fingerprint.parts | adapters

    @cached_property
    def digest(self) -> str:
        """All parts as one text, which every request of a server asks for; "" where there is no
        model.
        """
        if not self.fingerprint.weights:
            return ""
        said = msgspec.json.encode(self.parts, order="sorted")
        return hashlib.blake2b(said, digest_size=16).hexdigest()

    def difference(self, other: Welcome) -> str:
        """Which parts of the fingerprint are others than in `other`, in words; "" where all are
        the same.
        """
        own, others = self.parts, other.parts
        return ", ".join(
            f"{name.replace('_', ' ')} ({_shown(own.get(name))} instead of "
            f"{_shown(others.get(name))})"
            for name in (own | others)
            if own.get(name) != others.get(name)
        )


def _shown(part: str | int | None) -> str:
    """The beginning of a digest is enough for people."""
    return str(part)[:12] if part else "none"


class TokenLogprob(Message, frozen=True):
    """One position: its token, the token's log-probability, and the most likely alternatives."""

    token: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()


class Usage(Message, frozen=True):
    """The work of one call.

    `prompt`: tokens of its prompt, counted once for all its sequences (the `n` results of a gen,
    the options of a select). `cached`: those at the beginning of the prompt whose keys and values
    were found in the cache, so at most `prompt`. `computed`: tokens of all its sequences that went
    through the model.

    `cached + computed` is what the call needed: the tokens before the first one whose logits it
    used, once for all its sequences, and from there on every token of each sequence but its last.
    For a gen that is `prompt - 1 + generated`. It is more where a sequence was preempted, or where
    several sequences computed chunks of one prompt side by side.

    `drafted`: tokens that were guessed and tried as further tokens of a step. `accepted`: those of
    them that were sampled; each saved a step. The others are not among `computed`.

    `recomputed`: those among `computed` that had been computed before, for this call or for its
    branch, and were evicted since.
    """

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    forced: int = 0
    computed: int = 0
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    recomputed: int = 0
    queued_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0


class Output(Message, frozen=True):
    text: str
    tokens: tuple[int, ...]
    finish: FinishReason
    stopped_by: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    forced: tuple[tuple[int, int], ...] = ()
    """Spans (begin, end) of the text's characters that a constraint forced."""
    seam: str = ""
    """The end of the literal text before, where the first token repeats it (healing)."""
    rest: str = ""
    """The end of the text where a stop cut a token: no token of `tokens` spells it. Where it cut
    the first one, with the seam.
    """
    score: float | None = None
    """Of a beam search: what its texts were compared by."""
    healed: tuple[int, ...] | None = None
    """The tokens before `tokens` that stand in place of the last one of the literal text before;
    None where that is still there.
    """
    tags: tuple[int, ...] = ()
    """Where in the text the special tokens begin that are part of it (`ToolSupport.tags`)."""
    calls: tuple[SentCall, ...] = ()
    """The calls that a service sent in fields. `text` is what it sent as content, which is never
    a call, whatever stands in it. A runtime's calls are text.
    """
    ends: tuple[int, ...] = ()
    """Where it was asked for: the whole characters of the text up to the end of each token that was
    generated, those of a stop included.
    """


class Delta(Message, frozen=True):
    """More text of a running generation. Joined in order, an output's deltas are its text, and
    their `logprobs`, where requested, those of its tokens: each comes when its token is wholly
    inside the text given.
    """

    call: Id
    index: int
    text: str
    num_tokens: int
    """Of this text, and those before it that had none of their own."""
    logprobs: tuple[TokenLogprob, ...] = ()
    tags: tuple[int, ...] = ()
    """As in `Output`, counted from the beginning of this text."""


def joined_deltas(run: Sequence[Delta]) -> Delta:
    """Deltas of one output, each right behind the one before, as one."""
    first = run[0]
    if len(run) == 1:
        return first
    text = "".join([delta.text for delta in run])
    begins = accumulate([len(delta.text) for delta in run[:-1]], initial=0)
    tags = tuple([begin + at for begin, one in zip(begins, run, strict=True) for at in one.tags])
    num_tokens = sum([delta.num_tokens for delta in run])
    logprobs = tuple(chain.from_iterable([delta.logprobs for delta in run]))
    return Delta(first.call, first.index, text, num_tokens, logprobs, tags)


class CallDone(Message, frozen=True):
    """`left_out`: what of its schema the constraint does not write, where the schema is not
    `strict`; one reason each.
    """

    call: Id
    outputs: tuple[Output, ...]
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    next_logprobs: tuple[tuple[int, str, float], ...] = ()
    """Where nothing was to be generated and log-probabilities were asked for: the likeliest tokens
    after the prompt, the best first."""
    left_out: tuple[str, ...] = ()


class ScoredChoice(Message, frozen=True):
    """One option of a select: its score under the method, its probability among the options, and
    its tokens' log-probabilities, with and without the text before it.
    """

    score: float
    probability: float
    logprobs: tuple[float, ...] = ()
    baseline: tuple[float, ...] = ()
    tokens: tuple[tuple[int, str], ...] = ()
    """The id and the text of each token that has a log-probability; empty where they are not
    known."""


class Chosen(Message, frozen=True):
    call: Id
    index: int
    options: tuple[ScoredChoice, ...]
    usage: Usage


class TextIs(Message, frozen=True):
    call: Id
    text: str
    num_tokens: int
    tokens: tuple[int, ...] = ()
    """Where they were asked for."""


class TokensAre(Message, frozen=True):
    call: Id
    tokens: tuple[int, ...]


class Described(Message, frozen=True):
    """`accounts`: by name what each has cost and how long its calls have waited, in seconds; those
    of clients that named none together are "".
    """

    call: Id
    figures: dict[str, float]
    accounts: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)


class NodeSeen(Message, frozen=True):
    """A node of the prefix tree. `parent` is its parent's index in the list; -1 below a root."""

    number: int
    """Stable while the tree changes; later siblings have higher ones."""
    parent: int
    begin: int
    """Position of its first token."""
    num_tokens: int
    num_pages: int
    age: float
    """Seconds since its last use; 0 while it is locked."""
    locks: int
    """Running sequences at it or below it."""
    pins: int
    """Open branches pinned to it or below it."""
    children_left_out: int
    salt: str
    """A keyed hash of its salt; empty for no salt."""
    text: str = ""
    """Its first words, where requested."""


class SequenceSeen(Message, frozen=True):
    """One token sequence that runs or waits: one of the `n` results of a gen, or of those that
    score a select.
    """

    program: int
    branch: int
    call: int
    index: int
    kind: Literal["gen", "select"]
    phase: Literal["prefill", "decode", "waiting"]
    prompt: int
    num_tokens: int
    """Known so far, prompt and result."""
    computed: int
    """Of those, tokens with keys and values; while it waits, those found in the tree."""
    cached: int
    """Of the whole call."""
    generated: int
    forced: int
    max_tokens: int
    """0 for a select."""
    passes: int
    """Steps of the runtime since its arrival."""
    age: float
    """Seconds since its arrival."""
    priority: int
    preemptions: int
    node: int
    """Index of its node in the snapshot, or of the nearest ancestor shown; -1 for none."""
    is_own: bool = False
    """It is the asking client's."""
    text: str = ""
    """The end of its text, prompt and result, where requested."""
    prompt_chars: int = 0
    """How much of `text` is the end of the prompt."""


class SessionSeen(Message, frozen=True):
    """A program that is between two of its calls and expected back, or a harness's session that is
    between two of its requests."""

    program: int
    account: str
    """On which its work is; empty: its connection's own."""
    is_own: bool
    """It is of the asking client's connection, without an account."""
    turn: int
    """Requests that went on from one another; 0: a program, whose calls are not turns."""
    in_tool: bool
    """Its last answer called a tool."""
    tool: str
    """Which one, where texts are requested."""
    waited: float
    """Seconds since its last call ended."""
    expected: float
    """Seconds until it is expected back; below 0 it is late."""
    branches: int
    """That it may go on from."""
    tokens: int
    """Of the longest of these ..."""
    in_memory: int
    """... so many from its beginning are in memory ..."""
    stored: int
    """... and so many in the second tier."""


class Snapshot(Message, frozen=True):
    """The runtime between two steps. `figures` are those of `Described`; times on its own clock."""

    call: Id
    clock: float
    figures: dict[str, float]
    nodes: tuple[NodeSeen, ...]
    nodes_left_out: int
    pages_left_out: int
    running: tuple[SequenceSeen, ...]
    running_left_out: int
    waiting: tuple[SequenceSeen, ...]
    waiting_left_out: int
    sessions: tuple[SessionSeen, ...] = ()
    """Of each account the longest waiting ones."""
    sessions_left_out: int = 0


class PrefixesAre(Message, frozen=True):
    """The keys of programs that other clients have sent, in their order (`SharePrefix`)."""

    call: Id
    programs: tuple[tuple[int, ...], ...]


class Failed(Message, frozen=True):
    """The last reply of a call that failed. `code` and `details` are those of `lmprog.errors`.

    Without `call` it concerns the whole connection.
    """

    call: Id | None
    code: str
    message: str
    details: dict[str, str | int | float | bool | None] = msgspec.field(default_factory=dict)


CallReply: TypeAlias = CallDone | Chosen
"""The last reply of a generation or a selection that did not fail."""
Reply: TypeAlias = (
    Welcome
    | Delta
    | CallDone
    | Chosen
    | TextIs
    | TokensAre
    | Described
    | Snapshot
    | PrefixesAre
    | Failed
)


def count_logprobs(reply: Reply) -> int:
    """Log-probabilities in a reply: of each token, and of the likely tokens in its place."""
    match reply:
        case CallDone():
            total = _logprobs_of(reply.prompt_logprobs)
            for output in reply.outputs:
                if output.logprobs:
                    total += _logprobs_of(output.logprobs)
            return total
        case Chosen():
            return sum(len(option.logprobs) for option in reply.options)
        case Delta():
            return _logprobs_of(reply.logprobs)
    return 0


def _logprobs_of(rows: Sequence[TokenLogprob]) -> int:
    """Every row has as many likely tokens as the last."""
    return len(rows) * (1 + len(rows[-1].top)) if rows else 0
