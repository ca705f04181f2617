"""The tasks of sequences: one samples tokens, a cursor over immutable settings; the other reads the
log-probabilities of tokens that are given.

Knows sampling parameters, constraints and token ids, and neither pages, text nor tensors. Stop
strings need text and are found in `text.stream`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmprog.constraints.constraint import (
    NO_STATE,
    Constraint,
    LateMasks,
    MaskRow,
    State,
    followed,
)
from lmprog.constraints.seam import Seam, Stops, both, united
from lmprog.errors import UnsatisfiableConstraint
from lmprog.runtime.scheduling.sampling_requests import Likely
from lmprog.wire import FinishReason, SamplingParams

if TYPE_CHECKING:
    from lmprog.runtime.scheduling.particles import Particle


class BannedSequences:
    """Sequences of tokens of which the last one is banned wherever the others have been generated,
    as vLLM bans `bad_words`.
    """

    def __init__(self, sequences: Iterable[tuple[int, ...]]) -> None:
        """`sequences` are not empty."""
        distinct = dict.fromkeys(sequences)
        self.single = tuple(one[0] for one in distinct if len(one) == 1)
        """Banned everywhere."""
        self._longer: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        """By the last token but one: all tokens but the last, and the last."""
        for *begin, last in distinct:
            if begin:
                self._longer.setdefault(begin[-1], []).append((tuple(begin), last))

    def after(self, tokens: Sequence[int], begin: int) -> tuple[int, ...]:
        """The tokens that may not follow `tokens`, of which those from `begin` on count."""
        if begin >= len(tokens):
            return self.single
        found = [
            last
            for start, last in self._longer.get(tokens[-1], ())
            if len(start) <= len(tokens) - begin and tuple(tokens[-len(start) :]) == start
        ]
        return (*self.single, *found) if found else self.single


class TokenRules:
    """What a call says of tokens besides its constraint; made once and shared by its sequences.
    `allowed` is None where every token may be sampled.
    """

    def __init__(
        self, allowed: MaskRow | None, ends: MaskRow, banned: BannedSequences | None
    ) -> None:
        """`ends` are the tokens that end a text: under a constraint, which says where that may be,
        they are allowed always.
        """
        self.allowed = allowed
        self.banned = banned
        self._allowed_or_end = None if allowed is None else united(allowed, ends)

    def narrowed(self, row: MaskRow | None) -> MaskRow | None:
        """The tokens that both a constraint's `row` and these rules allow. Raises
        `UnsatisfiableConstraint` where there is none.
        """
        if self._allowed_or_end is None or row is None:
            return self.allowed if row is None else row
        found = both(row, self._allowed_or_end)
        if not found.count:
            raise UnsatisfiableConstraint(
                "the constraint allows none of allowed_token_ids here; give it tokens that can "
                "spell its texts, or leave allowed_token_ids out."
            )
        return found


Forcing = Callable[[Constraint, State, "array[int]"], tuple[int, ...]]
"""The tokens that a constraint forces in a state, given the tokens before them. They are the
tokenizer's own whatever follows; () where there are none."""


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """The token at one position with its log-probability, and the most likely alternatives."""

    token: int
    logprob: float
    top: Likely = ()


@dataclass(frozen=True, slots=True)
class ThoughtBudget:
    """After `most` tokens a thought that is open is closed by the tokens `close`. It begins with
    `begin`, or at once, and ends with `end`.
    """

    most: int
    begin: bytes
    end: bytes
    close: tuple[int, ...]
    bytes_of: Callable[[int], bytes | None]
    """Of a token; None of one that has none."""

    def after(self, read: bytes, is_begun: bool, token: int) -> tuple[bytes, bool] | None:
        """What must be known of the text once `token` has come: the part of it that may begin a
        tag, and whether the thought has begun. None: it is over, or there is none.
        """
        read += self.bytes_of(token) or b""
        if not is_begun:
            text = read.lstrip()
            if not text.startswith(self.begin):
                return (read, False) if self.begin.startswith(text) else None
            read = text[len(self.begin) :]
        if self.end in read:
            return None
        keep = max(len(self.end) - 1, 3)  # what may begin the end, or a character
        return read[max(0, len(read) - keep) :], True


