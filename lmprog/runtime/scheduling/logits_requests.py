"""What a plan wants from its logits: which rows pick a token under which mask, which score tokens
that stand already.

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


@dataclass(frozen=True, slots=True)
class LogitsRequests:
    """All picks and scores of a step, and for each row of the plan where its own begin."""

    picks: tuple[SampleRequest, ...]
    scores: tuple[ScoreRequest, ...]
    pick_of: tuple[int | None, ...]
    """Per row: index of its pick, None where it picks nothing."""
    scores_of: tuple[range, ...]
    """Per row: indices of its scores; the first one scores the row's known tokens where there are
    any.
    """
    failed: Mapping[int, LmprogError] = field(default_factory=dict)
    """Rows without a mask, because their constraint grew beyond its limits: only these calls
    fail.
    """


def fill_masks(plan: Plan) -> LogitsRequests:
    """The picks and scores of `plan`; masks come from each sequence's constraint at its guide."""
    picks: list[SampleRequest] = []
    scores: list[ScoreRequest] = []
    pick_of: list[int | None] = []
    scores_of: list[range] = []
    failed: dict[int, LmprogError] = {}
    logit = 0
    for index, row in enumerate(plan.rows):
        first_score = len(scores)
        picked: int | None = None
        if row.num_logits:
            task = row.sequence.task
            scores += _known(row, logit)
            if row.end == len(row.sequence.tokens):
                last = logit + row.num_logits - 1
                if isinstance(task, Generation):
                    try:
                        picks.append(_pick(row, task, last))
                        picked = len(picks) - 1
                    except LmprogError as error:
                        failed[index] = error
                else:
                    scores += [ScoreRequest(last, (token,), 0) for token in task.finals]
        pick_of.append(picked)
        scores_of.append(range(first_score, len(scores)))
        logit += row.num_logits
    return LogitsRequests(tuple(picks), tuple(scores), tuple(pick_of), tuple(scores_of), failed)


def known_targets(row: Row) -> tuple[int, ...]:
    """Tokens that stand already after the positions whose logits the row gives, and that are to be
    scored.
    """
    tokens, task = row.sequence.tokens, row.sequence.task
    end = min(row.end + 1, len(tokens))
    if isinstance(task, Generation):
        if task.settings.sampling.prompt_logprobs is None:
            return ()
        end = min(end, task.settings.prompt_len)
    return tuple(tokens[row.logits_from + 1 : end])


def _known(row: Row, logit: int) -> list[ScoreRequest]:
    targets = known_targets(row)
    if not targets:
        return []
    task = row.sequence.task
    top = 0 if isinstance(task, Scoring) else task.settings.sampling.prompt_logprobs or 0
    return [ScoreRequest(logit, targets, top)]


def _pick(row: Row, task: Generation, logit: int) -> SampleRequest:
    sampling, tokens = task.settings.sampling, row.sequence.tokens
    history = (
        sampling.repetition_penalty != 1.0
        or sampling.frequency_penalty
        or sampling.presence_penalty
    )
    return SampleRequest(
        logit=logit,
        sampling=sampling,
        seed=task.seed,
        step=task.steps,
        prompt=tokens[: task.prompt_len] if history else (),
        generated=tokens[task.prompt_len :] if history else (),
        banned=task.banned(),
        mask=task.mask(),
    )
