"""Which part of a model each rank has, and what is refused before anything is loaded."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter, NotSupported
from lmprog.runtime.engine.device import choice
from lmprog.runtime.engine.model.rope import Rope
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.model.weight_table import expected
from lmprog.runtime.engine.sharded.shard import Shard, ShardSource, check_heads, check_ranks


def shape_of(heads: int, kv_heads: int, inner: int = 40, vocabulary: int = 50) -> ModelShape:
    return ModelShape(
        vocab_size=vocabulary,
        hidden=24,
        inner=inner,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=6,
        context_len=64,
        rope=Rope(),
        windows=(None,),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        qk_norm=True,
    )


class Numbered:
    """Weights whose every number is its own place."""

    def __init__(self, shape: ModelShape) -> None:
        self.sizes = expected(shape)
        self.released: list[str] = []

    def array(self, name: str) -> NDArray[Any]:
        size = self.sizes[name]
        return np.arange(int(np.prod(size)), dtype=np.float32).reshape(size)

    def release(self, name: str, first: int, end: int) -> None:
        assert (first, end) == (0, self.sizes[name][0])
        self.released.append(name)


def test_the_parts_of_all_ranks_are_the_whole_model() -> None:
    draw = random.Random(8)
    for _ in range(30):
        size = draw.choice([2, 3, 4])
        kv_heads = size * draw.choice([1, 2])
        shape = shape_of(
            kv_heads * draw.choice([1, 3]), kv_heads, draw.randrange(5, 60), draw.randrange(9, 60)
        )
        source = Numbered(shape)
        ranks = [ShardSource(source, Shard(shape, rank, size)) for rank in range(size)]
        for name in source.sizes:
            whole = source.array(name)
            parts = [rank.array(name) for rank in ranks]
            inputs = name.endswith(("o_proj.weight", "down_proj.weight"))
            is_kept_whole = "norm" in name or name.endswith(("o_proj.bias", "down_proj.bias"))
            if is_kept_whole:
                assert all(np.array_equal(part, whole) for part in parts)
            else:
                assert np.array_equal(np.concatenate(parts, axis=1 if inputs else 0), whole), name
        assert set(source.released) == set(source.sizes), "what is not the rank's own is let go"


@pytest.mark.parametrize(("inner", "size"), [(88, 3), (11008, 4), (40, 2)])
def test_columns_are_spread_in_words_of_a_gpu_where_they_can(inner: int, size: int) -> None:
    shards = [Shard(shape_of(12, 12, inner), rank, size).inner for rank in range(size)]
    assert all(one.start % 8 == one.stop % 8 == 0 for one in shards)
    assert [one.stop for one in shards[:-1]] == [one.start for one in shards[1:]]
    assert (shards[0].start, shards[-1].stop) == (0, inner)


@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(8, 2, 4), (8, 1, 8), (12, 2, 4)])
def test_fewer_key_value_heads_than_ranks_are_copied_to_the_ranks_whose_queries_read_them(
    heads: int, kv_heads: int, size: int
) -> None:
    shape = shape_of(heads, kv_heads)
    check_heads(shape, size)
    for rank in range(size):
        shard = Shard(shape, rank, size)
        readers = range(shard.heads.start, shard.heads.stop)
        assert {head // (heads // kv_heads) for head in readers} == {shard.kv_heads.start}
        assert shard.local_shape.num_kv_heads == 1


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "allowed"),
    [(8, 2, 3, "2, 4, 8"), (6, 3, 2, "3, 6"), (6, 2, 4, "2, 6"), (8, 8, 16, "2, 4, 8")],
)
def test_heads_that_cannot_be_spread_evenly_are_refused_with_what_can(
    heads: int, kv_heads: int, size: int, allowed: str
) -> None:
    with pytest.raises(InvalidParameter, match=f"this model allows {allowed}$"):
        check_heads(shape_of(heads, kv_heads), size)


@pytest.mark.parametrize(
    "options",
    [
        {"tp": 0},
        {"tp": 1, "tp_ranks": "torchrun"},
        {"tp": 2, "engine": "native"},
        {"tp": 2, "quantize": "int8"},
        {"tp": 2, "kv_disk_mb": 10},
        {"tp": 2, "kv_host_mb": 10},
        {"tp": 2, "kv_pool": "virtual"},
        {"tp": 2, "device_memory_fraction": 0.5},
        {"tp": 2, "device": "cuda:1"},
        {"tp": 2, "device": "gpu"},
        {"tp": 2, "attention": "tree"},
    ],
)
def test_what_ranks_cannot_do_is_refused_by_its_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter) as caught:
        check_ranks(RuntimeConfig(**options))
    assert caught.value.name in options
    assert caught.value.name == list(options)[-1]


def test_gpus_that_are_not_there_are_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def why_no_gpu(number: int) -> str | None:
        asked.append(number)
        return f"there are {number} GPUs"

    monkeypatch.setattr(choice, "why_no_gpu", why_no_gpu)
    with pytest.raises(NotSupported, match="device 'cuda:3' cannot be used: there are 3 GPUs"):
        check_ranks(RuntimeConfig(tp=4, device="cuda"))
    with pytest.raises(NotSupported, match="cuda:0"):  # the others may be on other machines
        check_ranks(RuntimeConfig(tp=4, device="cuda", tp_ranks="torchrun"))
    assert asked == [3, 0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tp": 2},
        {"tp": 4, "engine": "torch"},
        {"tp": 2, "device": "auto"},
        {"tp": 2, "device": "emulated"},
        {"tp": 2, "device": "emulated", "attention": "tree"},
    ],
)
def test_what_ranks_can_do_is_taken(options: dict[str, Any]) -> None:
    check_ranks(RuntimeConfig(**options))
