"""A run begins where exported weights are, also with more layers than they have."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from training.model import Shape
from training.train import Training

NANO = Path(__file__).parent.parent.parent / "lmprog" / "nano"


def begun(folder: Path, layers: int) -> Training:
    shutil.copy(NANO / "tokenizer.json", folder)
    training = Training(folder, Shape(layers=layers, inner=768), lr=0.001, batch=512)
    training.begin_from(NANO)
    return training


def test_a_further_layer_changes_nothing_at_first(tmp_path: Path) -> None:
    ids = torch.arange(10, 50).unsqueeze(0)
    with torch.inference_mode():
        same, more = (begun(tmp_path, layers).net(ids) for layers in (6, 8))
    assert torch.equal(same, more)


def test_weights_of_more_layers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has other layers"):
        begun(tmp_path, 5)
