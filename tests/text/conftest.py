"""Tokenizers that are trained once for all tests of text."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmprog.runtime.text.tokenizer import ByteTokenizer, HfTokenizer
from tests.text.checkpoints import KINDS, save

CONFIG = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, HfTokenizer | ByteTokenizer]:
    found: dict[str, HfTokenizer | ByteTokenizer] = {"bytes": ByteTokenizer()}
    for name, make in KINDS.items():
        folder: Path = tmp_path_factory.mktemp(name)
        found[name] = HfTokenizer(save(folder, make(), tokenizer_config=CONFIG))
    return found
