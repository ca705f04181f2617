"""Calls under way: an op of a client, and while the scheduler has it, its run.

Also how results are written as wire messages. Does not decide when anything happens.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Protocol

from lmprog.constraints.constraint import Constraint
from lmprog.constraints.search import TextSearch
from lmprog.errors import LmprogError
from lmprog.runtime.programs.branch import Awaited, Promise, QueuedOp, RuntimeBranch
from lmprog.runtime.programs.compile_pool import Pending
from lmprog.runtime.programs.result_selection import ResultSelector, RunningContest
from lmprog.runtime.programs.select_scoring import Ballot
from lmprog.runtime.scheduling.generation import Generation, ScoredToken
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup
from lmprog.runtime.text.stream import TextEnd, TextStream
from lmprog.runtime.text.tokenizer import Tokenizer
from lmprog.transport import ClientId
from lmprog.wire import Failed, Generate, Output, Read, Select, TokenLogprob, Usage


@dataclass(eq=False, slots=True)
class GenerateRun:
    """A gen in the scheduler. `streams` and `outputs` are by the number of the result."""

    group: SequenceGroup
    streams: list[TextStream]
    selector: ResultSelector | None
    """Decides which result is kept; None where that is the first."""
    outputs: list[Output | None] = field(default_factory=list)
    num_sent_logprobs: dict[int, int] = field(default_factory=dict)
    """Log-probabilities of each result that have been streamed."""

    def __post_init__(self) -> None:
        self.outputs = [None] * len(self.streams)


@dataclass(eq=False, slots=True)
class SelectRun:
    """A select in the scheduler."""

    group: SequenceGroup
    ballot: Ballot


class SteeredRun(Protocol):
    """A call in the scheduler that another module moves on."""

    group: SequenceGroup

    def ended(self, call: ActiveCall, sequence: Sequence, now: float) -> None:
        """A sequence of the group has ended."""
        ...

    def let_go(self) -> None:
        """The call has failed, and its sequences have ended: gives back what the run holds."""
        ...

    def task_of(self, sequence: Sequence) -> Generation:
        """What a sequence of the group works at."""
        ...


Run = GenerateRun | SelectRun | SteeredRun


@dataclass(eq=False, slots=True)
class ActiveCall(QueuedOp):
    """One call of a client, from its arrival to its last reply."""

    client: ClientId
    op: Generate | Select | Read
    branch: RuntimeBranch
    promises: tuple[Promise, ...] = ()
    """The texts of its results, for appends that refer to them."""
    constraint: Pending[Constraint] | None = None
    stops: tuple[Pending[TextSearch], ...] = ()
    """Its stop patterns."""
    run: Run | None = None
    """None before the branch has come to the call, and after its end."""
    contest: RunningContest[ActiveCall] | None = None
    """None where it takes part in none."""
    is_reached: bool = False
    """Its branch has come to it."""
    is_done: bool = False
    """It has had its last reply."""
    error: LmprogError | None = None
    """Why it ended without a result."""

    @property
    def id(self) -> int:
        return self.op.call

    def missing(self) -> Awaited | None:
        """The constraint or a stop pattern, while it is compiled and the call still needs it."""
        if self.error is not None:
            return None
        for pending in self.compiled:
            if not pending.is_known:
                return pending
        return None

    @property
    def compiled(self) -> tuple[Pending[Constraint] | Pending[TextSearch], ...]:
        """What has to be compiled for it."""
        return self.stops if self.constraint is None else (self.constraint, *self.stops)

    @property
    def needs_tokens(self) -> bool:
        return self.error is None

    @property
    def endings(self) -> tuple[str, ...]:
        return self.op.choices if isinstance(self.op, Select) else ()


def usage_of(group: SequenceGroup) -> Usage:
    """The work of `group` as a wire message; times in milliseconds."""
    timing = group.timing
    ended = timing.ended if timing.ended is not None else timing.submitted
    admitted = timing.admitted if timing.admitted is not None else ended
    first = timing.first_token if timing.first_token is not None else ended
    generated = forced = 0
    for sequence in group.sequences:
        if isinstance(sequence.task, Generation):
            generated += sequence.task.generated
            forced += sequence.task.forced
    return Usage(
        prompt=group.prompt_len,
        cached=group.cached,
        generated=generated,
        forced=forced,
        computed=group.computed,
        drafted=group.drafted,
        accepted=group.accepted,
        preemptions=group.preemptions,
        queued_ms=1e3 * (admitted - timing.submitted),
        prefill_ms=1e3 * (first - admitted),
        decode_ms=1e3 * (ended - first),
    )


def output_of(
    sequence: Sequence,
    ended: TextEnd,
    stream: TextStream,
    tokenizer: Tokenizer,
    *,
    logprobs: bool = True,
    score: float | None = None,
) -> Output:
    """The result of a finished sequence whose `stream` gave `ended`.

    Only tokens wholly inside the text are listed.
    """
    stopped_by = stream.stopped_by
    task = sequence.task
    assert isinstance(task, Generation)
    num_tokens = max(0, ended.num_tokens - task.num_seam_tokens)
    return Output(
        text=ended.text,
        tokens=tuple(sequence.tokens[task.prompt_len : task.prompt_len + num_tokens]),
        finish="stop" if stopped_by is not None and not task.is_cut else task.finish or "length",
        stopped_by=stopped_by if stopped_by is not None else task.stopped_by,
        logprobs=tuple([logprob_of(one, tokenizer) for one in task.logprobs[:num_tokens]])
        if logprobs
        else (),
        forced=_forced_text(task, stream, len(ended.text)) if task.forced_runs else (),
        seam=stream.seam_after(task.num_seam_tokens) if num_tokens else "",
        rest=ended.rest,
        score=score,
        healed=_healed(sequence.tokens, task, ended.num_tokens),
        tags=stream.tags_in(ended.text),
    )


def _healed(tokens: array[int], task: Generation, num_kept: int) -> tuple[int, ...] | None:
    """The tokens inside the seam, unless that is what it was before."""
    seam, begin = task.settings.seam, task.settings.prompt_len
    if seam is None:
        return None
    found = tuple(tokens[begin : begin + min(num_kept, task.num_seam_tokens)])
    return None if found == (seam.token,) else found


def _forced_text(task: Generation, stream: TextStream, length: int) -> tuple[tuple[int, int], ...]:
    """Characters of the text, which is cut at `length`, that forced tokens spell."""
    spans = (stream.span(begin, end) for begin, end in task.forced_runs)
    return tuple((begin, min(end, length)) for begin, end in spans if begin < min(end, length))


def logprob_of(scored: ScoredToken, tokenizer: Tokenizer) -> TokenLogprob:
    """One scored token, with the texts of it and of its alternatives."""
    top = tuple((token, tokenizer.token_text(token), logprob) for token, logprob in scored.top)
    return TokenLogprob(scored.token, tokenizer.token_text(scored.token), scored.logprob, top)


def next_logprobs(task: Generation, tokenizer: Tokenizer) -> tuple[tuple[int, str, float], ...]:
    """The likeliest tokens after a prompt that nothing is generated after, where wanted."""
    if task.settings.max_tokens or not task.logprobs:
        return ()
    return logprob_of(task.logprobs[0], tokenizer).top


def failed(call_id: int | None, error: LmprogError) -> Failed:
    """The last reply of a call that ended with `error`."""
    return Failed(call_id, error.code, error.message, error.details())
