"""Speculation on an API: what one request has said beyond its stop, and the later calls that are
answered from it.

The idea: to an API every request costs its whole prompt again. So the first call of a program is
asked without its stop strings, for more tokens than it wants. When the program then appends exactly
what the model went on with, its next call is answered from there. What does not fit is dropped, and
the call is a request like any other.

The rule is that a call gets what its own request would have got from a model that writes the same
text however often it is asked (at temperature 0; above, the texts have the same distribution, not
the same draw). So a call is answered only where its end is certain: its stop is in the text, within
its `max_tokens`, or the model itself has ended. Tokens are counted by the API's own where it told
them, else no text is taken to be shorter than one byte a token. This module knows strings and
sampling; it knows no requests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from lmprog import wire
from lmprog.backends.blackbox.stop_strings import first_stop


@dataclass(frozen=True, slots=True)
class Foretold:
    """A call answered: its text, why it ended, and what is left for later ones."""

    text: str
    finish: wire.FinishReason
    stopped_by: str | None
    left: Speculated


@dataclass(frozen=True, slots=True)
class Speculated:
    """Text that the model would write next, if it was asked."""

    rest: str
    alike: wire.SamplingParams
    """How it was sampled, without what may differ between calls."""
    most_tokens: int
    """`rest` has no more tokens than these."""
    has_ended: bool
    """Whether the model ended after `rest` by itself."""
    ends: tuple[int, ...] | None = None
    """Where each token of `rest` ends, in characters; None where the API did not tell."""

    @classmethod
    def of(cls, output: wire.Output, sampling: wire.SamplingParams, num_tokens: int) -> Speculated:
        """What a request for `sampling` said; the API counted `num_tokens` (0: it did not say)."""
        most = num_tokens or sampling.max_tokens or 2**31 - 1
        texts = [token.text for token in output.logprobs]
        ends = _ends(texts) if texts and "".join(texts) == output.text else None
        return cls(output.text, alike(sampling), most, output.finish == "stop", ends)

    def after(self, text: str) -> Speculated | None:
        """What is left once the program has appended `text`; None where the model had gone on
        otherwise.
        """
        return self._from(len(text)) if self.rest.startswith(text) else None

    def answer(
        self, sampling: wire.SamplingParams, constraint: wire.Constraint | None
    ) -> Foretold | None:
        """The result of a call here; None where it is not certain."""
        if (
            constraint is not None
            or not _may_be_foretold(sampling)
            or alike(sampling) != self.alike
        ):
            return None
        stop = first_stop(self.rest, sampling.stop)
        if stop is not None:
            if not self._within(stop.end, sampling.max_tokens):
                return self._cut(sampling.max_tokens)
            return Foretold(
                self.rest[: stop.begin], "stop", stop.of(self.rest), self._from(stop.begin)
            )
        if self.has_ended and self._within(len(self.rest), sampling.max_tokens):
            return Foretold(self.rest, "stop", None, self._from(len(self.rest)))
        return self._cut(sampling.max_tokens)

    def _from(self, begin: int) -> Speculated:
        ends = None if self.ends is None else tuple(end - begin for end in self.ends if end > begin)
        return Speculated(self.rest[begin:], self.alike, self.most_tokens, self.has_ended, ends)

    def _within(self, length: int, max_tokens: int | None) -> bool:
        """Whether the first `length` characters are certainly no more than `max_tokens` tokens."""
        if (
            max_tokens is None
            or self.most_tokens <= max_tokens
            or len(self.rest[:length].encode()) <= max_tokens
        ):
            return True
        return self.ends is not None and bisect_left(self.ends, length) + 1 <= max_tokens

    def _cut(self, max_tokens: int | None) -> Foretold | None:
        """The first `max_tokens` tokens, where it is known which these are."""
        if max_tokens is None or self.ends is None or len(self.ends) < max_tokens:
            return None
        end = self.ends[max_tokens - 1]
        return Foretold(self.rest[:end], "length", None, self._from(end))


def _ends(texts: Sequence[str]) -> tuple[int, ...]:
    ends: list[int] = []
    for text in texts:
        ends.append((ends[-1] if ends else 0) + len(text))
    return tuple(ends)


def alike(sampling: wire.SamplingParams) -> wire.SamplingParams:
    """What two calls must have in common so that one can be answered by what the other said."""
    return msgspec.structs.replace(sampling, stop=(), max_tokens=None, seed=None, logprobs=None)


def _may_be_foretold(sampling: wire.SamplingParams) -> bool:
    """Penalties look back to where a call began, so with them a text depends on the calls that it
    was cut into.
    """
    plain = sampling.n == 1 and sampling.logprobs is None and sampling.prompt_logprobs is None
    ends_by_text = (
        not sampling.min_tokens and not sampling.stop_token_ids and not sampling.stop_regex
    )
    penalties = (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty)
    return plain and ends_by_text and penalties == (0.0, 0.0, 1.0) and not sampling.ignore_eos


def may_speculate(sampling: wire.SamplingParams, constraint: wire.Constraint | None) -> bool:
    """Whether a call can be asked for more than it wants: it is unconfined, and its end is a stop
    string.
    """
    return constraint is None and _may_be_foretold(sampling) and bool(sampling.stop)


def beyond(sampling: wire.SamplingParams, num_tokens: int, begun: str = "") -> wire.SamplingParams:
    """What is asked in the place of a call: no stop, at least `num_tokens` tokens, and their texts
    where it matters.

    `begun` is what the model has to say again before what is wanted.
    """
    wanted = sampling.max_tokens
    most = None if wanted is None else max(wanted, num_tokens) + len(begun.encode())
    tells = 0 if wanted is not None and wanted < num_tokens else None
    return msgspec.structs.replace(sampling, stop=(), max_tokens=most, logprobs=tells)
