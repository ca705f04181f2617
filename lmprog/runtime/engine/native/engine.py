"""The native engine: a batch in, logits out, in one call of C++
(`kernels/include/lmprog_engine.h`).

Owns packed weights, key/value memory and the handle; has that memory made ready before a step
writes to it. `page_memory` has it as bytes. Knows batches and numpy; knows no request, no torch.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from ctypes import byref, c_void_p
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmprog.errors import NotSupported
from lmprog.native import may_await_threads
from lmprog.radix.frames import WindowPool
from lmprog.runtime.engine.machine.resources import Bytes, Region, aligned
from lmprog.runtime.engine.model.resolution import StateSlots
from lmprog.runtime.engine.model.rope import Rope, frequencies
from lmprog.runtime.engine.model.shape import ModelShape
from lmprog.runtime.engine.model.weight_table import up32
from lmprog.runtime.engine.native import interface
from lmprog.runtime.engine.native.interface import (
    PATHS,
    CAttentionBatch,
)
from lmprog.runtime.engine.native.packing import Packed
from lmprog.runtime.engine.native.page_memory import (
    NativePageMemory,
    SlotMemory,
    c_attention,
    c_mixture,
    c_recurrent,
    given_bytes,
    kv_sizes,
    layers_apart,
    page_bytes,
    state_bytes,
    state_parts,
)
from lmprog.runtime.scheduling.batch import ApartPages, Batch, Ints

BLOCK_SLOTS = 16


# --- memory ahead of steps ------------------------------------------------------------------------

TOKENS_AHEAD = 1024
"""So much memory is asked for ahead of steps, at most."""
TOKENS_AT_REST = 4096
"""So much in a pause, at most, and no more than an eighth of all."""
_TOKENS_AT_ONCE = 256
"""In a pause. A step that comes meanwhile competes with no more than that."""
_PAUSE_SECONDS = 0.1


class MemoryAhead:
    """`populate(first, last)` has the memory of these pages given; False: the system cannot, and is
    not asked again. One thread calls the methods.

    A pause begins `pause_seconds` after a step. There is none before the first step, so that a
    short program takes no more memory than it needs, and none between `restart` and the next step.

    The first write to each huge page of the system's takes milliseconds, and running streams
    would wait for it in the middle of a step. Pages are allocated from the lowest on, those that
    were freed first (`radix.PageAllocator`), so what comes next lies behind the highest page ever
    written: its memory is asked for in a thread, while steps go on where it will be needed soon,
    and more of it in the pauses between them.
    """

    def __init__(
        self,
        populate: Callable[[int, int], bool],
        num_pages: int,
        page_size: int,
        pause_seconds: float = _PAUSE_SECONDS,
    ) -> None:
        self._populate = populate
        self._num_pages = num_pages
        self._num_ahead = max(1, TOKENS_AHEAD // page_size)
        self._num_at_rest = min(TOKENS_AT_REST // page_size, num_pages // 8)
        self._num_at_once = max(1, _TOKENS_AT_ONCE // page_size)
        self._pause_seconds = pause_seconds
        self._state = threading.Condition()
        self._highest = -1  # page that a step has written to
        self._given = 0  # pages below were asked for
        self._wanted = 0  # pages below are to be asked for at once
        self._is_asking = self._is_closed = False
        self._is_possible = True
        self._is_in_step = False
        self._step_ended = 0.0
        self._thread: threading.Thread | None = None

    def reach(self, page: int) -> None:
        """A step begins that writes to pages up to this one. Asks for more memory once half of what
        was asked for ahead is written to.
        """
        self._is_in_step = True
        needed = min(page + 1 + self._num_ahead // 2, self._num_pages)
        is_short = needed > max(self._given, self._wanted)
        if not is_short and page <= self._highest:
            return
        with self._state:
            waits_for_more = self._given >= self._goal
            self._highest = max(page, self._highest)
            if is_short:
                self._wanted = min(page + 1 + self._num_ahead, self._num_pages)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kv-memory", daemon=True)
                self._thread.start()
            if is_short or waits_for_more:
                self._state.notify_all()

    def step_ended(self) -> None:
        """A pause begins some time from now, unless another step does."""
        self._is_in_step, self._step_ended = False, time.monotonic()

    def restart(self) -> None:
        """Memory of pages is about to be given back: nothing counts as given. Returns when nothing
        is being given any more.
        """
        with self._state:
            self._state.wait_for(self._is_quiet)
            self._given = self._wanted = 0
            self._highest = -1

    def close(self) -> None:
        """Ends the thread."""
        with self._state:
            self._is_closed = True
            self._state.notify_all()
        # Garbage collection runs in any thread, also in this one.
        if self._thread not in (None, threading.current_thread()):
            self._thread.join()

    @property
    def _goal(self) -> int:
        """Pages below are to be asked for in a pause."""
        if self._highest < 0:
            return 0
        return min(self._highest + 1 + self._num_at_rest, self._num_pages)

    def _is_quiet(self) -> bool:
        return not self._is_possible or (not self._is_asking and self._given >= self._wanted)

    def _run(self) -> None:
        while (stretch := self._next()) is not None:
            is_possible = False  # also where it raises: nobody waits for a thread that ended
            try:
                is_possible = self._populate(*stretch)
            finally:
                with self._state:
                    self._is_asking, self._is_possible = False, is_possible
                    self._state.notify_all()

    def _next(self) -> tuple[int, int] | None:
        """Waits until pages are to be asked for; None: never again."""
        with self._state:
            while self._is_possible and not self._is_closed:
                first, goal = self._given, self._goal
                if first < self._wanted:
                    self._given = self._wanted
                elif first >= goal:
                    self._state.wait()
                    continue
                elif (left := self._until_pause()) > 0:
                    self._state.wait(left)
                    continue
                else:
                    self._given = min(first + self._num_at_once, goal)
                self._is_asking = True
                return first, self._given
        return None

    def _until_pause(self) -> float:
        """Seconds that must pass at least; 0 or less: it is one."""
        if self._is_in_step:
            return _PAUSE_SECONDS
        return self._step_ended + self._pause_seconds - time.monotonic()


Logits = NDArray[np.float32]

_EMBEDDING_TYPES = {np.dtype(np.float32): interface.F32, np.dtype(np.float16): interface.F16}
_EMBEDDING_TYPES[np.dtype(np.uint16)] = interface.BF16


@dataclass(frozen=True, slots=True)
class KvMemory:
    """How keys and values are kept. `kv_dtype` is float32 or bfloat16. `states` are slots for what
    recurrent layers keep, None where there are none.
    """

    kv_dtype: str
    page_size: int
    num_pages: int
    states: StateSlots | None = None
    windows: WindowPool | None = None
    """Layers with windows have their pages apart, in frames; None: as all others."""

    @property
    def num_numbers(self) -> int:
        """Pages of layers that see all positions."""
        return self.num_pages if self.windows is None else self.windows.num_numbers

    @property
    def num_frames(self) -> int:
        return 0 if self.windows is None else self.windows.num_frames


@dataclass(frozen=True, slots=True)
class PackedAdapters:
    """LoRA adapters for the engine: the C interface's array [adapters][layers][products]."""

    low_ranks: ctypes.Array[interface.CLowRank]
    digests: Mapping[str, str]
    """By name, in the order of their numbers."""
    held: tuple[object, ...]
    """What the array points into."""


