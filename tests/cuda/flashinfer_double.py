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

from tests.cuda.flashinfer_source import METHODS, WRAPPER, record


class PagedPrefillDouble:
    """`BatchPrefillWithPagedKVCacheWrapper` as it is documented."""

    def __init__(self, *given: Any, **named: Any) -> None:
        asked = bound(WRAPPER, "__init__", given, named)
        assert asked["kv_layout"] == "HND"
        assert asked["float_workspace_buffer"].dtype == torch.uint8
        self._plan: dict[str, Any] = {}
        self._scales = (1.0, 1.0)
        self.loaded_pages = 0

    def plan(self, *given: Any, **named: Any) -> None:
        plan = bound(WRAPPER, "plan", given, named)
        for name in ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len"):
            assert plan[name].dtype == torch.int32, name
        assert len(plan["paged_kv_indices"]) == plan["paged_kv_indptr"][-1]
        lens = plan["paged_kv_last_page_len"]
        assert bool(((lens >= 1) & (lens <= plan["page_size"])).all())
        starts = plan["qo_indptr"]
        assert starts[0] == 0
        assert bool((starts.diff() > 0).all())
        self.loaded_pages += len(plan["paged_kv_indices"])
        self._plan = plan

    def run(self, *given: Any, **named: Any) -> torch.Tensor:
        asked, plan = bound(WRAPPER, "run", given, named), self._plan
        q, cache = asked["q"], asked["paged_kv_cache"]
        out = asked["out"] if "out" in asked else torch.empty_like(q)
        sums = torch.empty(q.shape[:2], dtype=torch.float32)
        assert q.dtype == plan["q_data_type"]
        assert len(q) == plan["qo_indptr"][-1]
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
            of_row = slice(starts[row], starts[row + 1])
            out[of_row], sums[of_row] = self._row(q[of_row], cache[pages], length)
        return (out, sums) if asked.get("return_lse") else out

    def _row(
        self, q: torch.Tensor, pages: torch.Tensor, length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the queries find, and the base-2 logarithms of their sums of weights.
        pages [pages, 2, kv_heads, page_size, dim]
        """
        plan = self._plan
        keys, values = (
            pages[:, which].transpose(1, 2).flatten(0, 1)[:length].double() * self._scales[which]
            for which in (0, 1)
        )
        group = plan["num_qo_heads"] // plan["num_kv_heads"]
        keys, values = (of.repeat_interleave(group, 1) for of in (keys, values))
        assert plan["window_left"] < 0 or plan["causal"]
        # causal: the last query sees the last key
        own = torch.arange(length - len(q), length) if plan["causal"] else torch.tensor(length - 1)
        own = own.expand(len(q))[:, None]
        places = torch.arange(length)
        is_seen = places <= own
        if plan["window_left"] >= 0:
            is_seen &= places >= own - plan["window_left"]
        assert bool(is_seen.any(1).all()), "each query sees a key"
        scores = torch.einsum("qhd,khd->hqk", q.double(), keys) * plan["sm_scale"]
        if plan.get("logits_soft_cap"):
            cap = plan["logits_soft_cap"]
            scores = cap * torch.tanh(scores / cap)
        scores = scores.masked_fill(~is_seen, -math.inf)
        assert bool(scores.amax(-1).isfinite().all())
        # what is not seen may be anything: its weight of 0 times that is nothing
        values = torch.where(is_seen.any(0)[:, None, None], values, 0.0)
        result = torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), values)
        sums = torch.logsumexp(scores, -1).t() / math.log(2)
        return result.to(q.dtype), sums.float()


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
    sys.modules["flashinfer"] = double
    try:
        yield
    finally:
        if before is None:
            del sys.modules["flashinfer"]
        else:
            sys.modules["flashinfer"] = before
