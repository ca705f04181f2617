"""Our decoder in plain torch, for inference only: all that a `ModelShape` can say of layers that
attend, with heads of one size.

Small models are dominated by the cost of calling operators, so there are few of them: query, key
and value projections are one product, as are gate and up; the weights of the norms before them are
folded into these products; rotation is one complex multiplication in place, because the rows of
query and key projections are reordered so that the two numbers of a pair lie side by side (scores
do not change: both sides are reordered alike); a residual is added by the product that makes it. Of
a mixture each expert's tokens are one product. Weights arrive in that form from `weights`. Pages
and masks are the attention backend's affair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from lmprog.runtime.engine.attention.backend import AttentionBackend, AttentionShape, LayerAttention
from lmprog.runtime.engine.model.mixture import Mixture
from lmprog.runtime.engine.model.rope import rotations
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.scheduling.batch import Batch


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer, in the model's type. Products are kept transposed: `x @ weight`."""

    # [hidden, (heads + 2 * kv_heads) * head_dim], norm folded in, rows of q and k in pairs
    qkv: Tensor
    out: Tensor  # [heads * head_dim, hidden]
    gate_up: Tensor  # [hidden, 2 * inner], norm folded in
    down: Tensor  # [inner, hidden]
    qkv_bias: Tensor | None  # None: this model has none; so below
    out_bias: Tensor | None
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim], in pairs
    mixture: MixtureWeights | None = None  # in place of gate_up and down, which are empty
    sinks: Tensor | None = None  # [heads] float32
    norms: Mapping[str, Tensor] = field(default_factory=dict)
    """By place (`Norms`), those that are not folded into a product: mostly there is none."""

    def ending(self, product: str) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The product that ends a half, "out" or "down", with its bias and its norm."""
        if product == "out":
            return self.out, self.out_bias, self.norms.get("attention_post_norm")
        return self.down, self.down_bias, self.norms.get("mlp_post_norm")


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [hidden]
    head: Tensor  # [hidden, vocab]; a view of the embedding where they are tied
    experts_met: int = 0
    """By each token in a layer with a mixture."""

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def num_weights(self) -> int:
        """Those that a token is multiplied with on its way to logits."""
        products = [
            w for layer in self.layers for w in (layer.qkv, layer.out, layer.gate_up, layer.down)
        ]
        mixtures = [layer.mixture for layer in self.layers if layer.mixture is not None]
        met = sum(one.router.numel() + self.experts_met * one.num_met for one in mixtures)
        return self.head.numel() + sum(weight.numel() for weight in products) + met


class Decoder:
    """A model with its weights. `forward` keeps nothing: all state is in the backend's pages."""

    def __init__(self, shape: ModelShape, weights: Weights, context_len: int) -> None:
        """Positions up to `context_len` can be computed; a table of their rotations is kept."""
        self.shape = shape
        self.weights = weights
        self.vocab_size = shape.vocab_size
        turned = shape.rotary_dim or shape.head_dim
        self._rotations = [rotations(rope, turned, context_len)[:, None] for rope in shape.ropes]
        # x / norm(x) is what the folded weights expect: sqrt(hidden) is in them, and epsilon joins
        # the norm like a leg of a right triangle.
        self._eps = torch.tensor(math.sqrt(shape.hidden * shape.norm_eps))

    def attention_shape(self, kv_dtype: torch.dtype) -> AttentionShape:
        """What the backend must provide, keys and values kept as `kv_dtype`."""
        shape = self.shape
        sinks = [layer.sinks for layer in self.weights.layers]
        return AttentionShape(
            layers=layer_attention(shape, sinks),
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            v_head_dim=shape.head_dim,
            dtype=kv_dtype,
        )

    def forward(self, batch: Batch, attention: AttentionBackend) -> Tensor:
        """Logits of the tokens that `batch` wants. # [L, vocab] float32 (float64 stays that)"""
        attention.plan(batch)
        weights = self.weights
        positions = torch.from_numpy(batch.positions)
        turns = [table[positions] for table in self._rotations]  # [T, 1, head_dim / 2]
        x = self._embedded(torch.from_numpy(batch.tokens))
        if self.shape.embedding_scale != 1.0:
            x.mul_(self.shape.embedding_scale)
        last = len(weights.layers) - 1
        for index, layer in enumerate(weights.layers):
            rope = self.shape.rope_of(index)
            turn = None if rope is None else turns[rope]
            attended = self._attend(index, layer, x, turn, attention)
            if index == last and len(batch.logit_tokens) < batch.num_tokens:
                wanted = torch.from_numpy(
                    batch.logit_tokens
                )  # what follows concerns each token alone
                x, attended = x[wanted], attended[wanted]
            self._add_half(index, "out", attended, x)
            self._feed_forward(index, x)
        return self._logits(F.rms_norm(x, (self.shape.hidden,), weights.norm, self.shape.norm_eps))

    def _embedded(self, tokens: Tensor) -> Tensor:
        """The tokens' own numbers, which this step may change. # [T, hidden]"""
        return F.embedding(tokens, self.weights.embedding)

    def _logits(self, x: Tensor) -> Tensor:
        """Of normalized tokens. # [L, vocab]"""
        return self._capped(wide(torch.mm(x, self.weights.head)))

    def _capped(self, logits: Tensor) -> Tensor:
        cap = self.shape.logit_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def _add_half(self, index: int, product: str, inputs: Tensor, x: Tensor) -> None:
        """Adds a half's last product, normalized where there is a norm, to the residual `x` in
        place.
        """
        weight, bias, norm = self.weights.layers[index].ending(product)
        if norm is not None:
            given = self._adapt(index, product, inputs, _product(inputs, weight, bias))
            x.add_(self._after(given, norm))
            return
        x.addmm_(inputs, weight)
        if bias is not None:
            x.add_(bias)
        self._adapt(index, product, inputs, x)

    def _adapt(self, index: int, product: str, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Adds, in place, what adapters add to a product of layer `index`: here there are none."""
        return outputs

    def _after(self, x: Tensor, norm: Tensor) -> Tensor:
        return F.rms_norm(x, (self.shape.hidden,), norm, self.shape.norm_eps)

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        x: Tensor,
        turns: Tensor | None,
        attention: AttentionBackend,
    ) -> Tensor:
        """Attention's output before its projection. # [T, heads * head_dim]"""
        shape = self.shape
        heads, kv_heads, dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        inputs = self._normalized(x, shape.norms.attention_norm)
        given = self._adapt(index, "qkv", inputs, _product(inputs, layer.qkv, layer.qkv_bias))
        qkv = given.view(-1, heads + 2 * kv_heads, dim)
        qk, v = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if layer.qk_norm is not None and shape.qk_norm_wide:
            qk = normalized_together(shape, qk, self._average) * layer.qk_norm
        elif layer.qk_norm is not None:
            qk = F.rms_norm(qk, (dim,), None, shape.norm_eps) * layer.qk_norm
        if turns is not None:
            qk = rotated(qk, turns)
        return attention.run(index, qk[:, :heads], qk[:, heads:], v).view(-1, heads * dim)

    def _feed_forward(self, index: int, x: Tensor) -> None:
        """Adds the layer's second half to `x` in place."""
        layer = self.weights.layers[index]
        inputs = self._normalized(x, self.shape.norms.mlp_norm)
        mixture = self.shape.mixture
        if layer.mixture is not None and mixture is not None:
            x.add_(self._whole(mixed(inputs, layer.mixture, mixture, self._activated)))
            return
        given = _product(inputs, layer.gate_up, layer.gate_up_bias)
        gate, up = self._adapt(index, "gate_up", inputs, given).chunk(2, -1)
        self._add_half(index, "down", self._activated(gate, up), x)

    def _activated(self, gate: Tensor, up: Tensor) -> Tensor:
        return activated(self.shape, gate, up)

    def _whole(self, part: Tensor) -> Tensor:
        """A mixture's sum over all of its columns: these are all."""
        return part

    def _average(self, means: Tensor) -> None:
        """Makes means over these heads those over all heads, in place: these are all."""

    def _normalized(self, x: Tensor, norm: str | None) -> Tensor:
        """Each token divided by its length (see `_eps`), measured in float32 at least; as it is
        where there is no `norm`. # [T, hidden]
        """
        if norm is None:
            return x
        exact = torch.promote_types(x.dtype, torch.float32)
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=exact)
        length.hypot_(self._eps)
        return x / length if x.dtype == exact else (x / length).to(x.dtype)


