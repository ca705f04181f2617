"""Turns what a step brought into replies: streams text, finds stops, words finished results, and
ends calls.

Exactly one last reply for each call, and the state in which its branch is left, are the matter
of `CallCompletion`, through which alone calls end; which calls run out of time, and when, that
of `Deadlines`. Knows text streams, results, branches, and the scheduler's verbs for ending a
sequence and for pins; knows neither ops nor who runs when, and has no clock.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from lmprog import wire
from lmprog.errors import Cancelled, LmprogError, RequestRejected, UnknownName
from lmprog.radix import Node
from lmprog.runtime.programs.branch import (
    BoundFork,
    BoundGained,
    BranchState,
    Promise,
    RuntimeBranch,
    closed,
    letters,
)
from lmprog.runtime.programs.call_builder import CallBuilder, ServedModel
from lmprog.runtime.programs.clients import (
    MOST_AT_ONCE,
    NOBODY,
    ActiveCall,
    GenerateRun,
    HostWork,
    Pieces,
    ReadyBranches,
    Run,
    SelectRun,
    failed,
    in_pieces,
    logprob_of,
    next_logprobs,
    output_of,
    usage_of,
)
from lmprog.runtime.programs.result_selection import FinishedResult, ResultSelector, RunningContest
from lmprog.runtime.programs.select_scoring import at_once, choose, score_pieces
from lmprog.runtime.scheduling import sequence as sequences
from lmprog.runtime.scheduling.generation import Generation
from lmprog.runtime.scheduling.logits_requests import Progress
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.scheduling.sequence import Sequence, SequenceState
from lmprog.runtime.text.special_tokens import Passage
from lmprog.runtime.text.tokenizer import TextEncoder
from lmprog.transport import ClientId

if TYPE_CHECKING:
    from lmprog.runtime.programs.judging import Ballots, Judging


Addressed = tuple[ClientId, wire.Reply]
AT_ONCE = 4096
"""Characters, or tokens, of a select's options that are worked at as a whole: some milliseconds."""


