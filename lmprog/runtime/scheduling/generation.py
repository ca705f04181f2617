"""What is done with a sequence's logits: a generation picks tokens, a scoring reads off the likelihood
of given ones.

Both are cursors over immutable settings. They know sampling parameters, constraints and token ids;
they know no pages, no text and no tensors. Stop strings, which need text, are found by whoever
holds the text.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass

from lmprog.constraints.constraint import NO_STATE, Constraint, MaskRow, State
from lmprog.constraints.seam import Seam, Stops
from lmprog.runtime.scheduling.sampling_requests import Likely
from lmprog.wire import FinishReason, SamplingParams

Forcing = Callable[[Constraint, State, "array[int]"], tuple[int, ...]]
"""Tokens that a constraint leaves no choice about in a state, after the tokens that stand already;
canonical whatever follows; () where there are none."""


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """The log-probability of the token that stands at one position, and the most likely ones
    instead.
    """

    token: int
    logprob: float
    top: Likely = ()


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """Everything about one gen that does not change while it runs; shared by its `n` sequences."""

    sampling: SamplingParams
    max_tokens: int
    eos_ids: tuple[int, ...]
    prompt_len: int
    """Tokens that stand when it begins; those that spell the seam again are of the prompt too."""
    constraint: Constraint | None = None
    forcing: Forcing | None = None
    seam: Seam | None = None
    stops: Stops | None = None
    """Only with a constraint: where its text may be all, a stop may begin."""


class Generation:
    """Picks tokens until something ends it. The generated tokens stand at the end of the sequence's
    tokens.
    """

    __slots__ = (
        "begun",
        "finish",
        "forced",
        "forced_runs",
        "generated",
        "guide",
        "logprobs",
        "prompt_logprobs",
        "respelled",
        "seed",
        "settings",
        "spelled",
        "steps",
        "stopped_by",
    )

    def __init__(self, settings: GenerationSettings, seed: int) -> None:
        self.settings = settings
        self.seed = seed
        self.generated = 0
        self.forced = 0
        self.forced_runs: list[tuple[int, int]] = []
        """Where after the prompt's first `settings.prompt_len` tokens the forced ones stand:
        (begin, end), in order.
        """
        self.steps = 0
        """Picks made so far; together with the seed it determines the next one."""
        self.finish: FinishReason | None = None
        self.stopped_by: int | None = None
        self.guide = settings.constraint.start if settings.constraint else NO_STATE
        self.logprobs: list[ScoredToken] = []
        self.prompt_logprobs: list[ScoredToken] = []
        self.spelled = 0
        """Bytes of the seam that stand again."""
        self.respelled = 0
        """Tokens wholly inside the seam; they belong to the prompt and are not counted as
        generated.
        """
        self.begun = b""
        """What stands of a stop that may not be content."""

    @property
    def prompt_len(self) -> int:
        """Tokens before the first generated one."""
        return self.settings.prompt_len + self.respelled

    @property
    def is_respelling(self) -> bool:
        """The seam is not complete yet."""
        return self.settings.seam is not None and self.spelled < len(self.settings.seam.text)

    def mask(self) -> MaskRow | None:
        """The tokens that may be picked now; None where all may. May raise `GrammarError`, as
        `Constraint` says.
        """
        settings = self.settings
        if settings.seam is not None and self.is_respelling:
            return settings.seam.mask(self.spelled, self.left)
        if settings.constraint is None:
            return None
        if self.begun and settings.stops is not None:
            return settings.stops.mask(self.begun, self.left)
        row = settings.constraint.mask(self.guide, self.left)
        return (
            settings.stops.beside(row, self.left)
            if settings.stops is not None and self._may_stop
            else row
        )

    @property
    def _may_stop(self) -> bool:
        return self.may_end and self.generated >= self.settings.sampling.min_tokens

    def logits_from(self, num_tokens: int) -> int:
        """The last known token's logits pick the next one; before that, those of the prompt where
        it is scored.
        """
        sampling = self.settings.sampling
        next_scored = max(sampling.prompt_logprobs_start, 1) + len(self.prompt_logprobs)
        if sampling.prompt_logprobs is None or next_scored >= self.settings.prompt_len:
            return num_tokens - 1
        return next_scored - 1

    @property
    def mean_logprob(self) -> float:
        """Of all picks, the one that ended it too; 0 where nothing was picked or that was not asked
        for.
        """
        return (
            sum(one.logprob for one in self.logprobs) / len(self.logprobs) if self.logprobs else 0.0
        )

    @property
    def left(self) -> int:
        """Tokens that may still be generated."""
        return self.settings.max_tokens - self.generated

    def banned(self) -> tuple[int, ...]:
        """Tokens that may not be picked now: those that would end a generation that is too short,
        or never may.
        """
        settings = self.settings
        if self.generated < settings.sampling.min_tokens:
            return settings.eos_ids + settings.sampling.stop_token_ids
        return settings.eos_ids if settings.sampling.ignore_eos else ()

    @property
    def may_end(self) -> bool:
        """Whether the text may end here: what a constraint has begun must be complete, whatever
        else would stop it.
        """
        constraint = self.settings.constraint
        return constraint is None or constraint.is_final(self.guide)

    def open(self, tokens: array[int]) -> int:
        """Appends what the constraint forces before anything is picked; called once. Returns how
        many tokens.
        """
        if self.settings.constraint is None or self.is_respelling:
            return 0
        return self._go_on(0, tokens)

    def accept(self, token: int, tokens: array[int]) -> int:
        """Takes a picked token; appends it and what is forced after it to `tokens`. Returns how
        many were appended.

        A token that ends the generation and has no text of its own (end of sequence, a stop id) is
        not appended. Sets `finish` when nothing more may follow.
        """
        settings, constraint = self.settings, self.settings.constraint
        self.steps += 1
        if settings.seam is not None and self.is_respelling:
            return self._respell(settings.seam, token, tokens)
        if token in settings.eos_ids or (
            token in settings.sampling.stop_token_ids and self.may_end
        ):
            self.finish = "constraint" if constraint and token in settings.eos_ids else "stop"
            self.stopped_by = token
            return 0
        if settings.stops is not None and self._begins_stop(token):
            tokens.append(token)
            self.generated += 1
            self.begun += settings.stops.pieces.bytes_of(token)
            if settings.stops.is_over(self.begun):
                self.finish = "stop"
            return 1
        if constraint is not None:
            self.guide = constraint.advance(self.guide, token)
        tokens.append(token)
        self.generated += 1
        return self._go_on(1, tokens)

    def _respell(self, seam: Seam, token: int, tokens: array[int]) -> int:
        """Takes a token along the seam: inside it, or as the first generated one beyond it."""
        piece = seam.pieces.bytes_of(token)
        tokens.append(token)
        if self.spelled + len(piece) <= len(seam.text):
            self.spelled += len(piece)
            self.respelled += 1
            return 1 if self.is_respelling else self._go_on(1, tokens)
        if seam.constraint is not None:
            self.guide = seam.after(self.spelled, piece)
        self.spelled = len(seam.text)
        self.generated += 1
        return self._go_on(1, tokens)

    def _begins_stop(self, token: int) -> bool:
        """Whether a picked token is of a stop and not of the text: what the constraint allows is
        text.
        """
        if self.begun:
            return True
        constraint = self.settings.constraint
        return (
            constraint is not None
            and self._may_stop
            and not constraint.mask(self.guide, self.left).allows(token)
        )

    def _go_on(self, added: int, tokens: array[int]) -> int:
        """Appends forced tokens, sees whether that was all; returns `added` plus what it appended.

        Forced tokens are the tokenizer's own, which may be more than the fewest that spell their
        text. So they are taken only while what follows them still fits: `distance(guide) <= left`
        holds before every pick, which is what a mask needs to leave something.
        """
        constraint, forcing = self.settings.constraint, self.settings.forcing
        if constraint is not None and forcing is not None and self.left > 0:
            begin = self.respelled + self.generated
            for token in forcing(constraint, self.guide, tokens):
                after = constraint.advance(self.guide, token)
                if constraint.distance(after) >= self.left:
                    break
                self.guide = after
                tokens.append(token)
                self.generated += 1
                self.forced += 1
                added += 1
            if self.respelled + self.generated > begin:
                self.forced_runs.append((begin, self.respelled + self.generated))
        if constraint is not None and constraint.is_done(self.guide):
            self.finish = "constraint"
        elif self.left <= 0:
            self.finish = "constraint" if constraint is not None and self.may_end else "length"
        return added


class Scoring:
    """Reads off the log-probability of each of the sequence's tokens from position `first` on, given
    all before it, and of each of `finals` as the token that comes after the sequence's last.

    Options of a select that differ only in their last token are one sequence with several finals.
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
