"""Tokens and log-probabilities from logits in one call of C++
(`kernels/include/lmprog_sampling.h`), on the threads of a native engine. Chooses what
`TorchSampler` chooses. Knows picks and numpy.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from ctypes import byref, c_int32, c_int64, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.scheduling import sampling_requests
from lmprog.runtime.scheduling.sampling_requests import (
    MOST_PAIRS,
    Likely,
    LikelyArrays,
    SampleRequest,
    SampleResult,
    ScoreRequest,
    ScoreResult,
    StepResults,
)

_KINDS = 5
_PICK = np.dtype(
    [
        ("seed", np.uint64),
        ("step", np.uint64),
        ("top_p", np.float64),
        ("allowed", np.uint64),
        ("allowed_words", np.int32),
        ("row", np.int32),
        ("temperature", np.float32),
        ("least", np.float32),
        ("top_k", np.int32),
        ("only_cells", np.int32),
        ("weighed", np.int32),
        ("cells", np.int32, _KINDS + 1),
    ],
    align=True,
)
"""lmprog_pick"""
_COLUMNS = ("seed", "step", "row", "temperature", "top_p", "top_k", "least")
"""Those that every pick has."""
_WORD = (1 << 64) - 1


class _CSampling(ctypes.Structure):
    _fields_ = (
        ("logits", c_void_p),
        ("stride", c_int64),
        *((name, c_int32) for name in ("vocab", "num_picks", "num_readings", "most")),
        *((name, c_void_p) for name in ("picks", "cell_tokens", "cell_amounts", "readings")),
        *((name, c_void_p) for name in ("tokens", "logprobs", "top_tokens", "top_logprobs")),
        ("odds", c_void_p),
    )


class NativeSampler:
    """Has no state but the engine's threads: what a row gets depends on the row and its pick
    alone.
    """

    def __init__(self, engine: NativeEngine) -> None:
        self._engine = engine

    def sample(
        self,
        logits: NDArray[np.float32],
        picks: Sequence[SampleRequest],
        scores: Sequence[ScoreRequest],
    ) -> StepResults:
        """`logits` [rows, vocabulary], not changed. Answers in the order of `picks` and
        `scores`.
        """
        if not picks and not scores:
            return StepResults((), ())
        call = _Call(logits, picks, scores)
        self._engine.sample(byref(call.filled()))
        return StepResults(call.samples(), call.scored() if scores else ())


class _Cells:
    """Tokens and amounts of all picks, one stretch for each pick and kind."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.amounts: list[float] = []

    def of(self, pick: SampleRequest, size: int) -> tuple[int, ...]:
        """Adds what `pick` changes, and says where each kind begins, and where the last ends."""
        starts = [len(self.tokens)]
        bias = sampling_requests.bias(pick)
        self._add(starts, list(bias), list(bias.values()))
        for found in (sampling_requests.repeated(pick), sampling_requests.counted(pick)):
            tokens = [] if found is None else found[0].tolist()
            amounts = [] if found is None else np.broadcast_to(found[1], len(tokens)).tolist()
            self._add(starts, tokens, amounts)
        bans = sampling_requests.bans(pick, size)
        self._add(starts, bans, [0.0] * len(bans))
        ids = [] if pick.mask is None or pick.mask.ids is None else pick.mask.ids.tolist()
        self._add(starts, ids, [0.0] * len(ids))
        return tuple(starts)

    def _add(self, starts: list[int], tokens: list[int], amounts: list[float]) -> None:
        self.tokens += tokens
        self.amounts += amounts
        starts.append(len(self.tokens))


