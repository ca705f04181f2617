"""Builds runs: a gen or select on a branch becomes sequences with tokens, tasks and settings.

All limits that depend on the model are checked here, once; errors name the value, the limit and
what to do. Which end of a prompt is generated again is decided here too (`Healer`). Knows the
tokenizer, the constraint compiler and the context's length; knows no clients and no tree.
"""

from __future__ import annotations

import random
import re
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from lmprog import wire
from lmprog.constraints.constraint import Constraint, State, with_late_masks
from lmprog.constraints.seam import Pieces, Seam, Stops, mask_row
from lmprog.constraints.search import TextSearch
from lmprog.errors import (
    InvalidParameter,
    NotSupported,
    RuntimeGone,
    UnknownName,
    UnsatisfiableConstraint,
)
from lmprog.runtime.programs.branch import RuntimeBranch
from lmprog.runtime.programs.clients import ActiveCall, GenerateRun, SelectRun
from lmprog.runtime.programs.long_texts import LongTexts
from lmprog.runtime.programs.result_selection import ResultSelector
from lmprog.runtime.programs.select_scoring import NO_BALLOT, Ballot, ballot_pieces
from lmprog.runtime.scheduling.generation import (
    BannedSequences,
    Forcing,
    Generation,
    GenerationSettings,
    Scoring,
    ThoughtBudget,
    TokenRules,
)
from lmprog.runtime.scheduling.namespaces import (
    BASE_ALONE,
    SHARED_NAMESPACE,
    AdapterNames,
    Namespaces,
)
from lmprog.runtime.scheduling.sequence import GroupTiming, Sequence, SequenceGroup
from lmprog.runtime.text.chat_template import ChatTemplate
from lmprog.runtime.text.stream import TextStream
from lmprog.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from lmprog.runtime.programs.judging import Asked, Ballots, Judging


