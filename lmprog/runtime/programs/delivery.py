"""What a step brought, made into replies: text is streamed, stops are found, finished calls are
worded.

Knows text streams, results and branches; knows neither ops nor who runs when.
"""

from __future__ import annotations

from array import array

from lmprog import wire
from lmprog.errors import LmprogError
from lmprog.runtime.programs.active_call import ActiveCall, logprob_of, output_of, usage_of
from lmprog.runtime.programs.branch import RuntimeBranch
from lmprog.runtime.programs.call_builder import CallBuilder
from lmprog.runtime.programs.completion import CallCompletion
from lmprog.runtime.programs.result_selection import FinishedResult, ResultSelector
from lmprog.runtime.programs.select_scoring import choose, read_out
from lmprog.runtime.scheduling.generation import Generation, Scoring
from lmprog.runtime.scheduling.scheduler import Progress
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup, SequenceState


class Delivery:
    """Takes the scheduler's progress reports to the calls they belong to."""

    def __init__(self, completion: CallCompletion, calls: CallBuilder) -> None:
        self._completion = completion
        self._calls = calls
        self._tokenizer = calls.tokenizer

    def opened(self, active: ActiveCall, now: float) -> None:
        """A call was submitted; what its constraint forced before anything was picked is text
        already.
        """
        assert active.call is not None
        for index, sequence in enumerate(active.call.sequences):
            if active.replied or sequence.state is SequenceState.ENDED:
                return
            if isinstance(sequence.task, Generation) and (
                sequence.task.generated or sequence.task.finish is not None
            ):
                self._push(active, index, sequence, sequence.task.generated)
                if sequence.task.finish is not None:
                    self._finish(active, index, sequence, now)

    def take(self, one: Progress, began: float, now: float) -> None:
        """One sequence's progress in a step that began at `began`."""
        call = one.sequence.call
        active = call.key
        assert isinstance(active, ActiveCall)
        if active.replied or one.sequence.state is SequenceState.ENDED:
            return
        if call.timing.admitted is None:
            call.timing.admitted = began
        if one.error is not None:
            self._completion.fail(active, one.error)
        elif isinstance(active.op, wire.Select):
            if one.ended:
                self._scored(active, active.op, one.sequence, now)
        elif isinstance(one.sequence.task, Scoring):
            if one.ended:
                self._judged(active, one.sequence, now)
        elif one.added or one.ended:
            if call.timing.first_token is None:
                call.timing.first_token = now
            index = call.sequences.index(one.sequence)
            stopped = self._push(active, index, one.sequence, one.added)
            if one.ended or stopped:
                self._finish(active, index, one.sequence, now)
            elif active.keeper is not None and active.keeper.finished:
                self._decide(active, active.keeper, call, now)

    def _push(self, active: ActiveCall, index: int, sequence: Sequence, added: int) -> bool:
        """Streams the sequence's `added` newest tokens; True when they complete a stop string."""
        if not added:
            return False
        stream = active.streams[index]
        text, before = [], stream.num_tokens
        for token in sequence.tokens[-added:]:
            text.append(stream.push(token))
            if stream.stopped_by is not None:
                break
        if active.keeper is None:
            self._delta(
                active,
                index,
                "".join(text),
                stream.num_tokens - before,
                self._untold(active, index, sequence),
            )
        return stream.stopped_by is not None

    def _delta(
        self,
        active: ActiveCall,
        index: int,
        text: str,
        num_tokens: int,
        logprobs: tuple[wire.TokenLogprob, ...] = (),
    ) -> None:
        if (text or logprobs) and isinstance(active.op, wire.Generate) and active.op.stream:
            self._completion.say(
                active.client, wire.Delta(active.id, index, text, num_tokens, logprobs)
            )

    def _untold(
        self, active: ActiveCall, index: int, sequence: Sequence
    ) -> tuple[wire.TokenLogprob, ...]:
        """Log-probabilities of tokens whose text is certain, each once; none where there is no
        stream.
        """
        op, task = active.op, sequence.task
        assert isinstance(task, Generation)
        if not (isinstance(op, wire.Generate) and op.stream and op.sampling.logprobs is not None):
            return ()
        begin, end = (
            active.told.get(index, 0),
            max(0, active.streams[index].num_whole - task.respelled),
        )
        active.told[index] = end
        return tuple(logprob_of(scored, self._tokenizer) for scored in task.logprobs[begin:end])

    def _finish(self, active: ActiveCall, index: int, sequence: Sequence, now: float) -> None:
        """One of the `n` results is complete; the first one carries the branch on."""
        task, stream, branch, op = sequence.task, active.streams[index], active.branch, active.op
        assert isinstance(task, Generation)
        assert isinstance(op, wire.Generate)
        ended = stream.finish()
        logprobs = op.sampling.logprobs is not None
        active.outputs[index] = output_of(
            sequence, ended, stream, self._tokenizer, logprobs=logprobs
        )
        kept = task.settings.prompt_len + ended.kept
        if active.keeper is not None:
            self._completion.leave(sequence, kept)
            active.keeper.finished[index] = FinishedResult(
                sequence.tokens[:kept], ended, task.mean_logprob
            )
            self._decide(active, active.keeper, sequence.call, now)
            return
        self._delta(active, index, ended.delta, 0, self._untold(active, index, sequence))
        self._completion.leave(sequence, kept, branch if index == 0 else None)
        if index == 0:
            branch.adopt(sequence.tokens[:kept], ended.text, ended.rest)
        if all(output is not None for output in active.outputs):
            self._done(active, sequence.call, now)

    def _decide(
        self, active: ActiveCall, keeper: ResultSelector, call: SequenceGroup, now: float
    ) -> None:
        """Ends the sequences that cannot win any more; once one has won, the branch goes on from it."""
        for index, sequence in enumerate(call.sequences):
            is_running = sequence.state is not SequenceState.ENDED and isinstance(
                sequence.task, Generation
            )
            if is_running and keeper.is_hopeless(
                sum(one.logprob for one in sequence.task.logprobs)
            ):
                self._completion.leave(sequence)
                keeper.out.add(index)
        if keeper.wants_verdict:
            self._ask_judge(active, keeper, call)
            return
        winner = keeper.winner()
        if winner is None:
            return
        for sequence in call.sequences:
            if sequence.state is not SequenceState.ENDED:
                self._completion.leave(sequence)
        found, won = keeper.finished[winner], active.outputs[winner]
        assert won is not None
        self._delta(active, 0, won.text, len(won.tokens), won.logprobs)
        self._stand_on(active.branch, found.tokens)
        active.branch.adopt(found.tokens, found.ended.text, found.ended.rest)
        active.outputs.insert(0, active.outputs.pop(winner))
        self._done(active, call, now, winner)

    def _ask_judge(self, active: ActiveCall, keeper: ResultSelector, call: SequenceGroup) -> None:
        """All results are there: the call goes on with the scoring of each."""
        more = SequenceGroup(active, call.priority, timing=call.timing, prompt_len=call.prompt_len)
        more.cached, more.computed, more.preemptions = call.cached, call.computed, call.preemptions
        try:
            more.sequences = self._calls.verdicts(active.branch, more, keeper)
            self._completion.scheduler.submit(more)
        except LmprogError as error:
            self._completion.fail(active, error)
            return
        more.sequences[:0] = call.sequences
        active.call = more

    def _judged(self, active: ActiveCall, sequence: Sequence, now: float) -> None:
        """One scoring of the judge is there; with the last one the best is known."""
        keeper, call = active.keeper, sequence.call
        assert keeper is not None
        self._completion.leave(sequence)
        if all(other.state is SequenceState.ENDED for other in call.sequences):
            keeper.hear()
            self._decide(active, keeper, call, now)

    def _done(self, active: ActiveCall, call: SequenceGroup, now: float, first: int = 0) -> None:
        """The last reply; `first` is the sequence whose result is the first output."""
        call.timing.ended = now
        outputs = tuple(output for output in active.outputs if output is not None)
        tasks = [
            sequence.task for sequence in call.sequences if isinstance(sequence.task, Generation)
        ]
        scored = tuple(logprob_of(one, self._tokenizer) for one in tasks[first].prompt_logprobs)
        self._completion.scheduler.stats.forced_tokens += sum(task.forced for task in tasks)
        done = wire.CallDone(active.id, outputs, usage_of(call), scored)
        self._completion.reply(active, done, [output.text for output in outputs])

    def _scored(self, active: ActiveCall, op: wire.Select, sequence: Sequence, now: float) -> None:
        """One course of a select has been scored; after the last one the choice is made."""
        call, ballot = sequence.call, active.ballot
        assert ballot is not None
        self._completion.leave(sequence)
        if any(other.state is not SequenceState.ENDED for other in call.sequences):
            return
        call.timing.first_token = call.timing.ended = now
        options = read_out(ballot, op.method)
        index = choose(options, op.temperature, self._calls.seed(op.seed))
        self._settle(active.branch, op.choices[index])
        chosen = wire.Chosen(active.id, index, options, usage_of(call))
        self._completion.reply(active, chosen, [op.choices[index]])

    def _settle(self, branch: RuntimeBranch, choice: str) -> None:
        """The branch goes on from its choice, and stands where that was scored."""
        tokens = self._calls.option_tokens(branch, choice)
        branch.adopt(tokens, choice)
        self._stand_on(branch, tokens)

    def _stand_on(self, branch: RuntimeBranch, tokens: array[int]) -> None:
        """The branch stands where these tokens were computed."""
        namespace = self._calls.namespaces.of(tokens, branch.salt)
        match = self._completion.scheduler.tree.match(namespace.keys(tokens), namespace.root)
        self._completion.stand(branch, match.node if match.length else None)
