"""The way of weights to a device: from the files that hold them, piece by piece through pinned
memory.

What is done to weights before they are used (norms folded in, rows reordered) is done on the device
with what arrived there. So the host never holds a weight, only two pieces, however large the model
is. Knows tensors and files; knows no model.
"""

from __future__ import annotations

from torch import Tensor

from lmprog.runtime.engine.device.driver import DeviceEvent, Driver
from lmprog.runtime.engine.model.stored_weights import WeightSource
from lmprog.runtime.engine.torch_engine.weights import as_tensor

PIECE_BYTES = 32 << 20
"""Enough that a copy is much longer than its beginning."""


class WeightTransfer:
    """Copies host tensors to `driver`'s device; while one piece is on its way the next is read."""

    def __init__(self, driver: Driver, piece_bytes: int = PIECE_BYTES) -> None:
        self._driver = driver
        self._pieces = [driver.pinned(piece_bytes) for _ in range(2)]
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
        size = len(self._pieces[0])
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
