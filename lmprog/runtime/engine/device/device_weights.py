"""A model's weights where a device's products and kernels read them.

In the model's own type they are those of the decoder on the processor, with norms folded into
products. Weights of 8 or 4 bits are a checkpoint's own, so norms are kept beside them. Knows names
and places; computes nothing but rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmprog.errors import NotSupported
from lmprog.runtime.engine.device.driver import Driver
from lmprog.runtime.engine.device.products import Product
from lmprog.runtime.engine.device.quantized_weight import (
    CHUNK_BYTES,
    QuantizedWeight,
    WeightKind,
    joined,
    of_floats,
    rounded,
)
from lmprog.runtime.engine.device.tree_attention import placed
from lmprog.runtime.engine.device.weight_transfer import WeightTransfer
from lmprog.runtime.engine.model.derived_weights import Float8Weight
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.torch_engine.decoder import Weights
from lmprog.runtime.engine.torch_engine.weights import Read, ReadFloat8, layer_vectors, paired_rows


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    """As `LayerWeights`, each where it is read."""

    qkv: Product
    out: Product
    gate_up: Product
    down: Product
    qkv_bias: Tensor | None
    out_bias: Tensor | None
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    qk_norm: Tensor | None
    attention_norm: Tensor | None = None  # [hidden]; None: folded into the product after it
    mlp_norm: Tensor | None = None


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """All of a model's."""

    embedding: Product  # [vocab, hidden]
    layers: tuple[DeviceLayer, ...]
    norm: Tensor  # [hidden]
    head: Product

    @property
    def dtype(self) -> torch.dtype:
        """Of activations."""
        return self.norm.dtype

    @property
    def has_quantized(self) -> bool:
        products = [one for layer in self.layers for one in (layer.qkv, layer.out, layer.down)]
        return any(isinstance(one, QuantizedWeight) for one in (*products, self.head))

    @property
    def num_weights(self) -> int:
        """Those that a token is multiplied with on its way to logits."""
        products = [
            w for layer in self.layers for w in (layer.qkv, layer.out, layer.gate_up, layer.down)
        ]
        return self.head.numel() + sum(weight.numel() for weight in products)


