"""Probes look for the steps to an answer at the token before its word, and teach the layers below."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from training.batches import Batches
from training.draw import Split
from training.model import Shape
from training.probes import LAYERS, STEPS, Probes, steps_of
from training.tasks import arithmetic
from training.tokenizer import Tokens, encode
from training.train import Training
from training.world import document, tight

NANO = Path(__file__).parent.parent.parent / "lmprog" / "nano"
TOKENIZER = Tokenizer.from_file(str(NANO / "tokenizer.json"))


@pytest.mark.parametrize(
    ("right", "written", "steps"),
    [
        (85, 85, (5, 8, 1, 1)),
        (85, 75, (5, 8, 1, 0)),
        (85, 84, (5, 8, 0, 1)),
        (100, 99, (0, 10, 0, 0)),
        (-3, 3, (3, 15, 1, 0)),
        (-3, -13, (3, 15, 1, 0)),
    ],
)
def test_a_result_is_judged_by_its_last_digit_and_what_stands_before(
    right: int, written: int, steps: tuple[int, ...]
) -> None:
    assert steps_of(right, written) == steps


def test_every_step_of_the_drill_is_one_of_the_classes() -> None:
    for number in range(200):
        for segment in document(Split.TRAIN, number, arithmetic.many_checks).segments:
            assert all(0 <= step < size for step, size in zip(segment.steps, STEPS, strict=False))


@pytest.mark.parametrize("spaced", [True, False])
def test_a_step_is_taken_at_the_token_before_the_answers_word(spaced: bool) -> None:
    doc = document(Split.HELD, 3, arithmetic.many_checks)
    tokens = encode(TOKENIZER, doc if spaced else tight(doc))
    words = [TOKENIZER.decode([tokens.ids[position + 1]]) for position, _ in tokens.steps]
    assert words == [s.text.strip() for s in doc.segments if s.steps]


def test_documents_in_a_row_keep_their_steps() -> None:
    first, second = (
        encode(TOKENIZER, document(Split.HELD, number, arithmetic.many_checks)) for number in (1, 2)
    )
    both = first + second
    places = [both.ids[position : position + 2] for position, _ in both.steps]
    alone = [t.ids[position : position + 2] for t in (first, second) for position, _ in t.steps]
    assert places == alone
    assert [steps for _, steps in both.steps] == [s for t in (first, second) for _, s in t.steps]


def test_a_batch_points_at_the_tokens_before_answers() -> None:
    rows = [encode(TOKENIZER, document(Split.TRAIN, n, arithmetic.many_checks)) for n in range(3)]
    batch = Batches(TOKENIZER, 4096)._batch([*rows, Tokens((1, 2), (False, True))])
    said = {TOKENIZER.decode([int(token)]) for token in batch.ids.flatten()[batch.before + 1]}
    assert said <= {"yes", "no"}
    assert len(batch.before) == sum(len(row.steps) for row in rows)
    assert batch.steps.shape == (len(batch.before), len(STEPS))


def test_probes_teach_the_layers_below_them_and_no_other(tmp_path: Path) -> None:
    shutil.copy(NANO / "tokenizer.json", tmp_path)
    torch.manual_seed(0)
    training = Training(tmp_path, Shape(hidden=32, inner=32), lr=0.001, batch=512, probing=1.0)
    probes: Probes = training.probes
    for head in itertools.chain(*probes.heads):
        torch.nn.init.normal_(head.weight)
    ids = torch.arange(10, 42).unsqueeze(0)
    states = list(training.net.states(ids))
    probes.loss(states, torch.tensor([7]), torch.tensor([steps_of(85, 75)])).backward()  # type: ignore[no-untyped-call]
    taught = [any(p.grad is not None for p in layer.parameters()) for layer in training.net.layers]
    assert taught == [True] * (LAYERS[-1] + 1) + [False] * (5 - LAYERS[-1])


def test_a_run_without_probing_learns_from_answers_alone(tmp_path: Path) -> None:
    shutil.copy(NANO / "tokenizer.json", tmp_path)
    rows = [encode(TOKENIZER, document(Split.TRAIN, n, arithmetic.many_checks)) for n in range(2)]
    changed = []
    for probing in (0.0, 1.0):
        training = Training(
            tmp_path, Shape(hidden=32, inner=32), lr=0.001, batch=512, probing=probing
        )
        training.step(training.batches._batch(rows))
        changed.append(any(bool(p.any()) for p in training.probes.parameters()))
    assert changed == [False, True]