class Healer:
    """Token healing: finds seams, for one tokenizer and a model of `vocab_size` logits.

    A prompt that ends with "http:" has a last token ":" that the model has hardly ever seen
    there, since the text that it learned from has "://" in one token. So the last token of
    literal text is taken back, and its bytes, the *seam*, are generated again: among the tokens
    that are a prefix of the seam, those that are the seam, and those that begin with the seam and
    go on, each token is sampled as any other, with the call's own sampling parameters, until the
    seam is complete. From there on nothing is different. So the distribution over texts is that
    of the prompt with its last token sampled once more; where the model samples the old token,
    all that follows is what it would have been.

    What is healed, and what is not:

    - Only a branch that ends in literal text, appended by the program (also by a reference to
      another branch's result). A branch that ends in generated tokens, in the winner of a
      `select`, in tokens given as ids, or in what a chat template writes around a turn, is never
      healed; neither is a special token written in the text.
    - Only one token is taken back. A trailing space is the most frequent case: " " becomes "
      word".
    - Only where some token begins with the seam and goes on, as the call's constraint allows.
      Otherwise there is nothing to decide, the prompt is kept as it is, and nothing more is
      computed. Where there is one, the call takes at most one more step for each token inside the
      seam (most often one), and recomputes the page of the last token.
    - A constraint begins after the seam: a token that goes beyond the seam must go on as the
      constraint allows. A grammar of llguidance cannot be asked about bytes, so nothing is healed
      before one.
    - A token that begins or ends inside a character is kept: a replacement for part of a
      character is not text.
    - The prompt's only token is kept: something must precede the first sampled token.
    - A `select` is not healed: its options are tokenised together with the text before them,
      which has the same effect exactly.
    - Where log-probabilities of the prompt are wanted, its tokens are kept; also where only some
      tokens may be sampled at all, and where nothing is to be generated.
    - Where the prompt, `max_tokens` and a seam spelled byte by byte would not fit the context,
      nothing is healed.

    The token taken back belongs to each sequence; forks and the `n` results of a call share all
    before it.

    Reported: `usage.prompt` counts the prompt as it was written. Tokens inside the seam are part
    of the prompt; they are not in `tokens`, `logprobs`, `usage.generated`, `max_tokens` and
    `min_tokens`. The token that goes beyond the seam is the first generated one. The seam's text
    is not given out again, streamed or not, and no stop is found in it.

    `lmprog.constraints.seam` makes the masks.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, longest: int) -> None:
        """`longest`: the most tokens of one sequence."""
        self._tokenizer = tokenizer
        self._num_tokens = min(vocab_size, tokenizer.vocab_size)
        self._longest = longest

    @cached_property
    def pieces(self) -> Pieces:
        """Made on first use."""
        excluded = set(self._tokenizer.eos_ids)
        texts = (
            None if token in excluded else self._tokenizer.token_bytes(token)
            for token in range(self._num_tokens)
        )
        return Pieces(list(texts))

    def seam(
        self,
        branch: RuntimeBranch,
        prompt: array[int],
        op: wire.Generate,
        max_tokens: int,
        constraint: Constraint | None,
    ) -> Seam | None:
        """The end of `prompt`, the branch's tokens, that `op` generates again; None for nothing."""
        sampling = op.sampling
        if (
            not (op.heal and branch.ends_literal)
            or len(prompt) < 2
            or sampling.prompt_logprobs is not None
            or sampling.allowed_token_ids is not None
            or max_tokens == 0
        ):
            return None
        piece = self._tokenizer.token_bytes(prompt[-1])
        if not piece or prompt[-1] in self._tokenizer.eos_ids or prompt[-1] >= self._num_tokens:
            return None
        if not (_is_text(piece) and branch.pending.endswith(piece.decode())):
            return None
        if constraint is not None and constraint.engine != "lmprog":
            return None
        if len(prompt) - 1 + len(piece) + max_tokens > self._longest:
            return None
        seam = Seam(piece, self.pieces, constraint, sampling.stop_token_ids, prompt[-1])
        return seam if seam.beyond(0, max_tokens) else None

    def stops(self, sampling: wire.SamplingParams, constraint: Constraint) -> Stops | None:
        """How a constrained text may end besides by its constraint; None for no other way."""
        if not (sampling.stop or sampling.stop_token_ids):
            return None
        return Stops(
            tuple(stop.encode() for stop in sampling.stop), sampling.stop_token_ids, self.pieces
        )


def _is_text(piece: bytes) -> bool:
    """Whether no character is cut."""
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What the model and the memory allow. `longest` is the most tokens of one sequence."""

    vocab_size: int
    longest: int
    check_fits: Callable[[int, int], None]
    """Raises `ContextOverflow` for (prompt, max_tokens) that can never run."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What programs need to know of the model that runs them."""

    tokenizer: Tokenizer
    template: Callable[[], ChatTemplate]
    """Raises where it cannot be read."""
    welcome: wire.Welcome
    """What clients are told of it."""
    namespaces: Namespaces = field(default_factory=Namespaces)
    """Which part of the tree each salt uses."""
    adapters: AdapterNames = field(default_factory=AdapterNames)
    """What branches may be computed with."""
    tags: frozenset[int] = frozenset()
    """The special tokens that are part of texts: tags of the model's calls."""
    is_forcing: bool = True
    """Whether what a constraint leaves no choice about is not sampled."""

    def check(self, op: wire.Open) -> None:
        """Raises RuntimeGone where a program has begun with another model, UnknownName where
        another one is meant.
        """
        if op.model and op.model != self.welcome.digest:
            raise RuntimeGone.of_another_model()
        if op.served_name and op.served_name != self.welcome.served_name:
            raise UnknownName.of_model(op.served_name, [self.welcome.served_name])

    def called_tool(self, text: str) -> str:
        """The name in the last call of an answer; empty: it calls nothing. Only the beginning of a
        call is looked for: pauses are told apart by it, and nothing depends on it.
        """
        form = self.welcome.tools.form
        if "name" not in form.slots:
            return ""
        before = form.literals[form.slots.index("name")]
        _, found, name = text.rpartition(before) if before else ("", "", "")
        written = _TOOL_NAME.match(name) if found else None
        return written[0] if written is not None else ""


