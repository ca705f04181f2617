"""A client's call while it is under way: its op, its streams of text, what it has to say when it
ends.

Knows how results are worded on the wire; it does not decide when anything happens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmprog.errors import LmprogError
from lmprog.runtime.programs.branch import Promise, RuntimeBranch
from lmprog.runtime.programs.compile_pool import PendingConstraint
from lmprog.runtime.programs.result_selection import ResultSelector, RunningContest
from lmprog.runtime.programs.select_scoring import Ballot
from lmprog.runtime.scheduling.generation import Generation, ScoredToken
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup
from lmprog.runtime.text.stream import TextEnd, TextStream
from lmprog.runtime.text.tokenizer import Tokenizer
from lmprog.wire import Failed, Generate, Output, Read, Select, TokenLogprob, Usage


@dataclass(eq=False, slots=True)
class ActiveCall:
    """One call of a client, from its arrival to its last reply."""

    client: bytes
    op: Generate | Select | Read
    branch: RuntimeBranch
    promises: list[Promise]
    """Texts of its results, for appends that refer to them."""
    call: SequenceGroup | None = None
    """Set when it is submitted to the scheduler."""
    streams: list[TextStream] = field(default_factory=list)
    outputs: list[Output | None] = field(default_factory=list)
    told: dict[int, int] = field(default_factory=dict)
    """How many log-probabilities of each result have been streamed."""
    ballot: Ballot | None = None
    keeper: ResultSelector | None = None
    """Decides which of its results counts, where that is not simply the first."""
    contest: RunningContest[ActiveCall] | None = None
    compiling: PendingConstraint | None = None
    """Its constraint, on its way or there."""
    reached: bool = False
    """Its branch has come to it."""
    replied: bool = False
    error: LmprogError | None = None

    @property
    def id(self) -> int:
        return self.op.call


def usage_of(call: SequenceGroup) -> Usage:
    """The work of `call` as the wire says it; times in milliseconds."""
    timing = call.timing
    ended = timing.ended if timing.ended is not None else timing.submitted
    admitted = timing.admitted if timing.admitted is not None else ended
    first = timing.first_token if timing.first_token is not None else ended
    tasks = [sequence.task for sequence in call.sequences if isinstance(sequence.task, Generation)]
    return Usage(
        prompt=call.prompt_len,
        cached=call.cached,
        generated=sum(task.generated for task in tasks),
        forced=sum(task.forced for task in tasks),
        computed=call.computed,
        preemptions=call.preemptions,
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
) -> Output:
    """The result of one finished sequence, whose `stream` gave `ended`; only tokens wholly inside the
    text are named.
    """
    stopped_by = stream.stopped_by
    task = sequence.task
    assert isinstance(task, Generation)
    num_tokens = max(0, ended.kept - task.respelled)
    return Output(
        text=ended.text,
        tokens=tuple(sequence.tokens[task.prompt_len : task.prompt_len + num_tokens]),
        finish="stop" if stopped_by is not None else task.finish or "length",
        stopped_by=stopped_by if stopped_by is not None else task.stopped_by,
        logprobs=tuple(
            logprob_of(scored, tokenizer) for scored in task.logprobs[: num_tokens * logprobs]
        ),
        forced=_forced_text(task, stream, len(ended.text)),
        seam=stream.seam_after(task.respelled) if num_tokens else "",
        rest=ended.rest if num_tokens else "",
    )


def _forced_text(task: Generation, stream: TextStream, length: int) -> tuple[tuple[int, int], ...]:
    """Characters of the text, which is cut at `length`, that forced tokens spell."""
    spans = (stream.span(begin, end) for begin, end in task.forced_runs)
    return tuple((begin, min(end, length)) for begin, end in spans if begin < min(end, length))


def logprob_of(scored: ScoredToken, tokenizer: Tokenizer) -> TokenLogprob:
    """One position with its texts."""
    top = tuple((token, tokenizer.token_text(token), logprob) for token, logprob in scored.top)
    return TokenLogprob(scored.token, tokenizer.token_text(scored.token), scored.logprob, top)


def failed(call_id: int | None, error: LmprogError) -> Failed:
    """The last reply of a call that ended with `error`."""
    return Failed(call_id, error.code, error.message, error.details())
