"""Batches of whole documents of about the same length, each from position 0 as programs meet the
model.

A batch is a function of its number: training can stop and go on anywhere. Knows no model.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.document import PAD
from training.draw import Split
from training.tokenizer import Tokens, encode
from training.world import document

POOL = 768  # documents that are sorted by length together


@dataclass(frozen=True, slots=True)
class Batch:
    """ids [rows, time]; `where` are flat positions whose next token the model has to say, `target`
    those tokens. `before` are flat positions where `steps` [positions, kinds] have to be worked out.
    """

    ids: Tensor
    where: Tensor
    target: Tensor
    before: Tensor
    steps: Tensor
    num_tokens: int


class Batches:
    """Endless batches of at most `size` tokens (with padding), from a pool number on."""

    def __init__(self, tokenizer: Tokenizer, size: int, pool: int = 0) -> None:
        self.tokenizer = tokenizer
        self.size = size
        self.pool = pool
        self.longest = 2048
        self.young = False
        self.pad = int(tokenizer.token_to_id(PAD) or 0)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            rng = random.Random(f"pool:{self.pool}")
            groups = self._groups(self._draw(rng))
            rng.shuffle(groups)
            self.pool += 1
            for group in groups:
                yield self._batch(group)

    def _draw(self, rng: random.Random) -> list[Tokens]:
        """The documents of this pool; some are two or three written one after the other."""
        rows: list[Tokens] = []
        number = self.pool * POOL
        for offset in range(POOL):
            tokens = encode(
                self.tokenizer, document(Split.TRAIN, number + offset, young=self.young)
            )
            if rows and rng.random() < 0.08 and len(rows[-1].ids) + len(tokens.ids) <= self.longest:
                last = rows.pop()
                tokens = last + tokens
            if len(tokens.ids) <= self.longest:
                rows.append(tokens)
        return rows

    def _groups(self, rows: list[Tokens]) -> list[list[Tokens]]:
        groups: list[list[Tokens]] = []
        group: list[Tokens] = []
        for tokens in sorted(rows, key=lambda row: len(row.ids)):
            if group and len(tokens.ids) * (len(group) + 1) > self.size:
                groups.append(group)
                group = []
            group.append(tokens)
        return [*groups, group]

    def _batch(self, rows: list[Tokens]) -> Batch:
        longest = -(-max(len(row.ids) for row in rows) // 16) * 16  # kernels like whole vectors
        ids = torch.full((len(rows), longest), self.pad)
        where, target, before, steps = [], [], [], []
        for index, row in enumerate(rows):
            ids[index, : len(row.ids)] = torch.tensor(row.ids)
            for position in range(1, len(row.ids)):
                if row.answer[position]:
                    where.append(index * longest + position - 1)
                    target.append(row.ids[position])
            for position, classes in row.steps:
                before.append(index * longest + position)
                steps.append(classes)
        return Batch(
            ids,
            torch.tensor(where),
            torch.tensor(target),
            torch.tensor(before),
            torch.tensor(steps),
            ids.numel(),
        )
