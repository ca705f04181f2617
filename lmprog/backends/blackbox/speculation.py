"""Speculation on an API: keeps the text that one request generated past its stop string, and
answers later calls from it.

To an API, every request costs its whole prompt again. So the first call of a program is sent
without its stop strings, and for more tokens than it needs. If the program then appends exactly the
text that the model continued with, its next call is answered from the kept text. On a mismatch the
text is dropped, and the call becomes an ordinary request.

Correctness: a call gets what its own request would have returned, for a model that writes the same
text every time (at temperature 0; above it, the distribution of texts is the same, not the sample).
So a call is answered only if its end is certain: its stop string occurs in the text within
`max_tokens`, or the model itself stopped. Tokens are counted by the API's own offsets if it
returned them; else a token is assumed to be at least one byte long.

An `AnswerState` is what a branch on an API holds: its transcript, and this text. Knows strings and
sampling parameters; knows no requests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from lmprog import wire
from lmprog.backends.blackbox.stop_strings import first_stop
from lmprog.backends.blackbox.transcript import Kind, Transcript
from lmprog.backends.branch_text import BranchPiece, LeftBehind


@dataclass(frozen=True, slots=True)
class ReadyAnswer:
    """A call answered from speculated text: its text, its finish reason, and the remaining text."""

    text: str
    finish: wire.FinishReason
    stopped_by: str | None
    left: Speculated


@dataclass(frozen=True, slots=True)
class Speculated:
    """Text that the model would generate next."""

    rest: str
    alike: wire.SamplingParams
    """The sampling parameters it was generated with, without those that may differ between calls.
    """
    most_tokens: int
    """Upper bound on the number of tokens in `rest`."""
    has_ended: bool
    """Whether the model stopped by itself after `rest`."""
    ends: tuple[int, ...] | None = None
    """End offset of each token of `rest`, in characters; None if the API returned none."""

    @classmethod
    def of(cls, output: wire.Output, sampling: wire.SamplingParams, num_tokens: int) -> Speculated:
        """The result of a request with `sampling`; `num_tokens` is the API's count (0: unknown)."""
        most = num_tokens or sampling.max_tokens or 2**31 - 1
        texts = [token.text for token in output.logprobs]
        ends = _ends(texts) if texts and "".join(texts) == output.text else None
        return cls(output.text, alike(sampling), most, output.finish == "stop", ends)

    def after(self, text: str) -> Speculated | None:
        """What remains after the program has appended `text`; None if the model continued
        differently.
        """
        return self._from(len(text)) if self.rest.startswith(text) else None

    def answer(
        self, sampling: wire.SamplingParams, constraint: wire.Constraint | None
    ) -> ReadyAnswer | None:
        """The result of a call at this point; None if its end is not certain."""
        if (
            constraint is not None
            or not _allows_speculation(sampling)
            or alike(sampling) != self.alike
        ):
            return None
        stop = first_stop(self.rest, sampling.stop)
        if stop is not None:
            if not self._within(stop.end, sampling.max_tokens):
                return self._cut(sampling.max_tokens)
            return ReadyAnswer(
                self.rest[: stop.begin], "stop", stop.of(self.rest), self._from(stop.begin)
            )
        if self.has_ended and self._within(len(self.rest), sampling.max_tokens):
            return ReadyAnswer(self.rest, "stop", None, self._from(len(self.rest)))
        return self._cut(sampling.max_tokens)

    def _from(self, begin: int) -> Speculated:
        ends = None if self.ends is None else tuple(end - begin for end in self.ends if end > begin)
        return Speculated(self.rest[begin:], self.alike, self.most_tokens, self.has_ended, ends)

    def _within(self, length: int, max_tokens: int | None) -> bool:
        """Whether the first `length` characters are certainly at most `max_tokens` tokens."""
        if (
            max_tokens is None
            or self.most_tokens <= max_tokens
            or len(self.rest[:length].encode()) <= max_tokens
        ):
            return True
        return self.ends is not None and bisect_left(self.ends, length) + 1 <= max_tokens

    def _cut(self, max_tokens: int | None) -> ReadyAnswer | None:
        """The first `max_tokens` tokens, if their offsets are known."""
        if max_tokens is None or self.ends is None or len(self.ends) < max_tokens:
            return None
        end = self.ends[max_tokens - 1]
        return ReadyAnswer(self.rest[:end], "length", None, self._from(end))


