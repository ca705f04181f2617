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
from torch._C._distributed_c10d import FakeProcessGroup

from lmprog.config import RuntimeConfig
from lmprog.errors import ModelError
from lmprog.runtime.engine.sharded.rank_group import TRANSPORTS, Place, RankGroup
from lmprog.runtime.engine.sharded.sharded_engine import ShardedEngine, load_shard
from lmprog.runtime.scheduling.batch import Batch, build_batch
from lmprog.runtime.scheduling.plan import Plan, Row


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RankGroup]:
    """A real group of one rank."""
    made = RankGroup(Place(0, 1, 1, tmp_path / "meeting"))
    yield made
    made.close()


def test_what_lies_on_a_gpu_goes_over_nccl_and_all_else_over_gloo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU there is no NCCL: torch's own fake stands for it, and meta tensors for those of
    a GPU. Two names are replaced, no code of ours.
    """
    assert TRANSPORTS["cuda"] == "cpu:gloo,cuda:nccl"
    dist.Backend.register_backend(
        "pretended",
        lambda _, rank, size, __: FakeProcessGroup._create_internal(rank, size),
        devices=["meta"],
    )
    monkeypatch.setitem(TRANSPORTS, "cuda", "cpu:gloo,meta:pretended")
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    group = RankGroup(Place(0, 1, 1, tmp_path / "meeting"), "cuda:0")
    try:
        carriers = {
            kind: dist.group.WORLD._get_backend(torch.device(kind)).name()
            for kind in ("cpu", "meta")
        }
        assert carriers == {"cpu": "gloo", "meta": "fake"}
        part = torch.empty(3, 4, device="meta")
        group.sum(part)
        (gathered,) = group.gather(part)
        assert gathered.device == part.device, "nothing is brought to the processor for it"
        assert group.facts({"dtype": "float16"}) == {"dtype": "float16"}
        assert group.least(3) == 3
        group.give(batch_of([5]))
    finally:
        group.close()
    assert chosen == [torch.device("cuda:0")], "each rank its own"


def test_only_ranks_on_gpus_ask_for_nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(dist, "init_process_group", lambda name, **more: asked.append((name, more)))
    for device, name in (("cpu", "gloo"), ("emulated", "gloo"), ("cuda:3", "cpu:gloo,cuda:nccl")):
        monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
        RankGroup(Place(1, 2, 2, tmp_path / "meeting", local=1), device)
        assert asked.pop()[0] == name


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

    leads, rank, size, here, device = True, 0, 2, 2, "cpu"

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

        def finish(self) -> None: ...

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