class CallCompletion:
    """Owns the outbox of replies, and knows which call each group in the scheduler belongs to."""

    def __init__(self, scheduler: Scheduler, ready: ReadyBranches) -> None:
        self._scheduler = scheduler
        self._ready = ready
        self.wake = ready.wake
        self._outbox: list[Addressed] = []
        self.active: dict[sequences.SequenceGroup, ActiveCall] = {}
        """The call of each group in the scheduler."""

    def send(self, client: ClientId, reply: wire.Reply) -> None:
        """Nobody gets those to calls of clients that are gone."""
        if client != NOBODY:
            self._outbox.append((client, reply))

    def take_replies(self) -> list[Addressed]:
        """Empties the outbox."""
        replies, self._outbox = self._outbox, []
        return replies

    def drop_client(self, client: ClientId) -> None:
        """Drops the unsent replies of a client that is gone."""
        self._outbox = [one for one in self._outbox if one[0] != client]

    # --- calls

    def begin(self, call: ActiveCall, run: Run) -> None:
        """The branch is busy with the call, whose sequences are not all known to the scheduler."""
        self.active[run.group] = call
        call.run = run
        call.branch.is_busy = True

    def submit(self, call: ActiveCall, run: Run, num_more: int = 0) -> None:
        """Hands a built call to the scheduler; calls of others may lose their places to it. So many
        more sequences follow by `Scheduler.add`. Raises `Overloaded`; then nothing was done.
        """
        displaced = self._scheduler.submit(run.group, num_more)
        if run.group.turn is not None:
            call.branch.program = run.group.turn.number
        self.begin(call, run)
        for group in displaced:
            self.fail(self.active[group], self._scheduler.waiting.full())

    def continue_with(self, call: ActiveCall, group: sequences.SequenceGroup) -> None:
        """A gen whose sequences have ended goes on with those of `group`, or fails."""
        assert call.run is not None, "only a submitted call goes on"
        try:
            self._scheduler.submit(group)
        except LmprogError as error:
            self.fail(call, error)
            return
        group.sequences[:0] = call.run.group.sequences
        del self.active[call.run.group]
        call.run.group.sequences.clear()
        self.active[group] = call
        call.run.group = group

    def suspend(self, call: ActiveCall | None, *, is_on: bool) -> None:
        """A gen makes no tokens for now, or goes on."""
        if call is not None and isinstance(call.run, GenerateRun):
            self._scheduler.suspend(call.run.group, is_on=is_on)

    def finish(self, call: ActiveCall, reply: wire.Reply, texts: list[str]) -> None:
        """Completes a call with its result; `texts` are what its promises resolve to."""
        self._scheduler.stats.calls_done += 1
        self._complete(call, reply, texts)

    def fail(self, call: ActiveCall, error: LmprogError) -> None:
        """Completes a call with `error`, wherever it is; nothing happens where it is done already.

        Its branch fails too: now, or when it would have come to the call, since what precedes is
        not at fault. One that was refused leaves it usable: the program may try another.
        """
        if call.is_done:
            return
        call.error = error.without_frames()
        if call.run is not None:
            for sequence in call.run.group.sequences:
                if sequence.state is not sequences.SequenceState.ENDED:
                    self.end_sequence(sequence)
            if not isinstance(call.run, GenerateRun | SelectRun):
                call.run.let_go()
        if call.is_reached and not isinstance(error, RequestRejected):
            self.fail_branch(call.branch, error)
        self._scheduler.stats.calls_failed += 1
        self._complete(call, failed(call.id, error), error)

    def cancel_all(self, branch: RuntimeBranch, calls: list[ActiveCall]) -> Pieces:
        """The branch is closed: its calls that are under way end, and its ops are dropped."""
        error, dropped = closed(branch), branch.queue
        branch.queue = deque()
        yield from in_pieces(lambda call: self.fail(call, call.ends_with or error), calls)
        promises = [op.promise for op in dropped if isinstance(op, BoundGained)]
        yield from in_pieces(lambda promise: self.resolve(promise, error), promises)
        forks = [op for op in dropped if isinstance(op, BoundFork)]
        children = [child for op in forks for child in op.children]
        yield from in_pieces(lambda child: self.fail_branch(child, error), children)

    def _complete(
        self, call: ActiveCall, reply: wire.Reply, outcome: list[str] | LmprogError
    ) -> None:
        assert not call.is_done, "a call gets one last reply"
        call.is_done = True
        for pending in call.compiled:
            pending.let_go()
        self.send(call.client, reply)
        self._ready.behind(call.branch.payer, lambda: self._resolve_all(call, outcome))
        if call.run is not None:
            del self.active[call.run.group]
            call.run.group.sequences.clear()  # they hold the group: free now, not when Python looks
            call.branch.is_busy = False
            call.run = None
        self.wake(call.branch)
        if call.contest is not None:
            self._enter(call.contest, call)

    def _resolve_all(self, call: ActiveCall, outcome: list[str] | LmprogError) -> None:
        for index, promise in enumerate(call.promises):
            if isinstance(outcome, LmprogError):
                self.resolve(promise, outcome)
            elif index < len(outcome):
                self.resolve(promise, outcome[index])
            else:  # a constraint may allow fewer texts than were asked for
                error = UnknownName(f"call {call.id} has {len(outcome)} results.", name=str(index))
                self.resolve(promise, error)

    def resolve(self, promise: Promise, outcome: str | Passage | LmprogError) -> None:
        """Gives a promise a result, a branch's text or its error; the branches that waited for it
        go on.
        """
        if isinstance(outcome, LmprogError):
            promise.error = outcome
        else:
            promise.passage = letters(outcome) if isinstance(outcome, str) else outcome
        for branch in promise.waiting:
            self.wake(branch)
        promise.waiting.clear()

    # --- contests

    def start_contest(self, entrants: list[ActiveCall], rule: wire.ContestRule) -> None:
        """One of these calls is wanted; those that have ended already are entered first."""
        contest = RunningContest(rule, entrants)
        for call in entrants:
            call.contest = contest
        for call in entrants:
            if call.is_done:
                self._enter(contest, call)

    def _enter(self, contest: RunningContest[ActiveCall], call: ActiveCall) -> None:
        """Ends the calls that lost because `call` ended; their branches give up their pins."""
        won = call.promises[0].passage
        constraint = call.op.constraint if isinstance(call.op, wire.Generate) else None
        text = None if won is None else wire.compared(won.text, constraint)
        for loser in contest.enter(call, text):
            self.fail(loser, Cancelled("another call of its contest has won."))
            self.move_pin(loser.branch, None)

    # --- branches

    def fail_branch(self, branch: RuntimeBranch, error: LmprogError) -> None:
        """Later calls of the branch fail with `error`; the first failure counts. It keeps no
        frames: it is raised again for each of these calls, and would keep those too.
        """
        if branch.failure is None:
            branch.failure = error.without_frames()
        if branch.state is BranchState.PENDING:
            branch.state = BranchState.OPEN
        self.wake(branch)

    def end_sequence(
        self,
        sequence: sequences.Sequence,
        keep: int | None = None,
        branch: RuntimeBranch | None = None,
    ) -> None:
        """Ends a sequence, of whose tokens the first `keep` (None: all) stay cached.

        The pin of `branch`, if one is given, moves to where the sequence ended.
        """
        node = self._scheduler.end(sequence, keep)
        if branch is not None:
            self.move_pin(branch, node)
        if node is not None:
            self._scheduler.unpin(node)

    def let_go(self, branch: RuntimeBranch, forget: bool) -> None:
        """Gives up the branch's pin, and with `forget` what only it stood on. What a request of a
        session stood on may stay pinned for the next one.
        """
        pin, turn = branch.pin, branch.turn
        if turn is not None and turn.number:
            self._scheduler.pause(turn, None if pin is None or forget else pin.node)
        self.move_pin(branch, None)
        if pin is not None and forget:
            self._scheduler.forget(pin.node, branch.fork_len)

    def move_pin(self, branch: RuntimeBranch, node: Node | None) -> None:
        """Moves the branch's soft pin to `node`; None gives it up."""
        pins, old = self._scheduler.pins, branch.pin
        branch.pin = None if node is None else pins.pin(node, branch.program)
        if old is not None:
            pins.unpin(old)


