"""Faults of the engine's own Python, planted one at a time: each is found by work that takes
milliseconds, on a device that does nothing before it is waited for.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from lmprog.native import compiler
from lmprog.runtime.engine.attention import AttentionShape, LayerAttention
from lmprog.runtime.engine.device import (
    device_decoder,
    device_engine,
    sampling,
    staging,
    tree_attention,
)
from lmprog.runtime.engine.device.device_decoder import DeviceDecoder
from lmprog.runtime.engine.device.device_engine import DeviceEngine
from lmprog.runtime.engine.device.driver import ModuleKey
from lmprog.runtime.engine.device.emulated_driver import (
    CaptureRefused,
    EmulatedDriver,
    KernelFault,
    emulated_kernels,
)
from lmprog.runtime.engine.device.kernels import Kernels
from lmprog.runtime.engine.device.sampling import DeviceLogits, DeviceSampler
from lmprog.runtime.engine.device.staging import Staging, StagingLayout
from lmprog.runtime.engine.device.tree_attention import TreeAttention
from lmprog.runtime.engine.torch_engine.sampler import TorchSampler
from lmprog.runtime.scheduling.sampling_requests import (
    SampleRequest,
    SampleResult,
    ScoreRequest,
    ScoreResult,
)
from lmprog.wire import SamplingParams
from tests.cuda.attending import placed
from tests.cuda.test_device_families import family_is_right

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
KEY = ModuleKey("float", 32)


def some_kernels() -> Kernels:
    return Kernels(EmulatedDriver(emulated_kernels(KEY)), KEY)


# --- what is looked at


def picks_are_right() -> None:
    """Several picks of a row are made in rounds, each with fewer picks than the one before."""
    kernels, size = some_kernels(), 90
    values = torch.from_numpy(np.random.default_rng(2).normal(0, 2, (4, size)).astype(np.float32))
    bias = [SamplingParams(logit_bias=((7 * at + 1, 50.0),)) for at in range(6)]
    rows = [0, 1, 2, 3, 0, 1, 0]
    picks = [SampleRequest(row, bias[at % 6], at, at) for at, row in enumerate(rows)]
    sampler, values_there = DeviceSampler(kernels, size), placed(kernels.driver, values)
    for count in (2, 7, 3, 7):
        got = sampler.sample(DeviceLogits(values_there, 4), picks[:count], ())
        wanted = TorchSampler().sample(values, picks[:count], ())
        assert [one and one.token for one in got.samples] == [
            one and one.token for one in wanted.samples
        ]


def a_broken_row_is_seen() -> None:
    """One logit that is no number, or infinite, wherever it is."""
    kernels, size = some_kernels(), 1500
    picks = [SampleRequest(row, SamplingParams(temperature=0.0), 0, 0) for row in range(4)]
    for at, what in ((0, torch.nan), (31, torch.inf), (700, -torch.inf), (1499, torch.nan)):
        values = torch.zeros(4, size)
        values[2, at] = what
        there = DeviceLogits(placed(kernels.driver, values), 4)
        got = DeviceSampler(kernels, size).sample(there, picks, ()).samples
        assert [one is None for one in got] == [False, False, True, False]


def staging_is_right() -> None:
    """What lies behind an array is 0, whatever was there; nothing is overwritten under way."""
    driver = EmulatedDriver(emulated_kernels(KEY))
    made = Staging(driver, 1 << 10)
    events = []
    for number, count in enumerate((40, 33, 61, 1000)):
        array = np.full(count, number + 1, np.int32)
        layout = StagingLayout.rounded({"tokens": array, "more": array})
        at = made.send({"tokens": array, "more": array + 10}, layout)
        for name, value in (("tokens", number + 1), ("more", number + 11)):
            room = layout.room_of[name] // 4
            seen = torch.empty(room, dtype=torch.int32)
            driver.copy(seen, made.read(at[name], room, torch.int32))
            events.append((seen, value, count))
    driver.event().wait()
    for seen, value, count in events:
        assert (seen[:count] == value).all()
        assert (seen[count:] == 0).all()


def pages_are_right() -> None:
    """Pages that come are there for whoever copies, stores or writes them, in each layer."""
    kernels = some_kernels()
    layers = (LayerAttention(1.0),) * 2
    for first in ("copy", "store", "both"):
        attention = TreeAttention(
            kernels, AttentionShape(layers, 2, 1, 32, 32, torch.float32), 6, 8, 16
        )
        attention.pages.memory.view(torch.float32).fill_(1.0)
        size, driver = attention.bytes_per_page, attention.driver
        kept, to = driver.pinned(2 * size).view(-1, size), driver.pinned(size)
        kept.view(torch.float32).copy_(torch.arange(2 * size // 4).view(2, -1))
        attention.bring_pages([3], kept, [1])
        if first != "store":
            attention.copy(torch.tensor([[3 * 8 + 2, 5 * 8 + 1]], dtype=torch.int32))
        if first != "copy":
            attention.send_page(3, to)
            driver.event().wait()
            assert torch.equal(to, kept[1])
        attention.join_pages()
        driver.event().wait()
        if first != "store":
            pool = attention.pages.memory.view(torch.float32).view(2, 6, 2, 8, 32)
            assert torch.equal(pool[:, 5, :, 1], pool[:, 3, :, 2])
            assert bool((pool[:, 5, :, 1] > 1.0).all())


def steps_are_right() -> None:
    """Graphs of steps that decode, before and after a step that wants more logits than there was
    room for; and the same steps without graphs.
    """
    found = []
    for is_captured in (True, False):
        engine = small_engine(is_captured)
        logits = []
        for counts, start in (([1, 1], 8), ([1, 1], 9), ([40], 0), ([1, 1, 1], 64), ([1, 1], 11)):
            step = rows_of(counts, start)
            result = engine.forward(step)
            engine.finish()
            logits.append(result.values[: result.num_rows].clone())
        found.append(torch.cat(logits))
        assert (engine.num_replays > 0) is is_captured
    assert torch.allclose(*found, atol=1e-5)


def pieces_are_right() -> None:
    """Logits that are computed by pieces give what whole ones give: for picks in any order, scores
    over the ends of pieces, likely tokens, and the tokens that stay on the device.
    """
    found = []
    sampling = [SamplingParams(temperature=1.0, logprobs=at) for at in (None, 0, 3)]
    picks = [SampleRequest(row, sampling[row % 3], row, 1) for row in (39, 3, 16, 15, 32, 16)]
    scores = [ScoreRequest(10, tuple(range(26)), 2), ScoreRequest(1, (5,)), ScoreRequest(4, ())]
    for most in (64, 16):
        engine = small_engine(True, most)
        for _ in range(3):
            logits = engine.forward(rows_of([40], 0))
            begun = engine.sampler.begin(logits, picks, scores)
            results = begun.wait()
        chosen = begun.chosen[torch.tensor(begun.place_of)].tolist()
        assert chosen == [one and one.token for one in results.samples]
        found.append((chosen, results.scores, results.samples))
        decoder = engine._decoder
        assert len(decoder._logits) == len(decoder._head) == most
    (chosen, wanted, samples), (pieces, got, others) = found
    assert pieces == chosen
    for one, other in zip((*wanted, *samples[2:]), (*got, *others[2:]), strict=True):
        assert one is not None
        assert other is not None
        assert np.allclose(numbers_of(one), numbers_of(other), atol=1e-5, equal_nan=True)


def numbers_of(result: SampleResult | ScoreResult) -> list[float]:
    """Log-probabilities, and tokens beside them."""
    if isinstance(result, SampleResult):
        return [result.logprob, *(x for one in result.top for x in one)]
    return [*result.logprobs, *(x for one in result.tops for likely in one for x in likely)]


# --- the faults


@dataclass(frozen=True)
class Planted:
    file: object
    owner: type
    method: str
    old: str
    new: str
    look: Callable[[], None]


FAULTS = {
    "later rounds of picks use the first one's count": Planted(
        sampling, DeviceSampler, "_pick", "_places(at, first, number), words", "_places(at, first, 0), words", picks_are_right
    ),
    "rounds begin at the first pick": Planted(
        sampling, DeviceSampler, "_pick", "_places(at, first, number), words", "_places(at, 0, number), words", picks_are_right
    ),
    "room for what was chosen does not grow": Planted(
        sampling, DeviceSampler, "_room_for", "len(self._chosen) < count", "len(self._chosen) < 1", picks_are_right
    ),
    "what lies behind an array is not cleared": Planted(
        staging, Staging, "send", "host[at + size : at + rooms[name]] = 0", "pass", staging_is_right
    ),
    "arrays are overwritten under way": Planted(
        staging, Staging, "send", "self._sent.wait()", "pass", staging_is_right
    ),
    "a buffer that moves is not waited for": Planted(
        staging, Staging, "send", "self._sent = self._driver.event()", "pass", staging_is_right
    ),
    "the second array lies on the first": Planted(
        staging, Staging, "send", "base + offset", "base", staging_is_right
    ),
    "slots are copied before their pages have come": Planted(
        tree_attention, TreeAttention, "copy", "self.join_pages()", "pass", pages_are_right
    ),
    "a page is stored while it comes": Planted(
        tree_attention, TreeAttention, "send_page", "self.join_pages()", "pass", pages_are_right
    ),
    "pages come from the first row": Planted(
        tree_attention, TreeAttention, "bring_pages", 'at["counts"], at["rows"])', 'at["counts"])', pages_are_right
    ),
    "all layers' pages come to the first layer": Planted(
        tree_attention, TreeAttention, "_copy_slots", "first_layer=layer or 0", "first_layer=0", pages_are_right
    ),
    "nobody waits for pages": Planted(
        tree_attention, TreeAttention, "_join_layer", "self.driver.join(mark)", "pass", pages_are_right
    ),
    "graphs are kept when logits move": Planted(
        device_engine, DeviceEngine, "_make_room", "self._graphs.clear()", "pass", steps_are_right
    ),
    "each piece of logits is the first one": Planted(
        device_decoder, DeviceDecoder, "logits", "self._normed[start : start + rows]", "self._normed[:rows]", pieces_are_right
    ),
    "picks keep their rows in a piece": Planted(
        sampling, DeviceSampler, "_by_pieces", "picks[at].logit - start", "picks[at].logit", pieces_are_right
    ),
    "tokens of pieces do not stay on the device": Planted(
        sampling, DeviceSampler, "_by_pieces", "self._driver.copy(self._chosen[: len(picks)], tokens)", "pass", pieces_are_right
    ),
    "what a half gives is not normalized": Planted(
        device_decoder, DeviceDecoder, "_norm_after", "if weight is not None", "if weight is None and inputs is None", partial(family_is_right, "gemma2")
    ),
    "logits are not capped": Planted(
        device_decoder, DeviceDecoder, "_issue_logits", "if cap is not None", "if cap == 0", partial(family_is_right, "gemma2-softcaps")
    ),
    "tokens are not scaled": Planted(
        device_decoder, DeviceDecoder, "issue", "self.shape.embedding_scale != 1.0", "self.shape.embedding_scale == 0", partial(family_is_right, "granite")
    ),
    "layers without rotation have one": Planted(
        device_decoder, DeviceDecoder, "_turned", "len(shape.ropes) if rope is None else rope", "rope or 0", partial(family_is_right, "smollm3")
    ),
    "heads are normalized one by one": Planted(
        device_decoder, DeviceDecoder, "_turned", "shape.qk_norm_wide or ", "", partial(family_is_right, "olmo2")
    ),
    "heads are normalized before they are turned": Planted(
        device_decoder, DeviceDecoder, "_turned", " or shape.norms_rotated", "", partial(family_is_right, "hunyuan")
    ),
    "queries do not grow": Planted(
        device_decoder, DeviceDecoder, "_turned", "self._grown is not None", "self._grown is self", partial(family_is_right, "ministral3")
    ),
    "a half without a norm has one": Planted(
        device_decoder, DeviceDecoder, "_begin_half", "if is_normed", "if x is not None", partial(family_is_right, "olmo2")
    ),
    "every gate is silu": Planted(
        device_decoder, DeviceDecoder, "_feed_forward", 'int(self.shape.activation == "gelu_tanh")', "0", partial(family_is_right, "gemma2")
    ),
    "a graph is not replayed": Planted(
        device_engine, DeviceEngine, "_replay", "graph.replay()", "pass", steps_are_right
    ),
}  # fmt: skip


def small_engine(is_captured: bool, most_logits: int = 64) -> DeviceEngine:
    from lmprog.config import RuntimeConfig, SchedulerConfig
    from lmprog.runtime.engine.device.loading import OpenedDevice, _weights, asked_model

    scheduler = SchedulerConfig(num_pages=16, token_budget=64, max_rows=4, page_size=16)
    config = RuntimeConfig("dummy:tiny", device="emulated", scheduler=scheduler)
    asked = asked_model(config)
    opened = OpenedDevice(config, asked, "emulated")
    with torch.inference_mode():
        weights = _weights(asked, opened.driver)
        decoder = DeviceDecoder(
            opened.kernels, asked.shape, weights, asked.context_len, opened.budget
        )
        engine = opened.engine(decoder, 16, is_captured)
        decoder.most_logits = most_logits
        engine.attention.fill(0.25)
    return engine


def rows_of(counts: list[int], start: int) -> device_engine.Batch:
    """New tokens of rows that begin at `start`; every logit is wanted."""
    from lmprog.runtime.engine.device.loading import _batch

    made = _batch([start + count for count in counts], 16)
    ends = np.cumsum([start + count for count in counts])
    new = np.concatenate([np.arange(e - c, e) for e, c in zip(ends, counts, strict=True)])
    each = np.arange(len(new), dtype=np.int32)
    return device_engine.Batch(
        tokens=(new % 50).astype(np.int32),
        positions=made.positions[new],
        row_starts=np.array([0, *np.cumsum(counts)], np.int32),
        kv_lens=made.kv_lens,
        page_starts=made.page_starts,
        pages=made.pages,
        write_tokens=each,
        write_slots=made.write_slots[new],
        copies=made.copies,
        logit_tokens=each,
        page_size=16,
    )


@pytest.mark.parametrize(
    "look",
    [
        *(picks_are_right, a_broken_row_is_seen, staging_is_right, pages_are_right),
        *(steps_are_right, pieces_are_right),
    ],
)
def test_nothing_is_found_where_nothing_is_planted(look: Callable[[], None]) -> None:
    look()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_engine_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAULTS[name]
    text = Path(str(fault.file.__file__)).read_text()  # type: ignore[attr-defined]
    start = text.index(f"    def {fault.method}(", text.index(f"class {fault.owner.__name__}"))
    assert fault.old in text[start:], name
    path = tmp_path / "faulty.py"
    path.write_text(text[:start] + text[start:].replace(fault.old, fault.new, 1))
    spec = importlib.util.spec_from_file_location("faulty", path)
    assert spec is not None
    assert spec.loader is not None
    faulty = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, faulty)
    spec.loader.exec_module(faulty)
    planted = getattr(getattr(faulty, fault.owner.__name__), fault.method)
    monkeypatch.setattr(fault.owner, fault.method, planted)
    with pytest.raises((AssertionError, KernelFault, CaptureRefused, RuntimeError, IndexError)):
        fault.look()