def is_within_character(read: bytes) -> bool:
    """Whether UTF-8 that has been read, or the end of it, ends before its last character does."""
    for size in range(1, min(4, len(read) + 1)):
        byte = read[-size]
        if byte < 0x80:
            return False
        if byte >= 0xC0:
            return size < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
    return False


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """The settings of one gen, shared by its `n` sequences."""

    sampling: SamplingParams
    max_tokens: int
    eos_ids: tuple[int, ...]
    prompt_len: int
    """Tokens before it begins. Tokens inside the seam, generated again, count as prompt too."""
    constraint: Constraint | None = None
    forcing: Forcing | None = None
    seam: Seam | None = None
    stops: Stops | None = None
    """Only with a constraint: where its text may end, a stop string may begin."""
    rules: TokenRules | None = None
    thought: ThoughtBudget | None = None
    late: LateMasks | None = None
    """The constraint, where its masks may be late."""

    @property
    def jump(self) -> Forcing | None:
        """What finds the forced tokens that are appended without sampling. None: every token is
        sampled, as `jump="exact"` asks, or as log-probabilities and rules of tokens need it.
        """
        asked = self.sampling
        every = asked.jump == "exact" or asked.logprobs is not None or self.rules is not None
        every = every or asked.faithful > 1  # forced text may be unlikely, too
        return None if every else self.forcing


