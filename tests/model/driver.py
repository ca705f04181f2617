"""Drives an engine by hand: prompts in, greedy tokens and log-probabilities out, with no scheduler
and no tree.

Every sequence gets pages of its own, shuffled, so that a table that is read wrongly shows. Steps
are made as the test asks: how many tokens of a prompt at once, one sequence after the other or all
in one batch.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field
from typing import cast

import torch

from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.engine.torch_engine.engine import TorchEngine
from lmprog.runtime.scheduling.batch import Batch, build_batch
from lmprog.runtime.scheduling.plan import Plan, PlanStates, Row
from lmprog.runtime.scheduling.sequence import NOTHING, Sequence

AnyEngine = NativeEngine | TorchEngine

_NO_LANE = cast(Sequence, None)
"""No sequence stands behind the rows made here, and `build_batch` asks for none."""


@dataclass
class Sequence:
    prompt: list[int]
    num_new: int
    pages: array[int]
    slot: int
    """Of its recurrent state, where the model has one."""
    computed: int = 0
    new: list[int] = field(default_factory=list)
    logprobs: list[torch.Tensor] = field(default_factory=list)
    """One for every new token: the log-probabilities it was chosen from. # [vocab]"""

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.new

    @property
    def done(self) -> bool:
        return len(self.new) == self.num_new


@dataclass(frozen=True)
class Greedy:
    new: list[int]
    logprobs: torch.Tensor  # [num_new, vocab]


class Driver:
    """Runs sequences on `engine`. All of its pages belong to the driver while a call lasts."""

    def __init__(self, engine: AnyEngine, page_size: int, seed: int = 0) -> None:
        self._engine = engine
        self._page_size = page_size
        self._random = random.Random(seed)
        self.last_shapes: list[tuple[int, ...]] = []
        """Of the logits of every step of the last call."""

    def greedy(
        self, prompts: list[list[int]], num_new: int, chunk: int = 0, together: bool = True
    ) -> list[Greedy]:
        """The greedy continuations. `chunk` limits the tokens of a prompt in one step (0: no
        limit).
        """
        sequences = self._placed(prompts, num_new)
        for group in [sequences] if together else [[sequence] for sequence in sequences]:
            while running := [sequence for sequence in group if not sequence.done]:
                self._step(running, chunk)
        return [Greedy(sequence.new, torch.stack(sequence.logprobs)) for sequence in sequences]

    def score(self, prompt: list[int]) -> torch.Tensor:
        """Log-probabilities after every token of the prompt. # [len(prompt), vocab]"""
        (sequence,) = self._placed([prompt], 0)
        logits = self._forward([(sequence, prompt, 0)])
        return logits.log_softmax(-1)

    def _placed(self, prompts: list[list[int]], num_new: int) -> list[Sequence]:
        self.last_shapes = []
        free = list(range(self._engine.num_pages))
        self._random.shuffle(free)
        placed = []
        for slot, prompt in enumerate(prompts):
            need = -(-(len(prompt) + num_new) // self._page_size)
            pages = array("i", [free.pop() for _ in range(need)])
            placed.append(Sequence(prompt, num_new, pages, slot))
        return placed

    def _step(self, running: list[Sequence], chunk: int) -> None:
        parts = []
        for sequence in running:
            rest = sequence.tokens[sequence.computed :]
            taken = rest[:chunk] if chunk else rest
            parts.append((sequence, taken, len(taken) - (len(taken) == len(rest))))
        logits = self._forward(parts).log_softmax(-1)
        self.last_shapes.append(tuple(logits.shape))
        given = iter(logits)
        for sequence, taken, logits_from in parts:
            sequence.computed += len(taken)
            if logits_from < len(taken):
                logprobs = next(given)
                sequence.logprobs.append(logprobs)
                sequence.new.append(int(logprobs.argmax()))

    def _forward(self, parts: list[tuple[Sequence, list[int], int]]) -> torch.Tensor:
        return torch.as_tensor(self._engine.forward(self._batch(parts)))

    def _batch(self, parts: list[tuple[Sequence, list[int], int]]) -> Batch:
        """`parts`: a sequence, its tokens of this step, and the first of them whose logits are
        wanted.
        """
        rows, states = [], []
        for sequence, taken, logits_from in parts:
            start, end = sequence.computed, sequence.computed + len(taken)
            pages = sequence.pages[: -(-end // self._page_size)]
            rows.append(Row(_NO_LANE, array("i", taken), start, end, pages, start + logits_from))
            states.append((sequence.slot if start else NOTHING, sequence.slot))
        kept = None if self._engine.states is None else PlanStates(tuple(states), ())
        return build_batch(Plan(tuple(rows), states=kept), self._page_size)
