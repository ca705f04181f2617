"""What a step brought each sequence: results of the sampler, applied to the sequences' tasks.

Knows tasks, requests and results; knows no pages and no tree.
"""

from __future__ import annotations

from typing import NamedTuple

from lmprog.errors import LmprogError, ModelError
from lmprog.runtime.scheduling.drafts import RowDraft
from lmprog.runtime.scheduling.generation import Generation, ScoredToken
from lmprog.runtime.scheduling.logits_requests import LogitsRequests, known_targets
from lmprog.runtime.scheduling.plan import Plan, Row
from lmprog.runtime.scheduling.sampling_requests import SampleResult, StepResults
from lmprog.runtime.scheduling.sequence import Sequence


class Progress(NamedTuple):
    """The `added` newest tokens of `sequence` are new; `ended` when no more will come."""

    sequence: Sequence
    added: int = 0
    ended: bool = False
    error: LmprogError | None = None
    not_finite: bool = False
    """Its logits were not finite: nothing that it computed or found may be used again."""


class Applied(NamedTuple):
    """What a step brought."""

    progress: list[Progress]
    """Row by row."""
    num_generated: int
    accepted: dict[int, int]
    """By row: how many of its drafted tokens were sampled."""


def apply_results(plan: Plan, requests: LogitsRequests, results: StepResults) -> Applied:
    """Applies the results of each row to its sequence's task."""
    progress: list[Progress] = []
    accepted: dict[int, int] = {}
    num_generated = 0
    samples, sample_of, drafted_of = results.samples, requests.sample_of, requests.drafted_of
    for index, row in enumerate(plan.rows):
        sequence, asked = row[0], sample_of[index]
        task, sampled = sequence.task, None if asked is None else samples[asked]
        generated = task.generated if isinstance(task, Generation) else 0
        if sampled is not None and isinstance(task, Generation) and task.is_plain:
            one = _accept(sequence, task, sampled)
        else:
            one = _apply(row, index, requests, results)
        if index in drafted_of:
            one, accepted[index] = _follow(
                one, row, plan.drafts[index], drafted_of[index], (requests, results)
            )
        progress.append(one)
        num_generated += task.generated - generated if isinstance(task, Generation) else 0
    return Applied(progress, num_generated, accepted)


def _follow(
    first: Progress,
    row: Row,
    drafted: RowDraft,
    asked: tuple[int, ...],
    step: tuple[LogitsRequests, StepResults],
) -> tuple[Progress, int]:
    """Goes on from the token after the known ones, as long as what is sampled was drafted: so long
    the next logits are right. `asked` are the sample requests after each drafted token.

    Returns the row's progress and how many drafted tokens were sampled.
    """
    sequence, task, progress, end = row.sequence, row.sequence.task, first, 0
    assert isinstance(task, Generation)
    begin = row.end - len(drafted.tokens)
    for count, at in enumerate(asked):
        first_of_piece, end = end, end + drafted.lengths[count]
        piece = drafted.tokens[first_of_piece:end]
        if progress.ended or sequence.tokens[begin + first_of_piece :] != piece:
            return progress, count
        sampled = step[1].samples[at]
        if sampled is None:
            return Progress(sequence, ended=True, error=_not_finite(row), not_finite=True), count
        task.is_cut = task.is_cut or _is_cut(at, *step)
        one = _accept(sequence, task, sampled)
        progress = one._replace(added=progress.added + one.added)
    return progress, len(asked)


def _apply(row: Row, index: int, requests: LogitsRequests, results: StepResults) -> Progress:
    """Applies the results of row `index` of the plan to its sequence's task."""
    sequence, asked = row.sequence, requests.sample_of[index]
    sampled = None if asked is None else results.samples[asked]
    scored = _scores(requests, results, requests.scores_of[index])
    if scored is None or (asked is not None and sampled is None):
        return Progress(sequence, ended=True, error=_not_finite(row), not_finite=True)
    task = sequence.task
    if isinstance(task, Generation):
        task.prompt_logprobs += scored
        if index in requests.failed:
            return Progress(sequence, ended=True, error=requests.failed[index])
        if sampled is None:
            return Progress(sequence)
        task.is_cut = task.is_cut or (asked is not None and _is_cut(asked, requests, results))
        return _accept(sequence, task, sampled)
    num_known = len(known_targets(row))
    task.logprobs += scored[:num_known]
    if row.end < len(sequence.tokens):
        return Progress(sequence)
    task.final_logprobs = tuple(scored[num_known:])
    return Progress(sequence, ended=True)


def _is_cut(asked: int, requests: LogitsRequests, results: StepResults) -> bool:
    """Whether a sample's second one, which any number of tokens might follow, does not fit."""
    unbounded = requests.unbounded_of.get(asked)
    if unbounded is None:
        return False
    mask, wanted = requests.samples[asked].mask, results.samples[unbounded]
    return mask is not None and wanted is not None and not mask.allows(wanted.token)


def _accept(sequence: Sequence, task: Generation, sampled: SampleResult) -> Progress:
    num_seam_tokens = task.num_seam_tokens
    try:
        added = task.accept(sampled.token, sequence.tokens)
    except LmprogError as error:  # its constraint exceeded its limits
        return Progress(sequence, ended=True, error=error)
    if task.settings.sampling.logprobs is not None and task.num_seam_tokens == num_seam_tokens:
        task.logprobs.append(ScoredToken(sampled.token, sampled.logprob, sampled.top))
    return Progress(sequence, added, task.finish is not None)


def _scores(
    requests: LogitsRequests, results: StepResults, which: range
) -> list[ScoredToken] | None:
    """The scores of one row, position by position; None when its logits were not finite."""
    found: list[ScoredToken] = []
    for index in which:
        score = results.scores[index]
        if score is None:
            return None
        targets = requests.scores[index].targets
        tops = score.tops or ((),) * len(targets)
        found += [ScoredToken(*each) for each in zip(targets, score.logprobs, tops, strict=True)]
    return found


def _not_finite(row: Row) -> ModelError:
    return ModelError(
        f"the model's logits were not finite at position {row.end - 1}; the call was ended and "
        "nothing of it was kept. The checkpoint or its dtype is at fault (try float32)."
    )
