"""What ranks say to each other, and what becomes of it when one of them fails."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
import torch.distributed as dist

from lmprog.config import RuntimeConfig
from lmprog.errors import ModelError
from lmprog.runtime.engine.batch import Batch, build_batch
from lmprog.runtime.engine.sharded.place import Place
from lmprog.runtime.engine.sharded.rank_group import RankGroup
from lmprog.runtime.engine.sharded.sharded_engine import ShardedEngine, load_shard
from lmprog.runtime.scheduling.plan import Plan, Row


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RankGroup]:
    """A real group of one rank."""
    made = RankGroup(Place(0, 1, 1, tmp_path / "meeting"))
    yield made
    made.close()


def batch_of(lengths: list[int]) -> Batch:
    draw = random.Random(len(lengths))
    rows = []
    for length in lengths:
        tokens = array("i", [draw.randrange(1000) for _ in range(length)])
        pages = array("i", [draw.randrange(5000) for _ in range(-(-length // 16))])
        sequence: Any = None
        rows.append(Row(sequence, tokens, 0, length, pages, length - 1))
    return build_batch(Plan(tuple(rows)), 16)


@pytest.mark.parametrize(
    ("lengths", "num_messages"),
    [([1], 1), ([3, 1, 40], 1), ([1] * 250, 2), ([700, 2, 900], 2), ([499], 1), ([500], 2)],
)
def test_a_batch_arrives_as_it_was_given_whatever_its_size(
    group: RankGroup, monkeypatch: pytest.MonkeyPatch, lengths: list[int], num_messages: int
) -> None:
    sent: list[torch.Tensor] = []
    monkeypatch.setattr(dist, "broadcast", lambda tensor, _: sent.append(tensor.clone()))
    given = batch_of(lengths)
    group.give(given)
    assert len(sent) == num_messages
    monkeypatch.setattr(dist, "broadcast", lambda tensor, _: tensor.copy_(sent.pop(0)))
    taken = group.take()
    assert not sent
    for field in fields(Batch):
        one, other = getattr(given, field.name), getattr(taken, field.name)
        assert np.array_equal(one, other), field.name
        assert np.shape(one) == np.shape(other), field.name


def test_facts_and_messages_are_texts_of_any_script(group: RankGroup) -> None:
    assert group.facts({"dtype": "float32", "name": "déjà"}) == {"dtype": "float32", "name": "déjà"}
    assert group.messages("rank 0: żółw") == ["rank 0: żółw"]
    assert group.messages("") == [""]
    assert group.least(7) == 7


class Led:
    """A group whose rank 1 could not load its part."""

    leads, rank, size, here = True, 0, 2, 2

    def facts(self, own: dict[str, Any]) -> dict[str, Any]:
        return own

    def least(self, number: int) -> int:
        assert number > 0, "rank 0 could"
        return -1

    def messages(self, own: str) -> list[str]:
        return [own, "its checkpoint of nano is not the one of rank 0"]


def test_what_keeps_another_rank_from_loading_is_the_runtimes_error() -> None:
    other: Any = Led()
    with pytest.raises(ModelError, match="rank 1: its checkpoint of nano is not the one"):
        load_shard(RuntimeConfig(model="dummy:128x2", tp=2), other)


class Ended(BaseException):
    """In place of the process' end."""


def test_a_step_that_fails_on_rank_0_ends_the_process_since_the_others_wait_within_it() -> None:
    class Own:
        location, context_len, vocab_size, dtype, num_pages = None, 1, 1, "float32", 1

        def forward(self, batch: Batch) -> NoReturn:
            raise MemoryError

    class Group:
        def give(self, batch: Batch) -> None: ...

    def end(reason: str) -> NoReturn:
        raise Ended(reason)

    own: Any = Own()
    listeners: Any = Group()
    with pytest.raises(Ended, match="failed on rank 0"):
        ShardedEngine(own, listeners, end).forward(batch_of([1]))
