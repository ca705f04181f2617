"""A model's weights where a device's products and kernels read them, and their way there.

In the model's own type they are those of the decoder on the processor, with norms folded into
products. Weights of 8 or 4 bits are a checkpoint's own, so norms are kept beside them. They come
from the files that hold them, piece by piece through pinned memory, and what is done to them
before they are used (norms folded in, rows reordered) is done on the device: so the host never
holds a weight, only two pieces, however large the model is. Knows names and places; computes
nothing but rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lmprog.errors import NotSupported
from lmprog.runtime.engine.device.driver import DeviceEvent, Driver
from lmprog.runtime.engine.device.products import (
    CHUNK_BYTES,
    Product,
    QuantizedWeight,
    WeightKind,
    joined,
    of_floats,
    rounded,
)
from lmprog.runtime.engine.device.tree_attention import placed
from lmprog.runtime.engine.model.derived_weights import Float8Weight
from lmprog.runtime.engine.model.shape import ModelShape, Norms
from lmprog.runtime.engine.model.stored_weights import WeightSource
from lmprog.runtime.engine.model.weight_table import EMBEDDING, Matrix, Part, head, norm, products
from lmprog.runtime.engine.torch_engine.decoder import MixtureWeights, Weights
from lmprog.runtime.engine.torch_engine.weights import (
    Read,
    ReadFloat8,
    as_tensor,
    layer_vectors,
    paired,
)

PIECE_BYTES = 32 << 20
"""Enough that a copy is much longer than its beginning."""


class WeightTransfer:
    """Copies host tensors to `driver`'s device; while one piece is on its way the next is read."""

    def __init__(self, driver: Driver, piece_bytes: int = PIECE_BYTES) -> None:
        self._driver, self._most = driver, piece_bytes
        self._pieces: list[Tensor] = []
        self._sent: list[DeviceEvent | None] = [None, None]

    def sent(self, tensor: Tensor) -> Tensor:
        """The same on the device. Returns when it is there."""
        there = self._driver.memory(tensor.nbytes)
        self._send(tensor.contiguous().view(-1).view(there.dtype), there)
        self._driver.event().wait()
        return there.view(tensor.dtype).view(tensor.shape)

    def kept(self, tensor: Tensor) -> Tensor:
        """A tensor of the device in memory of the driver, where kernels may read it."""
        memory = self._driver.memory(tensor.nbytes).view(tensor.dtype).view(tensor.shape)
        self._driver.copy(memory, tensor)
        self._driver.event().wait()
        return memory

    def _send(self, source: Tensor, target: Tensor) -> None:
        """Both in bytes."""
        size = self._make_room(len(source))
        for number, start in enumerate(range(0, len(source), size)):
            turn = number % 2
            before = self._sent[turn]
            if before is not None:
                before.wait()  # the piece may still be read
            part = source[start : start + size]
            piece = self._pieces[turn][: len(part)]
            piece.copy_(part)
            self._driver.copy(target[start : start + len(part)], piece)
            self._sent[turn] = self._driver.event()

    def _make_room(self, num_bytes: int) -> int:
        """Bytes of a piece: as many as a weight has, by powers of two, and no more than allowed."""
        size = min(self._most, 1 << max(0, num_bytes - 1).bit_length())
        if not self._pieces or len(self._pieces[0]) < size:
            for before in self._sent:
                if before is not None:
                    before.wait()
            self._pieces = [self._driver.pinned(size) for _ in range(2)]
        return len(self._pieces[0])


