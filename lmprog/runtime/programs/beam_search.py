"""Beam search as `transformers` decides it: which texts go on, by which tokens, and which are
complete; and the gens that are made by it.

The search begins with one text and takes what may follow each text under way, all at once, token by
token. Texts are compared by the sums of their tokens' log-probabilities, which are equally many for
all under way; complete ones by their scores, for which the length counts too (`wire.Beams`).

`BeamSearch` is pure: tokens and numbers in, texts out. `BeamCalls` has the scheduler answer for it,
and makes results of its texts. Only calls that ask for beams need this module.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Container, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from lmprog import wire
from lmprog.errors import (
    InvalidParameter,
    LmprogError,
    NotSupported,
    UnsatisfiableConstraint,
    not_allowed,
)
from lmprog.runtime.programs.call_builder import CallBuilder
from lmprog.runtime.programs.clients import ActiveCall, GenerateRun, output_of
from lmprog.runtime.programs.delivery import CallCompletion, Delivery
from lmprog.runtime.programs.result_selection import FinishedResult, ResultSelector
from lmprog.runtime.scheduling.active_programs import Pin
from lmprog.runtime.scheduling.generation import Generation, ScoredToken, Scoring
from lmprog.runtime.scheduling.sampling_requests import Likely, likeliest_of_all, without
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup, SequenceState
from lmprog.runtime.text.stream import TextStream
from lmprog.runtime.text.tokenizer import Tokenizer
from lmprog.wire import SAMPLING_OPTIONS, Beams, Generate


@dataclass(eq=False, slots=True)
class Beam:
    """One text."""

    tokens: array[int]
    """The prompt's and its own."""
    task: Generation
    """In its state after them."""
    stream: TextStream | None
    """Its text, where that may end it; None where only tokens do."""
    total: float = 0.0
    """The sum of its tokens' log-probabilities."""
    before: Beam | None = None
    """What it is the continuation of; None at the start, and once others go on from it."""

    @property
    def is_complete(self) -> bool:
        return self.task.finish is not None or (self.stream is not None and self.stream.is_stopped)

    def followed_by(self, scored: ScoredToken) -> Beam:
        """May raise what a constraint raises that exceeds its limits."""
        tokens, task = self.tokens[:], self.task.copy()
        stream = None if self.stream is None else self.stream.copy()
        task.logprobs = self.task.logprobs
        num_seam_tokens = task.num_seam_tokens
        added = task.accept(scored.token, tokens)
        if task.settings.sampling.logprobs is not None and task.num_seam_tokens == num_seam_tokens:
            task.logprobs = [*task.logprobs, scored]
        if stream is not None and added:
            stream.push(scored.token)
        return Beam(tokens, task, stream, self.total + scored.logprob, self)


class BeamSearch:
    """The texts of one search. `num_ends`: how many tokens end a text."""

    def __init__(self, rules: Beams, start: Beam, num_ends: int) -> None:
        self._rules = rules
        self._most_steps = start.task.settings.max_tokens
        self.num_likely = max(2, 1 + num_ends) * rules.width
        """So many tokens after a text can matter: as many as could end one, and one that goes on,
        for each text."""
        self.running = [start]
        """Equally long, the likeliest first."""
        self.complete: list[Beam] = []
        """The best first, at most `width`."""
        self.num_steps = 0
        """Tokens decided, ends included."""
        if start.is_complete:  # the constraint allows the empty text only
            self.running, self.complete = [], [start]

    @property
    def is_over(self) -> bool:
        return not self.running

    def score(self, beam: Beam) -> float:
        """By which a complete text is compared."""
        return self._scored(beam, max(1, beam.task.steps))

    def take(self, likely: Items[Likely]) -> None:
        """Goes a token on. `likely` has for each text under way what may follow it, the likeliest
        first, `num_likely` or all there are. May raise what a constraint raises that exceeds its
        limits.
        """
        width, going, ended = self._rules.width, list[Beam](), list[Beam]()
        for rank, (index, scored) in enumerate(self._ranked(likely)):
            if len(going) == width:
                break
            beam = self.running[index].followed_by(scored)
            if not beam.is_complete:
                going.append(beam)
            elif rank < width:
                ended.append(beam)
        for beam in self.running:
            beam.before = None  # else every text would keep all its beginnings
        self.num_steps += 1
        self.complete = sorted([*self.complete, *ended], key=self.score, reverse=True)[:width]
        self.running = going if going and self._may_improve(going[0]) else []

    def _ranked(self, likely: Items[Likely]) -> Iterator[tuple[int, ScoredToken]]:
        """The likeliest continuations of all texts: whose they are, and by which token."""

        num_top = self.running[0].task.settings.sampling.logprobs or 0
        totals = [beam.total for beam in self.running]
        for index, token, logprob in likeliest_of_all(likely, totals, self.num_likely):
            yield index, ScoredToken(token, logprob, likely[index][:num_top])

    def _may_improve(self, best: Beam) -> bool:
        """Whether the search goes on, of whose texts under way `best` is the likeliest."""
        if len(self.complete) < self._rules.width:
            return True
        early, penalty = self._rules.early_stopping, self._rules.length_penalty
        if early is True:
            return False
        length = self._most_steps if early == "never" and penalty > 0.0 else self.num_steps
        return self._scored(best, length) > self.score(self.complete[-1])

    def _scored(self, beam: Beam, length: int) -> float:
        return beam.total / math.pow(length, self._rules.length_penalty)