def layer_attention(
    shape: ModelShape, sinks: Sequence[Tensor | None]
) -> tuple[LayerAttention, ...]:
    """What differs between the layers; `sinks` of each."""
    scale, softcap = shape.attention_scale or shape.head_dim**-0.5, shape.attention_softcap
    return tuple(
        LayerAttention(scale, window, softcap, None if own is None else tuple(own.tolist()))
        for window, own in zip(shape.windows, sinks, strict=True)
    )


def activated(shape: ModelShape, gate: Tensor, up: Tensor) -> Tensor:
    """What becomes of a gate and its partner; the gate's memory may be taken for it."""
    if shape.activation == "silu":
        return F.silu(gate).mul_(up)
    if shape.activation == "gelu_tanh":
        return F.gelu(gate, approximate="tanh").mul_(up)
    limit = shape.activation_limit
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return torch.sigmoid(shape.activation_slope * gate).mul_(gate).mul_(up + 1)


def normalized_together(
    shape: ModelShape, qk: Tensor, average: Callable[[Tensor], None] = lambda _: None
) -> Tensor:
    """All queries of a token by their length, and all its keys by theirs. `average` makes means
    over these heads those over all heads, in place.
    """
    heads = shape.num_heads
    exact = wide(qk)
    squares = exact.square().mean(-1)
    means = torch.stack((squares[:, :heads].mean(1), squares[:, heads:].mean(1)), 1)  # [T, 2]
    average(means)
    factors = torch.rsqrt(means.add_(shape.norm_eps))
    each = (factors[:, :1].expand(-1, heads), factors[:, 1:].expand(-1, qk.shape[1] - heads))
    return (exact * torch.cat(each, 1)[..., None]).to(qk.dtype)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)