def _ends(texts: Sequence[str]) -> tuple[int, ...]:
    ends: list[int] = []
    for text in texts:
        ends.append((ends[-1] if ends else 0) + len(text))
    return tuple(ends)


def alike(sampling: wire.SamplingParams) -> wire.SamplingParams:
    """The parameters that two calls must share for one to be answered from the other's text."""
    return msgspec.structs.replace(sampling, stop=(), max_tokens=None, seed=None, logprobs=None)


def _allows_speculation(sampling: wire.SamplingParams) -> bool:
    """Whether the parameters allow speculation. Penalties count from the beginning of a call, so
    with them the text depends on how it is divided into calls.
    """
    plain = sampling.n == 1 and sampling.logprobs is None and sampling.prompt_logprobs is None
    ends_by_text = (
        not sampling.min_tokens and not sampling.stop_token_ids and not sampling.stop_regex
    )
    penalties = (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty)
    return plain and ends_by_text and penalties == (0.0, 0.0, 1.0) and not sampling.ignore_eos


def may_speculate(sampling: wire.SamplingParams, constraint: wire.Constraint | None) -> bool:
    """Whether a call may request more than it needs: it has no constraint, and it ends at a stop
    string.
    """
    return constraint is None and _allows_speculation(sampling) and bool(sampling.stop)


def extended_sampling(
    sampling: wire.SamplingParams, num_tokens: int, begun: str = ""
) -> wire.SamplingParams:
    """The parameters to send in place of a call's: no stop strings, at least `num_tokens` tokens,
    and token texts if they are needed.

    `begun` is text that the model has to repeat before the part that is needed.
    """
    wanted = sampling.max_tokens
    most = None if wanted is None else max(wanted, num_tokens) + len(begun.encode())
    num_logprobs = 0 if wanted is not None and wanted < num_tokens else None
    return msgspec.structs.replace(sampling, stop=(), max_tokens=most, logprobs=num_logprobs)


@dataclass(frozen=True, slots=True)
class AnswerState:
    """The transcript of a branch and its speculated text. Immutable."""

    kind: Kind
    """The prompts that the model takes."""
    transcript: Transcript
    num_spec_tokens: int = 0
    """Tokens that a request may generate for later calls; 0 disables speculation."""
    speculated: Speculated | None = None
    has_missed: bool = False
    """Whether the open turn was speculated as a whole and the result did not match its beginning.
    """
    tools: wire.ToolOffer | None = None
    """The tools that the branch was last asked with."""

    @property
    def pieces(self) -> tuple[BranchPiece, ...]:
        return self.transcript.pieces

    def plus(self, pieces: Sequence[BranchPiece]) -> AnswerState:
        """A copy with `pieces` appended. Keeps the speculated text as far as it matches them."""
        left, has_missed = self.speculated, self.has_missed
        for piece in pieces:
            if isinstance(piece, wire.RoleBegin | wire.RoleEnd):
                left, has_missed = None, False
            elif isinstance(piece, wire.TextPiece | LeftBehind) and left is not None:
                left = left.after(piece.text)
        transcript = self.transcript.plus(pieces, self.kind)
        return replace(self, transcript=transcript, speculated=left, has_missed=has_missed)

    def after_fork(self) -> AnswerState:
        """What a forked branch and its other children hold. Sampled text is a single sample, so
        only the first child inherits it; at temperature 0 all of them do.
        """
        if self.speculated is None or self.speculated.alike.temperature == 0:
            return self
        return replace(self, speculated=None)

    def with_result(
        self, op: wire.Generate | wire.Select, reply: wire.CallReply, left: Speculated | None = None
    ) -> AnswerState:
        """Behind a call and its reply, after which `left` is known of the text to come. Where
        branches are text, a generation of no tokens leaves nothing behind.
        """
        tools = self.tools
        if isinstance(op, wire.Generate):
            if op.sampling.max_tokens == 0 and self.kind != "pieces":
                return self
            tools = op.tools or tools
        pieces = (*self.pieces, LeftBehind(op, reply))
        transcript = replace(self.transcript, pieces=pieces)
        return replace(self, transcript=transcript, speculated=left, tools=tools)
