"""Regular expressions for `transformers`: a logits processor over llguidance, one matcher for each
row.
"""

from __future__ import annotations

from pathlib import Path

import llguidance
import llguidance.torch
import torch
from llguidance import LLMatcher, LLTokenizer
from transformers import LogitsProcessor

from lmprog.runtime.text.tokenizer import ByteTokenizer, HfTokenizer


def left_tokenizer(folder: Path, tokenizer: HfTokenizer | ByteTokenizer) -> LLTokenizer:
    """The checkpoint's tokenizer as llguidance reads it."""
    source = (folder / "tokenizer.json").read_text()
    return LLTokenizer(source, n_vocab=tokenizer.vocab_size, eos_token=tokenizer.eos_ids[0])


class Matching(LogitsProcessor):
    """Leaves only tokens that can go on to a match; the end of sequence where the match is
    complete.
    """

    def __init__(self, tokenizer: LLTokenizer, pattern: str, start: int, num_rows: int) -> None:
        first = LLMatcher(tokenizer, LLMatcher.grammar_from_regex(pattern))
        self._matchers = [first.deep_copy() for _ in range(num_rows)]
        self._seen = start
        self._eos = tokenizer.eos_token
        self._masks = llguidance.torch.allocate_token_bitmask(num_rows, tokenizer.vocab_size)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for row, matcher in enumerate(self._matchers):
            for token in input_ids[row, self._seen :].tolist():
                if not matcher.is_stopped():
                    matcher.consume_token(token)
            if matcher.is_stopped():
                scores[row] = -torch.inf
                scores[row, self._eos] = 0.0
                continue
            llguidance.torch.fill_next_token_bitmask(matcher, self._masks, row)
            llguidance.torch.apply_token_bitmask_inplace(
                scores[row : row + 1], self._masks[row : row + 1]
            )
        self._seen = input_ids.shape[1]
        return scores
