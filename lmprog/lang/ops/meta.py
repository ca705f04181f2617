"""Metadata of a result: selection scores, token counts, timings, log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmprog import wire


class Selected(str):
    """The option that a `select` chose: a plain string with the scores of all options."""

    scores: dict[str, float]
    """Each option's score under the method."""
    probabilities: dict[str, float]
    """Each option's probability among the options; they sum to 1."""
    logprobs: dict[str, tuple[float, ...]]
    """The log-probabilities of each option's tokens after the branch's text."""
    tokens: dict[str, tuple[tuple[int, str], ...]]
    """The id and text of each of these tokens; empty where a service does not tell them."""
    baselines: dict[str, tuple[float, ...]]
    """The same without the branch's text; empty unless the method looks at it."""

    @classmethod
    def of(cls, reply: wire.Chosen, choices: Sequence[str]) -> Selected:
        made = cls(choices[reply.index])
        options = dict(zip(choices, reply.options, strict=True))
        made.scores = {text: option.score for text, option in options.items()}
        made.probabilities = {text: option.probability for text, option in options.items()}
        made.logprobs = {text: option.logprobs for text, option in options.items()}
        made.tokens = {text: option.tokens for text, option in options.items()}
        made.baselines = {text: option.baseline for text, option in options.items()}
        return made


@dataclass(frozen=True, slots=True)
class Meta:
    """Metadata of a result. `finish` is "select" for a selection; times are in milliseconds."""

    tokens: tuple[int, ...]
    finish: str
    stopped_by: str | int | None
    usage: wire.Usage
    logprobs: tuple[wire.TokenLogprob, ...] = ()
    prompt_logprobs: tuple[wire.TokenLogprob, ...] = ()
    next_logprobs: tuple[tuple[int, str, float], ...] = ()
    """With `max_tokens=0` and `logprobs`: the likeliest tokens after the prompt, as token, text and
    log-probability, the best first."""
    reasoning_tokens: int | None = None
    """Of the first result, where its reasoning is told apart; None elsewhere, or where the backend
    does not stream.
    """
    left_out: tuple[str, ...] = ()
    """What of its schema was never written, where `strict=False`; one reason each."""
    score: float | None = None
    """Of a beam search: its log-probability, with the length reckoned in."""

    @property
    def incomplete(self) -> bool:
        """Whether the token limit ended it: the model would have written more, or something else
        that needs more tokens.
        """
        return self.finish == "length"
