"""What a step brought, made into replies: text is streamed, stops are found, finished calls are worded.

Knows text streams, results and branches; knows neither ops nor who runs when.
"""

from __future__ import annotations

from array import array

from lmprog import wire
from lmprog.errors import LmprogError
from lmprog.runtime.branch import Branch
from lmprog.runtime.calls import CallBuilder
from lmprog.runtime.endings import Endings
from lmprog.runtime.generation import Generation, Scoring
from lmprog.runtime.keeping import Finished, Keeper
from lmprog.runtime.ongoing import Ongoing, logprob_of, output_of, usage_of
from lmprog.runtime.request import Call, Lane, LaneState
from lmprog.runtime.scheduler import Progress
from lmprog.runtime.selecting import choose, read_out


class Delivery:
    """Takes the scheduler's progress reports to the calls they belong to."""

    def __init__(self, endings: Endings, calls: CallBuilder) -> None:
        self._endings = endings
        self._calls = calls
        self._tokenizer = calls.tokenizer

    def opened(self, ongoing: Ongoing, now: float) -> None:
        """A call was submitted; what its constraint forced before anything was picked is text already."""
        assert ongoing.call is not None
        for index, lane in enumerate(ongoing.call.lanes):
            if ongoing.replied or lane.state is LaneState.ENDED:
                return
            if isinstance(lane.task, Generation) and (lane.task.generated or lane.task.finish is not None):
                self._push(ongoing, index, lane, lane.task.generated)
                if lane.task.finish is not None:
                    self._finish(ongoing, index, lane, now)

    def take(self, one: Progress, began: float, now: float) -> None:
        """One lane's progress in a step that began at `began`."""
        call = one.lane.call
        ongoing = call.key
        assert isinstance(ongoing, Ongoing)
        if ongoing.replied or one.lane.state is LaneState.ENDED:
            return
        if call.timing.admitted is None:
            call.timing.admitted = began
        if one.error is not None:
            self._endings.fail(ongoing, one.error)
        elif isinstance(ongoing.op, wire.Select):
            if one.ended:
                self._scored(ongoing, ongoing.op, one.lane, now)
        elif isinstance(one.lane.task, Scoring):
            if one.ended:
                self._judged(ongoing, one.lane, now)
        elif one.added or one.ended:
            if call.timing.first_token is None:
                call.timing.first_token = now
            index = call.lanes.index(one.lane)
            stopped = self._push(ongoing, index, one.lane, one.added)
            if one.ended or stopped:
                self._finish(ongoing, index, one.lane, now)
            elif ongoing.keeper is not None and ongoing.keeper.finished:
                self._decide(ongoing, ongoing.keeper, call, now)

    def _push(self, ongoing: Ongoing, index: int, lane: Lane, added: int) -> bool:
        """Streams the lane's `added` newest tokens; True when they complete a stop string."""
        if not added:
            return False
        stream = ongoing.streams[index]
        text, before = [], stream.num_tokens
        for token in lane.tokens[-added:]:
            text.append(stream.push(token))
            if stream.stopped_by is not None:
                break
        if ongoing.keeper is None:
            self._delta(ongoing, index, "".join(text), stream.num_tokens - before, self._untold(ongoing, index, lane))
        return stream.stopped_by is not None

    def _delta(
        self, ongoing: Ongoing, index: int, text: str, num_tokens: int, logprobs: tuple[wire.TokenLogprob, ...] = ()
    ) -> None:
        if (text or logprobs) and isinstance(ongoing.op, wire.Gen) and ongoing.op.stream:
            self._endings.say(ongoing.client, wire.Delta(ongoing.id, index, text, num_tokens, logprobs))

    def _untold(self, ongoing: Ongoing, index: int, lane: Lane) -> tuple[wire.TokenLogprob, ...]:
        """Log-probabilities of tokens whose text is certain, each once; none where there is no stream."""
        op, task = ongoing.op, lane.task
        assert isinstance(task, Generation)
        if not (isinstance(op, wire.Gen) and op.stream and op.sampling.logprobs is not None):
            return ()
        begin, end = ongoing.told.get(index, 0), max(0, ongoing.streams[index].num_whole - task.respelled)
        ongoing.told[index] = end
        return tuple(logprob_of(scored, self._tokenizer) for scored in task.logprobs[begin:end])

    def _finish(self, ongoing: Ongoing, index: int, lane: Lane, now: float) -> None:
        """One of the `n` results is complete; the first one carries the branch on."""
        task, stream, branch, op = lane.task, ongoing.streams[index], ongoing.branch, ongoing.op
        assert isinstance(task, Generation)
        assert isinstance(op, wire.Gen)
        ended = stream.finish()
        logprobs = op.sampling.logprobs is not None
        ongoing.outputs[index] = output_of(lane, ended, stream, self._tokenizer, logprobs=logprobs)
        kept = task.settings.prompt_len + ended.kept
        if ongoing.keeper is not None:
            self._endings.leave(lane, kept)
            ongoing.keeper.finished[index] = Finished(lane.tokens[:kept], ended, task.mean_logprob)
            self._decide(ongoing, ongoing.keeper, lane.call, now)
            return
        self._delta(ongoing, index, ended.delta, 0, self._untold(ongoing, index, lane))
        self._endings.leave(lane, kept, branch if index == 0 else None)
        if index == 0:
            branch.adopt(lane.tokens[:kept], ended.text, ended.rest)
        if all(output is not None for output in ongoing.outputs):
            self._done(ongoing, lane.call, now)

    def _decide(self, ongoing: Ongoing, keeper: Keeper, call: Call, now: float) -> None:
        """Ends the lanes that cannot win any more; once one has won, the branch goes on from it."""
        for index, lane in enumerate(call.lanes):
            is_running = lane.state is not LaneState.ENDED and isinstance(lane.task, Generation)
            if is_running and keeper.is_hopeless(sum(one.logprob for one in lane.task.logprobs)):
                self._endings.leave(lane)
                keeper.out.add(index)
        if keeper.wants_verdict:
            self._ask_judge(ongoing, keeper, call)
            return
        winner = keeper.winner()
        if winner is None:
            return
        for lane in call.lanes:
            if lane.state is not LaneState.ENDED:
                self._endings.leave(lane)
        found, won = keeper.finished[winner], ongoing.outputs[winner]
        assert won is not None
        self._delta(ongoing, 0, won.text, len(won.tokens), won.logprobs)
        self._stand_on(ongoing.branch, found.tokens)
        ongoing.branch.adopt(found.tokens, found.ended.text, found.ended.rest)
        ongoing.outputs.insert(0, ongoing.outputs.pop(winner))
        self._done(ongoing, call, now, winner)

    def _ask_judge(self, ongoing: Ongoing, keeper: Keeper, call: Call) -> None:
        """All results are there: the call goes on with the scoring of each."""
        more = Call(ongoing, call.priority, timing=call.timing, prompt_len=call.prompt_len)
        more.cached, more.computed, more.preemptions = call.cached, call.computed, call.preemptions
        try:
            more.lanes = self._calls.verdicts(ongoing.branch, more, keeper)
            self._endings.scheduler.submit(more)
        except LmprogError as error:
            self._endings.fail(ongoing, error)
            return
        more.lanes[:0] = call.lanes
        ongoing.call = more

    def _judged(self, ongoing: Ongoing, lane: Lane, now: float) -> None:
        """One scoring of the judge is there; with the last one the best is known."""
        keeper, call = ongoing.keeper, lane.call
        assert keeper is not None
        self._endings.leave(lane)
        if all(other.state is LaneState.ENDED for other in call.lanes):
            keeper.hear()
            self._decide(ongoing, keeper, call, now)

    def _done(self, ongoing: Ongoing, call: Call, now: float, first: int = 0) -> None:
        """The last reply; `first` is the lane whose result is the first output."""
        call.timing.ended = now
        outputs = tuple(output for output in ongoing.outputs if output is not None)
        tasks = [lane.task for lane in call.lanes if isinstance(lane.task, Generation)]
        scored = tuple(logprob_of(one, self._tokenizer) for one in tasks[first].prompt_logprobs)
        self._endings.scheduler.stats.forced_tokens += sum(task.forced for task in tasks)
        done = wire.Done(ongoing.id, outputs, usage_of(call), scored)
        self._endings.reply(ongoing, done, [output.text for output in outputs])

    def _scored(self, ongoing: Ongoing, op: wire.Select, lane: Lane, now: float) -> None:
        """One course of a select has been scored; after the last one the choice is made."""
        call, ballot = lane.call, ongoing.ballot
        assert ballot is not None
        self._endings.leave(lane)
        if any(other.state is not LaneState.ENDED for other in call.lanes):
            return
        call.timing.first_token = call.timing.ended = now
        options = read_out(ballot, op.method)
        index = choose(options, op.temperature, self._calls.seed(op.seed))
        self._settle(ongoing.branch, op.choices[index])
        chosen = wire.Chosen(ongoing.id, index, options, usage_of(call))
        self._endings.reply(ongoing, chosen, [op.choices[index]])

    def _settle(self, branch: Branch, choice: str) -> None:
        """The branch goes on from its choice, and stands where that was scored."""
        tokens = self._calls.option_tokens(branch, choice)
        branch.adopt(tokens, choice)
        self._stand_on(branch, tokens)

    def _stand_on(self, branch: Branch, tokens: array[int]) -> None:
        """The branch stands where these tokens were computed."""
        realm = self._calls.realms.of(tokens, branch.salt)
        match = self._endings.scheduler.tree.match(realm.keys(tokens), realm.root)
        self._endings.stand(branch, match.node if match.length else None)
