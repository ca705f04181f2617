"""Turns what a step brought into replies: streams text, finds stops, words finished results.

Knows text streams, results and branches; knows neither ops nor who runs when.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from lmprog import wire
from lmprog.errors import LmprogError
from lmprog.runtime.programs.active_call import (
    ActiveCall,
    GenerateRun,
    SelectRun,
    logprob_of,
    next_logprobs,
    output_of,
    usage_of,
)
from lmprog.runtime.programs.branch import RuntimeBranch
from lmprog.runtime.programs.call_builder import CallBuilder
from lmprog.runtime.programs.completion import CallCompletion
from lmprog.runtime.programs.result_selection import FinishedResult, ResultSelector
from lmprog.runtime.programs.select_scoring import choose, read_scores
from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.logits_requests import Progress
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence, SequenceState
from lmprog.runtime.text.tokenizer import TextEncoder

if TYPE_CHECKING:
    from lmprog.runtime.programs.judging import Ballots


class Delivery:
    """Takes the scheduler's progress reports to the calls they belong to."""

    def __init__(
        self,
        scheduler: Scheduler,
        completion: CallCompletion,
        calls: CallBuilder,
        encoder: TextEncoder,
    ) -> None:
        self._scheduler = scheduler
        self._completion = completion
        self._calls = calls
        self._encoder = encoder
        self._tokenizer = calls.tokenizer

    def deliver_forced(self, call: ActiveCall, now: float) -> None:
        """A call was submitted: text that its constraint forces at the beginning is known."""
        run = call.run
        if not isinstance(run, GenerateRun):
            return
        for index, sequence in enumerate(run.group.sequences):
            if call.is_done or sequence.state is SequenceState.ENDED:
                return
            task = sequence.task
            if isinstance(task, Generation) and (task.generated or task.finish is not None):
                self._push(call, run, index, task.generated)
                if task.finish is not None:
                    self._finish_result(call, run, index, now)

    def deliver(self, one: Progress, began: float, now: float) -> None:
        """One sequence's progress in a step that began at `began`."""
        sequence, added, ended, error, _ = one
        group = sequence.group
        call = self._completion.active.get(group)
        if call is None or call.run is None or sequence.state is SequenceState.ENDED:
            return  # another sequence's progress in this step has ended it
        run, timing = call.run, group.timing
        if timing.admitted is None:
            timing.admitted = began
        if error is not None:
            self._completion.fail(call, error)
        elif isinstance(run, GenerateRun) and isinstance(sequence.task, Generation):
            if added or ended:
                if timing.first_token is None:
                    timing.first_token = now
                self._generated(call, run, one, now)
        elif not ended:
            return
        elif isinstance(run, GenerateRun):
            self._judged(call, run, sequence, now)
        elif isinstance(run, SelectRun):
            self._scored(call, run, sequence, now)
        else:
            run.ended(call, sequence, now)

    def _generated(self, call: ActiveCall, run: GenerateRun, one: Progress, now: float) -> None:
        index = run.group.sequences.index(one.sequence)
        is_stopped = self._push(call, run, index, one.added)
        if one.ended or is_stopped:
            self._finish_result(call, run, index, now)
        elif run.selector is not None and run.selector.finished:
            self.select_result(call, run, run.selector, now)

    # --- text of a gen

    def _push(self, call: ActiveCall, run: GenerateRun, index: int, added: int) -> bool:
        """Streams the `added` newest tokens of a result; True when they complete a stop."""
        if not added:
            return False
        stream, tokens = run.streams[index], run.group.sequences[index].tokens
        num_before = stream.num_tokens
        text = stream.push(tokens[-added])
        for token in tokens[len(tokens) - added + 1 :] if added > 1 else ():
            if stream.is_stopped:
                break
            text += stream.push(token)
        op = call.op
        if run.selector is None and isinstance(op, wire.Generate) and op.stream:
            self._send_new(call, run, index, text, stream.num_tokens - num_before)
        return stream.is_stopped

    def _send_new(
        self, call: ActiveCall, run: GenerateRun, index: int, text: str, num_tokens: int
    ) -> None:
        """Streams new text of a result, and the log-probabilities that have not been sent."""
        op = call.op
        assert isinstance(op, wire.Generate)
        logprobs = () if op.sampling.logprobs is None else self._unsent_logprobs(run, index)
        if text or logprobs:
            stream = run.streams[index]
            tags = stream.tags_of(text) if stream.tags else ()
            delta = wire.Delta(op.call, index, text, num_tokens, logprobs, tags)
            self._completion.send(call.client, delta)

    def _unsent_logprobs(self, run: GenerateRun, index: int) -> tuple[wire.TokenLogprob, ...]:
        """Log-probabilities of tokens whose text has been given out, each once."""
        task = run.group.sequences[index].task
        assert isinstance(task, Generation)
        begin = run.num_sent_logprobs.get(index, 0)
        end = max(0, run.streams[index].num_certain - task.num_seam_tokens)
        run.num_sent_logprobs[index] = end
        return tuple(logprob_of(scored, self._tokenizer) for scored in task.logprobs[begin:end])

    # --- ends of a gen

    def _finish_result(self, call: ActiveCall, run: GenerateRun, index: int, now: float) -> None:
        """One of the `n` results is complete; the first one continues the branch."""
        sequence, stream, op = run.group.sequences[index], run.streams[index], call.op
        task = sequence.task
        assert isinstance(task, Generation)
        assert isinstance(op, wire.Generate)
        ended = stream.finish()
        has_logprobs = op.sampling.logprobs is not None
        run.outputs[index] = output_of(
            sequence, ended, stream, self._tokenizer, logprobs=has_logprobs
        )
        num_kept = task.settings.prompt_len + ended.num_tokens
        if run.selector is not None:
            self._completion.end_sequence(sequence, num_kept)
            run.selector.finished[index] = FinishedResult(
                sequence.tokens[:num_kept], ended, task.mean_logprob
            )
            self.select_result(call, run, run.selector, now)
            return
        if op.stream:
            self._send_new(call, run, index, ended.delta, 0)
        self._completion.end_sequence(sequence, num_kept, call.branch if index == 0 else None)
        if index == 0:
            call.branch.adopt(sequence.tokens[:num_kept], ended.text, ended.rest)
        if None not in run.outputs:
            self.finish_gen(call, run, now)

    def select_result(
        self, call: ActiveCall, run: GenerateRun, selector: ResultSelector, now: float
    ) -> None:
        """Ends the sequences that cannot win any more; the branch goes on from the winner."""
        for index, sequence in enumerate(run.group.sequences):
            task = sequence.task
            if sequence.state is SequenceState.ENDED or not isinstance(task, Generation):
                continue
            if selector.is_hopeless(sum(one.logprob for one in task.logprobs)):
                self._completion.end_sequence(sequence)
                selector.dropped.add(index)
        if selector.needs_judge:
            self._ask_judge(call, run, selector)
            return
        winner = selector.winner()
        if winner is None:
            return
        for sequence in run.group.sequences:
            if sequence.state is not SequenceState.ENDED:
                self._completion.end_sequence(sequence)
        found, won = selector.finished[winner], run.outputs[winner]
        assert won is not None
        if isinstance(call.op, wire.Generate) and call.op.stream and (won.text or won.logprobs):
            delta = wire.Delta(call.id, 0, won.text, len(won.tokens), won.logprobs, won.tags)
            self._completion.send(call.client, delta)
        self.move_pin_to(call.branch, found.tokens)
        call.branch.adopt(found.tokens, found.ended.text, found.ended.rest)
        run.outputs.insert(0, run.outputs.pop(winner))
        self.finish_gen(call, run, now, winner)

    def _ask_judge(self, call: ActiveCall, run: GenerateRun, selector: ResultSelector) -> None:
        """All results are there: the call goes on with the judge's scoring of each, once what it
        reads is tokenised.
        """
        selector.is_judge_asked = True

        def go_on(ballots: Ballots | LmprogError) -> None:
            if call.run is not run:
                return  # it was ended meanwhile
            try:
                if isinstance(ballots, LmprogError):
                    raise ballots
                selector.ballots = ballots
                group = self._calls.judged_by(call.branch, run.group, ballots)
                self._completion.continue_with(call, group)
            except LmprogError as error:
                self._completion.fail(call, error)

        self._calls.judging.ask(call.branch, selector, go_on)

    def _judged(self, call: ActiveCall, run: GenerateRun, sequence: Sequence, now: float) -> None:
        """One scoring of the judge is done; after the last one the best result is known."""
        assert run.selector is not None
        self._completion.end_sequence(sequence)
        if all(other.state is SequenceState.ENDED for other in run.group.sequences):
            run.selector.take_verdicts()
            self.select_result(call, run, run.selector, now)

    def finish_gen(self, call: ActiveCall, run: GenerateRun, now: float, first: int = 0) -> None:
        """The last reply; `first` is the sequence whose result is the first output."""
        run.group.timing.ended = now
        outputs = tuple(filter(None, run.outputs))
        tasks: list[Generation] = []
        for sequence in run.group.sequences:
            if isinstance(sequence.task, Generation):
                tasks.append(sequence.task)
                self._scheduler.stats.forced_tokens += sequence.task.forced
        scored: tuple[wire.TokenLogprob, ...] = ()
        if tasks[first].prompt_logprobs:
            found = tasks[first].prompt_logprobs
            scored = tuple([logprob_of(one, self._tokenizer) for one in found])
        following = next_logprobs(tasks[first], self._tokenizer)
        left_out = () if call.constraint is None else call.constraint.result().left_out
        done = wire.CallDone(call.id, outputs, usage_of(run.group), scored, following, left_out)
        texts = [outputs[0].text] if len(outputs) == 1 else [output.text for output in outputs]
        self._completion.finish(call, done, texts)

    # --- selects

    def _scored(self, call: ActiveCall, run: SelectRun, sequence: Sequence, now: float) -> None:
        """One sequence of a select has been scored; after the last one the choice is made."""
        op = call.op
        assert isinstance(op, wire.Select)
        self._completion.end_sequence(sequence)
        if any(other.state is not SequenceState.ENDED for other in run.group.sequences):
            return
        run.group.timing.first_token = run.group.timing.ended = now
        options = read_scores(run.ballot, op.method, self._tokenizer.token_text)
        index = choose(options, op.temperature, self._calls.seed(op.seed))
        choice = op.choices[index]
        tokens = call.branch.tokens_with(self._encoder, choice)
        call.branch.choose(tokens, choice)
        self.move_pin_to(call.branch, tokens)
        reply = wire.Chosen(call.id, index, options, usage_of(run.group))
        self._completion.finish(call, reply, [choice])

    def move_pin_to(self, branch: RuntimeBranch, tokens: array[int]) -> None:
        """Pins the branch to what is cached of these tokens."""
        namespace = self._calls.namespaces.of(tokens, branch.salt, branch.adapter)
        match = self._scheduler.tree.match(namespace.keys(tokens), namespace.root)
        self._completion.move_pin(branch, match.node if match.length else None)