@dataclass(eq=False, slots=True)
class BeamRun:
    """A gen by beam search in the scheduler: for each text under way, a sequence asks what may
    follow it.
    """

    group: SequenceGroup
    search: BeamSearch
    new_stream: Callable[[], TextStream]
    new_sequence: Callable[[array[int], Generation | Scoring], Sequence]
    calls: BeamCalls
    """Who moves it on."""
    num_left: int = 0
    """Of the group's sequences, those that are not scored yet."""
    pins: dict[Beam, Pin] = field(default_factory=dict)
    """Where each text ends that was computed and that another goes on from."""

    def ended(self, call: ActiveCall, sequence: Sequence, now: float) -> None:
        self.calls.searched(call, self, sequence, now)

    def let_go(self) -> None:
        self.calls.keep(self, ())

    def task_of(self, sequence: Sequence) -> Generation:
        return self.beam_of(sequence).task

    def beam_of(self, sequence: Sequence) -> Beam:
        """The text that a sequence of the group asks for."""
        beams = self.search.running or self.search.complete
        return beams[self.group.sequences.index(sequence)]

    def ask(self) -> None:
        """Makes the group's next sequences. May raise what a mask raises."""
        made = []
        for index, beam in enumerate(self.search.running or self.search.complete):
            task, num_likely = beam.task, self.search.num_likely
            mask = None if beam.is_complete else task.mask()
            if mask is not None and task.mask_without_budget() is not None:
                task.is_cut = True  # the budget has a say in what follows
            # one target, whichever, stands for the place after the last token
            num_likely += len(task.banned(beam.tokens))
            scoring = Scoring(len(beam.tokens), (0,), num_likely, mask)
            sequence = self.new_sequence(beam.tokens, scoring)
            if index:  # what it adds to memory another gives up
                sequence.num_settled = len(beam.tokens)
            made.append(sequence)
        self.group.sequences = made
        self.num_left = len(made)

    def answers(self) -> list[Likely]:
        """What may follow each text, once all sequences have their logits. Bans give way where
        they would leave nothing.
        """
        found = []
        for beam, sequence in zip(self.search.running, self.group.sequences, strict=True):
            assert isinstance(sequence.task, Scoring)
            (scored,) = sequence.task.final_logprobs
            banned = beam.task.banned(beam.tokens)
            left = without(scored.top, banned) if banned else ()
            found.append(left or scored.top)
        return found

    def results(self, num_results: int) -> GenerateRun:
        """The best texts as the results of a gen, whose sequences have ended."""
        best = self.search.complete[:num_results]
        streams = [beam.stream or self._read(beam) for beam in best]
        self.group.sequences = [self.new_sequence(beam.tokens, beam.task) for beam in best]
        for sequence in self.group.sequences:
            sequence.state = SequenceState.ENDED
        return GenerateRun(self.group, streams, None)

    def _read(self, beam: Beam) -> TextStream:
        stream = self.new_stream()
        for token in beam.tokens[beam.task.settings.prompt_len :]:
            stream.push(token)
        return stream


