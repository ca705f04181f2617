"""The sampler of a device: what a step asks of its logits, by the kernels `mask_sample` and
`score_rows`; the most likely tokens, which few calls ask for, by torch.

`begin` only begins; the tokens stay on the device too, where the next step finds them. Chooses
the tokens that `TorchSampler` chooses for equal logits, as long as both compute the same
exponentials; a number that points at the very border between two tokens may fall on either side.
Where no pick edits its logits, and none has a mask, nothing is done pick by pick but reading its
settings. Knows picks and kernels; knows no requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lmprog.runtime.engine.device.driver import DeviceEvent, Driver
from lmprog.runtime.engine.device.kernels import NUM_COUNTS, Count, Kernels, SampleArgs, ScoreArgs
from lmprog.runtime.engine.device.staging import Staging
from lmprog.runtime.engine.torch_engine.sampler import odds as torch_odds
from lmprog.runtime.scheduling.sampling_requests import (
    Likely,
    SampleRequest,
    SampleResult,
    ScoreRequest,
    ScoreResult,
    StepResults,
    allowed,
    is_weighed,
)

Array = NDArray[np.generic]
Cells = tuple[Array, Array, Array]
"""Tokens, what is added first and taken away last, repetition penalties."""
_WORD = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_NO_CELLS = (np.zeros(0, np.int32), np.zeros((0, 2), np.float32), np.zeros(0, np.float32))


@dataclass(frozen=True, slots=True)
class PickRounds:
    """The order in which picks are made: each round has at most one of each row of logits, because
    the kernel edits rows in place.
    """

    order: list[int]
    """Picks, round by round."""
    starts: list[int]
    """Where in `order` each round begins, and where the last ends."""

    @staticmethod
    def of(rows: Sequence[int]) -> PickRounds:
        """`rows`: the row of logits of each pick."""
        count = len(rows)
        if len(set(rows)) == count:
            return PickRounds(list(range(count)), [0, count])
        rounds: list[list[int]] = []
        seen: dict[int, int] = {}
        for pick, row in enumerate(rows):
            number = seen[row] = seen.get(row, -1) + 1
            if number == len(rounds):
                rounds.append([])
            rounds[number].append(pick)
        starts = [0]
        for one in rounds:
            starts.append(starts[-1] + len(one))
        return PickRounds([pick for one in rounds for pick in one], starts)


def pick_arrays(picks: Sequence[SampleRequest], vocab_size: int) -> dict[str, Array]:
    """The arrays of `struct SampleArgs` for `picks`."""
    masks, mask_of = _masks(picks, vocab_size)
    settings = [(one.temperature, one.top_p, one.min_p, one.top_k) for _, one, *_ in picks]
    temperature, top_p, min_p, top_k = np.array(settings, np.float64).T
    with np.errstate(divide="ignore"):
        least = np.log(min_p)  # -inf where it is 0
    return {
        "masks": masks,
        "mask_of": mask_of,
        "row_of": np.array([pick[0] for pick in picks], np.int32),
        **_all_cells(picks, vocab_size),
        "temperature": temperature.astype(np.float32),
        "least": least.astype(np.float32),
        "top_k": np.maximum(top_k, 0).astype(np.int32),
        "top_p": np.ascontiguousarray(top_p),
        "point": _points([pick[2] for pick in picks], [pick[3] for pick in picks]),
    }


def _all_cells(picks: Sequence[SampleRequest], vocab_size: int) -> dict[str, Array]:
    """What each pick changes of its logits, one stretch for each."""
    starts = np.zeros(len(picks) + 1, np.int32)
    edits = [
        (at, _cells(pick, vocab_size))
        for at, pick in enumerate(picks)
        if pick.banned or pick.generated or pick.prompt or pick.sampling.logit_bias
    ]
    for at, own in edits:
        starts[at + 1] = len(own[0])
    parts = [own for _, own in edits] or [_NO_CELLS]
    return {
        "cell_starts": np.cumsum(starts, dtype=np.int32),
        "cell_tokens": np.concatenate([own[0] for own in parts]),
        "cell_changes": np.concatenate([own[1] for own in parts]),
        "cell_repeat": np.concatenate([own[2] for own in parts]),
    }


def _cells(pick: SampleRequest, vocab_size: int) -> Cells:
    """Tokens whose logits change, each once: what is added first and taken away last, the
    repetition penalty.
    """
    sampling = pick.sampling
    if pick.banned and not (pick.generated or pick.prompt or sampling.logit_bias or pick.mask):
        return _only_banned(pick.banned, vocab_size)
    bias = dict(sampling.logit_bias)  # of equal tokens the last one counts
    repeats = sampling.repetition_penalty != 1.0
    counts = bool(sampling.frequency_penalty or sampling.presence_penalty)
    banned = _banned(pick, vocab_size)
    if not (bias or repeats or counts or banned):
        return _NO_CELLS
    generated = np.asarray(pick.generated, np.int64)
    parts = [
        np.array([*bias, *banned], np.int64),
        generated if counts or repeats else generated[:0],
    ]
    if repeats:
        parts.append(np.asarray(pick.prompt, np.int64))
    tokens, where = np.unique(np.concatenate(parts), return_inverse=True)
    changes, repeat = np.zeros((len(tokens), 2), np.float32), np.ones(len(tokens), np.float32)
    changes[where[: len(bias)], 0] = list(bias.values())
    if repeats:
        repeat[where[len(bias) + len(banned) :]] = sampling.repetition_penalty
    if counts:
        seen = np.bincount(
            where[len(bias) + len(banned) :][: len(generated)], minlength=len(tokens)
        )
        taken = sampling.presence_penalty + sampling.frequency_penalty * seen
        changes[:, 1] = np.where(seen > 0, taken, 0.0)
    changes[where[len(bias) : len(bias) + len(banned)], 1] = math.inf
    known = tokens < vocab_size
    return tokens[known].astype(np.int32), changes[known], repeat[known]


@lru_cache(1024)
def _only_banned(banned: tuple[int, ...], vocab_size: int) -> Cells:
    """The same few tokens at every step of a text that may not end."""
    tokens = sorted({token for token in banned if token < vocab_size})
    if len(tokens) >= vocab_size:
        return _NO_CELLS
    changes = np.zeros((len(tokens), 2), np.float32)
    changes[:, 1] = math.inf
    return np.array(tokens, np.int32), changes, np.ones(len(tokens), np.float32)


def _banned(pick: SampleRequest, vocab_size: int) -> list[int]:
    """Bans give way where they would leave nothing, as on the processor."""
    banned = sorted(set(pick.banned))
    mask = pick.mask
    left = vocab_size - len(banned) if mask is None else mask.count - sum(map(mask.allows, banned))
    return banned if left > 0 else []


def _masks(picks: Sequence[SampleRequest], vocab_size: int) -> tuple[Array, Array]:
    """Bit rows, and which of them each pick has. # [masks, words], [picks]"""
    words = -(-vocab_size // 32)
    mask_of = np.full(len(picks), -1, np.int32)
    masked = [at for at, pick in enumerate(picks) if pick.mask is not None]
    rows = np.zeros((len(masked), words), np.uint32)
    for number, at in enumerate(masked):
        mask = picks[at].mask
        assert mask is not None
        own = mask.bits[:words]
        rows[number, : len(own)] = own
        mask_of[at] = number
    return rows, mask_of


def _points(seeds: list[int], steps: list[int]) -> NDArray[np.float64]:
    """`sampling_requests.uniform` of each pair."""
    start = np.array([seed & _WORD for seed in seeds], np.uint64)
    mixed = _mixed(_mixed(start) ^ (np.array(steps, np.uint64) * _GOLDEN))
    found: NDArray[np.float64] = (mixed >> np.uint64(11) | np.uint64(1)) / np.float64(1 << 53)
    return found


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = values + _GOLDEN
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


_WIDTH_BITS = 44
"""As in the sampler of the processor."""
_STAGING_BYTES = 1 << 18
_BY_PICK = (
    "mask_of",
    "row_of",
    "cell_starts",
    "temperature",
    "least",
    "top_k",
    "top_p",
    "point",
    "chosen",
)
"""Fields of `SampleArgs` that have an entry for each pick; those of `top_p` and `point` have 8
bytes, the others 4."""


@dataclass(frozen=True, slots=True)
class DeviceLogits:
    """The wanted logits of a step, still on the device, perhaps still being computed. # [rows,
    vocab] float32
    """

    values: torch.Tensor
    num_rows: int
    compute: Callable[[int], None] | None = None
    """Where there are more rows than `values` holds: begins to compute those from a number on.
    None: all are there.
    """

    def pieces(self) -> Iterator[tuple[int, DeviceLogits]]:
        """Those that are in memory at once, with the number of their first row; each is gone when
        the next one is asked for.
        """
        assert self.compute is not None, "all are there"
        most = len(self.values)
        for start in range(0, self.num_rows, most):
            self.compute(start)
            count = min(most, self.num_rows - start)
            yield start, DeviceLogits(self.values[:count], count)


@dataclass(frozen=True, slots=True)
class DeviceResults:
    """See `AwaitedResults`."""

    chosen: torch.Tensor
    """On the device; -1 where a row's logits were not finite. # [picks] int32"""
    place_of: Sequence[int]
    """Where in `chosen` each pick is."""
    event: DeviceEvent
    read: Callable[[], StepResults]

    def wait(self) -> StepResults:
        self.event.wait()
        return self.read()


class DeviceSampler:
    """Keeps buffers only: what a row gets depends on the row and its pick alone. Results are
    awaited before others are begun.
    """

    def __init__(self, kernels: Kernels, vocab_size: int) -> None:
        self._kernels = kernels
        self._driver: Driver = kernels.driver
        self._vocab = vocab_size
        self._staging = Staging(self._driver, _STAGING_BYTES)
        self._targets = Staging(self._driver, 1 << 12)
        self._tops = Staging(self._driver, 1 << 12)
        self._chosen = torch.empty(0, dtype=torch.int32)
        self._pinned: dict[str, torch.Tensor] = {}

    def sample(
        self, logits: DeviceLogits, picks: Sequence[SampleRequest], scores: Sequence[ScoreRequest]
    ) -> StepResults:
        """Waits for the logits. Answers in the order of `picks` and `scores`."""
        return self.begin(logits, picks, scores).wait()

    def begin(
        self, logits: DeviceLogits, picks: Sequence[SampleRequest], scores: Sequence[ScoreRequest]
    ) -> DeviceResults:
        """Answers in the order of `picks` and `scores`. The logits may be overwritten by what is
        begun afterwards. Waits for them where they are computed by pieces.
        """
        if logits.compute is not None:
            return self._by_pieces(logits, picks, scores)
        rounds = PickRounds.of([pick.logit for pick in picks])
        in_turn = [picks[at] for at in rounds.order]
        chosen, logprobs = self._pick(logits, in_turn, rounds.starts)
        cells = [
            (score.logit + at, token) for score in scores for at, token in enumerate(score.targets)
        ]
        found, order = self._score(logits, cells)
        tops = begin_tops(self._driver, self._tops, logits.values, (picks, scores))
        odds = begin_odds(self._driver, logits.values, in_turn, self._chosen)

        def read() -> StepResults:
            by_cell = found.numpy()[np.argsort(order)] if cells else found.numpy()
            results: list[SampleResult | None] = [None] * len(picks)
            values = zip(rounds.order, in_turn, chosen.tolist(), logprobs.tolist(), strict=True)
            for at, pick, token, logprob in values:
                results[at] = _sample_result(pick, token, logprob, tops)
            for place, (drawn, mass) in zip(odds.places, odds.values.tolist(), strict=True):
                if (one := results[rounds.order[place]]) is not None:
                    results[rounds.order[place]] = one._replace(odds=(drawn, mass))
            return StepResults(tuple(results), _score_results(scores, by_cell.tolist(), tops))

        place_of = rounds.order if len(rounds.starts) == 2 else np.argsort(rounds.order).tolist()
        return DeviceResults(self._chosen, place_of, self._driver.event(), read)

    def _by_pieces(
        self, logits: DeviceLogits, picks: Sequence[SampleRequest], scores: Sequence[ScoreRequest]
    ) -> DeviceResults:
        samples: list[SampleResult | None] = [None] * len(picks)
        parts: list[list[ScoreResult | None]] = [[] for _ in scores]
        for start, piece in logits.pieces():
            rows = range(start, start + piece.num_rows)
            own = [at for at, pick in enumerate(picks) if pick.logit in rows]
            cut = [(at, one) for at, score in enumerate(scores) if (one := _part(score, rows))]
            here = [picks[at]._replace(logit=picks[at].logit - start) for at in own]
            found = self.begin(piece, here, [one for _, one in cut]).wait()
            for at, sample in zip(own, found.samples, strict=True):
                samples[at] = sample
            for (at, _), part in zip(cut, found.scores, strict=True):
                parts[at].append(part)
        if picks:
            tokens = self._host("tokens", len(picks), torch.int32)
            tokens.copy_(torch.tensor([-1 if one is None else one.token for one in samples]))
            self._room_for(len(picks))
            self._driver.copy(self._chosen[: len(picks)], tokens)
        results = StepResults(tuple(samples), tuple(map(_joined, parts)))
        return DeviceResults(self._chosen, range(len(picks)), self._driver.event(), lambda: results)

    def _pick(
        self, logits: DeviceLogits, picks: Sequence[SampleRequest], starts: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens chosen and, where asked for, their log-probabilities: host tensors that are filled
        by the next event. A launch for each stretch of `picks` between two of `starts`.
        """
        count, num_rounds = len(picks), len(starts) - 1
        chosen, logprobs = (
            self._host("chosen", count, torch.int32),
            self._host("logprobs", count, torch.float32),
        )
        if not count:
            return chosen, logprobs
        has_logprobs = any(pick.sampling.logprobs is not None for pick in picks)
        arrays = pick_arrays(picks, self._vocab)
        counts = np.zeros((num_rounds + 1, NUM_COUNTS), np.int32)
        counts[:num_rounds, Count.PICKS] = np.diff(starts)
        counts[num_rounds, Count.SCORES] = count
        arrays |= {"counts": counts, "cell_kept": np.zeros_like(arrays["cell_repeat"])}
        if has_logprobs:
            arrays["each"] = np.arange(count + 1, dtype=np.int32)
            arrays["found"] = np.zeros(count, np.float32)
        at = self._staging.send(arrays)
        at["chosen"] = self._room_for(count)
        words = arrays["masks"].shape[1]
        for number, first in enumerate(starts[:-1]):
            self._launch_round(
                logits, _places(at, first, number), words, starts[number + 1] - first
            )
        self._driver.copy(chosen, self._chosen[:count])
        if has_logprobs:
            scoring = ScoreArgs(
                logits=logits.values.data_ptr(),
                row_of=at["row_of"],
                target_starts=at["each"],
                targets=at["chosen"],
                found=at["found"],
                counts=_places(at, 0, num_rounds)["counts"],
                vocab=self._vocab,
            )
            self._kernels.launch("score_rows", scoring, most_blocks=count)
            self._driver.copy(logprobs, self._staging.read(at["found"], count, torch.float32))
        return chosen, logprobs

    def _launch_round(
        self, logits: DeviceLogits, at: dict[str, int], words: int, count: int
    ) -> None:
        fields = {name: at[name] for name, _ in SampleArgs._fields_[1:16]}  # type: ignore[misc]
        args = SampleArgs(
            logits=logits.values.data_ptr(),
            **fields,
            vocab=self._vocab,
            mask_words=words,
            width_bits=min(_WIDTH_BITS, 62 - self._vocab.bit_length()),
        )
        self._kernels.launch("mask_sample", args, most_blocks=count)

    def _score(
        self, logits: DeviceLogits, cells: list[tuple[int, int]]
    ) -> tuple[torch.Tensor, NDArray[np.int64]]:
        """Log-probabilities of (row, token) cells by row, filled by the next event, and the order
        of cells they are in.
        """
        found = self._host("scores", len(cells), torch.float32)
        if not cells:
            return found, np.zeros(0, np.int64)
        rows, targets = np.array(cells, np.int32).reshape(-1, 2).T
        order = np.argsort(rows, kind="stable")
        own, starts = np.unique(rows[order], return_index=True)
        counts = np.zeros(NUM_COUNTS, np.int32)
        counts[Count.SCORES] = len(own)
        arrays: dict[str, Array] = {
            "row_of": own,
            "target_starts": np.append(starts, len(cells)).astype(np.int32),
            "targets": np.ascontiguousarray(targets[order]),
            "found": np.zeros(len(cells), np.float32),
            "counts": counts,
        }
        at = self._targets.send(arrays)
        args = ScoreArgs(logits=logits.values.data_ptr(), **at, vocab=self._vocab)
        self._kernels.launch("score_rows", args, most_blocks=len(own))
        self._driver.copy(found, self._targets.read(at["found"], len(cells), torch.float32))
        return found, order

    def _room_for(self, count: int) -> int:
        """The address of room for so many tokens; what is there stays until the next picks."""
        if len(self._chosen) < count:
            self._driver.event().wait()  # the old one may be in use
            self._chosen = self._driver.memory(8 * count).view(torch.int32)
        return self._chosen.data_ptr()

    def _host(self, name: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Pinned memory, the same for every step; nothing is on its way to it any more."""
        kept = self._pinned.get(name)
        if kept is None or len(kept) < count:
            kept = self._driver.pinned(2 * max(count, 32) * dtype.itemsize).view(dtype)
            self._pinned[name] = kept
        return kept[:count]


def _places(at: dict[str, int], first: int, number: int) -> dict[str, int]:
    """The addresses of round `number`, which begins with pick number `first`."""
    moved = dict(at)
    for name in _BY_PICK:
        moved[name] += first * (8 if name in ("top_p", "point") else 4)
    moved["counts"] += number * NUM_COUNTS * 4
    return moved


def _sample_result(
    pick: SampleRequest, token: int, logprob: float, tops: TopTokens
) -> SampleResult | None:
    if token < 0:
        return None
    asked = pick.sampling.logprobs
    if asked is None:
        return SampleResult(token, math.nan)
    return SampleResult(token, logprob, tops.of(pick.logit, asked))


def _score_results(
    scores: Sequence[ScoreRequest], found: list[float], tops: TopTokens
) -> tuple[ScoreResult | None, ...]:
    """`found` has the log-probabilities of all targets, score by score."""
    results: list[ScoreResult | None] = []
    at = 0
    for score in scores:
        own = found[at : at + len(score.targets)]
        at += len(own)
        rows = range(score.logit, score.logit + len(own)) if score.top else ()
        lists = tuple([tops.of(row, score.top) for row in rows])
        is_broken = any(math.isnan(logprob) for logprob in own)
        results.append(None if is_broken else ScoreResult(tuple(own), lists))
    return tuple(results)


def _part(score: ScoreRequest, rows: range) -> ScoreRequest | None:
    """What is asked of `rows`, counted from the first of them; None: nothing."""
    first = max(score.logit, rows.start)
    targets = score.targets[first - score.logit : max(0, rows.stop - score.logit)]
    return replace(score, logit=first - rows.start, targets=targets) if targets else None


def _joined(parts: Sequence[ScoreResult | None]) -> ScoreResult | None:
    """The answer to a request that was cut."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    lists = tuple([one for part in known for one in part.tops])
    return ScoreResult(tuple([one for part in known for one in part.logprobs]), lists)


# --- the most likely tokens -----------------------------------------------------------------------

_AT_ONCE = 128
"""Rows whose probabilities are in memory together; a step may want those of thousands."""
Requests = tuple[Sequence[SampleRequest], Sequence[ScoreRequest]]


class TopTokens:
    """Lists by row, the best token first."""

    def __init__(self, rows: Sequence[int], tokens: torch.Tensor, logprobs: torch.Tensor) -> None:
        """Host tensors that may still have to be filled. # [rows, most] each"""
        self._place_of = {row: place for place, row in enumerate(rows)}
        self._tokens, self._logprobs = tokens, logprobs

    def of(self, row: int, count: int) -> Likely:
        if not count:
            return ()
        place = self._place_of[row]
        tokens, logprobs = self._tokens[place].tolist(), self._logprobs[place].tolist()
        pairs = zip(tokens, logprobs, strict=True)
        finite = [one for one in pairs if one[1] > -math.inf]  # others a mask forbids
        return tuple(sorted(finite, key=lambda one: (-one[1], one[0]))[:count])


NO_TOPS = TopTokens((), torch.empty(0, 0), torch.empty(0, 0))


def begin_tops(
    driver: Driver, staging: Staging, logits: torch.Tensor, requests: Requests
) -> TopTokens:
    """What `requests` want to see besides the tokens they name, filled by the next event. A row has
    one mask, since it is of one sequence.
    """
    picks, scores = requests
    wanted = {pick.logit: pick.sampling.logprobs for pick in picks if pick.sampling.logprobs}
    for score in scores:
        if score.top:
            wanted |= dict.fromkeys(range(score.logit, score.logit + len(score.targets)), score.top)
    if not wanted:
        return NO_TOPS
    rows, most = sorted(wanted), min(max(wanted.values()), logits.shape[1])
    count = len(rows) * most
    arrays: dict[str, Array] = {"rows": np.array(rows, np.int32)}
    masked = [score for score in scores if score.top and score.mask is not None]
    if masked:
        arrays["hidden"] = _hidden(masked, rows, logits.shape[1])
    at = staging.send(arrays)
    rows_there = staging.read(at["rows"], len(rows), torch.int32)
    hidden_there = None
    if masked:
        num_flags = len(rows) * logits.shape[1]
        hidden_there = staging.read(at["hidden"], num_flags, torch.uint8).view(len(rows), -1)
    there = driver.memory(2 * count * 4)
    tokens = there[: count * 4].view(torch.int32).view(-1, most)
    logprobs = there[count * 4 :].view(torch.float32).view(-1, most)

    def find() -> None:
        for start in range(0, len(rows), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            found = logits.index_select(0, rows_there[part]).log_softmax(1)
            if hidden_there is not None:
                found.masked_fill_(hidden_there[part].bool(), -math.inf)
            likely = found.topk(most, 1)
            tokens[part].copy_(likely.indices)
            logprobs[part].copy_(likely.values)

    driver.compute(find)
    here = driver.pinned(2 * count * 4)
    driver.copy(here, there)
    return TopTokens(
        rows,
        here[: count * 4].view(torch.int32).view(-1, most),
        here[count * 4 :].view(torch.float32).view(-1, most),
    )


class Odds(NamedTuple):
    """Of the picks at `places`, filled by the next event. # [places, 2] float64"""

    places: list[int]
    values: torch.Tensor


def begin_odds(
    driver: Driver, logits: torch.Tensor, picks: Sequence[SampleRequest], chosen: torch.Tensor
) -> Odds:
    """What `picks` want to know of the tokens that are being chosen, by the torch sampler's way."""
    places = [at for at, pick in enumerate(picks) if is_weighed(pick)]
    if not places:
        return Odds(places, torch.empty(0, 2))
    there = driver.memory(16 * len(places)).view(torch.float64).view(-1, 2)
    here = driver.pinned(16 * len(places)).view(torch.float64).view(-1, 2)

    def find() -> None:
        rows = torch.tensor([picks[at].logit for at in places], device=logits.device)
        tokens = chosen[torch.tensor(places, device=logits.device)].clamp_min(0)
        asking = [picks[at] for at in places]
        there.copy_(torch_odds(logits.index_select(0, rows), asking, tokens))

    driver.compute(find)
    driver.copy(here, there)
    return Odds(places, here)


def _hidden(masked: Sequence[ScoreRequest], rows: list[int], size: int) -> NDArray[np.uint8]:
    """1 where a row's mask does not allow a token. # [rows, size]"""
    found = np.zeros((len(rows), size), np.uint8)
    place_of = {row: place for place, row in enumerate(rows)}
    for score in masked:
        own = [place_of[score.logit + at] for at in range(len(score.targets))]
        found[own] = 1
        found[np.ix_(np.array(own), allowed(score, size))] = 0
    return found
