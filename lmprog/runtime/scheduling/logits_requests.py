"""Per-row sampling and scoring requests of a step, with their token masks.

The masks are filled here, while the engine may still be busy. Knows plans, tasks and constraints;
knows no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lmprog.errors import LmprogError
from lmprog.runtime.scheduling.generation import Generation, Scoring
from lmprog.runtime.scheduling.plan import Plan, Row
from lmprog.runtime.scheduling.sampling_requests import SampleRequest, ScoreRequest

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
    """Index of a row's second sample request, under the mask that would hold with any number of
    tokens left. Only rows have one whose mask is narrower because few are left."""
    failed: Mapping[int, LmprogError] = field(default_factory=dict)
    """Rows without a mask, because their constraint exceeded its limits. Only these calls fail."""


def collect_requests(plan: Plan) -> LogitsRequests:
    """The requests of `plan`; masks come from each sequence's constraint at its guide."""
    samples: list[SampleRequest] = []
    scores: list[ScoreRequest] = []
    sample_of: list[int | None] = []
    scores_of: list[range] = []
    unbounded_of: dict[int, int] = {}
    failed: dict[int, LmprogError] = {}
    first_logit = 0
    for index, row in enumerate(plan.rows):
        sequence, _, _, end, _, logits_from = row
        task, num_logits = sequence.task, end - logits_from
        if isinstance(task, Generation) and task.is_plain and end == len(sequence.tokens):
            sample_of.append(len(samples))
            scores_of.append(_NONE)
            samples.append(_plain_request(row, task, first_logit + num_logits - 1))
            first_logit += num_logits
            continue
        first_score = len(scores)
        sample: int | None = None
        if num_logits:
            scores += _known_scores(row, first_logit)
            if end == len(sequence.tokens):
                last = first_logit + num_logits - 1
                if isinstance(task, Generation):
                    try:
                        request = _sample_request(row, task, last)
                        unbounded = task.mask_without_budget()
                        samples.append(request)
                        sample = len(samples) - 1
                        if unbounded is not None:
                            unbounded_of[index] = len(samples)
                            samples.append(request._replace(mask=unbounded))
                    except LmprogError as error:
                        failed[index] = error
                else:
                    scores += [ScoreRequest(last, (token,), 0) for token in task.finals]
        sample_of.append(sample)
        scores_of.append(range(first_score, len(scores)))
        first_logit += num_logits
    return LogitsRequests(
        tuple(samples), tuple(scores), tuple(sample_of), tuple(scores_of), unbounded_of, failed
    )


def known_targets(row: Row) -> tuple[int, ...]:
    """Known tokens to score: those after the positions whose logits the row gives."""
    tokens, task = row.sequence.tokens, row.sequence.task
    end = min(row.end + 1, len(tokens))
    if isinstance(task, Generation):
        if task.settings.sampling.prompt_logprobs is None:
            return ()
        end = min(end, task.settings.prompt_len)
    return tuple(tokens[row.logits_from + 1 : end])


def _plain_request(row: Row, task: Generation, logit: int) -> SampleRequest:
    banned = task.banned(row.sequence.tokens)
    return SampleRequest(logit, task.settings.sampling, task.seed, task.steps, (), (), banned)


def _known_scores(row: Row, logit: int) -> list[ScoreRequest]:
    targets = known_targets(row)
    if not targets:
        return []
    task = row.sequence.task
    top = 0 if isinstance(task, Scoring) else task.settings.sampling.prompt_logprobs or 0
    return [ScoreRequest(logit, targets, top)]


def _sample_request(row: Row, task: Generation, logit: int) -> SampleRequest:
    sampling, tokens = task.settings.sampling, row.sequence.tokens
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
