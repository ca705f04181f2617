"""Chooses tokens from logits, and reads off log-probabilities: everything a step asks of its
logits, in batches.

The order is fixed: bias, penalties, bans and masks, temperature, min-p, top-k, top-p. They mean
what they mean in vLLM and transformers. Bias is added. The repetition penalty divides positive
logits and multiplies negative ones of every token in prompt or output; frequency and presence
penalties are subtracted for generated tokens, the first for each time, the second once. What is
banned, or not in a mask, gets no probability at all. Min-p keeps what is at least that fraction as
likely as the most likely token, top-k keeps the k most likely and what ties with the last of them,
top-p the smallest set of the most likely tokens that has the wanted mass, and what ties with its
last. Temperature 0 takes the most likely token, the lowest id of equals.

A token is drawn by one number from (seed, step): the kept tokens in vocabulary order, as wide as
they are likely, and the token at which the number points. Widths are integers (2**44 for the most
likely token), so that sums are exact and no result depends on what else is in the batch, on threads
or on the order of additions.

Knows tensors on any device, and picks; knows no requests, no text, and nothing of where logits come
from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmprog.runtime.scheduling import sampling_requests
from lmprog.runtime.scheduling.sampling_requests import (
    Likely,
    SampleRequest,
    SampleResult,
    ScoreRequest,
    ScoreResult,
    StepResults,
    uniform,
)

_WIDTH_BITS = 44
_NUCLEUS = 64
"""Top-p looks among so many of the most likely tokens first; only where their mass is too small is
all sorted.
"""
_COLDEST = 1e-6
"""Temperatures below are this one, which is as good as greedy, so that nothing is divided by almost
nothing.
"""
_CHUNK, _DEVICE_CHUNK = 1 << 19, 1 << 25
"""Logits that are worked on at a time: on a processor what its cache holds, on a device what its
memory can spare.
"""


class TorchSampler:
    """Has no state: what a row gets depends on the row and its pick alone."""

    def sample(
        self,
        logits: Tensor | NDArray[np.float32],
        picks: Sequence[SampleRequest],
        scores: Sequence[ScoreRequest],
    ) -> StepResults:
        """`logits` [rows, vocabulary], not changed. Answers in the order of `picks` and
        `scores`.
        """
        logits = torch.as_tensor(logits)
        with torch.inference_mode():
            return StepResults(_pick_all(logits, picks), _score_all(logits, scores))


def _pick_all(logits: Tensor, picks: Sequence[SampleRequest]) -> tuple[SampleResult | None, ...]:
    if not picks:
        return ()
    rows = _rows(logits, [pick.logit for pick in picks])
    finite = _finite(rows)
    weighed = [at for at, pick in enumerate(picks) if sampling_requests.is_weighed(pick)]
    if any(sampling_requests.is_edited(pick) or pick.sampling.temperature > 0 for pick in picks):
        usable, tokens = _choose(rows, finite, picks)
    else:
        usable, tokens = finite, rows.argmax(1)
    chosen = tokens.tolist()
    asked = [at for at, pick in enumerate(picks) if pick.sampling.logprobs is not None]
    tops = [picks[at].sampling.logprobs or 0 for at in asked]
    read = _read(rows, [(at, chosen[at]) for at in asked], tops)
    likely = dict(zip(asked, read, strict=True))
    odds = dict(zip(weighed, _odds_of(rows, picks, tokens, weighed), strict=True))
    answers: list[SampleResult | None] = []
    for at, (token, is_usable) in enumerate(zip(chosen, usable.tolist(), strict=True)):
        logprob, top = likely.get(at, (math.nan, ()))
        found = SampleResult(token, logprob, top, odds.get(at))
        answers.append(found if is_usable else None)
    return tuple(answers)


def _rows(logits: Tensor, wanted: list[int]) -> Tensor:
    """The wanted rows; without a copy where they are all, in order."""
    if wanted == list(range(len(logits))):
        return logits
    return logits[torch.tensor(wanted, device=logits.device)]


def _finite(rows: Tensor) -> Tensor:
    """Per row: no nan and no infinity. A sum is finite only if everything in it is; only where one
    is not is looked closer, for it may have run over."""
    finite = rows.sum(1, dtype=torch.float32).isfinite()
    return finite if bool(finite.all()) else rows.isfinite().all(1)


def _choose(rows: Tensor, finite: Tensor, picks: Sequence[SampleRequest]) -> tuple[Tensor, Tensor]:
    """Which rows have a token to choose, and the tokens chosen."""
    usable, tokens = finite.clone(), torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    step = max(1, (_CHUNK if rows.is_cpu else _DEVICE_CHUNK) // rows.shape[1])
    for first in range(0, len(rows), step):
        part = slice(first, first + step)
        values = rows[part].to(torch.float32, copy=True)
        values[~finite[part]] = 0.0  # broken rows go along as harmless ones
        _edit(values, picks[part])
        best, tokens[part] = values.max(1)
        usable[part] &= best.isfinite()
        drawn = [at for at, pick in enumerate(picks[part]) if pick.sampling.temperature > 0]
        if drawn:
            values[~usable[part]] = 0.0
            where = torch.tensor(drawn, device=rows.device)
            tokens[first + where] = _draw(
                _rows(values.sub_(best[:, None]), drawn), [picks[first + at] for at in drawn]
            )
    return usable, tokens


def _odds_of(
    rows: Tensor, picks: Sequence[SampleRequest], tokens: Tensor, weighed: list[int]
) -> Iterable[tuple[float, float]]:
    if not weighed:
        return ()
    where = torch.tensor(weighed, device=rows.device)
    return odds(rows[where], [picks[at] for at in weighed], tokens[where]).tolist()


def odds(rows: Tensor, picks: Sequence[SampleRequest], tokens: Tensor) -> Tensor:
    """`SampleResult.odds` of the tokens that were drawn from `rows`. # [rows, 2] float64"""
    values = rows.to(torch.float32, copy=True)
    heat = torch.tensor([pick.sampling.temperature for pick in picks], device=rows.device)
    heat = heat.double().clamp_min(_COLDEST)
    _edit(values, picks, masks=False)
    mass = (values.double() / heat[:, None]).logsumexp(1)
    _mask(values, picks)
    scaled = values.double() / heat[:, None]
    own = scaled.logsumexp(1)
    drawn = scaled.gather(1, tokens.long()[:, None])[:, 0] - own
    return torch.stack((drawn, own - mass), 1)


