"""The decoder on a device: torch's products with our kernels between them, all in static buffers.

The weights are those of the decoder on the processor, in the same fused form, or small ones. A step
issues its work for addresses that a layout fixes, so the same steps can be captured as a graph and
replayed. Knows neither pages (`tree_attention` does) nor how a step's arrays come to the device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from lmprog.runtime.engine.device.device_weights import DeviceWeights
from lmprog.runtime.engine.device.driver import Driver
from lmprog.runtime.engine.device.kernels import Count, Kernels, NormArgs, SiluArgs, address
from lmprog.runtime.engine.device.products import Product, ProductInputs, Products, taken_rows
from lmprog.runtime.engine.device.sampling import DeviceLogits
from lmprog.runtime.engine.device.tree_attention import RopeGiven, TreeAttention, placed
from lmprog.runtime.engine.model.rope import rotations
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.torch_engine.adapted_decoder import (
    FusedLayers,
    FusedLowRank,
    token_adapters,
)
from lmprog.runtime.engine.torch_engine.decoder import (
    MixtureWeights,
    activated,
    mixed,
    mixed_blindly,
    normalized_together,
    rotated,
)
from lmprog.runtime.scheduling.batch import Batch, Ints

MOST_LOGITS = 256
"""More than most steps want: all rows that decode. Beyond, as for scores of prompts, they are
computed by pieces.
"""
MOST_BLIND = 128
"""Tokens of a step that go through a mixture without anybody knowing where: until then most experts
are met anyway, and reading their weights takes longer than multiplying with them.
"""
_Group = tuple[FusedLayers, Tensor]
"""An adapter, and the places of its tokens."""


class DeviceAdapters:
    """Those of a model, by their numbers from 1 on. `begin` comes before the products of a step.

    What each adds to the products of the tokens that are its own: by torch, two thin products for
    each adapter of a step, in float32 as on the processor. Which tokens are whose changes from
    step to step, so such steps are no graphs.
    """

    def __init__(
        self, driver: Driver, adapters: Sequence[FusedLayers], digests: Mapping[str, str]
    ) -> None:
        """`digests` by name, in the order of `adapters`."""
        self.digests = dict(digests)
        self._driver = driver
        self._adapters = [_moved(layers, driver.device) for layers in adapters]
        self._of_tokens: list[_Group] = []
        self._of_wanted: list[_Group] = []

    def begin(self, batch: Batch) -> None:
        """Whose the step's tokens are, and those among them whose logits are wanted."""
        if batch.adapters is None:
            self._of_tokens = self._of_wanted = []
            return
        of_tokens = token_adapters(batch)
        self._of_tokens = self._grouped(of_tokens)
        self._of_wanted = self._grouped(of_tokens[batch.logit_tokens])

    def add(self, layer: int, product: str, given: tuple[Tensor, Tensor], is_late: bool) -> None:
        """`given`: what went into the product, and what came out, which is added to. `is_late`:
        only wanted tokens are there.
        """
        for layers, places in self._of_wanted if is_late else self._of_tokens:
            part = layers[layer].get(product)
            if part is not None:
                self._add(part, places, *given)

    def _add(self, part: FusedLowRank, places: Tensor, x: Tensor, out: Tensor) -> None:
        def added() -> None:
            more = x[places].float() @ part.down @ part.up
            out.index_add_(0, places, more.to(out.dtype))

        self._driver.compute(added)

    def _grouped(self, of_tokens: Ints) -> list[_Group]:
        device = self._driver.device
        return [
            (
                self._adapters[number - 1],
                torch.from_numpy(np.flatnonzero(of_tokens == number)).to(device),
            )
            for number in np.unique(of_tokens)
            if number
        ]


def _moved(layers: FusedLayers, device: torch.device) -> FusedLayers:
    return tuple(
        {
            name: FusedLowRank(part.down.to(device), part.up.to(device))
            for name, part in layer.items()
        }
        for layer in layers
    )


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Where a step's arrays are. Those that are tensors may be padded with zeros."""

    at: Mapping[str, int]
    tokens: Tensor  # [n] int32
    positions: Tensor  # [n] int32
    logit_tokens: Tensor  # [l] int32