class NativeEngine:
    """A packed model with its key/value memory. One thread calls `forward`.

    `path` names one of `PATHS` (None: the best of this processor).
    """

    name = "native"

    def __init__(
        self,
        shape: ModelShape,
        packed: Packed,
        memory: KvMemory,
        *,
        location: Path | None = None,
        context_len: int | None = None,
        threads: int = 1,
        path: str | None = None,
    ) -> None:
        self.location = location
        self.context_len = shape.context_len if context_len is None else context_len
        self.vocab_size = shape.vocab_size
        self.num_weights = packed.num_weights
        self.num_pages = memory.num_pages
        self.adapters: dict[str, str] = {}
        """Digests by name; rows' numbers count them from 1 on."""
        self.memory = memory
        self.states, self.windows = memory.states, memory.windows
        self.hidden = shape.hidden
        self.packed = packed
        self._library = interface.opened()
        self._shape = shape
        self._pid = os.getpid()
        self._held: list[object] = []  # what the C structures point into
        self._kv_parts: list[Bytes] = []  # keys and values, layer by layer
        self._apart_parts: list[Bytes] = []  # those of layers whose pages lie apart
        self._state_parts: list[Bytes] = []  # states, layer by layer
        self._model = self._described(shape, packed)
        self._handle = self._opened(threads, path or os.environ.get("LMPROG_ENGINE_PATH"))
        self._logits = np.empty((0, up32(shape.vocab_size)), np.float32)
        self._ahead: MemoryAhead | None = None
        self._frames_ahead: MemoryAhead | None = None
        if self.has_page_memory:
            pages = self.page_memory()
            self._ahead = MemoryAhead(pages.populate, memory.num_numbers, memory.page_size)
            if memory.windows is not None and pages.slots is not None:
                populate, count = pages.slots.populate, memory.num_frames
                self._frames_ahead = MemoryAhead(populate, count, memory.page_size)

    @property
    def dtype(self) -> str:
        """The type of the weights in products."""
        return self.packed.weight_type

    @property
    def kv_dtype(self) -> str:
        return self.memory.kv_dtype

    @property
    def label(self) -> str:
        """For people."""
        return f"native, {self.path}"

    @property
    def path(self) -> str:
        """The instruction set in use."""
        name: bytes = self._library.lmprog_engine_path(self._handle)
        return name.decode()

    def take_adapters(self, packed: PackedAdapters) -> None:
        """Those that rows of later batches may have."""
        self._held.append(packed)
        self.adapters = dict(packed.digests)
        self._library.lmprog_engine_adapters(self._handle, packed.low_ranks, len(packed.digests))

    def forward(self, batch: Batch) -> Logits:
        """Computes the batch's tokens and keeps their keys and values in its slots. # [L, vocab]

        The logits are overwritten by the next call.
        """
        if batch.page_size != self.memory.page_size:
            raise ValueError(
                f"the batch has pages of {batch.page_size} slots, the memory of "
                f"{self.memory.page_size}"
            )
        tokens, positions, logit_tokens, copies = _pointers(
            batch.tokens, batch.positions, batch.logit_tokens, batch.copies
        )
        step = interface.CStep(
            rows=self._rows(batch, batch),
            num_tokens=len(batch.tokens),
            num_logits=len(batch.logit_tokens),
            num_copies=len(batch.copies),
            tokens=tokens,
            positions=positions,
            logit_tokens=logit_tokens,
            copies=copies,
        )
        if self._ahead is not None and len(batch.write_slots):
            self._ahead.reach(int(batch.write_slots.max()) // batch.page_size)
        if (apart := batch.apart) is not None:
            rows = self._rows(batch, apart)
            step.apart = ctypes.pointer(rows)
            (step.copies_apart,) = _pointers(apart.copies)
            if self._frames_ahead is not None and len(apart.write_slots):
                self._frames_ahead.reach(int(apart.write_slots.max()) // batch.page_size)
        adapters = batch.adapters
        if adapters is not None:
            adapters = np.repeat(adapters, np.diff(batch.row_starts))
            (step.adapters,) = _pointers(adapters)
        if batch.states is not None:
            of = batch.states
            step.state_sources, step.state_targets, step.snapshots = _pointers(
                of.sources, of.targets, of.snapshots
            )
            step.num_snapshots = len(of.snapshots)
        wanted = len(batch.logit_tokens)
        if wanted > len(self._logits):
            self._take_logits(wanted)
        num_rows = len(batch.kv_lens)
        order = np.empty((2, num_rows), np.int32)
        if num_rows > 1:
            step.rows.order, step.rows.common = _pointers(order[0], order[1])
            self._library.lmprog_attention_group(
                byref(step.rows), batch.page_size, step.rows.order, step.rows.common
            )
            if apart is not None:  # a page has one frame, so rows share frames as they share pages
                rows.order, rows.common = step.rows.order, step.rows.common
        to, stride = c_void_p(self._logits.ctypes.data), self._logits.shape[1]
        is_refused = self._library.lmprog_engine_step(self._handle, byref(step), to, stride)
        for ahead in (self._ahead, self._frames_ahead):
            if ahead is not None:
                ahead.step_ended()
        if is_refused:
            what = "a token, a position, a logit, an adapter or a state"
            raise ValueError(f"the batch names {what} that is out of range")
        return self._logits[:wanted, : self.vocab_size]

    def predict(self, batch: Batch, slots: Ints | None, given: Logits) -> Logits:
        """Where the last layer predicts: the logits of what may follow each row's one token, whose
        key and value it keeps. `given` [rows, hidden] has what the layer gives afterwards. The
        layers before it gave what is in these slots at the tokens before, or `given` where it is
        asked again. # [rows, vocab], overwritten by the next call
        """
        assert given.flags.c_contiguous
        assert given.shape == (batch.num_rows, self._shape.hidden)
        tokens, positions = _pointers(batch.tokens, batch.positions)
        rows, count = self._rows(batch, batch), batch.num_rows
        (wanted,) = _pointers(batch.logit_tokens)
        step = interface.CStep(rows, count, count, 0, tokens, positions, wanted)
        if slots is not None:
            step.state_sources, step.state_targets = _pointers(slots, slots)
        if count > len(self._logits):
            self._take_logits(count)
        to, stride = c_void_p(self._logits.ctypes.data), self._logits.shape[1]
        into = c_void_p(given.ctypes.data)
        if self._library.lmprog_engine_predict(self._handle, byref(step), into, to, stride):
            raise ValueError("no layer predicts, or a token or a state is out of range")
        return self._logits[:count, : self.vocab_size]

    def _take_logits(self, wanted: int) -> None:
        self._logits = np.empty((wanted, self._logits.shape[1]), np.float32)

    @property
    def computed_by(self) -> str:
        """What the bits of its keys and values depend on besides the model's fingerprint: kernels,
        instruction set, and how its config is understood here.
        """
        kernels = Path(self._library._name).name
        return f"{kernels} {self.path} {self._shape!r}"

    @property
    def has_page_memory(self) -> bool:
        """Whether a page is a stretch of bytes of its own."""
        return self.memory.page_size % BLOCK_SLOTS == 0

    def page_memory(self) -> NativePageMemory:
        """The contents of pages as bytes; raises NotSupported where pages have no bytes of their
        own.
        """
        if not self.has_page_memory:
            raise NotSupported(
                f"a second tier needs a page size that is a multiple of {BLOCK_SLOTS}, not "
                f"{self.memory.page_size}"
            )
        memory = NativePageMemory(self._pool, self._kv_parts, self.memory.num_numbers)
        if (windows := self.windows) is not None:
            count, size = windows.num_frames, memory.page_bytes or windows.frame_bytes
            memory.slots = SlotMemory(self._pool, self._apart_parts, count, size)
        if self.states is not None:  # a slot more, for rows that keep nothing
            count, size = self.states.num_slots + 1, memory.page_bytes
            memory.slots = SlotMemory(self._state_pool, self._state_parts, count, size)
        return memory

    @property
    def parts_of_state(self) -> int:
        """Pages that a state takes in a second tier."""
        page = page_bytes(self._shape, self.kv_dtype, self.memory.page_size)
        return state_parts(state_bytes(self._shape), page)

    def give_back(self, pages: Sequence[int]) -> None:
        """Returns the memory of these free pages, in ascending order, to the system."""
        for ahead in (self._ahead, self._frames_ahead):
            if ahead is not None:
                ahead.restart()
        self.page_memory().give_back(pages)

    def sample(self, call: object) -> None:
        """Runs a sampler's call, which it has filled, on this engine's threads."""
        self._library.lmprog_engine_sample(self._handle, call)

    def close(self) -> None:
        """Stops the threads. The engine cannot be used afterwards."""
        if self._handle:
            self._library.lmprog_engine_close(self._handle)
            self._handle = c_void_p()
        for ahead in (self._ahead, self._frames_ahead):
            if ahead is not None:
                ahead.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) and may_await_threads(self._pid):
            self.close()

    @staticmethod
    def _rows(batch: Batch, places: Batch | ApartPages) -> CAttentionBatch:
        """The batch's rows, with pages and slots of `places`."""
        arrays = batch.row_starts, batch.kv_lens, batch.page_starts, places.pages
        return CAttentionBatch(
            len(batch.kv_lens),
            len(batch.write_tokens),
            *_pointers(*arrays, batch.write_tokens, places.write_slots),
        )

    def _opened(self, threads: int, path: str | None) -> c_void_p:
        handle = self._library.lmprog_engine_open(
            byref(self._model), threads, None if path is None else path.encode()
        )
        if not handle:
            raise NotSupported(
                f"the native engine cannot run with {threads} threads on the path {path!r}: "
                f"there are {', '.join(PATHS)}, and this processor may lack some of them"
            )
        return c_void_p(handle)

    def _described(self, shape: ModelShape, packed: Packed) -> interface.CModel:
        layers = (interface.CLayer * shape.num_layers)()
        attention = c_attention(shape, self.memory.kv_dtype, self.memory.page_size)
        apart = frozenset[int]() if self.windows is None else frozenset(layers_apart(shape))
        sizes = self._kv_sizes(attention, apart)
        recurrent = c_recurrent(shape, self.memory.states)
        state_bytes = int(self._library.lmprog_engine_state_bytes(byref(recurrent)))
        state_bytes *= recurrent.num_slots + 1
        ones = np.ones(max(heads.head_dim for heads in map(shape.heads_of, range(len(layers)))))
        ones = ones.astype(np.float32)
        self._pool = pool = Region(sum(aligned(size) for both in sizes.values() for size in both))
        given = given_bytes(shape) * (recurrent.num_slots + 1) if shape.predicts else 0
        self._state_pool = Region(aligned(state_bytes) * shape.num_recurrent + aligned(given))
        for index, (layer, parts) in enumerate(zip(layers, packed.layers, strict=True)):
            layer.shape, layer.inner = attention[index], shape.inner_of(index)
            layer.carried, layer.mlp_carried = shape.carried_of(index)
            for name, part in parts.items():
                setattr(layer.attention if name == "sinks" else layer, name, part.ctypes.data)
            if shape.recurrent_of(index) is not None:
                self._take_states(layer, index, recurrent, state_bytes)
                continue
            if not shape.has_mixer(index):
                continue
            source = shape.source_of(index)
            layer.reads = source is not None
            layer.apart = (index if source is None else source) in apart
            if source is not None:
                layer.keys, layer.values = layers[source].keys, layers[source].values
            else:
                taken = [pool.take(size) for size in sizes[index]]
                layer.keys, layer.values = (part.ctypes.data for part in taken)
                (self._apart_parts if layer.apart else self._kv_parts).extend(taken)
            if index == shape.predictor:
                self._state_parts.append(self._state_pool.take(given))
                layer.given = self._state_parts[-1].ctypes.data
            if shape.value_norm:
                layer.v_norm = ones.ctypes.data
            rope = shape.rope_of(index)
            layer.rope = -1 if rope is None else rope
            layer.attention.scale = shape.attention_scale or shape.heads_of(index).head_dim ** -0.5
            layer.attention.window = shape.windows[index] or 0
            layer.attention.softcap = shape.attention_softcap or 0.0
        ropes = (interface.CRope * len(shape.ropes))(
            *(self._rope(rope, shape.rotated(at)) for at, rope in enumerate(shape.ropes))
        )
        self._held += [layers, ropes, packed, ones]
        described = interface.CModel(
            vocab=shape.vocab_size,
            hidden=shape.hidden,
            num_layers=shape.num_layers,
            num_ropes=len(shape.ropes),
            weight_type=interface.TYPES[packed.weight_type],
            activation=interface.ACTIVATIONS[shape.activation],
            growth=shape.growth.by,
            grows_every=shape.growth.every,
            mixture=c_mixture(shape),
            recurrent=recurrent,
            logit_softcap=shape.logit_softcap or 0.0,
            layers=layers,
            ropes=ropes,
            head=packed.head.ctypes.data,
            embedding=None if packed.embedding is None else packed.embedding.ctypes.data,
            embedding_type=interface.F32
            if packed.embedding is None
            else _EMBEDDING_TYPES[packed.embedding.dtype],
            norm=packed.norm.ctypes.data,
            **{name: getattr(shape, name) for name in _NAMED_AS_IN_C},
        )
        if shape.per_layer is not None and (own := packed.per_layer) is not None:
            described.per_layer = shape.per_layer
            described.per_layer_type = _EMBEDDING_TYPES[own.embedding.dtype]
            for name in ("embedding", "projection", "norm"):
                setattr(described, f"per_layer_{name}", getattr(own, name).ctypes.data)
        return described

    def _kv_sizes(
        self, attention: list[interface.CAttentionShape], apart: Container[int]
    ) -> dict[int, list[int]]:
        """Bytes of the keys and of the values of each layer that keeps them."""
        memory, sizes = self.memory, dict[int, list[int]]()
        for index in self._shape.keeping:
            pages = memory.num_frames if index in apart else memory.num_numbers
            layer, slots = byref(attention[index]), pages * memory.page_size
            sizes[index] = [int(size(layer, slots)) for size in kv_sizes(self._library)]
        return sizes

    def _take_states(
        self, layer: interface.CLayer, index: int, recurrent: interface.CRecurrent, size: int
    ) -> None:
        """Memory of a recurrent layer's states, and what follows from the config."""
        self._state_parts.append(self._state_pool.take(size))
        layer.states = self._state_parts[-1].ctypes.data
        if recurrent.kind == interface.RECURRENT_KINDS["linear"]:
            fixed = fixed_decays(recurrent.heads, index, self._shape.num_layers)
            self._held += [fixed, taps := np.ones(recurrent.channels, np.float32)]
            layer.decay_log, layer.conv = fixed.ctypes.data, taps.ctypes.data

    def _rope(self, rope: Rope, rotated: int) -> interface.CRope:
        turns = np.ascontiguousarray(frequencies(rope, rotated))
        self._held.append(turns)
        return interface.CRope(turns.ctypes.data, rope.amplitude, rotated)


_NAMED_AS_IN_C = (
    *("qk_norm_wide", "gated_attention", "rotates_pairs", "norms_rotated", "activation_slope"),
    *("activation_limit", "norm_eps", "embedding_scale", "residual_scale", "logit_scale"),
)


def fixed_decays(heads: int, layer: int, num_layers: int) -> NDArray[np.float32]:
    """Of each head of a layer of linear attention, the logarithm of how fast it forgets: faster in
    later heads, slower in later layers (MiniMax)."""
    base = 2.0 ** (-8.0 / heads)
    factor = 1 - layer / (num_layers - 1 + 1e-5) + 1e-5
    found: NDArray[np.float32] = np.log(base ** np.arange(1, heads + 1) * factor).astype(np.float32)
    return found


def _pointers(*arrays: Ints) -> list[int]:
    """Where the numbers of each lie."""
    addresses = []
    for array in arrays:
        assert array.dtype == np.int32, array.dtype
        assert array.flags.c_contiguous
        addresses.append(array.ctypes.data)
    return addresses
