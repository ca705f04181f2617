"""Builds calls: a gen or select on a branch becomes sequences with tokens, tasks and settings, or is
refused.

All limits that depend on the model are checked here, once, with the value sent, the limit and what
to do. Knows the tokenizer, the constraint compiler and the context's length; knows no clients and
no tree.
"""

from __future__ import annotations

import functools
import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from lmprog import wire
from lmprog.constraints.constraint import Constraint
from lmprog.errors import InvalidParameter, NotSupported, UnsatisfiableConstraint
from lmprog.runtime.programs.active_call import ActiveCall
from lmprog.runtime.programs.branch import RuntimeBranch
from lmprog.runtime.programs.call_constraints import CallConstraints
from lmprog.runtime.programs.compile_pool import PendingConstraint
from lmprog.runtime.programs.healing import Healer
from lmprog.runtime.programs.result_selection import ResultSelector
from lmprog.runtime.programs.select_scoring import make_ballot
from lmprog.runtime.scheduling.generation import Forcing, Generation, GenerationSettings, Scoring
from lmprog.runtime.scheduling.namespaces import Namespaces
from lmprog.runtime.scheduling.sequence import GroupTiming, Sequence, SequenceGroup
from lmprog.runtime.text.cuts import Cutter
from lmprog.runtime.text.stream import TextStream
from lmprog.runtime.text.text_service import TextService
from lmprog.runtime.text.tokenizer import Tokenizer
from lmprog.transport import ClientId


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What the model and the memory allow. `longest` is the most tokens of one sequence."""

    vocab_size: int
    longest: int
    check_fits: Callable[[int, int], None]
    """Raises `ContextOverflow` for (prompt, max_tokens) that can never run."""
    namespaces: Namespaces = field(default_factory=Namespaces)
    """Who shares what of the tree."""


class CallBuilder:
    """Turns ops into calls. `rng` gives seeds to calls that name none."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        limits: CallLimits,
        constraints: CallConstraints | None,
        forcing: Forcing | None,
        rng: random.Random,
    ) -> None:
        self.tokenizer = tokenizer
        self._cutter = Cutter(tokenizer)
        self._healer = Healer(tokenizer, limits.vocab_size, limits.longest)
        self.speller = TextService(tokenizer, limits.vocab_size, limits.longest)
        self._limits = limits
        self.namespaces = limits.namespaces
        self.constraints = constraints
        """None: constraints are refused."""
        self._forcing = forcing
        self._rng = rng

    def seed(self, given: int | None) -> int:
        """The seed of a call: the one it names, or a new one."""
        return self._rng.getrandbits(63) if given is None else given

    def begin_constraint(self, active: ActiveCall) -> None:
        """Has the constraint of a new call compiled, if it has one; the call is built when it is
        known.
        """
        if isinstance(active.op, wire.Generate) and active.op.constraint is not None:
            if self.constraints is None:
                active.compiling = PendingConstraint(
                    error=NotSupported("this runtime has no constraints.")
                )
            else:
                active.compiling = self.constraints.begin(active.op.constraint)

    @property
    def is_compiling(self) -> bool:
        return self.constraints is not None and self.constraints.is_compiling

    def let_compile(self, busy: bool) -> None:
        """See `CallConstraints.turn`."""
        if self.constraints is not None:
            self.constraints.turn(busy)

    def compiled(self) -> list[tuple[ClientId, RuntimeBranch]]:
        """Branches whose constraint has become known."""
        finished = self.constraints.collect() if self.constraints is not None else []
        return [waiting for compiling in finished for waiting in compiling.waiting]

    def check_length(self, branch: RuntimeBranch) -> None:
        """Raises `ContextOverflow` where the branch's text is too long to be worth tokenising."""
        self.speller.check_length(branch.pending)

    def settle(self, branch: RuntimeBranch) -> None:
        """Tokenises what of the branch's text is certain, so that forks and options need not do it
        again. Raises `ContextOverflow` where it is too long to fit at all."""
        self.check_length(branch)
        cut = self._cutter.last(branch.pending)
        if cut:
            branch.settle(self.tokenizer, cut)

    def build(self, active: ActiveCall, now: float) -> SequenceGroup:
        """The call's sequences, ready to be submitted. Raises RequestRejected; then nothing has
        changed.
        """
        op = active.op
        if isinstance(op, wire.Generate):
            return self._gen(active, op, now)
        assert isinstance(op, wire.Select)
        return self._select(active, op, now)

    def option_tokens(self, branch: RuntimeBranch, option: str) -> array[int]:
        """The branch's tokens when `option` stands behind its text."""
        return branch.tokens_with(self.tokenizer, option)

    def _gen(self, active: ActiveCall, op: wire.Generate, now: float) -> SequenceGroup:
        branch, is_ranked = active.branch, op.keep == "best" and op.judge is None
        sampling = op.sampling.scored() if is_ranked else op.sampling
        self._check_ids(sampling)
        self.settle(branch)
        prompt = branch.tokens_with(self.tokenizer)
        if not prompt:
            raise InvalidParameter(
                "the prompt is empty and this model's tokenizer puts nothing before a text; append some text first.",
                name="prompt",
                value="",
                allowed="at least one token",
            )
        max_tokens = sampling.max_tokens
        if max_tokens is None:
            max_tokens = max(1, self._limits.longest - len(prompt))
        self._limits.check_fits(len(prompt), max_tokens)
        if op.judge is not None:
            self._limits.check_fits(len(prompt) + self._num_asked(op.judge), max_tokens)
        constraint = active.compiling.result() if active.compiling is not None else None
        if constraint is not None and constraint.distance(constraint.start) > max_tokens:
            raise UnsatisfiableConstraint(
                f"the shortest text that the constraint allows may need {constraint.distance(constraint.start):,} "
                f"tokens, and max_tokens is {max_tokens:,}. Raise max_tokens."
            )
        # Log-probabilities are wanted of every token, and forced ones are never looked at: then all
        # are picked.
        forcing = self._forcing if sampling.logprobs is None else None
        call = SequenceGroup(active, op.priority, timing=GroupTiming(now), prompt_len=len(prompt))
        seam = self._healer.seam(branch, prompt, op, max_tokens, constraint)
        if seam is not None:
            prompt.pop()
        stops = self._healer.stops(sampling, constraint)
        eos_ids = self.tokenizer.eos_ids
        settings = GenerationSettings(
            sampling, max_tokens, eos_ids, len(prompt), constraint, forcing, seam, stops
        )
        seed = self.seed(sampling.seed)
        for index in range(sampling.n):
            task = Generation(settings, seed + index)
            tokens = prompt[:]
            task.open(tokens)
            call.sequences.append(self._sequence(call, tokens, task, branch))
        whole = None if constraint is None else functools.partial(_is_whole, constraint)
        again = "" if seam is None else seam.text.decode()
        active.streams = [
            TextStream(
                self.tokenizer,
                sampling.stop,
                sampling.stop_regex,
                whole,
                sampling.min_tokens,
                again,
            )
            for _ in range(sampling.n)
        ]
        active.outputs = [None] * sampling.n
        active.keeper = (
            None
            if op.keep == "first"
            else ResultSelector(op.keep, sampling.n, max_tokens + 1, judge=op.judge)
        )
        return call

    def _select(self, active: ActiveCall, op: wire.Select, now: float) -> SequenceGroup:
        branch = active.branch
        self.settle(branch)
        before = branch.tokens_with(self.tokenizer)
        if not before:
            raise InvalidParameter(
                "a select needs some text before it; this branch is empty.",
                name="prompt",
                value="",
                allowed="text",
            )
        if "" in op.choices:
            raise InvalidParameter(
                "an empty choice has no token to score.",
                name="choices",
                value="",
                allowed="non-empty texts",
            )
        for option in op.choices:
            self.speller.check_length(option, "an option")
        options = [self.option_tokens(branch, option) for option in op.choices]
        self._limits.check_fits(max(len(tokens) for tokens in options), 0)
        alone: tuple[int, ...] | None = None
        if op.method == "unconditional_likelihood_normalized":
            alone = self.tokenizer.prefix or self.tokenizer.eos_ids[:1] or tuple(before[:1])
        active.ballot = make_ballot(before, options, alone)
        call = SequenceGroup(active, op.priority, timing=GroupTiming(now), prompt_len=len(before))
        call.sequences = [
            self._sequence(call, course.tokens, course.scoring, branch)
            for course in active.ballot.courses
        ]
        return call

    def _num_asked(self, judge: wire.Judge) -> int:
        """About how many tokens the judge's text and its longest choice are. Raises
        `ContextOverflow`.
        """
        self.speller.check_length(judge.text, "the judge's text")
        longest = max(len(self.tokenizer.encode(choice, start=False)) for choice in judge.choices)
        return len(self.tokenizer.encode(judge.text, start=False)) + longest

    def verdicts(
        self, branch: RuntimeBranch, call: SequenceGroup, keeper: ResultSelector
    ) -> list[Sequence]:
        """The sequences on which the judge is asked about each result. Raises `ContextOverflow`."""
        assert keeper.judge is not None
        sequences: list[Sequence] = []
        for index, found in keeper.finished.items():
            read = RuntimeBranch(branch.id, branch.salt)
            read.adopt(found.tokens, "", found.ended.rest)
            read.append(keeper.judge.text)
            options = [self.option_tokens(read, choice) for choice in keeper.judge.choices]
            self._limits.check_fits(max(len(tokens) for tokens in options), 0)
            ballot = keeper.ballots[index] = make_ballot(
                read.tokens_with(self.tokenizer), options, None
            )
            sequences += [
                self._sequence(call, course.tokens, course.scoring, branch)
                for course in ballot.courses
            ]
        return sequences

    def _sequence(
        self,
        call: SequenceGroup,
        tokens: array[int],
        task: Generation | Scoring,
        branch: RuntimeBranch,
    ) -> Sequence:
        sequence = Sequence(call, tokens, task, self.namespaces.of(tokens, branch.salt))
        sequence.is_continuation = branch.pin is not None
        return sequence

    def _check_ids(self, sampling: wire.SamplingParams) -> None:
        self.speller.check_ids(sampling.stop_token_ids, "stop_token_ids")
        self.speller.check_ids([token for token, _ in sampling.logit_bias], "logit_bias")


def _is_whole(constraint: Constraint, text: str) -> bool:
    """Whether the constraint accepts `text` as it stands."""
    state = constraint.advance_bytes(constraint.start, text.encode())
    return state is not None and constraint.is_final(state)
