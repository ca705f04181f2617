"""The layer that predicts further tokens: what it computes is what its reference computes, whatever
was shared, cut and preempted; its drafts change no text, and are right where it is."""

from __future__ import annotations

import json
import random
from array import array
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import InvalidParameter, ModelError
from lmprog.runtime.engine.draft_model import PredictedDrafts
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.engine.native.sampler import NativeSampler
from lmprog.runtime.model_report import model_report
from lmprog.runtime.scheduling.batch import RowStates, build_batch
from lmprog.runtime.scheduling.plan import Plan, Row
from lmprog.runtime.scheduling.recurrent import StatePool
from lmprog.runtime.scheduling.sequence import Sequence
from lmprog.wire import SamplingParams
from tests.model.checkpoints import RECURRENT, VOCABULARY, Recipe
from tests.model.predicting import MODULES, Twin, add_to, saved
from tests.runtime.rig import Rig

GREEDY = SamplingParams(temperature=0.0, logprobs=3)


@pytest.fixture(scope="module", params=list(MODULES))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp(request.param)
    return folder, saved(folder, request.param)


@cache
def engine_of(folder: Path, draft_model: str | None = "mtp", quantize: Any = None) -> NativeEngine:
    config = RuntimeConfig(
        *(str(folder),),
        engine="native",
        dtype="float32" if quantize is None else None,
        quantize=quantize,
        threads=1,
        draft_model=draft_model,
        scheduler=SchedulerConfig(page_size=16, num_pages=256),
    )
    found = load_engine(config)
    assert isinstance(found, NativeEngine)
    return found


def rig_of(
    folder: Path,
    draft_model: str | None = "mtp",
    num_slots: int = 32,
    preempt_every: int = 0,
    **config: Any,
) -> Rig:
    engine = engine_of(folder, draft_model, config.pop("quantize", None))
    mode = "off" if draft_model is None else "always"
    fields: dict[str, Any] = {"page_size": 16, "num_pages": 256, "speculation": mode, **config}
    sampler, pool = NativeSampler(engine), StatePool(num_slots, 64)
    rig = Rig(SchedulerConfig(**fields), 512, preempt_every, engine, sampler, pool)
    if draft_model is not None:
        assert rig.scheduler.drafting is not None
        rig.scheduler.drafting.model = Watched(rig)
    return rig


@cache
def prompts() -> list[list[int]]:
    dice = random.Random(3)
    drawn = [[dice.randrange(VOCABULARY) for _ in range(length)] for length in (1, 2, 17, 64, 130)]
    base = drawn[-1]
    return [*drawn, *([*base[:at], dice.randrange(VOCABULARY)] for at in (16, 37, 37, 64)), base]


def answers(rig: Rig, sampling: SamplingParams = GREEDY, count: int = 12) -> list[Sequence]:
    done = []
    for start in range(0, len(prompts()), 5):
        done += [rig.gen(one, count, sampling) for one in prompts()[start : start + 5]]
        rig.run()
    return done


def logprobs(sequences: list[Sequence]) -> list[Any]:
    """To the last bit."""
    tasks = [one.task for one in sequences]
    return [[(each.logprob, each.top) for each in one.logprobs] for one in tasks]  # type: ignore[union-attr]


class Watched(PredictedDrafts):
    """Notes each draft, and the tokens before it."""

    def __init__(self, rig: Rig) -> None:
        copied = rig.scheduler.tables.copies.origins
        super().__init__(rig.engine, rig.sampler, rig.config.page_size, copied)
        self.seen: list[tuple[list[int], list[int]]] = []

    def extend(self, drafts: Any) -> None:
        known = [len(one.tokens) for one in drafts]
        super().extend(drafts)
        for draft, count in zip(drafts, known, strict=True):
            if drafted := list(draft.tokens[count:]):
                self.seen.append((list(draft.tokens[:count]), drafted))


