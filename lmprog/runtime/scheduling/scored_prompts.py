"""Log-probabilities that prompts were told, for later prompts that begin alike.

Where the log-probabilities of a prompt are asked for, the logits at all of its positions are
needed, and cached keys and values have none. So what was found is kept here, in blocks of tokens,
and the next prompt with the same beginning is computed from where it differs: the examples that
all questions of an evaluation share, say.

A block is found by its tokens and the block before it, exactly, and within its cache namespace.
Those that were not used for longest go first. Knows sequences and tokens; knows no pages.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from itertools import count
from typing import NamedTuple

from lmprog.runtime.scheduling.generation import Generation, ScoredToken
from lmprog.runtime.scheduling.sequence import Sequence

BLOCK = 16
"""Tokens of a block. The first of a text has no log-probability, so that block has one less."""
MOST_SCORES = 65_536
"""Kept at most: log-probabilities, those of alternatives included (some 100 bytes each)."""

_Key = tuple[int | tuple[str, int], bytes]
"""The number of the block before (of the first: the namespace's root, and how many alternatives
were asked for), and the tokens."""


class _Block(NamedTuple):
    number: int
    scores: tuple[ScoredToken, ...]


class ScoredPrompts:
    """Blocks of scored tokens, by what stands before them."""

    def __init__(self, most: int = MOST_SCORES) -> None:
        self._most = most
        self._blocks: OrderedDict[_Key, _Block] = OrderedDict()
        """Those used longest ago first; each stands behind all that follow it in texts, so that
        none is left whose beginning is gone."""
        self._numbers = count(1)
        self.num_scores = 0
        """What is kept, alternatives included."""

    def extend(self, sequence: Sequence) -> None:
        """Adds what is known to the log-probabilities of the sequence's prompt. None of its rows
        may be under way."""
        task = sequence.task
        if not isinstance(task, Generation) or not task.wants_prompt or not self._blocks:
            return
        position = _first_scored(task) + len(task.prompt_logprobs)
        keys, parent = _keys(sequence, task, task.settings.prompt_len)
        for begin in range(0, len(keys) - BLOCK + 1, BLOCK):
            block = self._blocks.get((parent, keys[begin : begin + BLOCK].tobytes()))
            if block is None:
                return
            parent = block.number
            if begin + BLOCK > position:
                task.prompt_logprobs += block.scores[position - max(begin, 1) :]
                position = begin + BLOCK

    def keep(self, sequence: Sequence) -> None:
        """The sequence ends: keeps what was found of its prompt, where all before it is kept too.
        Nothing where what it computed was discarded."""
        task = sequence.task
        if not isinstance(task, Generation) or not task.wants_prompt or not sequence.computed:
            return
        first = _first_scored(task)
        keys, parent = _keys(sequence, task, first + len(task.prompt_logprobs))
        used: list[_Key] = []
        for begin in range(0, len(keys) - BLOCK + 1, BLOCK):
            key = (parent, keys[begin : begin + BLOCK].tobytes())
            block = self._blocks.get(key)
            if block is None:
                if max(begin, 1) < first:
                    break
                scores = task.prompt_logprobs[max(begin, 1) - first : begin + BLOCK - first]
                block = self._blocks[key] = _Block(next(self._numbers), tuple(scores))
                self.num_scores += sum(1 + len(one.top) for one in scores)
            parent = block.number
            used.append(key)
        for key in reversed(used):
            self._blocks.move_to_end(key)
        while self.num_scores > self._most:
            _, gone = self._blocks.popitem(last=False)
            self.num_scores -= sum(1 + len(one.top) for one in gone.scores)

    def clear(self) -> None:
        """Keeps nothing."""
        self._blocks.clear()
        self.num_scores = 0


def _first_scored(task: Generation) -> int:
    """The position of the first log-probability: the very first token has none."""
    return max(task.settings.sampling.prompt_logprobs_start, 1)


def _keys(
    sequence: Sequence, task: Generation, end: int
) -> tuple[array[int], int | tuple[str, int]]:
    """The keys of the prompt's tokens up to `end`, and what stands for the text before them."""
    space = sequence.namespace
    top = task.settings.sampling.prompt_logprobs or 0
    return space.keys(sequence.tokens[: min(end, task.settings.prompt_len)]), (space.root, top)