class DeviceDecoder:
    """A model's weights and activations. `budget`: the most tokens of a step."""

    def __init__(
        self,
        kernels: Kernels,
        shape: ModelShape,
        weights: DeviceWeights,
        context_len: int,
        budget: int,
    ) -> None:
        self.shape = shape
        self._kernels = kernels
        self._driver: Driver = kernels.driver
        self._weights = weights
        self.adapters: DeviceAdapters | None = None
        """Those that rows of batches may have."""
        self._products = Products(kernels)
        if weights.has_quantized:
            self._products.make_room(weights.dtype)
        self._rotations = [
            placed(self._driver, turns) for turns in _rotation_tables(shape, context_len)
        ]
        self._grown = _growth_table(shape, context_len, weights.dtype, self._driver.device)
        self.most_logits = MOST_LOGITS
        """Rows of logits that are in memory at once; a power of two."""
        self._num_logits = 0
        self._logits = torch.empty(0)
        self._head = torch.empty(0)
        dim = shape.head_dim
        self._x, self._more, self._normed = (self._room(budget, shape.hidden) for _ in range(3))
        self._last, self._last_attended = (
            self._room(budget, shape.hidden),
            self._room(budget, shape.num_heads * dim),
        )
        self._qkv = self._room(budget, (shape.num_heads + 2 * shape.num_kv_heads) * dim)
        self._q, self._attended = (self._room(budget, shape.num_heads * dim) for _ in range(2))
        self._gate_up = self._room(budget, 2 * shape.inner)
        self._inner = self._room(budget, shape.inner)

    @property
    def num_weights(self) -> int:
        return self._weights.num_weights

    @property
    def sinks(self) -> list[Tensor | None]:
        """Of each layer."""
        return [layer.sinks for layer in self._weights.layers]

    @property
    def most_captured(self) -> int | None:
        """Tokens of a step that a graph can hold; None: any number."""
        return None if self.shape.mixture is None else MOST_BLIND

    def make_room(self, num_logits: int) -> bool:
        """Room for so many rows of logits, or as many as there are at once; whether buffers have
        moved for it.
        """
        num_logits = min(num_logits, self.most_logits)
        if num_logits <= self._num_logits:
            return False
        self._driver.event().wait()
        self._num_logits = num_logits
        self._head = self._room(num_logits, self.shape.vocab_size)
        memory = self._driver.memory(num_logits * self.shape.vocab_size * 4)
        self._logits = memory.view(torch.float32).view(num_logits, self.shape.vocab_size)
        return True

    def logits(self, wanted: int, at: Mapping[str, int]) -> DeviceLogits:
        """Of the last step that was issued, with its arrays `at`. Where more are wanted than are in
        memory at once, none is there until its piece is computed.
        """
        if wanted <= self.most_logits:
            return DeviceLogits(self._logits[:wanted], wanted)

        def compute(start: int) -> None:
            rows = min(self.most_logits, len(self._normed) - start)  # beyond `wanted` too
            x = self._normed[start : start + rows]
            self._issue_logits(ProductInputs(x, at["counts0"], Count.LOGITS), self._logits[:rows])

        return DeviceLogits(self._logits[: self.most_logits], wanted, compute)

    def issue(self, inputs: StepInputs, attention: TreeAttention) -> None:
        """Everything from token ids to logits."""
        count, wanted = len(inputs.tokens), len(inputs.logit_tokens)
        x, compute = self._x[:count], self._driver.compute
        compute(lambda: taken_rows(self._weights.embedding, inputs.tokens, x))
        if self.shape.embedding_scale != 1.0:
            compute(lambda: x.mul_(self.shape.embedding_scale))
        for index, layer in enumerate(self._weights.layers):
            more = self._more[:count] if index else None
            is_normed = self.shape.norms.attention_norm is not None
            weight = layer.attention_norm
            normed = self._begin_half(inputs, x, more, Count.TOKENS, (is_normed, weight))
            given_x = _given(inputs, normed, Count.TOKENS)
            qkv = self._qkv[:count]
            self._products.issue(given_x, layer.qkv, layer.qkv_bias, qkv)
            self._adapt(index, "qkv", (given_x.x, qkv), Count.TOKENS)
            given = self._turned(inputs, index, qkv)
            attention.append(index, inputs.at, self._qkv, self._q, given)
            is_last = index == len(self._weights.layers) - 1
            if is_last and not wanted:
                return
            attention.attend(index, inputs.at, self._q, self._attended)
            if is_last:
                self._finish(inputs, index)
            else:
                self._half(inputs, index, x, self._attended[:count], Count.TOKENS)

    def _half(
        self, inputs: StepInputs, index: int, x: Tensor, attended: Tensor, count_at: Count
    ) -> None:
        """What follows attention: `_more` is what `x` still lacks."""
        count, layer = len(x), self._weights.layers[index]
        more, norms = self._more[:count], layer.norms
        self._end_half(_given(inputs, attended, count_at), layer.out, layer.out_bias, more)
        self._adapt(index, "out", (attended, more), count_at)
        self._norm_after(inputs, more, count_at, norms.get("attention_post_norm"))
        is_normed = self.shape.norms.mlp_norm is not None
        normed = self._begin_half(inputs, x, more, count_at, (is_normed, layer.mlp_norm))
        if layer.mixture is None:
            self._feed_forward(inputs, index, normed, count_at)
        else:
            self._mix(layer.mixture, normed, more)
        self._norm_after(inputs, more, count_at, norms.get("mlp_post_norm"))

    def _feed_forward(
        self, inputs: StepInputs, index: int, normed: Tensor, count_at: Count
    ) -> None:
        count, layer = len(normed), self._weights.layers[index]
        more, gates = self._more[:count], self._gate_up[:count]
        given = _given(inputs, normed, count_at)
        self._products.issue(given, layer.gate_up, layer.gate_up_bias, gates)
        self._adapt(index, "gate_up", (normed, gates), count_at)
        args = SiluArgs(
            gate_up=address(self._gate_up),
            out=address(self._inner),
            counts=inputs.at["counts0"],
            inner=self.shape.inner,
            count_at=count_at,
            is_gelu=int(self.shape.activation == "gelu_tanh"),
        )
        self._kernels.launch("silu_mul", args)
        given = _given(inputs, self._inner[:count], count_at)
        self._end_half(given, layer.down, layer.down_bias, more)
        self._adapt(index, "down", (given.x, more), count_at)

    def _mix(self, weights: MixtureWeights, normed: Tensor, out: Tensor) -> None:
        """Of many tokens the host reads which experts they go to, and waits for that."""
        mixture, shape = self.shape.mixture, self.shape
        assert mixture is not None, "a layer with experts"
        mix = mixed_blindly if len(normed) <= MOST_BLIND else mixed
        self._driver.compute(
            lambda: out.copy_(mix(normed, weights, mixture, partial(activated, shape)))
        )

    def _turned(self, inputs: StepInputs, index: int, qkv: Tensor) -> RopeGiven:
        """What heads are normalized and turned with. What comes in another order, or concerns all
        heads of a token together, is done before.
        """
        shape, layer = self.shape, self._weights.layers[index]
        rope, norm = shape.rope_of(index), layer.qk_norm
        turns = self._rotations[len(shape.ropes) if rope is None else rope]
        heads = qkv.view(len(qkv), -1, shape.head_dim)
        if self._grown is not None:
            grown, queries = self._grown, heads[:, : shape.num_heads]
            self._driver.compute(lambda: queries.mul_(grown[inputs.positions, None, None]))
        if norm is None or not (shape.qk_norm_wide or shape.norms_rotated):
            return RopeGiven(turns, norm, shape.norm_eps)
        both = heads[:, : len(norm)]
        if shape.norms_rotated:
            whole = torch.view_as_complex(turns)
            self._driver.compute(lambda: both.copy_(rotated(both, whole[inputs.positions, None])))
            return RopeGiven(self._rotations[-1], norm, shape.norm_eps)
        self._driver.compute(lambda: both.copy_(normalized_together(shape, both) * norm))
        return RopeGiven(turns, None, shape.norm_eps)

    def _begin_half(
        self,
        inputs: StepInputs,
        x: Tensor,
        more: Tensor | None,
        count_at: Count,
        norm: tuple[bool, Tensor | None],
    ) -> Tensor:
        """Adds `more` to `x`; what the half's first product reads. `norm`: whether there is one,
        and its weight where that is not folded in.
        """
        is_normed, weight = norm
        if is_normed:
            self._norm(inputs, x, more, count_at, weight)
            return self._normed[: len(x)]
        if more is not None:
            self._driver.compute(lambda: x.add_(more))
        return x

    def _norm_after(
        self, inputs: StepInputs, more: Tensor, count_at: Count, weight: Tensor | None
    ) -> None:
        """What a half gives, normalized where there is a `weight` for that."""
        if weight is not None:
            self._norm(inputs, more, None, count_at, weight, more)

    def _adapt(
        self, index: int, product: str, given: tuple[Tensor, Tensor], count_at: Count
    ) -> None:
        if self.adapters is not None:
            self.adapters.add(index, product, given, is_late=count_at is Count.LOGITS)

    def _end_half(
        self, given: ProductInputs, weight: Product, bias: Tensor | None, out: Tensor
    ) -> None:
        """The last product of half a layer."""
        self._products.issue(given, weight, bias, out)

    def _finish(self, inputs: StepInputs, index: int) -> None:
        """The end of the last layer, and the head, for the wanted tokens alone."""
        wanted, compute = len(inputs.logit_tokens), self._driver.compute
        x, attended = self._last[:wanted], self._last_attended[:wanted]
        compute(lambda: torch.index_select(self._x, 0, inputs.logit_tokens, out=x))
        compute(lambda: torch.index_select(self._attended, 0, inputs.logit_tokens, out=attended))
        self._half(inputs, index, x, attended, Count.LOGITS)
        self._norm(inputs, x, self._more[:wanted], Count.LOGITS, self._weights.norm)
        if wanted <= self.most_logits:
            given = _given(inputs, self._normed[:wanted], Count.LOGITS)
            self._issue_logits(given, self._logits[:wanted])

    def _issue_logits(self, given: ProductInputs, logits: Tensor) -> None:
        self._compute_logits(given, logits)
        cap = self.shape.logit_softcap
        if cap is not None:
            self._driver.compute(lambda: logits.div_(cap).tanh_().mul_(cap))

    def _compute_logits(self, given: ProductInputs, logits: Tensor) -> None:
        head = self._head[: len(given.x)]
        self._products.issue(given, self._weights.head, None, head)
        self._driver.compute(lambda: logits.copy_(head))

    def _norm(
        self,
        inputs: StepInputs,
        x: Tensor,
        added: Tensor | None,
        count_at: Count,
        weight: Tensor | None,
        out: Tensor | None = None,
    ) -> None:
        """Adds `added` to `x`; `out`, or else `_normed`, is `x` by its length, as weights expect it
        that norms are folded into, or normalized with `weight`.
        """
        hidden = self.shape.hidden
        args = NormArgs(
            x=address(x),
            added=address(added),
            weight=address(weight),
            out=address(self._normed if out is None else out),
            counts=inputs.at["counts0"],
            hidden=hidden,
            count_at=count_at,
            eps=hidden * self.shape.norm_eps,
            factor=1.0 if weight is None else math.sqrt(hidden),
        )
        self._kernels.launch("norm_add", args)

    def _room(self, tokens: int, width: int) -> Tensor:
        dtype = self._weights.dtype
        return self._driver.memory(tokens * width * dtype.itemsize).view(dtype).view(tokens, width)


def _rotation_tables(shape: ModelShape, context_len: int) -> list[Tensor]:
    """One for each rotation that layers have, and one for layers without; pairs of a head that are
    not turned are turned by nothing. # [positions, dim / 2, 2]
    """
    turned = shape.rotary_dim or shape.head_dim
    tables = [rotations(rope, turned, context_len) for rope in shape.ropes]
    if shape.unrotated or shape.norms_rotated:
        tables.append(torch.ones_like(tables[0]))
    rest = (shape.head_dim - turned) // 2
    padded = [torch.nn.functional.pad(table, (0, rest), value=1.0) for table in tables]
    return [torch.view_as_real(table.contiguous()).contiguous() for table in padded]


def _growth_table(
    shape: ModelShape, context_len: int, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """What a query is multiplied by at each position, which is turned by its place and so may come
    before; None: nothing.
    """
    by, every = shape.growth.by, shape.growth.every
    if not by:
        return None
    steps = torch.arange(context_len) // every
    return (1.0 + by * torch.log1p(steps.float())).to(device, dtype)


def _given(inputs: StepInputs, x: Tensor, count_at: Count) -> ProductInputs:
    return ProductInputs(x, inputs.at["counts0"], count_at)
