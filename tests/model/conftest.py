"""Checkpoints made once a run, with what transformers says they generate."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
import transformers

from lmprog.config import RuntimeConfig
from lmprog.runtime.engine.engine import load_engine
from tests.model.checkpoints import VOCABULARY, Recipe
from tests.model.driver import AnyEngine, Greedy

NUM_NEW = 10
LENGTHS = (1, 2, 7, 63, 64, 65, 200, 600)


@dataclass(frozen=True)
class Judged:
    """A checkpoint, prompts, and what transformers makes of them."""

    folder: Path
    model: Any
    prompts: list[list[int]]
    wanted: list[Greedy]

    def shorter_than(self, length: int) -> Judged:
        """The same with those prompts alone."""
        kept = [at for at, prompt in enumerate(self.prompts) if len(prompt) < length]
        prompts, wanted = [self.prompts[at] for at in kept], [self.wanted[at] for at in kept]
        return replace(self, prompts=prompts, wanted=wanted)

    def engine(self, **config: Any) -> AnyEngine:
        return load_engine(RuntimeConfig(model=str(self.folder), kv_memory_mb=32, **config))


class Judge(Protocol):
    def __call__(self, name: str, recipe: Recipe, *, judge: bool = True) -> Judged: ...


@pytest.fixture(scope="session")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """Makes a checkpoint and, if asked to `judge`, its judgement; or gives those made before."""
    made: dict[str, Judged] = {}
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]

    def make(name: str, recipe: Recipe, *, judge: bool = True) -> Judged:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            model = recipe.make(folder)
            draw = random.Random(name)
            prompts = [[draw.randrange(VOCABULARY) for _ in range(length)] for length in LENGTHS]
            made[name] = Judged(
                folder,
                model,
                prompts,
                [generated(model, prompt) for prompt in prompts if judge],
            )
        return made[name]

    return make


def generated(model: Any, prompt: list[int]) -> Greedy:
    """Greedy decoding by transformers, with its own cache."""
    tokens = torch.tensor([prompt])
    out = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=NUM_NEW,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    logprobs = torch.cat(out.logits).float().log_softmax(-1)
    return Greedy(out.sequences[0, len(prompt) :].tolist(), logprobs)