class Generation:
    """Samples tokens until something ends it. They are appended to the sequence's tokens."""

    __slots__ = (
        "_bans",
        "_early_bans",
        "_ends",
        "finish",
        "forced",
        "forced_runs",
        "generated",
        "guide",
        "has_penalties",
        "is_cut",
        "is_plain",
        "logprobs",
        "num_before_stop",
        "num_seam_tokens",
        "particle",
        "prompt_logprobs",
        "seam_bytes",
        "seed",
        "settings",
        "steps",
        "stop_prefix",
        "stop_rests",
        "stopped_by",
        "thought",
    )

    def __init__(self, settings: GenerationSettings, seed: int) -> None:
        self.settings = settings
        self.seed = seed
        self.generated = 0
        self.forced = 0
        self.forced_runs: list[tuple[int, int]] = []
        """Ranges (begin, end) of forced tokens, counted from `settings.prompt_len`, in order."""
        self.steps = 0
        """Tokens sampled so far; with the seed this determines the next random number."""
        self.finish: FinishReason | None = None
        self.stopped_by: int | None = None
        self.guide = settings.constraint.start if settings.constraint else NO_STATE
        self.is_cut = False
        """A token was wanted that the constraint allows and the token budget does not: a shorter
        text than the model's own was written."""
        self.logprobs: list[ScoredToken] = []
        self.prompt_logprobs: list[ScoredToken] = []
        self.seam_bytes = 0
        """Bytes of the seam that have been generated again."""
        self.num_seam_tokens = 0
        """Tokens wholly inside the seam. They belong to the prompt, not to what is generated."""
        self.stop_prefix = b""
        """The bytes so far of a stop string that the constraint does not allow as content."""
        self.stop_rests: tuple[bytes, ...] = ()
        """What would complete a stop string that has begun where the text may not end."""
        self.num_before_stop: Callable[[Tokens[int]], int] | None = None
        """How many of given tokens may follow before one completes a stop, which only their text
        tells; None where it has none."""
        self.particle: Particle | None = None
        """Set where it is one of several texts of which one is chosen."""
        budget = settings.thought
        self.thought = None if budget is None else (b"", not budget.begin)
        """What is known of an open thought; see `ThoughtBudget.after`."""
        sampling = settings.sampling
        self._ends = frozenset((*settings.eos_ids, *sampling.stop_token_ids))
        self._bans = settings.eos_ids if sampling.ignore_eos else ()
        self._early_bans = settings.eos_ids + sampling.stop_token_ids
        self.has_penalties = bool(
            sampling.repetition_penalty != 1.0
            or sampling.frequency_penalty
            or sampling.presence_penalty
        )
        self.is_plain = (
            settings.constraint is None
            and settings.seam is None
            and sampling.prompt_logprobs is None
            and settings.rules is None
            and settings.thought is None
            and settings.max_tokens > 0
            and not self.has_penalties
        )
        """Its tokens are sampled one by one, and nothing forces, masks or penalizes any."""

    def copy(self) -> Generation:
        """Another one in the same state, for tokens that may not come: without what is told of
        those that came.
        """
        other = Generation.__new__(Generation)
        other.settings, other.seed, other.steps = self.settings, self.seed, self.steps
        other.generated, other.forced = self.generated, self.forced
        other.finish, other.stopped_by, other.is_cut = self.finish, self.stopped_by, self.is_cut
        other.guide, other.stop_prefix = self.guide, self.stop_prefix
        other.stop_rests = self.stop_rests
        other.seam_bytes, other.num_seam_tokens = self.seam_bytes, self.num_seam_tokens
        other.forced_runs, other.logprobs, other.prompt_logprobs = [], [], []
        other.num_before_stop = None
        other._ends, other._bans, other._early_bans = self._ends, self._bans, self._early_bans
        other.has_penalties, other.is_plain = self.has_penalties, self.is_plain
        other.thought = self.thought
        other.particle = None if self.particle is None else self.particle.copy()
        return other

    @property
    def prompt_len(self) -> int:
        """Tokens before the first generated one."""
        return self.settings.prompt_len + self.num_seam_tokens

    @property
    def is_healing(self) -> bool:
        """The seam is not complete yet."""
        return self.settings.seam is not None and self.seam_bytes < len(self.settings.seam.text)

    def mask(self) -> MaskRow | None:
        """The tokens that may be sampled now; None where all may. May raise `GrammarError`, as
        `Constraint` says, and `UnsatisfiableConstraint`, as `TokenRules` says.
        """
        row, rules = self._constrained(), self.settings.rules
        return row if rules is None else rules.narrowed(row)

    def is_ready(self) -> bool:
        """Whether `mask` is at hand. Else it is being made, and the sequence sits out this step."""
        late = self.settings.late
        return late is None or self.is_healing or late.is_ready(self.guide, self.left)

    def _constrained(self) -> MaskRow | None:
        """What seam, constraint and stops allow."""
        settings = self.settings
        if settings.seam is not None and self.is_healing:
            return settings.seam.mask(self.seam_bytes, self.left)
        if settings.constraint is None:
            return None
        if self.stop_prefix and settings.stops is not None:
            return settings.stops.mask(self.stop_prefix, self.left)
        return self._with_stops(settings.constraint.mask(self.guide, self.left))

    def _with_stops(self, row: MaskRow) -> MaskRow:
        """A mask of the constraint, once stops count, with those that may end the text here and
        without others.
        """
        stops, constraint = self.settings.stops, self.settings.constraint
        is_early = self.generated < self.settings.sampling.min_tokens
        if stops is None or constraint is None or is_early:
            return row
        row = stops.avoided(row, self.stop_rests, constraint, self.guide)
        return stops.beside(row, self.left) if self.may_end else row

    def _advance(self, constraint: Constraint, token: int, after: State | None = None) -> None:
        """The constraint takes a token, behind which its state is `after`."""
        stops, before = self.settings.stops, self.guide
        self.guide = constraint.advance(before, token) if after is None else after
        if stops is not None and self.generated >= self.settings.sampling.min_tokens:
            piece = stops.pieces.bytes_of(token)
            self.stop_rests = stops.begun(self.stop_rests, piece, constraint, before)

    def mask_without_budget(self) -> MaskRow | None:
        """The mask that would hold with any number of tokens left; None where it is the same, where
        the text is the same under both, or where the text is known to be cut.

        What is sampled under it tells whether the budget cuts the text short.
        """
        settings, constraint = self.settings, self.settings.constraint
        if constraint is None or self.is_cut or self.stop_prefix:
            return None
        if settings.seam is not None and self.is_healing:
            narrow = settings.seam.mask(self.seam_bytes, self.left)
            row = settings.seam.mask(self.seam_bytes, None)
            return row if row.count > narrow.count else None
        row = constraint.mask(self.guide)
        if constraint.mask(self.guide, self.left) is row or constraint.forced(self.guide):
            return None
        row = self._with_stops(row)
        return row if settings.rules is None else settings.rules.narrowed(row)

    @property
    def wants_prompt(self) -> bool:
        """The log-probabilities of the prompt are asked for."""
        return self.settings.sampling.prompt_logprobs is not None

    @property
    def _may_stop(self) -> bool:
        return self.may_end and self.generated >= self.settings.sampling.min_tokens

    def logits_from(self, num_tokens: int) -> int:
        """The last known token gives the logits to sample from; scored prompts need earlier
        ones.
        """
        sampling = self.settings.sampling
        next_scored = max(sampling.prompt_logprobs_start, 1) + len(self.prompt_logprobs)
        if sampling.prompt_logprobs is None or next_scored >= self.settings.prompt_len:
            return num_tokens - 1
        return next_scored - 1

    def logits_after(self, end: int, num_tokens: int) -> int:
        """As `logits_from`, once those before `end` are known. Not asked where the prompt's
        log-probabilities are wanted.
        """
        return max(end, num_tokens - 1)

    @property
    def mean_logprob(self) -> float:
        """Over all sampled tokens, the one that ended it included; 0 where there are none."""
        return (
            sum(one.logprob for one in self.logprobs) / len(self.logprobs) if self.logprobs else 0.0
        )

    @property
    def left(self) -> int:
        """Tokens that may still be generated."""
        return self.settings.max_tokens - self.generated

    def banned(self, tokens: array[int], ahead: int = 0) -> tuple[int, ...]:
        """Tokens that would end a generation that is still too short, or that must never end it;
        and those that would complete a banned sequence. `tokens` are all so far; a plain generation
        is asked for what holds so many tokens later.
        """
        is_early = self.generated + ahead < self.settings.sampling.min_tokens
        ends = self._early_bans if is_early else self._bans
        rules = self.settings.rules
        if rules is None or rules.banned is None:
            return ends
        found = rules.banned.after(tokens, self.prompt_len)
        seam = self.settings.seam
        if seam is not None and self.is_healing:  # the prompt's own text is not banned
            rest = len(seam.text) - self.seam_bytes
            found = tuple(one for one in found if len(seam.pieces.bytes_of(one)) > rest)
        return ends + found

    def is_end(self, token: int) -> bool:
        """Whether `token` ends the generation, or is known to be banned."""
        return token in self._ends or token in self._bans

    @property
    def may_end(self) -> bool:
        """Whether the text may end here: a constrained text must be complete."""
        constraint = self.settings.constraint
        return constraint is None or constraint.is_final(self.guide)

    def start(self, tokens: array[int]) -> int:
        """Appends what the constraint forces before anything is sampled; called once. Returns the
        number of tokens appended.
        """
        if self.settings.constraint is None or self.is_healing:
            return 0
        return self._append_forced(0, tokens)

    def accept(self, token: int, tokens: array[int]) -> int:
        """Takes a sampled token; appends it and the tokens forced after it to `tokens`. Returns the
        number of tokens appended.

        A token that ends the generation and has no text of its own (end of sequence, a stop id) is
        not appended. Sets `finish` when nothing more may follow.
        """
        self.steps += 1
        if self.is_plain and token not in self._ends:
            tokens.append(token)
            self.generated += 1
            if self.generated >= self.settings.max_tokens:
                self.finish = "length"
            return 1
        if self.particle is not None:
            self.particle.took(token)
        settings, constraint = self.settings, self.settings.constraint
        if not settings.max_tokens:
            self.finish = "length"
            return 0
        if settings.seam is not None and self.is_healing:
            return self._heal(settings.seam, token, tokens)
        if token in settings.eos_ids or (
            token in settings.sampling.stop_token_ids and self.may_end
        ):
            self.finish = self._ended(
                "constraint" if constraint and token in settings.eos_ids else "stop"
            )
            self.stopped_by = token
            return 0
        if settings.stops is not None and self._begins_stop(token):
            tokens.append(token)
            self.generated += 1
            self.stop_prefix += settings.stops.pieces.bytes_of(token)
            if settings.stops.is_over(self.stop_prefix):
                self.finish = self._ended("stop")
            return 1
        if constraint is not None:
            self._advance(constraint, token)
        tokens.append(token)
        self.generated += 1
        added = 1
        if self.thought is not None and settings.thought is not None:
            self._think((token,))
            added += self._close_thought(settings.thought, tokens)
        return self._append_forced(added, tokens)

    def _think(self, tokens: Iterable[int]) -> None:
        """Takes note of tokens that have come, sampled or forced, while a thought is or may be."""
        budget = self.settings.thought
        for token in tokens:
            if budget is None or self.thought is None:
                return
            self.thought = budget.after(*self.thought, token)

    def _close_thought(self, budget: ThoughtBudget, tokens: array[int]) -> int:
        """Ends a thought that has had its tokens, where there is room, and not within a character;
        how many were appended.
        """
        if self.thought is None or not self.thought[1] or self.generated < budget.most:
            return 0
        if is_within_character(self.thought[0]):
            return 0
        constraint, guide, room = self.settings.constraint, self.guide, self.left
        self.thought = None
        if constraint is not None:
            text = b"".join(budget.bytes_of(token) or b"" for token in budget.close)
            after = constraint.advance_bytes(guide, text)
            if after is None:
                return 0
            guide, room = after, room - constraint.distance(after)
        if len(budget.close) > room:
            return 0  # the end is so near that the text ends in the thought, or closes it itself
        begin = self.num_seam_tokens + self.generated
        self.guide, self.stop_rests = guide, ()
        tokens.extend(budget.close)
        self.generated += len(budget.close)
        self.forced += len(budget.close)
        self.forced_runs.append((begin, begin + len(budget.close)))
        return len(budget.close)

    def _heal(self, seam: Seam, token: int, tokens: array[int]) -> int:
        """Takes a token of the seam, or the first one that reaches beyond it."""
        piece = seam.pieces.bytes_of(token)
        tokens.append(token)
        if self.seam_bytes + len(piece) <= len(seam.text):
            self.seam_bytes += len(piece)
            self.num_seam_tokens += 1
            return 1 if self.is_healing else self._append_forced(1, tokens)
        if seam.constraint is not None:
            self.guide = seam.after(self.seam_bytes, piece)
        self.seam_bytes = len(seam.text)
        self.generated += 1
        return self._append_forced(1, tokens)

    def _begins_stop(self, token: int) -> bool:
        """Whether a sampled token belongs to a stop string: the constraint does not allow it."""
        if self.stop_prefix:
            return True
        constraint = self.settings.constraint
        return (
            constraint is not None
            and self._may_stop
            and not constraint.mask(self.guide, self.left).allows(token)
        )

    def _append_forced(self, added: int, tokens: array[int]) -> int:
        """Appends forced tokens and sets `finish` at the end; returns `added` plus their number.

        Forced tokens are the tokenizer's own, which may be more than the fewest that spell their
        text. So they are taken only while the rest still fits: `distance(guide) <= left` holds
        before every sample, and with it some token is always allowed.
        """
        constraint, forcing = self.settings.constraint, self.settings.jump
        if constraint is not None and forcing is not None and self.left > 0:
            begin = self.num_seam_tokens + self.generated
            forced = forcing(constraint, self.guide, tokens)
            if forced and self.settings.stops is None:
                taken, self.guide = followed(constraint, self.guide, forced, self.left)
                tokens.extend(forced[:taken])
                self.generated += taken
            else:
                for token in forced:
                    after = constraint.advance(self.guide, token)
                    if constraint.distance(after) >= self.left:
                        break
                    self._advance(constraint, token, after)
                    tokens.append(token)
                    self.generated += 1
            taken = self.num_seam_tokens + self.generated - begin
            self.forced += taken
            added += taken
            if taken:
                self.forced_runs.append((begin, begin + taken))
                self._think(tokens[-taken:])
        if constraint is not None and constraint.is_done(self.guide):
            self.finish = self._ended("constraint")
        elif self.left <= 0:
            self.finish = "length"
        return added

    def _ended(self, reason: FinishReason) -> FinishReason:
        """The reason for an end that the text has come to, unless the budget brought it there."""
        return "length" if self.is_cut else reason


