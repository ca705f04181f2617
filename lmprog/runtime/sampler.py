"""Chooses tokens from logits, and reads off log-probabilities: everything a step asks of its logits, in batches.

The order is fixed: logit bias; repetition, frequency and presence penalties; bans; mask; temperature; min-p; top-k;
top-p. Parameters mean what they mean in vLLM and transformers: the repetition penalty divides positive logits and
multiplies negative ones of tokens in prompt or output, frequency and presence penalties subtract for generated tokens,
top-k keeps what ties with the k-th, top-p keeps the smallest set of the most likely tokens that has the wanted
mass (and what ties with its last), min-p keeps what is at least that fraction as likely as the most likely token.
Temperature 0 takes the most likely token, the lowest id of equals.

A token is drawn by one number from (seed, step): the kept tokens in vocabulary order, as wide as they are likely, and
the token at which the number points. Widths are integers (2**44 for the most likely token), so that sums are exact and
no result depends on what else is in the batch, on threads or on the order of additions.

Knows tensors on any device, and picks; knows no requests, no text, and nothing of where logits come from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from lmprog.runtime.picks import Likely, Pick, Picked, Sampled, Score, Scored
from lmprog.runtime.randomness import uniform

_WIDTH_BITS = 44
_NUCLEUS = 1024
"""Top-p looks among so many of the most likely tokens first; only where their mass is too small is all sorted."""
_CHUNK = 1 << 24
"""Numbers whose log-probabilities are computed at a time."""


class Sampler:
    """Has no state: what a row gets depends on the row and its pick alone."""

    def sample(self, logits: Tensor, picks: Sequence[Pick], scores: Sequence[Score]) -> Sampled:
        """`logits` [rows, vocabulary], not changed. Answers in the order of `picks` and `scores`."""
        with torch.inference_mode():
            return Sampled(_pick_all(logits, picks), _score_all(logits, scores))


def _pick_all(logits: Tensor, picks: Sequence[Pick]) -> tuple[Picked | None, ...]:
    if not picks:
        return ()
    rows = _rows(logits, [pick.logit for pick in picks])
    finite = _finite(rows)
    if any(_is_edited(pick) or pick.sampling.temperature > 0 for pick in picks):
        usable, tokens = _choose(rows, finite, picks)
    else:
        usable, tokens = finite, rows.argmax(1)
    chosen = tokens.tolist()
    asked = [at for at, pick in enumerate(picks) if pick.sampling.logprobs is not None]
    tops = [picks[at].sampling.logprobs or 0 for at in asked]
    read = _read(rows, [(at, chosen[at]) for at in asked], tops)
    likely = dict(zip(asked, read, strict=True))
    answers: list[Picked | None] = []
    for at, (token, is_usable) in enumerate(zip(chosen, usable.tolist(), strict=True)):
        logprob, top = likely.get(at, (math.nan, ()))
        answers.append(Picked(token, logprob, top) if is_usable else None)
    return tuple(answers)


def _rows(logits: Tensor, wanted: list[int]) -> Tensor:
    """The wanted rows; without a copy where they are all, in order."""
    if wanted == list(range(len(logits))):
        return logits
    return logits[torch.tensor(wanted, device=logits.device)]


def _finite(rows: Tensor) -> Tensor:
    """Per row: no nan and no infinity. One pass: a sum is finite only if everything in it is."""
    return rows.sum(1, dtype=torch.float64).isfinite()


def _is_edited(pick: Pick) -> bool:
    """Whether anything but temperature and truncation stands between the model's logits and the choice."""
    sampling = pick.sampling
    return bool(pick.banned or pick.mask is not None or sampling.logit_bias or _is_penalized(pick))


def _is_penalized(pick: Pick) -> bool:
    sampling = pick.sampling
    return bool(sampling.repetition_penalty != 1.0 or sampling.frequency_penalty or sampling.presence_penalty)


