"""What a run really asked for, token by token, and the least that any runtime must compute for it.

`Tap` stands between a client and its channel and keeps every op and reply. `account` replays them:
it builds every branch's tokens from the ops, by the rules of the wire, and counts distinct
prefixes. The runtime's own counters are not used; its `Usage.prompt` is only compared with our
count, so that a wrong replay is noticed.

Knows the wire and a tokenizer; knows no workload. Not for chat roles, stop strings or failed calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from lmprog import wire
from lmprog.runtime.text.tokenizer import ByteTokenizer, HfTokenizer
from lmprog.transport import GreetedChannel


class Tap:
    """A client channel that remembers what went through it.

    It asks for no healing at seams: the account and the peers tokenise each prompt once, as it
    stands.
    """

    def __init__(self, channel: GreetedChannel) -> None:
        self.info = channel.info
        self._channel = channel
        self.ops: list[wire.Op] = []
        self.replies: list[wire.Reply] = []

    def send(self, ops: Sequence[wire.Op]) -> None:
        unhealed = [
            msgspec.structs.replace(op, heal=False) if isinstance(op, wire.Generate) else op
            for op in ops
        ]
        self.ops += unhealed
        self._channel.send(unhealed)

    def receive(self, timeout: float) -> list[wire.Reply]:
        replies = self._channel.receive(timeout)
        self.replies += replies
        return replies

    def close(self) -> None:
        self._channel.close()


@dataclass(frozen=True, slots=True)
class Account:
    """Sums over all calls. With no sharing at all, `prompt + decoded` tokens would be computed."""

    calls: int
    prompt: int
    """Prompt tokens, each call's counted whole; an option of a select counts as a prompt of its
    own.
    """
    decoded: int
    """Generated tokens that must be computed: all but the last of each generation."""
    unique: int
    """Distinct prefixes of what must be computed: the lower bound of any runtime."""
    longest: int


def account(
    ops: Sequence[wire.Op], replies: Sequence[wire.Reply], tokenizer: HfTokenizer | ByteTokenizer
) -> Account:
    """The account of a run that went well and is over."""
    replay = _Replay(
        {reply.call: reply for reply in replies if isinstance(reply, wire.CallDone | wire.Chosen)},
        tokenizer,
    )
    for op in ops:
        replay.take(op)
    return Account(
        calls=replay.calls,
        prompt=replay.prompt,
        decoded=replay.decoded,
        unique=len(replay.prefixes),
        longest=replay.longest,
    )


@dataclass(slots=True)
class _Branch:
    tokens: list[int] = field(default_factory=list)
    pending: str = ""
    text: str = ""
    forked_at: int = 0


class _Replay:
    """Goes through the ops in the order in which they were sent; all results are known
    beforehand.
    """

    def __init__(
        self, last: dict[int, wire.CallDone | wire.Chosen], tokenizer: HfTokenizer | ByteTokenizer
    ) -> None:
        self._last = last
        self._tokenizer = tokenizer
        self._branches: dict[int, _Branch] = {}
        self._texts: dict[int, list[str]] = {}
        self.prefixes: dict[tuple[int, int], int] = {}
        """(prefix number, next token) -> prefix number: a trie without nodes."""
        self.calls = self.prompt = self.decoded = self.longest = 0

    def take(self, op: wire.Op) -> None:
        match op:
            case wire.Open(branch=number):
                self._branches[number] = _Branch()
            case wire.Append(branch=number, pieces=pieces):
                for text in self._spelled(pieces):
                    self._branches[number].pending += text
                    self._branches[number].text += text
            case wire.Fork(branch=number, children=children):
                parent = self._branches[number]
                for child in children:
                    self._branches[child] = _Branch(
                        parent.tokens[:], parent.pending, parent.text, len(parent.text)
                    )
            case wire.Generate():
                self._generated(self._branches[op.branch], op)
            case wire.Select():
                self._selected(self._branches[op.branch], op)
            case _:
                pass

    def _spelled(self, pieces: Sequence[wire.Piece]) -> Iterator[str]:
        for piece in pieces:
            match piece:
                case wire.TextPiece(text=text):
                    yield text
                case wire.Ref(call=call, index=index):
                    yield self._texts[call][index]
                case wire.Gained(branch=number):
                    yield self._branches[number].text[self._branches[number].forked_at :]
                case _:
                    raise NotImplementedError(f"no account of {piece}")

    def _tokens(self, branch: _Branch, more: str = "") -> list[int]:
        text = branch.pending + more
        encoded = self._tokenizer.encode(text, start=not branch.tokens) if text else []
        prefix = self._tokenizer.prefix
        if not branch.tokens and tuple(encoded[: len(prefix)]) != prefix:
            return [*prefix, *encoded]
        return branch.tokens + encoded

    def _generated(self, branch: _Branch, op: wire.Generate) -> None:
        done = self._last[op.call]
        assert isinstance(done, wire.CallDone), "a generation ends with Done"
        prompt = self._tokens(branch)
        if len(prompt) != done.usage.prompt:
            raise ValueError(
                f"call {op.call}: the runtime saw {done.usage.prompt} prompt tokens, we "
                f"{len(prompt)}"
            )
        self.calls += 1
        for output in done.outputs:
            self.prompt += len(prompt)
            self.decoded += len(output.tokens) - 1
            self._add(prompt + list(output.tokens[:-1]))
        branch.tokens, branch.pending = prompt + list(done.outputs[0].tokens), ""
        branch.text += done.outputs[0].text
        self._texts[op.call] = [output.text for output in done.outputs]

    def _selected(self, branch: _Branch, op: wire.Select) -> None:
        chosen = self._last[op.call]
        assert isinstance(chosen, wire.Chosen), "a select ends with Chosen"
        self.calls += 1
        for option in op.choices:
            tokens = self._tokens(branch, option)
            self.prompt += len(tokens) - 1
            self._add(tokens[:-1])
        text = op.choices[chosen.index]
        branch.tokens, branch.pending = self._tokens(branch, text), ""
        branch.text += text
        self._texts[op.call] = [text]

    def _add(self, tokens: list[int]) -> None:
        """Counts the prefixes of `tokens` that were not there yet."""
        at = 0
        for token in tokens:
            at = self.prefixes.setdefault((at, token), len(self.prefixes) + 1)
        self.longest = max(self.longest, len(tokens) + 1)