@pytest.mark.parametrize("config", [{}, {"max_chunk": 7}, {"preempt_every": 3}, {"num_slots": 8}])
def test_drafts_are_those_of_the_reference(made: Any, config: dict[str, Any]) -> None:
    """Also behind what others computed, and where a draft was wrong: each token of each draft."""
    folder, twin = made
    rig = rig_of(folder, **config)
    assert rig.scheduler.drafting is not None
    watched = rig.scheduler.drafting.model
    assert isinstance(watched, Watched)
    answers(rig)
    assert len(watched.seen) > 60
    assert max(len(drafted) for _, drafted in watched.seen) > 5
    for known, drafted in watched.seen[:: max(1, len(watched.seen) // 40)]:
        assert drafted == twin.drafted(known, len(drafted)), f"after {len(known)} tokens"


def test_what_it_computes_is_what_the_reference_computes(made: Any) -> None:
    folder, twin = made
    engine = engine_of(folder)
    tokens = prompts()[4]
    sequence = Sequence(None, array("i", tokens), None)  # type: ignore[arg-type]
    pages, count = array("i", range(1, 1 + -(-len(tokens) // 16))), len(tokens)
    wanted = twin.logits(tokens)[-1].log_softmax(-1)
    for cut in (1, 50, count - 1):
        for start, end, source in ((0, cut, -1), (cut, count - 1, 3)):
            if start == end:
                continue
            row = Row(sequence, array("i", tokens[start:end]), start, end, pages, end)
            batch = build_batch(Plan((row,)), 16)
            engine.forward(with_states(batch, source, 3))
        row = Row(sequence, array("i", tokens[-1:]), count - 1, count, pages, count - 1)
        given = np.empty((1, engine.hidden), np.float32)
        logits = engine.predict(build_batch(Plan((row,)), 16), np.array([3], np.int32), given)
        found = torch.tensor(logits[0]).log_softmax(-1)
        assert (found - wanted).abs().max() < 1e-4


def with_states(batch: Any, source: int, target: int) -> Any:
    one = [np.array([number], np.int32) for number in (source, target)]
    return replace(batch, states=RowStates(*one, np.zeros((0, 3), np.int32)))


@pytest.mark.parametrize("quantize", [None, "int8"])
@pytest.mark.parametrize("config", [{}, {"max_chunk": 7}, {"preempt_every": 3}, {"num_slots": 6}])
def test_drafts_change_no_bit(made: Any, config: dict[str, Any], quantize: Any) -> None:
    folder, _ = made
    drawn = SamplingParams(temperature=0.8, seed=5, logprobs=3, repetition_penalty=1.1)
    for sampling in (GREEDY, drawn):
        alone = answers(rig_of(folder, None, quantize=quantize), sampling)
        rig = rig_of(folder, quantize=quantize, **config)
        drafted = answers(rig, sampling)
        assert [list(one.tokens) for one in drafted] == [list(one.tokens) for one in alone]
        assert logprobs(drafted) == logprobs(alone)
        assert rig.scheduler.stats.drafted_tokens > 20
        assert rig.scheduler.drafting is not None
        assert rig.scheduler.drafting.model is not None, "it did not fail"


def test_right_drafts_save_steps(tmp_path: Path) -> None:
    """A model that looks at one token only, and a layer that knows what it knows."""
    name = "qwen3_5_text"
    recipe = RECURRENT[name]
    model = Recipe(recipe.family, recipe.fields | {"tie_word_embeddings": False}).make(tmp_path)
    twin = Twin(name, model)
    with torch.no_grad():
        for whole in (model, twin):
            for weight_name, weight in whole.named_parameters():
                if weight_name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                    weight.zero_()
        size = model.config.hidden_size
        twin.fc.weight.copy_(torch.eye(size, 2 * size))
        for norm in (twin.pre_fc_norm_embedding, twin.pre_fc_norm_hidden):
            norm.weight.zero_()
        twin.norm.weight.copy_(model.model.norm.weight)
    model.save_pretrained(tmp_path)
    add_to(tmp_path, twin)
    rig, alone = rig_of(tmp_path), rig_of(tmp_path, None)
    assert [list(one.tokens) for one in answers(rig)] == [
        list(one.tokens) for one in answers(alone)
    ]
    stats = rig.scheduler.stats
    assert stats.accepted_tokens == stats.drafted_tokens > 0
    assert rig.scheduler.step < alone.scheduler.step / 2


def test_without_it_nothing_of_the_layer_is_loaded(made: Any) -> None:
    folder, _ = made
    alone, own = engine_of(folder, None), engine_of(folder)
    assert own.page_memory().page_bytes == 2 * alone.page_memory().page_bytes
    assert own.packed.num_bytes > alone.packed.num_bytes


def test_what_cannot_predict_is_refused(made: Any, tmp_path: Path) -> None:
    folder, _ = made
    with pytest.raises(InvalidParameter, match=r"it is computed of qwen3_next, .*not of llama"):
        load_engine(RuntimeConfig("nano", draft_model="mtp"))
    with pytest.raises(InvalidParameter, match="'dummy:64x1' has none"):
        load_engine(RuntimeConfig("dummy:64x1", draft_model="mtp"))
    with pytest.raises(InvalidParameter, match="engine = 'torch' was asked for"):
        load_engine(RuntimeConfig(str(folder), draft_model="mtp", engine="torch"))
    RECURRENT["qwen3_5_text"].make(tmp_path)
    with pytest.raises(ModelError, match=r"missing weights: .*mtp\."):
        load_engine(RuntimeConfig(str(tmp_path), draft_model="mtp"))
    told = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(told | {"mtp_num_hidden_layers": 2}))
    *_, last = model_report(RuntimeConfig(str(tmp_path), draft_model="mtp"))
    assert last.state == "fail"
    assert "the checkpoint has 2 such layers, and one is computed" in last.what
