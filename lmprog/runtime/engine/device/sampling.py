"""The sampler of a device: what a step asks of its logits, by the kernels `mask_sample` and
`score_rows`.

Chooses the tokens that `TorchSampler` chooses for equal logits, as long as both compute the same
exponentials; a number that points at the very border between two tokens may fall on either side.
Knows picks and kernels; knows no requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lmprog.runtime.engine.device.driver import Driver
from lmprog.runtime.engine.device.kernels import NUM_COUNTS, Count, Kernels, SampleArgs, ScoreArgs
from lmprog.runtime.engine.device.staging import Staging
from lmprog.runtime.scheduling.randomness import uniform
from lmprog.runtime.scheduling.sampling_requests import (
    Likely,
    SampleRequest,
    SampleResult,
    ScoreRequest,
    ScoreResult,
    StepResults,
)

_WIDTH_BITS = 44
"""As in the sampler of the processor."""
_STAGING_BYTES = 1 << 18
Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class DeviceLogits:
    """The wanted logits of a step, still on the device, perhaps still being computed. # [rows,
    vocab] float32
    """

    values: torch.Tensor
    num_rows: int


class DeviceSampler:
    """Keeps buffers only: what a row gets depends on the row and its pick alone."""

    def __init__(self, kernels: Kernels, vocab_size: int) -> None:
        self._kernels = kernels
        self._driver: Driver = kernels.driver
        self._vocab = vocab_size
        self._staging = Staging(self._driver, _STAGING_BYTES)
        self._targets = Staging(self._driver, 1 << 12)

    def sample(
        self, logits: DeviceLogits, picks: Sequence[SampleRequest], scores: Sequence[ScoreRequest]
    ) -> StepResults:
        """Waits for the logits. Answers in the order of `picks` and `scores`."""
        chosen, logprobs = self._pick(logits, picks)
        cells = [
            (score.logit + at, token) for score in scores for at, token in enumerate(score.targets)
        ]
        in_order, order = self._score(logits, cells)
        self._driver.event().wait()
        found = torch.empty_like(in_order)
        found[torch.from_numpy(order)] = in_order
        tops = _Tops(logits)
        picked = tuple(
            _sample_result(pick, int(token), float(logprob), tops)
            for pick, token, logprob in zip(picks, chosen.tolist(), logprobs.tolist(), strict=True)
        )
        scored, at = [], 0
        for score in scores:
            own = found[at : at + len(score.targets)].tolist()
            at += len(score.targets)
            scored.append(_score_result(score, own, tops))
        return StepResults(picked, tuple(scored))

    def _pick(
        self, logits: DeviceLogits, picks: Sequence[SampleRequest]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens chosen and, where asked for, their log-probabilities: host tensors that are filled
        by the next event.
        """
        count = len(picks)
        chosen, logprobs = self._host(count, torch.int32), self._host(count, torch.float32)
        if not count:
            return chosen, logprobs
        arrays = pick_arrays(picks, self._vocab)
        counts = np.zeros(NUM_COUNTS, np.int32)
        counts[[Count.PICKS, Count.SCORES]] = count
        arrays |= {"counts": counts, "each": np.arange(count + 1, dtype=np.int32)}
        arrays |= {
            "cell_kept": np.zeros_like(arrays["cell_repeat"]),
            "chosen": chosen.numpy(),
            "found": logprobs.numpy(),
        }
        at = self._staging.send(arrays)
        words = arrays["masks"].shape[1]
        fields = {name: at[name] for name, _ in SampleArgs._fields_[1:16]}  # type: ignore[misc]
        args = SampleArgs(
            logits=logits.values.data_ptr(),
            **fields,
            vocab=self._vocab,
            mask_words=words,
            width_bits=min(_WIDTH_BITS, 62 - self._vocab.bit_length()),
        )
        self._kernels.launch("mask_sample", args, most_blocks=count)
        self._driver.copy(chosen, self._staging.read(at["chosen"], count, torch.int32))
        if any(pick.sampling.logprobs is not None for pick in picks):
            scoring = ScoreArgs(
                logits=logits.values.data_ptr(),
                row_of=at["row_of"],
                target_starts=at["each"],
                targets=at["chosen"],
                found=at["found"],
                counts=at["counts"],
                vocab=self._vocab,
            )
            self._kernels.launch("score_rows", scoring, most_blocks=count)
            self._driver.copy(logprobs, self._staging.read(at["found"], count, torch.float32))
        return chosen, logprobs

    def _score(
        self, logits: DeviceLogits, cells: list[tuple[int, int]]
    ) -> tuple[torch.Tensor, NDArray[np.int64]]:
        """Log-probabilities of (row, token) cells by row, filled by the next event, and the order
        of cells they are in.
        """
        found = self._host(len(cells), torch.float32)
        rows, targets = np.array(cells, np.int32).reshape(-1, 2).T
        order = np.argsort(rows, kind="stable")
        if not cells:
            return found, order
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

    def _host(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        return self._driver.pinned(count * dtype.itemsize).view(dtype)


def pick_arrays(picks: Sequence[SampleRequest], vocab_size: int) -> dict[str, Array]:
    """The arrays of `struct SampleArgs` for `picks`."""
    rows = [pick.logit for pick in picks]
    assert len(set(rows)) == len(rows), "two picks from one row"
    samplings = [pick.sampling for pick in picks]
    cells = [_cells(pick, vocab_size) for pick in picks]
    masks, mask_of = _masks(picks, vocab_size)

    def floats(values: list[float]) -> Array:
        return np.array(values, np.float32)

    def joined(index: int) -> Array:
        return np.concatenate([own[index] for own in cells])

    return {
        "masks": masks,
        "mask_of": mask_of,
        "row_of": np.array(rows, np.int32),
        "cell_starts": np.concatenate(([0], np.cumsum([len(own[0]) for own in cells]))).astype(
            np.int32
        ),
        "cell_tokens": joined(0),
        "cell_changes": joined(1),
        "cell_repeat": joined(2),
        "temperature": floats([sampling.temperature for sampling in samplings]),
        "least": floats(
            [math.log(sampling.min_p) if sampling.min_p else -math.inf for sampling in samplings]
        ),
        "top_k": np.array([max(0, sampling.top_k) for sampling in samplings], np.int32),
        "top_p": np.array([sampling.top_p for sampling in samplings], np.float64),
        "point": np.array([uniform(pick.seed, pick.step) for pick in picks], np.float64),
    }


def _cells(pick: SampleRequest, vocab_size: int) -> tuple[Array, Array, Array]:
    """Tokens whose logits change, each once: what is added first and taken away last, the
    repetition penalty.
    """
    sampling = pick.sampling
    bias = dict(sampling.logit_bias)  # of equal tokens the last one counts
    repeats = sampling.repetition_penalty != 1.0
    counts = bool(sampling.frequency_penalty or sampling.presence_penalty)
    banned = _banned(pick, vocab_size)
    if not (bias or repeats or counts or banned):
        return np.zeros(0, np.int32), np.zeros((0, 2), np.float32), np.zeros(0, np.float32)
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


class _Tops:
    """The most likely tokens of single rows, by torch: few calls ask for them."""

    def __init__(self, logits: DeviceLogits) -> None:
        self._logits = logits

    def of(self, row: int, count: int) -> Likely:
        likely = self._logits.values[row].float().log_softmax(0)
        best = likely.topk(min(count, len(likely)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return tuple(sorted(pairs, key=lambda one: (-one[1], one[0])))


def _sample_result(
    pick: SampleRequest, token: int, logprob: float, tops: _Tops
) -> SampleResult | None:
    if token < 0:
        return None
    if pick.sampling.logprobs is None:
        return SampleResult(token, math.nan)
    return SampleResult(
        token,
        logprob,
        tops.of(pick.logit, pick.sampling.logprobs) if pick.sampling.logprobs else (),
    )


def _score_result(score: ScoreRequest, found: list[float], tops: _Tops) -> ScoreResult | None:
    if any(math.isnan(logprob) for logprob in found):
        return None
    lists = (
        tuple(tops.of(score.logit + at, score.top) for at in range(len(found))) if score.top else ()
    )
    return ScoreResult(tuple(found), lists)
