"""What is done with a lane's logits: a generation picks tokens, a scoring reads off the likelihood of given ones.

Both are cursors over immutable settings. They know sampling parameters, constraints and token ids; they know no
pages, no text and no tensors. Stop strings, which need text, are found by whoever holds the text.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass

from lmprog.runtime.fsm.constraint import Constraint
from lmprog.runtime.picks import Likely
from lmprog.wire import FinishReason, Sampling

Forcing = Callable[[Constraint, int, "array[int]"], tuple[int, ...]]
"""Tokens that a constraint leaves no choice about in a state, after the tokens that stand already; canonical whatever
follows; () where there are none."""


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """The log-probability of the token that stands at one position, and the most likely ones instead."""

    token: int
    logprob: float
    top: Likely = ()


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything about one gen that does not change while it runs; shared by its `n` lanes."""

    sampling: Sampling
    max_tokens: int
    eos_ids: tuple[int, ...]
    prompt_len: int
    constraint: Constraint | None = None
    forcing: Forcing | None = None


class Generation:
    """Picks tokens until something ends it. The generated tokens stand at the end of the lane's tokens."""

    __slots__ = (
        "finish",
        "forced",
        "forced_runs",
        "generated",
        "guide",
        "logprobs",
        "prompt_logprobs",
        "seed",
        "settings",
        "steps",
        "stopped_by",
    )

    def __init__(self, settings: Settings, seed: int) -> None:
        self.settings = settings
        self.seed = seed
        self.generated = 0
        self.forced = 0
        self.forced_runs: list[tuple[int, int]] = []
        """Where among the generated tokens the forced ones stand: (begin, end), in order."""
        self.steps = 0
        """Picks made so far; together with the seed it determines the next one."""
        self.finish: FinishReason | None = None
        self.stopped_by: int | None = None
        self.guide = settings.constraint.start if settings.constraint else 0
        self.logprobs: list[ScoredToken] = []
        self.prompt_logprobs: list[ScoredToken] = []

    def logits_from(self, num_tokens: int) -> int:
        """The last known token's logits pick the next one; before that, those of the prompt where it is scored."""
        sampling = self.settings.sampling
        next_scored = max(sampling.prompt_logprobs_start, 1) + len(self.prompt_logprobs)
        if sampling.prompt_logprobs is None or next_scored >= self.settings.prompt_len:
            return num_tokens - 1
        return next_scored - 1

    @property
    def left(self) -> int:
        """Tokens that may still be generated."""
        return self.settings.max_tokens - self.generated

    def banned(self) -> tuple[int, ...]:
        """Tokens that may not be picked now: those that would end a generation that is too short, or never may."""
        settings = self.settings
        if self.generated < settings.sampling.min_tokens:
            return settings.eos_ids + settings.sampling.stop_token_ids
        return settings.eos_ids if settings.sampling.ignore_eos else ()

    @property
    def may_end(self) -> bool:
        """Whether the text may end here: what a constraint has begun must be complete, whatever else would stop it."""
        constraint = self.settings.constraint
        return constraint is None or constraint.is_final(self.guide)

    def open(self, tokens: array[int]) -> int:
        """Appends what the constraint forces before anything is picked; called once. Returns how many tokens."""
        if self.settings.constraint is None:
            return 0
        return self._go_on(0, tokens)

    def accept(self, token: int, tokens: array[int]) -> int:
        """Takes a picked token; appends it and what is forced after it to `tokens`. Returns how many were appended.

        A token that ends the generation and has no text of its own (end of sequence, a stop id) is not appended.
        Sets `finish` when nothing more may follow.
        """
        settings, constraint = self.settings, self.settings.constraint
        self.steps += 1
        if token in settings.eos_ids or (token in settings.sampling.stop_token_ids and self.may_end):
            self.finish = "constraint" if constraint and token in settings.eos_ids else "stop"
            self.stopped_by = token
            return 0
        if constraint is not None:
            self.guide = constraint.advance(self.guide, token)
        tokens.append(token)
        self.generated += 1
        return self._go_on(1, tokens)

    def _go_on(self, added: int, tokens: array[int]) -> int:
        """Appends forced tokens, sees whether that was all; returns `added` plus what it appended.

        Forced tokens are the tokenizer's own, which may be more than the fewest that spell their text. So they are
        taken only while what follows them still fits: `distance(guide) <= left` holds before every pick, which is
        what a mask needs to leave something.
        """
        constraint, forcing = self.settings.constraint, self.settings.forcing
        if constraint is not None and forcing is not None and self.left > 0:
            begin = self.generated
            for token in forcing(constraint, self.guide, tokens):
                after = constraint.advance(self.guide, token)
                if constraint.distance(after) >= self.left:
                    break
                self.guide = after
                tokens.append(token)
                self.generated += 1
                self.forced += 1
                added += 1
            if self.generated > begin:
                self.forced_runs.append((begin, self.generated))
        if constraint is not None and constraint.is_done(self.guide):
            self.finish = "constraint"
        elif self.left <= 0:
            self.finish = "constraint" if constraint is not None and self.may_end else "length"
        return added


class Scoring:
    """Reads off the log-probability of each of the lane's tokens from position `first` on, given all before it, and
    of each of `finals` as the token that comes after the lane's last.

    Options of a select that differ only in their last token are one lane with several finals.
    """

    __slots__ = ("final_logprobs", "finals", "first", "logprobs")

    def __init__(self, first: int, finals: tuple[int, ...]) -> None:
        assert first >= 1, "the first token of a text has no logits before it"
        self.first = first
        self.finals = finals
        self.logprobs: list[ScoredToken] = []
        self.final_logprobs: tuple[ScoredToken, ...] = ()

    def logits_from(self, num_tokens: int) -> int:
        """The next logits wanted stand one position before the next token to score."""
        return min(self.first - 1 + len(self.logprobs), num_tokens - 1)
