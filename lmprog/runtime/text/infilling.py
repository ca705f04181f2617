"""How a model fills gaps: the special texts that mark the beginning, the end and the gap.

They are names of tokens: a tokenizer that has them belongs to a model that was trained on them.
"""

from __future__ import annotations

from lmprog.runtime.text.tokenizer import Tokenizer

_KNOWN = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
)
"""Before the beginning, before the end, and where the model goes on."""


def infill_texts(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The three texts, each of which is one token; () where the model has none of those known."""
    for texts in _KNOWN:
        if all(len(tokenizer.encode(text, start=False)) == 1 for text in texts):
            return texts
    return ()