class _Call:
    """One call: its arrays, and what they mean afterwards."""

    def __init__(
        self,
        logits: NDArray[np.float32],
        picks: Sequence[SampleRequest],
        scores: Sequence[ScoreRequest],
    ) -> None:
        self._logits = logits if logits.strides[1] == 4 else np.ascontiguousarray(logits)
        self._requests, self._scores = picks, scores
        self._cells = _Cells()
        self._weighed: set[int] = set()
        """The picks whose odds are wanted."""
        self._picks = self._described()
        self._asked: dict[int, int] = {}
        """The picks with log-probabilities, and each one's reading."""
        readings: list[tuple[int, int, int]] = []
        for index, pick in enumerate(picks):
            if pick.sampling.logprobs is not None:
                self._asked[index] = len(readings)
                readings.append((pick.logit, -1 - index, pick.sampling.logprobs))
        for score in scores:
            for at, token in enumerate(score.targets):
                top = score.top if score.mask is None else 0  # of masked rows: see `_likeliest`
                readings.append((score.logit + at, token, top))
        self._readings = np.array(readings, np.int32).reshape(-1, 3)
        self._most = int(self._readings[:, 2].max(initial=0))
        self._tokens = np.empty(len(picks), np.int32)
        self._logprobs = np.empty(len(readings), np.float32)
        self._top_tokens = np.empty((len(readings), self._most), np.int32)
        self._top_logprobs = np.empty((len(readings), self._most), np.float32)
        self._odds = np.empty((len(picks) if self._weighed else 0, 2), np.float64)

    def _described(self) -> NDArray[np.void]:
        """All picks as lmprog_pick, column by column."""
        found = np.zeros(len(self._requests), _PICK)
        columns: list[tuple[int, int, int, float, float, int, float]] = []
        for index, pick in enumerate(self._requests):
            own = pick.sampling
            least = math.log(own.min_p) if own.min_p else -math.inf
            place = (pick.seed & _WORD, pick.step & _WORD, pick.logit)
            columns.append((*place, own.temperature, own.top_p, own.top_k, least))
            if sampling_requests.is_edited(pick):
                self._describe_edits(found[index], pick)
                if sampling_requests.is_weighed(pick):
                    found[index]["weighed"] = True
                    self._weighed.add(index)
        for name, column in zip(_COLUMNS, zip(*columns, strict=True), strict=False):
            found[name] = column
        return found

    def _describe_edits(self, found: np.void, pick: SampleRequest) -> None:
        found["cells"] = self._cells.of(pick, self._logits.shape[1])
        if pick.mask is None:
            return
        if pick.mask.ids is None:
            found["allowed"] = pick.mask.bits.ctypes.data
            found["allowed_words"] = len(pick.mask.bits)
        else:
            found["only_cells"] = True

    def filled(self) -> _CSampling:
        tokens = np.array(self._cells.tokens, np.int32)
        amounts = np.array(self._cells.amounts, np.float32)
        self._held = tokens, amounts
        return _CSampling(
            self._logits.ctypes.data,
            self._logits.strides[0] // 4,
            *(self._logits.shape[1], len(self._picks), len(self._readings), self._most),
            *(self._picks.ctypes.data, tokens.ctypes.data, amounts.ctypes.data),
            *(self._readings.ctypes.data, self._tokens.ctypes.data, self._logprobs.ctypes.data),
            *(self._top_tokens.ctypes.data, self._top_logprobs.ctypes.data),
            self._odds.ctypes.data,
        )

    def samples(self) -> tuple[SampleResult | None, ...]:
        found: list[SampleResult | None] = []
        asked, odds = self._asked, self._odds.tolist()
        for index, token in enumerate(self._tokens.tolist()):
            if token < 0:
                found.append(None)
            elif index in asked:
                found.append(SampleResult(token, *self._read(asked[index])))
            else:
                found.append(SampleResult(token, math.nan))
        for index in self._weighed:
            if (one := found[index]) is not None:
                found[index] = one._replace(odds=(odds[index][0], odds[index][1]))
        return tuple(found)

    def scored(self) -> tuple[ScoreResult | None, ...]:
        at = len(self._asked)
        found: list[ScoreResult | None] = []
        for score in self._scores:
            own = [self._read(at + index) for index in range(len(score.targets))]
            at += len(own)
            logprobs = tuple(logprob for logprob, _ in own)
            if any(map(math.isnan, logprobs)):
                found.append(None)
                continue
            tops = tuple(top for _, top in own) if score.top else ()
            if score.top and score.mask is not None:
                tops = self._likeliest(score, logprobs)
            found.append(ScoreResult(logprobs, tops))
        return tuple(found)

    def _likeliest(self, score: ScoreRequest, logprobs: tuple[float, ...]) -> tuple[Likely, ...]:
        """Of each of its rows the most likely tokens that its mask allows. What is taken from a
        logit for its log-probability is the same for all tokens, and known of the target.
        """
        tokens = sampling_requests.allowed(score, self._logits.shape[1])
        found = list[Likely]()
        for at, (target, logprob) in enumerate(zip(score.targets, logprobs, strict=True)):
            row = self._logits[score.logit + at]
            likely = row[tokens].astype(np.float64) - (float(row[target]) - logprob)
            best = np.argpartition(-likely, min(score.top, len(tokens)) - 1)[: score.top]
            best = best[np.lexsort((tokens[best], -likely[best]))]
            found.append(_likely(tokens[best], likely[best]))
        return tuple(found)

    def _read(self, at: int) -> tuple[float, Likely]:
        """A reading's log-probability, and the most likely tokens of its row."""
        top = min(int(self._readings[at, 2]), self._logits.shape[1])
        logprob = float(self._logprobs[at])
        if not top or math.isnan(logprob):
            return logprob, ()
        return logprob, _likely(self._top_tokens[at, :top], self._top_logprobs[at, :top])


def _likely(tokens: NDArray[Any], logprobs: NDArray[Any]) -> Likely:
    if len(tokens) > MOST_PAIRS:
        return LikelyArrays(tokens, logprobs)
    return tuple(zip(tokens.tolist(), logprobs.tolist(), strict=True))