def wide(x: Tensor) -> Tensor:
    """In float32, or in float64 where it has that: nothing is rounded away for the judge."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def rotated(qk: Tensor, turns: Tensor) -> Tensor:
    """The leading pairs, as many as there are angles, turned by their token's, in float32 at least:
    in place where `qk` has it.
    """
    exact = wide(qk)
    pairs = exact[..., : 2 * turns.shape[-1]]
    torch.view_as_complex(torch.unflatten(pairs, -1, (-1, 2))).mul_(turns)
    return exact if exact is qk else exact.to(qk.dtype)


@dataclass(frozen=True, slots=True)
class MixtureWeights:
    """One layer's. Products are kept transposed, with what comes before them folded in."""

    router: Tensor  # [hidden, scores], in float32 at least: a rounding may send a token elsewhere
    gate_up: Tensor  # [experts, hidden, 2 * inner]
    down: Tensor  # [experts, inner, hidden]
    biases: ExpertBiases | None = None
    choice: Tensor | None = None  # [experts]: added to what they are chosen by

    @property
    def num_met(self) -> int:
        """Weights of one expert."""
        return self.gate_up[0].numel() + self.down[0].numel()

    def kept(self, keep: Callable[[Tensor], Tensor]) -> MixtureWeights:
        """The same weights, each where `keep` puts it."""
        biases = None if self.biases is None else self.biases.kept(keep)
        choice = None if self.choice is None else keep(self.choice)
        gates, downs = keep(self.gate_up), keep(self.down)
        return MixtureWeights(keep(self.router), gates, downs, biases, choice)


Activated = Callable[[Tensor, Tensor], Tensor]
"""What becomes of gates and their partners."""


@dataclass(frozen=True, slots=True)
class ExpertBiases:
    """Of one layer's router and experts."""

    router: Tensor  # [scores]
    gate_up: Tensor  # [experts, 2 * inner]
    down: Tensor  # [experts, hidden]

    def kept(self, keep: Callable[[Tensor], Tensor]) -> ExpertBiases:
        return ExpertBiases(keep(self.router), keep(self.gate_up), keep(self.down))


