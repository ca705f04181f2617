"""What a step asks of its logits, row by row, and what the results mean for the sequences' tasks.

The masks are filled here, while the engine may still be busy. Knows plans, tasks, constraints and
results; knows no tensors, no pages and no tree.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lmprog.errors import LmprogError, ModelError
from lmprog.runtime.scheduling.generation import Generation, ScoredToken, Scoring
from lmprog.runtime.scheduling.plan import Plan, Row, RowDraft
from lmprog.runtime.scheduling.sampling_requests import (
    SampleRequest,
    SampleResult,
    ScoreRequest,
    StepResults,
)
from lmprog.runtime.scheduling.sequence import Sequence

_NONE = range(0)


@dataclass(frozen=True, slots=True)
class LogitsRequests:
    """All sample and score requests of a step, and which of them belong to each row of the plan."""

    samples: tuple[SampleRequest, ...]
    scores: tuple[ScoreRequest, ...]
    sample_of: tuple[int | None, ...]
    """Per row: index of its sample request, None where it samples nothing."""
    scores_of: tuple[range, ...]
    """Per row: indices of its score requests. The first one scores the row's known tokens, if
    any."""
    unbounded_of: Mapping[int, int] = field(default_factory=dict)
    """By the index of a sample request: that of a second one, under the mask that would hold with
    any number of tokens left. Only those have one whose mask is narrower because few are left."""
    drafted_of: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """By row: indices of the sample requests after each drafted token. Fewer than were drafted
    where a constraint exceeded its limits, which the next step says where that token is sampled, or
    where a mask is not ready."""
    failed: Mapping[int, LmprogError] = field(default_factory=dict)
    """Rows without a mask, because their constraint exceeded its limits. Only these calls fail."""

    def moved(self, logit_of: Items[int]) -> LogitsRequests:
        """The same of other rows of logits: `logit_of[i]` in place of `i`."""
        samples = [one._replace(logit=logit_of[one.logit]) for one in self.samples]
        scores = [replace(one, logit=logit_of[one.logit]) for one in self.scores]
        return replace(self, samples=tuple(samples), scores=tuple(scores))

    def only(self, rows: Items[int]) -> LogitsRequests:
        """What belongs to these rows of the plan, without drafts; the requests stay as they are."""
        return replace(
            self,
            sample_of=tuple([self.sample_of[row] for row in rows]),
            scores_of=tuple([self.scores_of[row] for row in rows]),
            drafted_of={},
            failed={at: self.failed[row] for at, row in enumerate(rows) if row in self.failed},
        )


def collect_requests(plan: Plan) -> LogitsRequests:
    """The requests of `plan`; masks come from each sequence's constraint at its guide."""
    samples: list[SampleRequest] = []
    scores: list[ScoreRequest] = []
    sample_of: list[int | None] = []
    scores_of: list[range] = []
    unbounded_of: dict[int, int] = {}
    drafted_of: dict[int, tuple[int, ...]] = {}
    failed: dict[int, LmprogError] = {}
    first_logit = 0
    for index, row in enumerate(plan.rows):
        sequence, _, _, end, _, logits_from = row
        task, num_logits = sequence.task, end - logits_from
        drafted = plan.drafts.get(index)
        if drafted is not None:
            end -= len(drafted.tokens)
        if isinstance(task, Generation) and task.is_plain and end == len(sequence.tokens):
            last = first_logit + end - 1 - logits_from
            sample_of.append(len(samples))
            scores_of.append(_NONE)
            samples.append(plain_request(row, task, last))
            if drafted is not None:
                drafted_of[index] = _add_drafted(samples, unbounded_of, row, drafted, last)
            first_logit += num_logits
            continue
        first_score = len(scores)
        sample: int | None = None
        if num_logits:
            scores += _known_scores(row, first_logit)
            if end == len(sequence.tokens):
                last = first_logit + end - 1 - logits_from
                if isinstance(task, Generation):
                    try:
                        sample = _add_sample(samples, unbounded_of, sequence.tokens, task, last)
                        if drafted is not None:
                            drafted_of[index] = _add_drafted(
                                samples, unbounded_of, row, drafted, last
                            )
                    except LmprogError as error:
                        failed[index] = error
                else:
                    scores += [
                        ScoreRequest(last, (token,), task.top, task.mask) for token in task.finals
                    ]
        sample_of.append(sample)
        scores_of.append(range(first_score, len(scores)))
        first_logit += num_logits
    return LogitsRequests(
        tuple(samples),
        tuple(scores),
        tuple(sample_of),
        tuple(scores_of),
        unbounded_of,
        drafted_of,
        failed,
    )


