"""FlashInfer's documented meaning in plain torch, for machines without a GPU.

Written from its documentation of paged key/value caches ("HND": [pages, 2, kv_heads, page_size,
dim]; `window_left` counts the keys before a query's own), not from our reader. Refuses what the
record of its signatures does not have.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from tests.cuda.flashinfer_source import CASCADE, METHODS, WRAPPER, record


class PagedPrefillDouble:
    """`BatchPrefillWithPagedKVCacheWrapper` as it is documented."""

    def __init__(self, *given: Any, **named: Any) -> None:
        asked = bound(WRAPPER, "__init__", given, named)
        assert asked["kv_layout"] == "HND"
        assert asked["float_workspace_buffer"].dtype == torch.uint8
        self._plan: dict[str, Any] = {}
        self._scales = (1.0, 1.0)

    def plan(self, *given: Any, **named: Any) -> None:
        plan = bound(WRAPPER, "plan", given, named)
        for name in ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len"):
            assert plan[name].dtype == torch.int32, name
        assert len(plan["paged_kv_indices"]) == plan["paged_kv_indptr"][-1]
        lens = plan["paged_kv_last_page_len"]
        assert bool(((lens >= 1) & (lens <= plan["page_size"])).all())
        assert plan["causal"] is True
        self._plan = plan

    def run(self, *given: Any, **named: Any) -> torch.Tensor:
        asked, plan = bound(WRAPPER, "run", given, named), self._plan
        q, cache, out = asked["q"], asked["paged_kv_cache"], asked["out"]
        assert q.dtype == plan["q_data_type"]
        assert cache.dtype == plan["kv_data_type"]
        assert q.shape[1:] == (plan["num_qo_heads"], plan["head_dim_qk"])
        assert cache.shape[1:] == (
            2,
            plan["num_kv_heads"],
            plan["page_size"],
            plan["head_dim_qk"],
        )
        is_exact = cache.dtype == q.dtype
        assert is_exact == ("k_scale" not in asked) == ("v_scale" not in asked)
        self._scales = (asked.get("k_scale", 1.0), asked.get("v_scale", 1.0))
        starts, tables = plan["qo_indptr"].tolist(), plan["paged_kv_indptr"].tolist()
        for row, last_len in enumerate(plan["paged_kv_last_page_len"].tolist()):
            pages = plan["paged_kv_indices"][tables[row] : tables[row + 1]].long()
            length = (len(pages) - 1) * plan["page_size"] + last_len
            queries = q[starts[row] : starts[row + 1]]
            out[starts[row] : starts[row + 1]] = self._row(queries, cache[pages], length)
        return out

    def _row(self, q: torch.Tensor, pages: torch.Tensor, length: int) -> torch.Tensor:
        """pages [pages, 2, kv_heads, page_size, dim]"""
        plan = self._plan
        keys, values = (
            pages[:, which].transpose(1, 2).flatten(0, 1)[:length].double() * self._scales[which]
            for which in (0, 1)
        )
        group = plan["num_qo_heads"] // plan["num_kv_heads"]
        result = torch.empty_like(q, dtype=torch.float64)
        for index in range(len(q)):
            own = length - len(q) + index  # causal: the last query sees the last key
            first = 0 if plan["window_left"] < 0 else max(0, own - plan["window_left"])
            for head in range(plan["num_qo_heads"]):
                seen = slice(first, own + 1)
                scores = keys[seen, head // group] @ q[index, head].double()
                scores = scores * plan["sm_scale"]
                if plan.get("logits_soft_cap"):
                    cap = plan["logits_soft_cap"]
                    scores = cap * torch.tanh(scores / cap)
                assert math.isfinite(float(scores.max()))
                result[index, head] = torch.softmax(scores, 0) @ values[seen, head // group]
        return result.to(q.dtype)


class CascadeDouble:
    """`MultiLevelCascadeAttentionWrapper` as it is documented: a query attends to all keys of its
    part of each level, in the last level up to its own.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        asked = bound(CASCADE, "__init__", given, named)
        assert asked["kv_layout"] == "HND"
        self._num_levels = asked["num_levels"]
        self._plan: dict[str, Any] = {}
        self.loaded_pages = 0

    def plan(self, *given: Any, **named: Any) -> None:
        plan = bound(CASCADE, "plan", given, named)
        arrays = [
            plan[name]
            for name in (
                "qo_indptr_arr",
                "paged_kv_indptr_arr",
                "paged_kv_indices_arr",
                "paged_kv_last_page_len",
            )
        ]
        assert {len(one) for one in arrays} == {self._num_levels}
        for queries, starts, pages, lens in zip(*arrays, strict=True):
            assert {one.dtype for one in (queries, starts, pages, lens)} == {torch.int32}
            assert len(queries) == len(starts) == len(lens) + 1
            assert queries[0] == 0
            assert queries[-1] == arrays[0][0][-1], "every level has all queries"
            assert len(pages) == starts[-1]
            empty = starts.diff() == 0
            assert bool((lens[empty] == 0).all())
            assert bool(((lens >= 1) & (lens <= plan["page_size"]))[~empty].all())
        assert plan["causal"] is True
        assert plan.get("window_left", -1) == -1, "levels know no positions"
        self.loaded_pages += sum(len(one) for one in plan["paged_kv_indices_arr"])
        self._plan = plan

    def run(self, *given: Any, **named: Any) -> torch.Tensor:
        asked, plan = bound(CASCADE, "run", given, named), self._plan
        q, cache = asked["q"], asked["paged_kv_cache"]
        assert q.dtype == plan["q_data_type"]
        group = plan["num_qo_heads"] // plan["num_kv_heads"]
        out = torch.empty_like(q)
        for index in range(len(q)):
            seen = [self._seen(level, index, cache) for level in range(self._num_levels)]
            keys, values = (torch.cat([one[which] for one in seen]) for which in (0, 1))
            for head in range(plan["num_qo_heads"]):
                scores = keys[:, head // group] @ q[index, head].double() * plan["sm_scale"]
                if plan.get("logits_soft_cap"):
                    scores = plan["logits_soft_cap"] * torch.tanh(scores / plan["logits_soft_cap"])
                weights = torch.softmax(scores, 0)
                out[index, head] = (weights @ values[:, head // group]).to(q.dtype)
        return out

    def _seen(self, level: int, query: int, cache: torch.Tensor) -> torch.Tensor:
        """Keys and values. # [2, seen, kv_heads, dim]"""
        plan = self._plan
        queries, starts = (plan[name][level] for name in ("qo_indptr_arr", "paged_kv_indptr_arr"))
        part = int((queries <= query).sum()) - 1
        pages = plan["paged_kv_indices_arr"][level][starts[part] : starts[part + 1]].long()
        count = (len(pages) - 1) * plan["page_size"] if len(pages) else 0
        length = count + int(plan["paged_kv_last_page_len"][level][part])
        if level == self._num_levels - 1:  # the last query of a row sees its last key
            length -= int(queries[part + 1]) - 1 - query
        # [pages, 2, kv_heads, page_size, dim] -> [2, slots, kv_heads, dim]
        return cache[pages].permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length].double()


def bound(
    wrapper: str, method: str, given: tuple[Any, ...], named: dict[str, Any]
) -> dict[str, Any]:
    """The arguments by name, as the real signature would bind them."""
    signature = record()["wrappers"][wrapper][method]
    assert method in METHODS
    assert len(given) <= len(signature["names"])
    arguments = dict(zip(signature["names"], given, strict=False))
    for name, value in named.items():
        assert name in signature["names"] or name in signature["keywords"], (method, name)
        assert name not in arguments, (method, name)
        arguments[name] = value
    assert set(signature["required"]) <= set(arguments), method
    return arguments


@contextmanager
def flashinfer_double() -> Iterator[None]:
    """The package, as long as the block runs."""
    before = sys.modules.get("flashinfer")
    double = ModuleType("flashinfer")
    double.__spec__ = sys.__spec__  # found, as an installed package is
    setattr(double, WRAPPER, PagedPrefillDouble)
    setattr(double, CASCADE, CascadeDouble)
    sys.modules["flashinfer"] = double
    try:
        yield
    finally:
        if before is None:
            del sys.modules["flashinfer"]
        else:
            sys.modules["flashinfer"] = before