# --- edits ----------------------------------------------------------------------------------------

_BARRED = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0.0, -np.inf
)
_BARRED = _BARRED.astype(np.float32)
"""What a byte of a mask adds to the logits of its eight tokens."""


def _edit(values: Tensor, picks: Sequence[SampleRequest], *, masks: bool = True) -> None:
    """Changes `values` [rows, vocabulary] in place, a row for each pick. A row whose mask allows
    nothing that the vocabulary has is left with minus infinity everywhere."""
    _add_bias(values, picks)
    _penalize(values, picks)
    _ban(values, picks)
    if masks:
        _mask(values, picks)


class _Cells:
    """Places in a [rows, vocabulary] tensor, gathered row by row and used at once."""

    def __init__(self) -> None:
        self._rows: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
        self._tokens: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
        self._amounts: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = []

    def add(self, row: int, tokens: Iterable[int], amounts: Iterable[float] | float = 0.0) -> None:
        found = np.asarray(tokens, np.int64)
        self._rows.append(np.full(found.shape, row, np.int64))
        self._tokens.append(found)
        self._amounts.append(np.broadcast_to(np.asarray(amounts, np.float32), found.shape))

    def within(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Rows, tokens and amounts on the device of `values`, tokens that it does not have left
        out; None if none.
        """
        if not self._rows:
            return None
        rows, tokens = np.concatenate(self._rows), np.concatenate(self._tokens)
        amounts = np.concatenate(self._amounts)
        known = tokens < values.shape[1]
        return (
            torch.from_numpy(rows[known]).to(values.device),
            torch.from_numpy(tokens[known]).to(values.device),
            torch.from_numpy(amounts[known]).to(values.device),
        )


def _add_bias(values: Tensor, picks: Sequence[SampleRequest]) -> None:
    cells = _Cells()
    for row, pick in enumerate(picks):
        if bias := sampling_requests.bias(pick):
            cells.add(row, list(bias), list(bias.values()))
    if (found := cells.within(values)) is not None:
        rows, tokens, amounts = found
        values[rows, tokens] += amounts


def _penalize(values: Tensor, picks: Sequence[SampleRequest]) -> None:
    repeated, counted = _Cells(), _Cells()
    for row, pick in enumerate(picks):
        if (seen := sampling_requests.repeated(pick)) is not None:
            repeated.add(row, *seen)
        if (counts := sampling_requests.counted(pick)) is not None:
            counted.add(row, *counts)
    if (cells := repeated.within(values)) is not None:
        rows, tokens, amounts = cells
        old = values[rows, tokens]
        values[rows, tokens] = torch.where(old > 0, old / amounts, old * amounts)
    if (cells := counted.within(values)) is not None:
        rows, tokens, amounts = cells
        values[rows, tokens] -= amounts


def _ban(values: Tensor, picks: Sequence[SampleRequest]) -> None:
    size = values.shape[1]
    rows: list[int] = []  # plain lists: almost every row of a forced length has a few bans
    tokens: list[int] = []
    for row, pick in enumerate(picks):
        known = sampling_requests.bans(pick, size)
        rows += [row] * len(known)
        tokens += known
    if rows:
        values[
            torch.tensor(rows, device=values.device), torch.tensor(tokens, device=values.device)
        ] = -math.inf


def _mask(values: Tensor, picks: Sequence[SampleRequest]) -> None:
    """Only what the masks allow stays. Narrow masks bring their ids, wide ones their bits."""
    size = values.shape[1]
    narrow, wide = (
        _Cells(),
        [row for row, pick in enumerate(picks) if pick.mask and pick.mask.ids is None],
    )
    narrow_rows = [row for row, pick in enumerate(picks) if pick.mask and pick.mask.ids is not None]
    for row in narrow_rows:
        mask = picks[row].mask
        assert mask is not None
        assert mask.ids is not None
        narrow.add(row, mask.ids)
    if (found := narrow.within(values)) is not None:
        rows, tokens, _ = found
        kept = values[rows, tokens]
        values[torch.tensor(narrow_rows, device=values.device)] = -math.inf
        values[rows, tokens] = kept
    if wide:
        bits = np.zeros((len(wide), -(-size // 8)), np.uint8)
        for at, row in enumerate(wide):
            mask = picks[row].mask
            assert mask is not None
            own = mask.bits.view(np.uint8)[: bits.shape[1]]
            bits[at, : len(own)] = own
        barred = torch.from_numpy(_BARRED[bits].reshape(len(wide), -1)[:, :size])
        values[torch.tensor(wide, device=values.device)] += barred.to(values.device)


# --- drawing --------------------------------------------------------------------------------------


def _draw(relative: Tensor, picks: Sequence[SampleRequest]) -> Tensor:
    """One token per row of `relative` [rows, vocabulary]: logits minus the row's greatest; it is
    used up.
    """
    size, device = relative.shape[1], relative.device
    samplings = [pick.sampling for pick in picks]

    def column(numbers: Iterable[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(list(numbers), dtype=dtype, device=device)[:, None]

    relative.div_(column(max(sampling.temperature, _COLDEST) for sampling in samplings))
    widths = relative.exp().mul_(2.0 ** min(_WIDTH_BITS, 62 - size.bit_length())).long()
    if any(sampling.min_p for sampling in samplings):
        least = column(
            math.log(sampling.min_p) if sampling.min_p else -math.inf for sampling in samplings
        )
        widths.mul_(relative >= least)  # several times faster than filling where a mask says so
    cut = [row for row, sampling in enumerate(samplings) if 0 < sampling.top_k < size]
    if cut:
        _keep_top_k(widths, relative, cut, [samplings[row].top_k for row in cut])
    cut = [row for row, sampling in enumerate(samplings) if sampling.top_p < 1]
    if cut:
        _keep_top_p(widths, cut, [samplings[row].top_p for row in cut])
    ends = widths.cumsum(1)
    total = ends[:, -1:]
    point = (
        column((uniform(pick.seed, pick.step) for pick in picks), torch.float64) * total.double()
    ).long()
    return torch.searchsorted(ends, torch.minimum(point, total - 1), right=True)[:, 0]


def _keep_top_k(widths: Tensor, relative: Tensor, rows: list[int], counts: list[int]) -> None:
    where = torch.tensor(rows, device=widths.device)
    own = _rows(relative, rows)
    best = own.topk(max(counts), dim=1).values
    least = best.gather(1, torch.tensor(counts, device=widths.device)[:, None] - 1)
    widths[where] = _rows(widths, rows) * (own >= least)


def _keep_top_p(widths: Tensor, rows: list[int], masses: list[float]) -> None:
    """Looks among the most likely tokens first, and sorts only the rows whose nucleus is larger."""
    where = torch.tensor(rows, device=widths.device)
    own = _rows(widths, rows)
    wanted = torch.tensor(masses, dtype=torch.float64, device=widths.device)[:, None] * own.sum(
        1, keepdim=True
    )
    best = own.topk(min(_NUCLEUS, own.shape[1]), dim=1).values
    least = _least_of_nucleus(best, wanted)
    wide = (best.sum(1, keepdim=True) < wanted)[:, 0].nonzero()[:, 0]
    if len(wide):
        least[wide] = _least_of_nucleus(_descending(own[wide]), wanted[wide])
    widths[where] = own * (own >= least)


def _descending(rows: Tensor) -> Tensor:
    """Each row sorted. On a processor numpy's sort is several times faster than torch's."""
    if rows.is_cpu:
        return torch.from_numpy(np.sort(rows.numpy(), axis=1)).flip(1)
    return rows.sort(dim=1, descending=True).values


def _least_of_nucleus(best: Tensor, wanted: Tensor) -> Tensor:
    """The width of the last token before which less than `wanted` stands; the first is always
    kept.
    """
    last = ((best.cumsum(1) - best) < wanted).sum(1, keepdim=True) - 1
    return best.gather(1, last)


# --- log-probabilities ----------------------------------------------------------------------------


def _read(
    rows: Tensor, cells: list[tuple[int, int]], tops: list[int]
) -> list[tuple[float, Likely]]:
    """For each (row, token): the token's log-probability and the `tops` most likely tokens of the
    row.
    """
    answers: list[tuple[float, Likely]] = []
    step = max(1, (_CHUNK if rows.is_cpu else _DEVICE_CHUNK) // rows.shape[1])
    for first in range(0, len(cells), step):
        part, counts = cells[first : first + step], tops[first : first + step]
        index = torch.tensor([row for row, _ in part], device=rows.device)
        likely = rows[index].float().log_softmax(1)
        targets = torch.tensor([token for _, token in part], device=rows.device)
        own = likely.gather(1, targets[:, None])[:, 0].tolist()
        best = likely.topk(min(max(counts), rows.shape[1]), dim=1)
        for logprob, values, tokens, count in zip(
            own, best.values.tolist(), best.indices.tolist(), counts, strict=True
        ):
            ranked = sorted(zip(tokens, values, strict=True), key=_best_first)
            answers.append((logprob, tuple(ranked[:count])))
    return answers


def _score_all(logits: Tensor, scores: Sequence[ScoreRequest]) -> tuple[ScoreResult | None, ...]:
    cells = [
        (score.logit + at, token) for score in scores for at, token in enumerate(score.targets)
    ]
    if not cells:
        return tuple(ScoreResult(()) for _ in scores)
    finite = dict(
        zip(
            (row for row, _ in cells),
            _finite(_rows(logits, [row for row, _ in cells])).tolist(),
            strict=True,
        )
    )
    tops = [score.top if score.mask is None else 0 for score in scores for _ in score.targets]
    read = iter(_read(logits, cells, tops))
    answers: list[ScoreResult | None] = []
    for score in scores:
        own = [next(read) for _ in score.targets]
        if not all(finite[score.logit + at] for at in range(len(score.targets))):
            answers.append(None)
            continue
        likely = tuple(top for _, top in own) if score.top else ()
        if score.top and score.mask is not None:
            likely = likeliest_allowed(logits, score)
        answers.append(ScoreResult(tuple(logprob for logprob, _ in own), likely))
    return tuple(answers)


def likeliest_allowed(logits: Tensor, score: ScoreRequest) -> tuple[Likely, ...]:
    """Of each of its rows the most likely tokens that its mask allows."""
    tokens = torch.from_numpy(sampling_requests.allowed(score, logits.shape[1])).to(logits.device)
    rows = logits[score.logit : score.logit + len(score.targets)].float().log_softmax(1)[:, tokens]
    best = rows.topk(min(score.top, len(tokens)), dim=1)
    return tuple(
        tuple(sorted(zip(own.tolist(), values.tolist(), strict=True), key=_best_first))
        for own, values in zip(tokens[best.indices], best.values, strict=True)
    )


def _best_first(one: tuple[int, float]) -> tuple[float, int]:
    return -one[1], one[0]