def _add_sample(
    samples: list[SampleRequest],
    unbounded_of: dict[int, int],
    tokens: array[int],
    task: Generation,
    logit: int,
) -> int:
    """Adds the request for the token after `tokens`, and a second one where the mask is narrow;
    returns the first one's index. May raise what a mask raises, and then adds nothing.
    """
    request = sample_request(tokens, task, logit)
    unbounded = task.mask_without_budget()
    index = len(samples)
    samples.append(request)
    if unbounded is not None:
        unbounded_of[index] = len(samples)
        samples.append(request._replace(mask=unbounded))
    return index


def _add_drafted(
    samples: list[SampleRequest],
    unbounded_of: dict[int, int],
    row: Row,
    drafted: RowDraft,
    logit: int,
) -> tuple[int, ...]:
    """Adds the requests after each drafted token of `row`, whose last known one has `logit`."""
    task, first, count = row.sequence.task, len(samples), len(drafted.lengths)
    if isinstance(task, Generation) and task.is_plain:
        samples += [plain_request(row, task, logit + at, at) for at in range(1, count + 1)]
        return tuple(range(first, first + count))
    found: list[int] = []
    tokens, end = row.sequence.tokens[:], 0
    for length, ahead in zip(drafted.lengths, drafted.aheads, strict=True):
        tokens.extend(drafted.tokens[end : end + length])
        end += length
        if not ahead.is_ready():
            break
        try:
            found.append(_add_sample(samples, unbounded_of, tokens, ahead, logit + end))
        except LmprogError:
            break
    return tuple(found)


def known_targets(row: Row) -> tuple[int, ...]:
    """Known tokens to score: those after the positions whose logits the row gives."""
    tokens, task = row.sequence.tokens, row.sequence.task
    end = min(row.end + 1, len(tokens))
    if isinstance(task, Generation):
        if task.settings.sampling.prompt_logprobs is None:
            return ()
        end = min(end, task.settings.prompt_len)
    return tuple(tokens[row.logits_from + 1 : end])


def plain_request(row: Row, task: Generation, logit: int, ahead: int = 0) -> SampleRequest:
    """`ahead` tokens after the known ones."""
    banned, step = task.banned(row.sequence.tokens, ahead), task.steps + ahead
    return SampleRequest(logit, task.settings.sampling, task.seed, step, (), (), banned)


def _known_scores(row: Row, logit: int) -> list[ScoreRequest]:
    targets = known_targets(row)
    if not targets:
        return []
    task = row.sequence.task
    top = 0 if isinstance(task, Scoring) else task.settings.sampling.prompt_logprobs or 0
    return [ScoreRequest(logit, targets, top)]


def sample_request(tokens: array[int], task: Generation, logit: int) -> SampleRequest:
    sampling = task.settings.sampling
    if task.particle is not None:
        sampling = task.particle.asked(sampling)
    needs_history = task.has_penalties
    return SampleRequest(
        logit=logit,
        sampling=sampling,
        seed=task.seed,
        step=task.steps,
        prompt=tokens[: task.prompt_len] if needs_history else (),
        generated=tokens[task.prompt_len :] if needs_history else (),
        banned=task.banned(tokens),
        mask=task.mask(),
    )


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
    if task.particle is not None and sampled.odds is not None:
        task.particle.drew(sampled.token, sampled.odds)
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