class TransferredWeights:
    """The weights of `source`, each sent when it is asked for; what the host had of it is let
    go.
    """

    def __init__(self, source: WeightSource, transfer: WeightTransfer) -> None:
        self._source, self._transfer = source, transfer

    def read(self, name: str) -> Tensor:
        """On the device, in the type that the file has."""
        array = self._source.array(name)
        there = self._transfer.sent(as_tensor(array))
        self._source.release(name, 0, len(array))
        return there


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
    mixture: MixtureWeights | None = None  # in place of gate_up and down, which are empty
    sinks: Tensor | None = None  # [heads]
    norms: Mapping[str, Tensor] = field(default_factory=dict)
    """By place (`Norms`), those of what a half gives."""


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """All of a model's."""

    embedding: Product  # [vocab, hidden]
    layers: tuple[DeviceLayer, ...]
    norm: Tensor  # [hidden]
    head: Product
    experts_met: int = 0
    """By each token in a layer with a mixture."""

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
        mixtures = [layer.mixture for layer in self.layers if layer.mixture is not None]
        met = sum(one.router.numel() + self.experts_met * one.num_met for one in mixtures)
        return self.head.numel() + sum(weight.numel() for weight in products) + met


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
            mixture=None if layer.mixture is None else layer.mixture.kept(there),
            sinks=layer.sinks,
            norms={name: placed(driver, norm) for name, norm in layer.norms.items()},
        )
        for layer in weights.layers
    )
    embedding = there(weights.embedding)
    is_tied = weights.head.data_ptr() == weights.embedding.data_ptr()
    head = embedding.t() if is_tied else there(weights.head)
    last = placed(driver, weights.norm)
    return DeviceWeights(embedding, layers, last, head, weights.experts_met)


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
    if any(size % 8 for size in (shape.hidden, shape.inner)):
        raise NotSupported(f"no {reading.kind} products for a model of {shape.hidden} dimensions")
    is_scaled = shape.norms_add_one or shape.residual_scale != 1.0 or shape.logit_scale != 1.0
    if shape.norms != Norms() or is_scaled or shape.mixture is not None:
        raise NotSupported(
            f"no {reading.kind} products on a device for models with mixtures, scaled residuals or "
            "other norms than Llama's; leave out quantize, or device"
        )
    loader = _Loader(shape, reading, driver)
    layers = tuple(loader.layer(index) for index in range(shape.num_layers))
    last = placed(driver, loader.plain(norm(shape).parts[0].name))
    if not shape.tied_head:
        embedding: Product = loader.plain(EMBEDDING)
        return DeviceWeights(embedding, layers, last, loader.product(head(shape)))
    if reading.kind == "fp8":
        embedding = loader.plain(EMBEDDING)
        return DeviceWeights(embedding, layers, last, embedding.t())
    both = loader.product(head(shape))
    return DeviceWeights(both, layers, last, both)


class _Loader:
    """Reads products one by one."""

    def __init__(self, shape: ModelShape, reading: WeightReading, driver: Driver) -> None:
        self._shape = shape
        self._reading = reading
        self._driver = driver
        self._orders = {
            heads: paired(shape, torch.arange(heads * shape.head_dim), heads).to(driver.device)
            for heads in (shape.num_heads, shape.num_kv_heads)
        }
        """By a number of heads: which rows of a checkpoint's weight are those of the fused form."""

    def layer(self, index: int) -> DeviceLayer:
        own = layer_vectors(self._shape, self._reading.dtype, self._reading.read, index)
        made = {name: self.product(one) for name, one in products(self._shape, index).items()}

        def there(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else placed(self._driver, tensor)

        return DeviceLayer(
            qkv=made["qkv"],
            out=made["out"],
            gate_up=made["gate_up"],
            down=made["down"],
            qkv_bias=there(own.qkv_bias),
            out_bias=there(own.out_bias),
            gate_up_bias=there(own.gate_up_bias),
            down_bias=there(own.down_bias),
            qk_norm=there(own.qk_norm),
            attention_norm=there(own.attention_norm),
            mlp_norm=there(own.mlp_norm),
        )

    def plain(self, name: str) -> Tensor:
        """A weight as it is, in the model's type."""
        return self._reading.read(name).to(self._reading.dtype)

    def product(self, product: Matrix) -> Product:
        """Several weights as one, where the device reads it."""
        parts = product.parts
        if self._reading.kind != "fp8":
            return self._placed([self._rounded(part) for part in parts])
        stored = [self._reading.read_float8(part.weight) for part in parts]
        small = [self._small(one) for one in stored if one is not None and _fits(one)]
        if len(small) == len(parts) and len({one.group for one in small}) == 1:
            ordered = zip(small, parts, strict=True)
            return self._placed([self._ordered(one, part) for one, part in ordered])
        return torch.cat([self._ordered_plain(part) for part in parts]).t().contiguous()

    def _rounded(self, part: Part) -> QuantizedWeight:
        return self._ordered(rounded(self._reading.read(part.weight), self._reading.kind), part)

    def _small(self, stored: Float8Weight) -> QuantizedWeight:
        inputs, group = stored.bits.shape[1], stored.group
        group = group if group < inputs else -(-inputs // CHUNK_BYTES) * CHUNK_BYTES
        sent = self._reading.transfer.sent
        bits, scales = (sent(torch.from_numpy(one.copy())) for one in (stored.bits, stored.scales))
        return of_floats(bits, scales, group)

    def _ordered(self, weight: QuantizedWeight, part: Part) -> QuantizedWeight:
        return weight.rows(self._orders[part.heads]) if part.heads else weight

    def _ordered_plain(self, part: Part) -> Tensor:
        weight = self.plain(part.weight)
        return weight[self._orders[part.heads]] if part.heads else weight

    def _placed(self, parts: list[QuantizedWeight]) -> QuantizedWeight:
        whole, driver = joined(parts), self._driver
        words, scales = placed(driver, whole.words), placed(driver, whole.scales)
        return QuantizedWeight(whole.kind, words, scales, whole.inputs, whole.group)


def _fits(stored: Float8Weight) -> bool:
    """Whether its groups are whole chunks."""
    return stored.group % CHUNK_BYTES == 0 or stored.group >= stored.bits.shape[1]