def device_weights(weights: Weights, driver: Driver) -> DeviceWeights:
    """`weights` on the driver's device: products where torch reads them, what kernels read in
    memory of the driver.
    """

    def moved(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.to(driver.device)

    def there(tensor: Tensor) -> Tensor:
        return tensor.to(driver.device)

    layers = tuple(
        DeviceLayer(
            qkv=there(layer.qkv),
            out=there(layer.out),
            gate_up=there(layer.gate_up),
            down=there(layer.down),
            qkv_bias=moved(layer.qkv_bias),
            out_bias=moved(layer.out_bias),
            gate_up_bias=moved(layer.gate_up_bias),
            down_bias=moved(layer.down_bias),
            qk_norm=None if layer.qk_norm is None else placed(driver, layer.qk_norm),
        )
        for layer in weights.layers
    )
    embedding = there(weights.embedding)
    is_tied = weights.head.data_ptr() == weights.embedding.data_ptr()
    head = embedding.t() if is_tied else there(weights.head)
    return DeviceWeights(embedding, layers, placed(driver, weights.norm), head)


@dataclass(frozen=True, slots=True)
class WeightReading:
    """How weights are read and what they become."""

    read: Read
    """Gives weights that are on the device already."""
    read_float8: ReadFloat8
    """Gives what is still on the host ..."""
    transfer: WeightTransfer
    """... and goes to the device by this."""
    kind: WeightKind
    """int8 and int4: every product is rounded, as on the processor; fp8: what is stored so stays
    so, the rest is of the model's type."""
    dtype: torch.dtype


def quantized_weights(shape: ModelShape, reading: WeightReading, driver: Driver) -> DeviceWeights:
    """The weights of a model, each product on the device before the next is read."""
    if shape.norms != "before" or any(size % 8 for size in (shape.hidden, shape.inner)):
        raise NotSupported(f"no {reading.kind} products for a model of {shape.hidden} dimensions")
    loader = _Loader(shape, reading, driver)
    layers = tuple(loader.layer(index) for index in range(shape.num_layers))
    norm = placed(driver, loader.vector("model.norm.weight"))
    embedding_name = "model.embed_tokens.weight"
    if not shape.tied_head:
        embedding: Product = loader.vector(embedding_name)
        return DeviceWeights(embedding, layers, norm, loader.product(["lm_head.weight"]))
    if reading.kind == "fp8":
        embedding = loader.vector(embedding_name)
        return DeviceWeights(embedding, layers, norm, embedding.t())
    both = loader.product([embedding_name])
    return DeviceWeights(both, layers, norm, both)


class _Loader:
    """Reads products one by one."""

    def __init__(self, shape: ModelShape, reading: WeightReading, driver: Driver) -> None:
        self._shape = shape
        self._reading = reading
        self._driver = driver
        heads = {"q": shape.num_heads, "k": shape.num_kv_heads}
        self._orders = {
            f"self_attn.{name}_proj.weight": paired_rows(shape, count).to(driver.device)
            for name, count in heads.items()
        }

    def layer(self, index: int) -> DeviceLayer:
        prefix = f"model.layers.{index}."
        own = layer_vectors(self._shape, self._reading.dtype, self._reading.read, index)

        def there(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else placed(self._driver, tensor)

        def product(*names: str) -> Product:
            return self.product([f"{prefix}{name}_proj.weight" for name in names])

        return DeviceLayer(
            qkv=product("self_attn.q", "self_attn.k", "self_attn.v"),
            out=product("self_attn.o"),
            gate_up=product("mlp.gate", "mlp.up"),
            down=product("mlp.down"),
            qkv_bias=there(own.qkv_bias),
            out_bias=there(own.out_bias),
            gate_up_bias=there(own.gate_up_bias),
            down_bias=there(own.down_bias),
            qk_norm=there(own.qk_norm),
            attention_norm=there(own.attention_norm),
            mlp_norm=there(own.mlp_norm),
        )

    def vector(self, name: str) -> Tensor:
        """A weight as it is, in the model's type."""
        return self._reading.read(name).to(self._reading.dtype)

    def product(self, names: list[str]) -> Product:
        """Several weights as one, where the device reads it."""
        if self._reading.kind != "fp8":
            return self._placed([self._rounded(name) for name in names])
        stored = [self._reading.read_float8(name) for name in names]
        parts = [self._small(one) for one in stored if one is not None and _fits(one)]
        if len(parts) == len(names) and len({one.group for one in parts}) == 1:
            ordered = zip(parts, names, strict=True)
            return self._placed([self._ordered(part, name) for part, name in ordered])
        return torch.cat([self._plain(name) for name in names]).t().contiguous()

    def _rounded(self, name: str) -> QuantizedWeight:
        return self._ordered(rounded(self._reading.read(name), self._reading.kind), name)

    def _small(self, stored: Float8Weight) -> QuantizedWeight:
        inputs, group = stored.bits.shape[1], stored.group
        group = group if group < inputs else -(-inputs // CHUNK_BYTES) * CHUNK_BYTES
        sent = self._reading.transfer.sent
        bits, scales = (sent(torch.from_numpy(one.copy())) for one in (stored.bits, stored.scales))
        return of_floats(bits, scales, group)

    def _ordered(self, weight: QuantizedWeight, name: str) -> QuantizedWeight:
        order = self._order(name)
        return weight if order is None else weight.rows(order)

    def _plain(self, name: str) -> Tensor:
        order, weight = self._order(name), self.vector(name)
        return weight if order is None else weight[order]

    def _order(self, name: str) -> Tensor | None:
        return next((rows for end, rows in self._orders.items() if name.endswith(end)), None)

    def _placed(self, parts: list[QuantizedWeight]) -> QuantizedWeight:
        whole, driver = joined(parts), self._driver
        words, scales = placed(driver, whole.words), placed(driver, whole.scales)
        return QuantizedWeight(whole.kind, words, scales, whole.inputs, whole.group)


def _fits(stored: Float8Weight) -> bool:
    """Whether its groups are whole chunks."""
    return stored.group % CHUNK_BYTES == 0 or stored.group >= stored.bits.shape[1]