class Deadlines:
    """Calls by the moment at which their time is up."""

    def __init__(self) -> None:
        self.under_way: list[tuple[float, int, ActiveCall, float]] = []
        """A heap."""
        self._num_added = 0
        self._sweep_above = 64

    def add(self, call: ActiveCall, now: float, seconds: float) -> None:
        """`call` has `seconds` from `now` on."""
        self._num_added += 1
        heapq.heappush(self.under_way, (now + seconds, self._num_added, call, seconds))
        if len(self.under_way) > self._sweep_above:
            self.under_way = [entry for entry in self.under_way if not entry[2].is_done]
            heapq.heapify(self.under_way)
            self._sweep_above = max(64, 2 * len(self.under_way))

    @property
    def next(self) -> float | None:
        """When the next call runs out of time; None where no call has a deadline."""
        while self.under_way and self.under_way[0][2].is_done:
            heapq.heappop(self.under_way)
        return self.under_way[0][0] if self.under_way else None

    def expired(self, now: float) -> list[tuple[ActiveCall, float]]:
        """Takes out the calls whose time is up, each with the seconds it had."""
        found = []
        while self.under_way and self.under_way[0][0] <= now:
            _, _, call, seconds = heapq.heappop(self.under_way)
            if not call.is_done:
                found.append((call, seconds))
        return found