class BeamCalls:
    """The beam searches of a runtime."""

    def __init__(
        self,
        scheduler: Scheduler,
        calls: CallBuilder,
        completion: CallCompletion,
        delivery: Delivery,
        tokenizer: Tokenizer,
    ) -> None:
        self._scheduler = scheduler
        self._calls = calls
        self._tokenizer = tokenizer
        self._completion = completion
        self._delivery = delivery

    def build(self, call: ActiveCall, op: Generate, beams: Beams, now: float) -> BeamRun:
        """The call's first sequence, to be submitted. Nothing is forced, so that all texts have
        equally many tokens, each with its score. Raises RequestRejected; then nothing changed.
        """
        check_beams(op, beams)
        calls, branch = self._calls, call.branch
        prompt, settings = calls.begun(call, op, op.sampling)
        group = calls.group(call, op, len(prompt), now)
        if settings.seam is not None:
            prompt.pop()
        task = Generation(settings, 0)
        task.start(prompt)
        stops = op.sampling.stop or op.sampling.stop_regex
        searches = [pending.result() for pending in call.stops]
        start = Beam(prompt, task, calls.stream(settings, searches) if stops else None)
        num_ends = len({*settings.eos_ids, *op.sampling.stop_token_ids})
        run = BeamRun(
            group,
            BeamSearch(beams, start, num_ends),
            lambda: calls.stream(settings, searches),
            lambda tokens, task: calls.sequence(group, tokens, task, branch),
            self,
        )
        run.ask()
        return run

    def searched(self, call: ActiveCall, run: BeamRun, sequence: Sequence, now: float) -> None:
        """What may follow one text is known; with the last one the search goes a token on."""
        search, group, beam = run.search, run.group, run.beam_of(sequence)
        if group.timing.first_token is None:
            group.timing.first_token = now
        run.num_left -= 1
        if run.num_left:
            self._hold(run, beam, sequence)
            return
        try:
            if not search.is_over:
                search.take(run.answers())
            if not search.is_over:
                run.ask()
                group.goes_on = True
                self._scheduler.submit(group)
            elif not search.complete:
                raise UnsatisfiableConstraint("nothing may follow any text of the beam search.")
        except LmprogError as error:
            self._completion.fail(call, error)
            return
        self._hold(run, beam, sequence)  # last, so that the program never pauses
        self.keep(run, {one.before for one in search.running + search.complete})
        if search.is_over:
            self._finish(call, run, now)

    def _finish(self, call: ActiveCall, run: BeamRun, now: float) -> None:
        """The branch goes on from the best text; with a judge, from the one that it finds best."""
        op = call.op
        assert isinstance(op, wire.Generate)
        call.run = ended = run.results(op.sampling.n)
        if op.judge is not None:
            most = len(ended.streams)
            ended.selector = ResultSelector("best", most, 1, judge=op.judge)
        for index, sequence in enumerate(ended.group.sequences):
            self._scheduler.stats.generated_tokens += sequence.num_generated
            self._read(call, ended, index, run.search.score(run.search.complete[index]))
        if ended.selector is not None:
            self.keep(run, (), forget=False)  # the judge goes on from all
            self._delivery.select_result(call, ended, ended.selector, now)
        else:
            self._delivery.move_pin_to(call.branch, call.branch.tokens)
            self.keep(run, ())
            self._delivery.finish_gen(call, ended, now)

    def _read(self, call: ActiveCall, run: GenerateRun, index: int, score: float) -> None:
        """Makes a complete text a result. The first one continues the branch, without a judge."""
        sequence, stream, op = run.group.sequences[index], run.streams[index], call.op
        task, text = sequence.task, stream.finish()
        assert isinstance(task, Generation)
        assert isinstance(op, wire.Generate)
        has_logprobs = op.sampling.logprobs is not None
        output = run.outputs[index] = output_of(
            sequence,
            text,
            stream,
            self._tokenizer,
            logprobs=has_logprobs,
            score=score,
            with_ends=op.with_ends,
        )
        tokens = sequence.tokens[: task.settings.prompt_len + text.num_tokens]
        if run.selector is not None:
            run.selector.finished[index] = FinishedResult(tokens, text, score)
            return
        if index == 0:
            call.branch.adopt(tokens, text.text, text.rest)
        if op.stream and (output.text or output.logprobs):
            num_tokens = len(output.tokens)
            logprobs, tags = output.logprobs, output.tags
            delta = wire.Delta(call.id, index, output.text, num_tokens, logprobs, tags)
            self._completion.send(call.client, delta)

    # --- what texts under way stand on

    def _hold(self, run: BeamRun, beam: Beam, sequence: Sequence) -> None:
        """Ends the sequence of a text, which stays in memory if it can."""
        assert run.group.program is not None, "only a submitted call goes on"
        node = self._scheduler.end(sequence)
        if node is not None:
            run.pins[beam] = self._scheduler.pins.pin(node, run.group.program)
            self._scheduler.unpin(node)

    def keep(self, run: BeamRun, kept: Container[Beam | None], *, forget: bool = True) -> None:
        """Lets go of all texts but those; with `forget` what only they stood on is free at once."""
        for beam in [one for one in run.pins if one not in kept]:
            pin = run.pins.pop(beam)
            self._scheduler.pins.unpin(pin)
            if forget:
                self._scheduler.forget(pin.node, run.group.prompt_len)


def check_beams(op: Generate, beams: Beams) -> None:
    """Raises `InvalidParameter` or `NotSupported` for what does not go with a beam search."""
    sampling = op.sampling
    if sampling.n > beams.width:
        raise InvalidParameter(
            f"a beam search of width {beams.width} has at most {beams.width} results, and "
            f"n={sampling.n} were asked for.",
            name="n",
            value=sampling.n,
            allowed=f"x <= {beams.width}",
        )
    if sampling.max_tokens == 0:
        raise InvalidParameter(
            "a beam search decides at least one token, and max_tokens is 0.",
            name="max_tokens",
            value=0,
            allowed="1 <= x",
        )
    if sampling.faithful > 1:
        raise not_allowed("faithful", sampling.faithful, "1", "a beam search draws no texts")
    for name, line in SAMPLING_OPTIONS.items():
        if not line.option.is_for_beams and getattr(sampling, name) not in line.asks_for_nothing:
            raise NotSupported(
                f"a beam search compares the model's own log-probabilities, and {name}="
                f"{getattr(sampling, name)!r} has no meaning there; leave it out."
            )
    if op.keep != "first" and op.judge is None:
        raise NotSupported(
            f"keep={op.keep!r}: the first result of a beam search is its best; leave it out."
        )