_TOOL_NAME = re.compile(r"[\w.-]{1,64}")


class CallBuilder:
    """Turns ops into runs. `rng` gives seeds to calls that name none."""

    def __init__(
        self,
        model: ServedModel,
        limits: CallLimits,
        texts: LongTexts,
        forcing: Forcing | None,
        rng: random.Random,
        judging: Callable[[], Judging],
    ) -> None:
        """`texts` tokenises those of branches. Without `forcing` all tokens are sampled. `judging`
        is asked for when a call has a judge.
        """
        self._tokenizer = model.tokenizer
        self._tags = model.tags
        self._namespaces = model.namespaces
        self._healer = Healer(model.tokenizer, limits.vocab_size, limits.longest)
        self._limits = limits
        self._branch_texts = texts
        self._encoder = texts.encoder
        self._texts = texts.service
        self._forcing = forcing
        self._rng = rng
        self._judging = judging

    def seed(self, given: int | None) -> int:
        """The seed of a call: the one it names, or a new one."""
        return self._rng.getrandbits(63) if given is None else given

    def build(self, call: ActiveCall, now: float) -> GenerateRun | SelectRun:
        """The call's sequences, to be submitted. Raises RequestRejected; then nothing changed."""
        if isinstance(call.op, wire.Generate):
            return self._build_gen(call, call.op, now)
        assert isinstance(call.op, wire.Select)
        return self._build_select(call, call.op, now)

    def group(
        self, call: ActiveCall, op: wire.Generate | wire.Select, prompt_len: int, now: float
    ) -> SequenceGroup:
        """The call's, still without sequences."""
        branch = call.branch
        return SequenceGroup(
            op.priority,
            branch.program,
            branch.payer,
            branch.weight,
            timing=GroupTiming(now),
            prompt_len=prompt_len,
            turn=branch.turn,
            expected=op.expected if isinstance(op, wire.Generate) else None,
        )

    # --- gen

    def _build_gen(self, call: ActiveCall, op: wire.Generate, now: float) -> GenerateRun:
        branch = call.branch
        is_ranked = op.keep == "best" and op.judge is None
        sampling = op.sampling.scored() if is_ranked else op.sampling
        prompt, settings = self.begun(call, op, sampling)
        group = self.group(call, op, len(prompt), now)
        if settings.seam is not None:
            prompt.pop()
        seed = self.seed(sampling.seed)
        searches = [pending.result() for pending in call.stops]

        def make(group: SequenceGroup, numbers: range) -> list[TextStream]:
            streams = []
            for index in numbers:
                task, stream = Generation(settings, seed + index), self.stream(settings, searches)
                tokens = prompt[:]
                task.start(tokens)
                if sampling.stop or sampling.stop_regex:
                    task.num_before_stop = stream.num_before_stop
                group.sequences.append(self.sequence(group, tokens, task, branch))
                streams.append(stream)
            return streams

        if sampling.faithful > 1 and settings.constraint is not None:
            from lmprog.runtime.programs.faithful import faithful_run

            return faithful_run(op, seed, group, make, self._following)
        streams = make(group, range(sampling.n))
        selector = None
        if op.keep != "first":
            selector = ResultSelector(
                op.keep,
                sampling.n,
                settings.max_tokens + 1,
                judge=op.judge,
                constraint=op.constraint,
            )
        return GenerateRun(group, streams, selector)

    def begun(
        self, call: ActiveCall, op: wire.Generate, sampling: wire.SamplingParams
    ) -> tuple[array[int], GenerationSettings]:
        """The prompt of a gen, and its settings. Raises RequestRejected."""
        if op.tools is not None:
            raise NotSupported(
                "a runtime takes no tools beside its texts: write them into the branch, and "
                "constrain their calls."
            )
        if sampling.stop_token_ids:
            self._texts.check_ids(sampling.stop_token_ids, "stop_token_ids")
        if sampling.logit_bias:
            self._texts.check_ids([token for token, _ in sampling.logit_bias], "logit_bias")
        if sampling.allowed_token_ids:
            self._texts.check_ids(sampling.allowed_token_ids, "allowed_token_ids")
        prompt = self._prompt(call.branch)
        constraint = call.constraint.result() if call.constraint is not None else None
        return prompt, self._settings(call.branch, prompt, op, sampling, constraint)

    def stream(self, settings: GenerationSettings, searches: Iterable[TextSearch]) -> TextStream:
        """The text of a result, of which nothing is known yet."""
        sampling, constraint = settings.sampling, settings.constraint
        made = TextStream(
            self._tokenizer,
            sampling.stop,
            searches,
            None if constraint is None else _Completeness(constraint, constraint.start),
            sampling.min_tokens,
            "" if settings.seam is None else settings.seam.text.decode(),
            not sampling.skip_special_tokens,
        )
        if self._tags:
            made.watch_tags(self._tags)
        return made

    def _prompt(self, branch: RuntimeBranch) -> array[int]:
        self._branch_texts.tokenise_certain(branch)
        prompt = branch.tokens_with(self._encoder)
        if not prompt:
            raise InvalidParameter(
                "the prompt is empty and this model's tokenizer puts nothing before a text; "
                "append some text first.",
                name="prompt",
                value="",
                allowed="at least one token",
            )
        return prompt

    def _settings(
        self,
        branch: RuntimeBranch,
        prompt: array[int],
        op: wire.Generate,
        sampling: wire.SamplingParams,
        constraint: Constraint | None,
    ) -> GenerationSettings:
        """What does not change while the gen runs. Raises RequestRejected where it cannot fit."""
        max_tokens = sampling.max_tokens
        if max_tokens is None:
            max_tokens = max(1, self._limits.longest - len(prompt))
        self._limits.check_fits(len(prompt), max_tokens)
        if op.judge is not None:
            judge_len = self._judging().length(op.judge)
            self._limits.check_fits(len(prompt) + judge_len, max_tokens)
        if constraint is not None and constraint.distance(constraint.start) > max_tokens:
            shortest = constraint.distance(constraint.start)
            raise UnsatisfiableConstraint(
                f"the shortest text that the constraint allows may need {shortest:,} tokens, and "
                f"max_tokens is {max_tokens:,}. Raise max_tokens."
            )
        seam = self._healer.seam(branch, prompt, op, max_tokens, constraint)
        return GenerationSettings(
            sampling,
            max_tokens,
            self._tokenizer.eos_ids,
            len(prompt) - (seam is not None),
            constraint,
            self._forcing if sampling.beams is None else None,
            seam,
            None if constraint is None else self._healer.stops(sampling, constraint),
            self._rules(sampling),
            None if op.thought is None else self._thought(op.thought, sampling),
            None if constraint is None else with_late_masks(constraint),
        )

    def _thought(self, given: wire.ThoughtLimit, sampling: wire.SamplingParams) -> ThoughtBudget:
        """Raises NotSupported where beams would have to be closed one by one."""
        if sampling.beams is not None:
            raise NotSupported("a beam search has no budget for thoughts; leave one of them out.")
        return ThoughtBudget(
            given.most,
            given.begin.encode(),
            given.end.encode(),
            tuple(self._tokenizer.encode(given.close, start=False)),
            self._tokenizer.token_bytes,
        )

    def _rules(self, sampling: wire.SamplingParams) -> TokenRules | None:
        """What the call says of single tokens. Raises `InvalidParameter`."""
        if sampling.allowed_token_ids is None and not sampling.bad_words:
            return None
        size = self._limits.vocab_size
        allowed, num_words = sampling.allowed_token_ids, -(-size // 32)
        return TokenRules(
            None if allowed is None else mask_row(sorted(set(allowed)), num_words),
            mask_row([token for token in self._tokenizer.eos_ids if token < size], num_words),
            BannedSequences(self._texts.spellings(sampling.bad_words)),
        )

    # --- the judge of a gen

    def judged_by(
        self, branch: RuntimeBranch, group: SequenceGroup, ballots: Ballots
    ) -> SequenceGroup:
        """The sequences by which the judge scores each result of `group`, as a group that goes on
        with its counters.
        """
        judging = self._following(group)
        for ballot in ballots.values():
            judging.sequences += self._scorings(judging, ballot, branch)
        return judging

    def _following(self, group: SequenceGroup) -> SequenceGroup:
        """One that goes on with the counters of `group`, still without sequences."""
        other = SequenceGroup(group.priority, timing=group.timing, prompt_len=group.prompt_len)
        other.computed, other.computed_from = group.computed, group.computed_from
        other.preemptions, other.recomputed = group.preemptions, group.recomputed
        other.drafted, other.accepted = group.drafted, group.accepted
        other.program, other.client = group.program, group.client
        other.weight = group.weight
        return other

    # --- select

    def _build_select(self, call: ActiveCall, op: wire.Select, now: float) -> SelectRun:
        """Without its sequences, which `select_pieces` makes."""
        branch = call.branch
        self._branch_texts.tokenise_certain(branch)
        prompt = branch.tokens_with(self._encoder)
        if not prompt:
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
            if not self._branch_texts.is_known(branch, option):
                self._texts.check_length(option, "an option")
        return SelectRun(self.group(call, op, len(prompt), now), NO_BALLOT)

    def select_pieces(
        self, call: ActiveCall, op: wire.Select, run: SelectRun
    ) -> Generator[None, None, Iterator[Sequence]]:
        """The sequences that score the options, each made when it is asked for; `run` has its
        ballot then. Raises RequestRejected.
        """
        branch, encoder, tokenizer = call.branch, self._encoder, self._tokenizer
        options = []
        for option in op.choices:
            options.append(branch.tokens_with(encoder, option))
            yield
        self._limits.check_fits(max(len(tokens) for tokens in options), 0)
        prompt = branch.tokens_with(encoder)
        alone: tuple[int, ...] | None = None
        if op.method == "unconditional_likelihood_normalized":
            alone = tokenizer.prefix or tokenizer.eos_ids[:1] or tuple(prompt[:1])
        run.ballot = yield from ballot_pieces(prompt, options, alone)
        run.num_left = len(run.ballot.sequences)
        return self._scorings(run.group, run.ballot, branch)

    def _scorings(
        self, group: SequenceGroup, ballot: Ballot, branch: RuntimeBranch
    ) -> Iterator[Sequence]:
        extending = {place.sequence for place in ballot.places}
        for index, scored in enumerate(ballot.sequences):
            sequence = self.sequence(group, scored.tokens, scored.scoring, branch)
            sequence.extends_prompt = index in extending
            yield sequence

    def sequence(
        self,
        group: SequenceGroup,
        tokens: array[int],
        task: Generation | Scoring,
        branch: RuntimeBranch,
    ) -> Sequence:
        namespace = SHARED_NAMESPACE
        if branch.salt or branch.adapter is not BASE_ALONE:
            namespace = self._namespaces.of(tokens, branch.salt, branch.adapter)
        sequence = Sequence(group, tokens, task, namespace)
        sequence.num_settled = branch.num_settled if branch.pin is not None else 0
        return sequence


@dataclass(frozen=True, slots=True)
class _Completeness:
    """Whether a constraint accepts a text as a whole."""

    constraint: Constraint
    state: State | None
    """None: it does not go on like this."""

    def after(self, text: str) -> _Completeness:
        if self.state is None or not text:
            return self
        state = self.constraint.advance_bytes(self.state, text.encode())
        return _Completeness(self.constraint, state)

    @property
    def may_end(self) -> bool:
        return self.state is not None and self.constraint.is_final(self.state)


def judging_of(
    model: ServedModel, texts: LongTexts, limits: CallLimits, judged: list[Asked]
) -> Judging:
    """What asks judges; its module is loaded with the first call that has one."""
    from lmprog.runtime.programs.judging import Judging

    return Judging(model.tokenizer, texts, limits.check_fits, judged)