class Scoring:
    """Reads the log-probability of each of the sequence's tokens from position `first` on, given
    all before it, and of each of `finals` as the token after the sequence's last.

    Options of a select that differ only in their last token are one sequence with several finals.
    With each final come the `top` likeliest tokens in its place, of those that `mask` allows.
    """

    __slots__ = ("final_logprobs", "finals", "first", "logprobs", "mask", "top")
    is_plain = False
    """See `Generation.is_plain`."""

    def __init__(
        self, first: int, finals: tuple[int, ...], top: int = 0, mask: MaskRow | None = None
    ) -> None:
        assert first >= 1, "the first token of a text has no logits before it"
        self.first = first
        self.finals = finals
        self.top = top
        self.mask = mask
        self.logprobs: list[ScoredToken] = []
        self.final_logprobs: tuple[ScoredToken, ...] = ()

    def is_ready(self) -> bool:
        return True

    def logits_from(self, num_tokens: int) -> int:
        """One position before the next token to score."""
        return min(self.first - 1 + len(self.logprobs), num_tokens - 1)

    def logits_after(self, end: int, num_tokens: int) -> int:
        """As `logits_from`, once those before `end` are known. Others are known already where a
        sequence that was preempted is computed again.
        """
        return max(end, self.logits_from(num_tokens))
