"""A step's sample requests as the arrays of the kernel `mask_sample`.

Where no pick edits its logits, and none has a mask, nothing here is done pick by pick but reading
its settings. Knows picks and arrays; knows no device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lmprog.runtime.scheduling.sampling_requests import SampleRequest

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