def _choose(rows: Tensor, finite: Tensor, picks: Sequence[Pick]) -> tuple[Tensor, Tensor]:
    """Which rows have a token to choose, and the tokens chosen."""
    values = torch.where(finite[:, None], rows.float(), 0.0)  # a copy; broken rows go along as harmless ones
    _add_bias(values, picks)
    _penalize(values, picks)
    _ban(values, picks)
    _mask(values, picks)
    best, tokens = values.max(1)
    usable = finite & best.isfinite()
    drawn = [at for at, pick in enumerate(picks) if pick.sampling.temperature > 0]
    if drawn:
        where = torch.tensor(drawn, device=rows.device)
        relative = torch.where(usable[where, None], values[where].double() - best[where, None].double(), 0.0)
        tokens[where] = _draw(relative, [picks[at] for at in drawn])
    return usable, tokens


# --- what changes logits -----------------------------------------------------------------------------------------


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
        """Rows, tokens and amounts on the device of `values`, tokens that it does not have left out; None if none."""
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


def _add_bias(values: Tensor, picks: Sequence[Pick]) -> None:
    cells = _Cells()
    for row, pick in enumerate(picks):
        bias = dict(pick.sampling.logit_bias)  # of equal tokens the last one counts, as in a JSON object
        if bias:
            cells.add(row, list(bias), list(bias.values()))
    if (found := cells.within(values)) is not None:
        rows, tokens, amounts = found
        values[rows, tokens] += amounts


def _penalize(values: Tensor, picks: Sequence[Pick]) -> None:
    repeated, counted = _Cells(), _Cells()
    for row, pick in enumerate(picks):
        if not _is_penalized(pick):
            continue
        sampling = pick.sampling
        generated = np.asarray(pick.generated, np.int64)
        if sampling.repetition_penalty != 1.0:
            seen = np.unique(np.concatenate([np.asarray(pick.prompt, np.int64), generated]))
            repeated.add(row, seen, sampling.repetition_penalty)
        if sampling.frequency_penalty or sampling.presence_penalty:
            seen, counts = np.unique(generated, return_counts=True)
            counted.add(row, seen, sampling.presence_penalty + sampling.frequency_penalty * counts)
    if (found := repeated.within(values)) is not None:
        rows, tokens, amounts = found
        old = values[rows, tokens]
        values[rows, tokens] = torch.where(old > 0, old / amounts, old * amounts)
    if (found := counted.within(values)) is not None:
        rows, tokens, amounts = found
        values[rows, tokens] -= amounts


def _ban(values: Tensor, picks: Sequence[Pick]) -> None:
    """Bans give way where they would leave nothing of a mask: a constraint that is complete can only be ended, and a
    text that breaks it would be worse than one that is shorter than asked for."""
    cells = _Cells()
    for row, pick in enumerate(picks):
        banned = set(pick.banned)
        mask = pick.mask
        left = values.shape[1] - len(banned) if mask is None else mask.count - sum(map(mask.allows, banned))
        if banned and left > 0:
            cells.add(row, list(banned))
    if (found := cells.within(values)) is not None:
        values[found[0], found[1]] = -math.inf


def _mask(values: Tensor, picks: Sequence[Pick]) -> None:
    """Only what the masks allow stays. Narrow masks bring their ids, wide ones their bits."""
    size = values.shape[1]
    narrow, wide = _Cells(), [row for row, pick in enumerate(picks) if pick.mask and pick.mask.ids is None]
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
        allowed = np.zeros((len(wide), size), bool)
        for at, row in enumerate(wide):
            mask = picks[row].mask
            assert mask is not None
            bits = np.unpackbits(mask.bits.view(np.uint8), bitorder="little", count=min(size, 32 * len(mask.bits)))
            allowed[at, : len(bits)] = bits
        where = torch.tensor(wide, device=values.device)
        values[where] = values[where].masked_fill(~torch.from_numpy(allowed).to(values.device), -math.inf)


# --- drawing -----------------------------------------------------------------------------------------------------


