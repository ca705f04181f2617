"""A machine without a compiler computes attention all the same."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import torch
from lmprog.runtime.engine.attention import AttentionShape, LayerAttention, make_attention
shape = AttentionShape((LayerAttention(1.0),), 1, 1, 8, 8, torch.float32)
print(type(make_attention(None, shape, 1, 16)).__name__)
"""


def test_without_a_compiler_the_reference_is_taken_and_the_log_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "LMPROG_NATIVE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "ReferenceAttention"
    assert done.stderr.count("no C++ compiler") == 1