class Delivery:
    """Takes the scheduler's progress reports to the calls they belong to."""

    def __init__(
        self,
        scheduler: Scheduler,
        completion: CallCompletion,
        calls: CallBuilder,
        model: ServedModel,
        encoder: TextEncoder,
        judging: Callable[[], Judging],
        work: HostWork,
    ) -> None:
        """`encoder` is for texts of branches; `judging` is asked for when a call has a judge."""
        self._work = work
        self._scheduler = scheduler
        self._completion = completion
        self._calls = calls
        self._model = model
        self._tokenizer = model.tokenizer
        self._namespaces = model.namespaces
        self._encoder = encoder
        self._judging = judging

    def begin(self, call: ActiveCall, run: Run, now: float) -> None:
        """Submits a call that was built, or first makes the many sequences of a select. Raises
        RequestRejected.
        """
        op = call.op
        if not (isinstance(op, wire.Select) and isinstance(run, SelectRun)):
            self._completion.submit(call, run)
            self._deliver_forced(call, now)
            return
        pieces = self._submit_select(call, op, run)
        length = len(call.branch.pending)
        if sum([length + len(choice) for choice in op.choices]) <= AT_ONCE:
            at_once(pieces)
            return
        self._completion.begin(call, run)
        self._in_pieces(call, pieces)

    def _in_pieces(self, call: ActiveCall, pieces: Pieces) -> None:
        """Works for a call that is under way between steps; its errors are the call's."""

        def work() -> Pieces:
            try:
                yield from pieces
            except LmprogError as error:
                self._completion.fail(call, error)

        self._work.begin(call.branch.payer, work(), lambda: not call.is_done)

    def _submit_select(self, call: ActiveCall, op: wire.Select, run: SelectRun) -> Pieces:
        sequences = yield from self._calls.select_pieces(call, op, run)
        run.group.sequences = list(islice(sequences, MOST_AT_ONCE))
        try:
            self._completion.submit(call, run, run.num_left - len(run.group.sequences))
        except LmprogError:
            run.group.sequences.clear()  # none of them is queued
            raise
        while more := list(islice(sequences, MOST_AT_ONCE)):
            yield
            run.group.sequences += more
            self._scheduler.add(run.group, more)

    def _deliver_forced(self, call: ActiveCall, now: float) -> None:
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
        text = stream.push(tokens[-1]) if added == 1 else stream.push_all(tokens[-added:])
        op = call.op
        if run.selector is None and isinstance(op, wire.Generate) and op.stream:
            self._send_new(call, run, index, text)
        return stream.is_stopped

    def _send_new(self, call: ActiveCall, run: GenerateRun, index: int, text: str) -> None:
        """Streams new text of a result, and the log-probabilities that have not been sent."""
        op = call.op
        assert isinstance(op, wire.Generate)
        logprobs = () if op.sampling.logprobs is None else self._unsent_logprobs(run, index)
        if text or logprobs:
            stream = run.streams[index]
            tags = stream.tags_of(text) if stream.tags else ()
            new, stream.num_shown = stream.num_tokens - stream.num_shown, stream.num_tokens
            delta = wire.Delta(op.call, index, text, new, logprobs, tags)
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
        run.outputs[index] = output_of(
            sequence,
            ended,
            stream,
            self._tokenizer,
            logprobs=op.sampling.logprobs is not None,
            with_ends=op.with_ends,
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
            self._send_new(call, run, index, ended.delta)
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
        if run.more is not None and (group := run.more()) is not None:
            self._completion.continue_with(call, group)
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
        if selector.rule == "faithful":
            del run.outputs[1:]
        self.finish_gen(call, run, now, winner)

    def _ask_judge(self, call: ActiveCall, run: GenerateRun, selector: ResultSelector) -> None:
        """All results are there: the call goes on with the judge's scoring of each, once what it
        reads is tokenised.
        """
        selector.is_judge_asked = True

        def go_on(ballots: Ballots | LmprogError) -> None:
            if call.run is not run:
                return  # it was ended meanwhile
            if isinstance(ballots, LmprogError):
                self._completion.fail(call, ballots)
                return
            selector.ballots = ballots
            group = self._calls.judged_by(call.branch, run.group, ballots)
            self._completion.continue_with(call, group)

        self._judging().ask(call.branch, selector, go_on)

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
        found = tasks[first].prompt_logprobs
        scored = tuple([logprob_of(one, self._tokenizer) for one in found])
        following = next_logprobs(tasks[first], self._tokenizer)
        left_out = () if call.constraint is None else call.constraint.result().left_out
        done = wire.CallDone(call.id, outputs, usage_of(run.group), scored, following, left_out)
        texts = [outputs[0].text] if len(outputs) == 1 else [output.text for output in outputs]
        if call.branch.turn is not None and texts:
            call.branch.turn.tool = self._model.called_tool(texts[0])
        self._completion.finish(call, done, texts)

    # --- selects

    def _scored(self, call: ActiveCall, run: SelectRun, sequence: Sequence, now: float) -> None:
        """One sequence of a select has been scored; after the last one the choice is made."""
        op = call.op
        assert isinstance(op, wire.Select)
        self._completion.end_sequence(sequence)
        run.num_left -= 1
        if run.num_left:
            return
        run.group.timing.first_token = run.group.timing.ended = now
        pieces = self._choose(call, op, run)
        if sum(map(len, run.ballot.tokens)) <= AT_ONCE:
            at_once(pieces)
        else:
            self._in_pieces(call, pieces)

    def _choose(self, call: ActiveCall, op: wire.Select, run: SelectRun) -> Pieces:
        options = yield from score_pieces(run.ballot, op.method, self._tokenizer.token_text)
        index = choose(options, op.temperature, self._calls.seed(op.seed))
        choice = op.choices[index]
        tokens = call.branch.tokens_with(self._encoder, choice)
        call.branch.choose(tokens, choice)
        self.move_pin_to(call.branch, tokens)
        reply = wire.Chosen(call.id, index, options, usage_of(run.group))
        self._completion.finish(call, reply, [choice])

    def move_pin_to(self, branch: RuntimeBranch, tokens: array[int]) -> None:
        """Pins the branch to what is cached of these tokens."""
        namespace = self._namespaces.of(tokens, branch.salt, branch.adapter)
        match = self._scheduler.tree.match(namespace.keys(tokens), namespace.root)
        self._completion.move_pin(branch, match.node if match.length else None)