def _draw(relative: Tensor, picks: Sequence[Pick]) -> Tensor:
    """One token per row of `relative` [rows, vocabulary], float64: logits minus the row's greatest."""
    size, device = relative.shape[1], relative.device
    samplings = [pick.sampling for pick in picks]

    def column(numbers: Iterable[float]) -> Tensor:
        return torch.tensor(list(numbers), dtype=torch.float64, device=device)[:, None]

    relative = relative / column(sampling.temperature for sampling in samplings)
    widths = (relative.exp() * 2.0 ** min(_WIDTH_BITS, 62 - size.bit_length())).long()
    if any(sampling.min_p for sampling in samplings):
        least = column(math.log(sampling.min_p) if sampling.min_p else -math.inf for sampling in samplings)
        widths.masked_fill_(relative < least, 0)
    cut = [row for row, sampling in enumerate(samplings) if 0 < sampling.top_k < size]
    if cut:
        _keep_top_k(widths, relative, cut, [samplings[row].top_k for row in cut])
    cut = [row for row, sampling in enumerate(samplings) if sampling.top_p < 1]
    if cut:
        _keep_top_p(widths, cut, [samplings[row].top_p for row in cut])
    ends = widths.cumsum(1)
    total = ends[:, -1:]
    point = (column(uniform(pick.seed, pick.step) for pick in picks) * total.double()).long()
    return torch.searchsorted(ends, torch.minimum(point, total - 1), right=True)[:, 0]


def _keep_top_k(widths: Tensor, relative: Tensor, rows: list[int], counts: list[int]) -> None:
    where = torch.tensor(rows, device=widths.device)
    best = relative[where].topk(max(counts), dim=1).values
    least = best.gather(1, torch.tensor(counts, device=widths.device)[:, None] - 1)
    widths[where] = widths[where].masked_fill(relative[where] < least, 0)


def _keep_top_p(widths: Tensor, rows: list[int], masses: list[float]) -> None:
    where = torch.tensor(rows, device=widths.device)
    own = widths[where]
    wanted = torch.tensor(masses, dtype=torch.float64, device=widths.device)[:, None] * own.sum(1, keepdim=True)
    best = own.topk(min(_NUCLEUS, own.shape[1]), dim=1).values
    if bool((best.sum(1, keepdim=True) < wanted).any()):
        best = own.sort(dim=1, descending=True).values
    before = best.cumsum(1) - best
    last = (before < wanted).sum(1, keepdim=True) - 1  # the first token is always kept: nothing stands before it
    widths[where] = own.masked_fill(own < best.gather(1, last), 0)


# --- log-probabilities -------------------------------------------------------------------------------------------


def _read(rows: Tensor, cells: list[tuple[int, int]], tops: list[int]) -> list[tuple[float, Likely]]:
    """For each (row, token): the token's log-probability and the `tops` most likely tokens of the row."""
    answers: list[tuple[float, Likely]] = []
    step = max(1, _CHUNK // rows.shape[1])
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
            ranked = sorted(zip(tokens, values, strict=True), key=lambda one: (-one[1], one[0]))
            answers.append((logprob, tuple(ranked[:count])))
    return answers


def _score_all(logits: Tensor, scores: Sequence[Score]) -> tuple[Scored | None, ...]:
    cells = [(score.logit + at, token) for score in scores for at, token in enumerate(score.targets)]
    if not cells:
        return tuple(Scored(()) for _ in scores)
    finite = dict(
        zip((row for row, _ in cells), _finite(_rows(logits, [row for row, _ in cells])).tolist(), strict=True)
    )
    read = iter(_read(logits, cells, [score.top for score in scores for _ in score.targets]))
    answers: list[Scored | None] = []
    for score in scores:
        own = [next(read) for _ in score.targets]
        if all(finite[score.logit + at] for at in range(len(score.targets))):
            answers.append(
                Scored(tuple(logprob for logprob, _ in own), tuple(top for _, top in own) if score.top else ())
            )
        else:
            answers.append(None)
    return tuple(answers)
