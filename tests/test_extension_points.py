"""What another engine, attention backend or kind of constraint must have, shown by doubles: they
implement one protocol each, and no file of the package knows of them.

`docs/architecture.md` says which file to add for a real one, and where it is chosen.
"""

from __future__ import annotations

from array import array

import numpy as np
import torch
from numpy.typing import NDArray

from lmprog import wire
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.constraints.constraint import MaskRow, State
from lmprog.runtime.engine.attention.backend import AttentionShape
from lmprog.runtime.engine.torch_engine.engine import TorchEngine, load_torch_engine
from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.scheduling.generation import Generation, GenerationSettings
from lmprog.runtime.scheduling.sequence import Sequence, SequenceGroup
from tests.model.driver import Driver
from tests.runtime.rig import VOCAB, Rig
from tests.runtime.talk import GREEDY, Talk, done, text

# --- an engine ------------------------------------------------------------------------------------


class CountingEngine:
    """After token t comes t + 1. Any engine is an object with `forward`."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def forward(self, batch: Batch) -> NDArray[np.float64]:
        logits = np.zeros((len(batch.logit_tokens), self.vocab_size))
        tokens = batch.tokens[batch.logit_tokens]
        logits[np.arange(len(tokens)), (tokens + 1) % self.vocab_size] = 9.0
        return logits


def test_the_loop_needs_nothing_of_an_engine_but_forward() -> None:
    talk = Talk()
    counting = Talk(engine=CountingEngine(talk.tokenizer.vocab_size))
    replies = counting.ask(wire.Open(1), text(1, "ab"), wire.Generate(1, 2, GREEDY))
    first = counting.tokenizer.encode("b")[-1]
    assert done(replies)[2].outputs[0].tokens == tuple(range(first + 1, first + 6))


# --- an attention backend -------------------------------------------------------------------------


class DenseAttention:
    """Keys and values in one plain array a layer, by slot; attends row by row in float64."""

    def __init__(self, shape: AttentionShape, num_pages: int, page_size: int) -> None:
        size = (len(shape.layers), num_pages * page_size, shape.num_kv_heads)
        self._keys = torch.zeros(*size, shape.head_dim)
        self._values = torch.zeros(*size, shape.v_head_dim)
        self._shape, self._page_size = shape, page_size

    def plan(self, batch: Batch) -> None:
        self._batch = batch
        if len(batch.copies):
            sources, targets = torch.from_numpy(batch.copies.astype(np.int64)).unbind(1)
            self._keys[:, targets] = self._keys[:, sources]
            self._values[:, targets] = self._values[:, sources]

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        batch, keys, values = self._batch, self._keys[layer], self._values[layer]
        tokens = torch.from_numpy(batch.write_tokens.astype(np.int64))
        slots = torch.from_numpy(batch.write_slots.astype(np.int64))
        keys[slots], values[slots] = k[tokens], v[tokens]
        out = torch.empty(len(q), q.shape[1], v.shape[2], dtype=q.dtype)
        group = q.shape[1] // keys.shape[1]
        for row in range(batch.num_rows):
            pages = batch.pages[batch.page_starts[row] : batch.page_starts[row + 1]]
            within = np.arange(self._page_size)
            places = torch.from_numpy((pages[:, None] * self._page_size + within).flatten())
            for token in range(batch.row_starts[row], batch.row_starts[row + 1]):
                seen = places[: int(batch.positions[token]) + 1]
                heads = keys[seen].double().repeat_interleave(group, 1)
                scores = torch.einsum("hd,thd->ht", q[token].double(), heads)
                weights = (scores * self._shape.layers[layer].scale).softmax(-1)
                mixed = values[seen].double().repeat_interleave(group, 1)
                out[token] = torch.einsum("ht,thd->hd", weights, mixed).to(q.dtype)
        return out


def test_a_model_needs_nothing_of_an_attention_backend_but_plan_and_run() -> None:
    config = RuntimeConfig(
        model="dummy:tiny", dtype="float32", threads=1, attention="reference", kv_memory_mb=8
    )
    judge: TorchEngine = load_torch_engine(config, None)
    page_size = config.scheduler.page_size
    prompts = [[5, 9, 200, 31], [7] * 40]
    expected = Driver(judge, page_size).greedy(prompts, num_new=6, chunk=16)
    judge.attention = DenseAttention(judge.shape, judge.num_pages, page_size)
    found = Driver(judge, page_size).greedy(prompts, num_new=6, chunk=16)
    assert [one.new for one in found] == [one.new for one in expected]


# --- a kind of constraint -------------------------------------------------------------------------


class EvenTokens:
    """Exactly `length` even tokens. A state is how many were read."""

    engine = "even"

    def __init__(self, length: int, vocab_size: int) -> None:
        self._states = [State(number) for number in range(length + 1)]
        ids = np.arange(0, vocab_size, 2, dtype=np.int32)
        bits = np.zeros((vocab_size + 31) // 32, dtype=np.uint32)
        np.bitwise_or.at(bits, ids >> 5, (1 << (ids & 31)).astype(np.uint32))
        self._row = MaskRow(bits, ids, len(ids))

    @property
    def start(self) -> State:
        return self._states[0]

    def mask(self, state: State, budget: int | None = None) -> MaskRow:
        return self._row

    def advance(self, state: State, token: int) -> State:
        if token % 2:
            raise ValueError(f"{token} is odd")
        return self._states[state.number + 1]

    def forced(self, state: State) -> bytes:
        return b""

    def is_final(self, state: State) -> bool:
        return self.is_done(state)

    def is_done(self, state: State) -> bool:
        return state is self._states[-1]

    def distance(self, state: State) -> int:
        return len(self._states) - 1 - state.number

    def advance_bytes(self, state: State, text: bytes) -> State | None:
        return None


def test_a_generation_needs_nothing_of_a_constraint_but_its_protocol() -> None:
    rig = Rig(SchedulerConfig(page_size=4, num_pages=32))
    sampling = wire.SamplingParams(temperature=1.0)
    group = SequenceGroup(prompt_len=3)
    settings = GenerationSettings(sampling, 20, (), 3, EvenTokens(7, VOCAB))
    made = Sequence(group, array("i", [1, 2, 3]), Generation(settings, seed=5))
    group.sequences.append(made)
    rig.scheduler.submit(group)
    for _ in range(40):
        rig.step()
    generated = list(made.tokens[3:])
    assert len(generated) == 7
    assert [token % 2 for token in generated] == [0] * 7
