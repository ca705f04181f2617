"""How nano, the shipped small model, is made: data, tokenizer, training, evaluation."""

from __future__ import annotations
