"""Nano's network: a compact Llama in plain torch, with parameter names as Hugging Face has them.

Knows tensors only. `tests/nano` holds its logits equal to those of `transformers` on the exported
files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of the network; `head_dim` times `heads` need not be `hidden`."""

    vocabulary: int = 2048
    hidden: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    inner: int = 704
    theta: float = 10_000.0
    epsilon: float = 1e-5

    def huggingface(self) -> dict[str, object]:
        """config.json of an ordinary Llama."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "rms_norm_eps": self.epsilon,
            "rope_theta": self.theta,
            "rope_scaling": None,
            "attention_bias": False,
            "mlp_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "initializer_range": 0.02,
            "bos_token_id": None,
            "eos_token_id": 0,
            "pad_token_id": 4,
            "use_cache": True,
            "torch_dtype": "bfloat16",
        }

    def as_dict(self) -> dict[str, int | float]:
        """For the checkpoint."""
        return asdict(self)


def rotation(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [length, head_dim] for positions from 0."""
    frequency = shape.theta ** (
        -torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    )
    angle = torch.outer(torch.arange(length, dtype=torch.float32), frequency)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [batch, heads, time, head_dim], turned by position in halves, as Llama does."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention, [batch, heads, time, head_dim]. Written out for short sequences.

    On a CPU the matrix products in bfloat16 are up to five times faster, backward included, than
    torch's own kernel when the scores are small (measured at 64 to 256 tokens).
    """
    time = q.shape[2]
    if time > 384 or q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    ahead = torch.full((time, time), float("-inf"), dtype=q.dtype).triu_(1)
    with torch.autocast("cpu", enabled=False):  # else the scores are copied to float32 and back
        scores = ((q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)).add_(ahead)
        return torch.softmax(scores, -1) @ v


class Attention(nn.Module):
    """Grouped-query attention over the whole sequence."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [batch, time, hidden]."""
        batch, time, _ = x.shape
        s = self.shape
        v = self.v_proj(x).view(batch, time, s.kv_heads, s.head_dim).transpose(1, 2)
        cos, sin = cos.to(v.dtype), sin.to(v.dtype)
        q = rotate(self.q_proj(x).view(batch, time, s.heads, s.head_dim).transpose(1, 2), cos, sin)
        k = rotate(
            self.k_proj(x).view(batch, time, s.kv_heads, s.head_dim).transpose(1, 2), cos, sin
        )
        share = s.heads // s.kv_heads
        out = attend(q, k.repeat_interleave(share, 1), v.repeat_interleave(share, 1))
        y: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, time, -1))
        return y


class Feed(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, time, hidden]."""
        y: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and added."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = Feed(shape)
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=shape.epsilon)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=shape.epsilon)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [batch, time, hidden]."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class Nano(nn.Module):
    """The whole network with tied embeddings. Parameters are `model.*` in the exported file."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.epsilon)
        self._initialise()

    def _initialise(self) -> None:
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2 and "embed" not in name:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5 * 0.6)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(parameter)

    def states(self, ids: Tensor) -> Iterator[Tensor]:
        """ids [batch, time] -> the hidden states [batch, time, hidden] behind each layer."""
        cos, sin = rotation(self.shape, ids.shape[1])
        x: Tensor = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
            yield x

    def hidden(self, ids: Tensor) -> Tensor:
        """ids [batch, time] -> the last hidden states, normed."""
        *_, last = self.states(ids)
        y: Tensor = self.norm(last)
        return y

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., hidden] -> logits [..., vocabulary]."""
        return F.linear(hidden, self.embed_tokens.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """ids [batch, time] -> logits [batch, time, vocabulary]."""
        return self.logits(self.hidden(ids))