def mixed(x: Tensor, weights: MixtureWeights, mixture: Mixture, activated: Activated) -> Tensor:
    """The sum over each token's experts, each of which computes its tokens: whose they are is read
    here, and waited for. # [T, hidden]
    """
    scores, chosen, shares = _routes(x, weights, mixture)
    total = torch.zeros_like(x)
    for expert in range(mixture.experts):
        tokens, places = torch.nonzero(chosen == expert, as_tuple=True)
        if len(tokens):
            given = _expert(x[tokens], weights, expert, activated)
            total.index_add_(0, tokens, given * shares[tokens, places, None].to(x.dtype))
    return total.add_(_shared(x, weights, mixture, scores, activated))


def mixed_blindly(
    x: Tensor, weights: MixtureWeights, mixture: Mixture, activated: Activated
) -> Tensor:
    """The same, and nobody reads who goes where: few tokens take copies of their experts' weights,
    and of others every expert computes all. # [T, hidden]
    """
    scores, chosen, shares = _routes(x, weights, mixture)
    biases, count = weights.biases, mixture.experts
    shares = shares.to(x.dtype)
    is_copied = _COPIED * chosen.numel() <= count
    if is_copied:
        taken = chosen.flatten()
        given = x.repeat_interleave(mixture.used, 0)[:, None]  # [T * used, 1, hidden]
        opening, ending = weights.gate_up[taken], weights.down[taken]
    else:
        taken = torch.arange(count, device=x.device)
        given = x.expand(count, -1, -1)  # [experts, T, hidden]
        opening, ending = weights.gate_up[:count], weights.down[:count]
    both = torch.bmm(given, opening)
    if biases is not None:
        both = both + biases.gate_up[taken, None]
    after = torch.bmm(activated(*both.chunk(2, -1)), ending)
    if biases is not None:
        after = after + biases.down[taken, None]
    if is_copied:
        total = (after.view(len(x), mixture.used, -1) * shares[..., None]).sum(1)
    else:
        each = torch.zeros_like(scores[:, :count], dtype=x.dtype).scatter_(1, chosen, shares)
        each = each.t()[..., None]  # [experts, T, 1]
        # a token may be too large for an expert that it does not go to
        total = torch.where(each == 0, 0.0, after * each).sum(0)
    return total.add_(_shared(x, weights, mixture, scores, activated))


_COPIED = 3
"""An expert that is copied is read, written and read."""


def _shared(
    x: Tensor, weights: MixtureWeights, mixture: Mixture, scores: Tensor, activated: Activated
) -> Tensor | float:
    """What the shared expert adds."""
    if not mixture.shared_parts:
        return 0.0
    parts = range(mixture.experts, mixture.computed_experts)
    shared = torch.stack([_expert(x, weights, part, activated) for part in parts]).sum(0)
    if mixture.is_shared_gated:
        shared.mul_(torch.sigmoid(scores[:, mixture.experts :]).to(x.dtype))
    return shared


def _routes(x: Tensor, weights: MixtureWeights, mixture: Mixture) -> tuple[Tensor, Tensor, Tensor]:
    """Each token's scores, the experts that it goes to, the first of equal ones, and their shares.
    # [T, scores], [T, used], [T, used]
    """
    bias = None if weights.biases is None else weights.biases.router
    scores = _product(x.to(weights.router.dtype), weights.router, bias)
    own = scores[:, : mixture.experts]
    shares = torch.sigmoid(own) if mixture.sigmoid else F.softmax(own, -1)
    chosen_by = shares if weights.choice is None else shares + weights.choice
    chosen = torch.argsort(chosen_by, dim=-1, descending=True, stable=True)[:, : mixture.used]
    taken = torch.gather(shares, 1, chosen)
    if mixture.normalized:
        taken = taken / (taken.sum(1, keepdim=True) + mixture.share_floor)
    return scores, chosen, taken * mixture.share_scale


def _expert(x: Tensor, weights: MixtureWeights, expert: int, activated: Activated) -> Tensor:
    biases = weights.biases
    before, after = (
        (None, None) if biases is None else (biases.gate_up[expert], biases.down[expert])
    )
    gate, up = _product(x, weights.gate_up[expert], before).chunk(2, -1)
    return _product(activated(gate, up), weights.down[expert], after)
