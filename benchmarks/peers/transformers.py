"""`transformers` with the best caching that its own interfaces allow: `generate` over batches that
go in lockstep.

    python -m benchmarks.peers.transformers FOLDER [THREADS]    as a side of the comparison

A shared prefix is computed once and its `DynamicCache` repeated for the batch; caches live on
across turns and forks; texts of different lengths are padded on the left, between what is cached
and what is new. Regular expressions are a logits processor over llguidance. Knows torch; knows no
workload and nothing of lmprog but its reading of the checkpoint's tokenizer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llguidance
import llguidance.torch
import torch
from llguidance import LLMatcher, LLTokenizer
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    LogitsProcessor,
    LogitsProcessorList,
)

from benchmarks.peers.side_loop import Case, serve
from lmprog.runtime.text.tokenizer import ByteTokenizer, HfTokenizer, load_tokenizer


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


class TransformersPeer:
    """A loaded checkpoint in float32."""

    def __init__(self, folder: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        self.folder = folder
        loader: Any = AutoModelForCausalLM
        self.model = loader.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = load_tokenizer(folder)
        self.num_computed = 0
        """Tokens that went through the model, padding included."""
        self.num_forwards = 0
        self.model.register_forward_pre_hook(self._count, with_kwargs=True)
        self.grammars = left_tokenizer(folder, self.tokenizer)

    def start(self, texts: Sequence[str]) -> Rows:
        rows = Rows(self, None, torch.zeros(len(texts), 0, dtype=torch.long))
        rows.extend(texts)
        return rows

    def _count(self, module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        self.num_computed += ids.numel()
        self.num_forwards += 1


class Rows:
    """See `benchmarks.workloads.shape.Lockstep`. Owns its cache; forks have repeated copies."""

    def __init__(
        self,
        peer: TransformersPeer,
        cache: DynamicCache | None,
        ids: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> None:
        self._peer = peer
        self._cache = DynamicCache() if cache is None else cache
        self._ids = ids  # [rows, width], padding included
        self._mask = torch.ones_like(ids) if mask is None else mask
        self._pending = [""] * len(ids)

    def extend(self, texts: Sequence[str]) -> None:
        self._pending = [a + b for a, b in zip(self._pending, texts, strict=True)]

    def generate(self, num_tokens: int) -> list[str]:
        width = self._settle()
        self._call_generate(num_tokens, num_tokens)
        self._mask = torch.cat([self._mask, torch.ones_like(self._ids[:, width:])], dim=1)
        return [self._peer.tokenizer.decode(row[width:].tolist()) for row in self._ids]

    def match(self, pattern: str, most: int) -> list[str]:
        width = self._settle()
        matching = Matching(self._peer.grammars, pattern, width, len(self._ids))
        self._call_generate(most, 0, LogitsProcessorList([matching]))
        new = self._ids[:, width:]
        ended = torch.isin(new, torch.tensor(self._peer.tokenizer.eos_ids)).long().cumsum(1) > 0
        self._mask = torch.cat([self._mask, (~ended).long()], dim=1)
        return [
            self._peer.tokenizer.decode(row[~over].tolist())
            for row, over in zip(new, ended, strict=True)
        ]

    def select(self, options: Sequence[Sequence[str]]) -> list[str]:
        peer = self._peer
        forks = self.fork(len(options[0]))
        tokens = [
            torch.tensor(peer.tokenizer.encode(text, start=False))
            for own in options
            for text in own
        ]
        padded = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
        there = torch.nn.utils.rnn.pad_sequence(
            [torch.ones_like(one) for one in tokens], batch_first=True
        )
        ids = torch.cat([forks._ids[:, -1:], padded[:, :-1]], dim=1)
        mask = torch.cat([forks._mask, there[:, :-1]], dim=1)
        logits = forks._forward(ids, mask, keep=0)  # [rows, width, vocab]
        logprobs = logits.log_softmax(-1).gather(2, padded[..., None])[..., 0] * there
        means = (logprobs.sum(1) / there.sum(1)).view(len(options), -1)
        chosen = [own[best] for own, best in zip(options, means.argmax(1).tolist(), strict=True)]
        self.extend(chosen)
        return chosen

    def fork(self, size: int) -> Rows:
        self._settle()
        self._prefill()
        cache = DynamicCache()
        layers: list[Any] = self._cache.layers
        for index, layer in enumerate(layers):
            if layer.is_initialized:
                cache.update(
                    layer.keys.repeat_interleave(size, 0),
                    layer.values.repeat_interleave(size, 0),
                    index,
                )
        return Rows(
            self._peer,
            cache,
            self._ids.repeat_interleave(size, 0),
            self._mask.repeat_interleave(size, 0),
        )

    def keep(self, rows: Sequence[int]) -> None:
        which = torch.tensor(rows)
        self._cache.batch_select_indices(which)
        self._ids, self._mask = self._ids[which], self._mask[which]
        self._pending = [self._pending[row] for row in rows]

    def _settle(self) -> int:
        """Tokenises what is pending, padded on the left; the width now."""
        if any(self._pending):
            tokens = [
                self._peer.tokenizer.encode(text, start=not self._ids.shape[1])
                for text in self._pending
            ]
            width = max(map(len, tokens))
            new = torch.tensor([[0] * (width - len(row)) + row for row in tokens])
            mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in tokens])
            self._ids, self._mask = (
                torch.cat([self._ids, new], dim=1),
                torch.cat([self._mask, mask], dim=1),
            )
            self._pending = [""] * len(tokens)
        return self._ids.shape[1]

    def _prefill(self) -> None:
        """Computes all but the last token, which whoever goes on needs."""
        done, width = self._cache.get_seq_length(), self._ids.shape[1]
        if done < width - 1:
            self._forward(self._ids[:, done : width - 1], self._mask[:, : width - 1], keep=1)

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, keep: int) -> torch.Tensor:
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        with torch.inference_mode():
            logits: torch.Tensor = self._peer.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=self._cache,
                logits_to_keep=keep,
            ).logits
        return logits

    def _call_generate(
        self, most: int, least: int, processors: LogitsProcessorList | None = None
    ) -> None:
        self._ids = self._peer.model.generate(
            input_ids=self._ids,
            attention_mask=self._mask,
            past_key_values=self._cache,
            max_new_tokens=most,
            min_new_tokens=least,
            do_sample=False,
            eos_token_id=list(self._peer.tokenizer.eos_ids),
            pad_token_id=self._peer.tokenizer.eos_ids[0],
            logits_processor=processors,
        )


def warm_up(peer: TransformersPeer) -> None:
    """A short generation, so that nothing is done for the first time when the clock runs."""
    peer.start([" warm up"]).generate(4)


# -- as a side of the comparison, run in lmprog's environment; outputs are texts


class Side:
    """A model that computes whole cases in lockstep."""

    def __init__(self, folder: str, threads: int) -> None:
        self._peer = TransformersPeer(Path(folder), threads)
        warm_up(self._peer)

    def run(self, case: Case) -> list[Any]:
        shared, own = self._text(case["shared"]), [self._text(ids) for ids in case["own"]]
        if case["turns"]:
            return self._chats(case)
        rows = self._peer.start([shared])
        if len(own) > 1:
            rows = rows.fork(len(own))
        rows.extend(own)
        if not case["choices"]:
            return rows.generate(case["out"])
        return self._chosen(rows, [self._text(ids) for ids in case["choices"]], len(own))

    def _chats(self, case: Case) -> list[str]:
        turns = [[self._text(ids) for ids in chat] for chat in case["turns"]]
        rows = self._peer.start([""] * len(turns))
        found = []
        for turn in zip(*turns, strict=True):
            rows.extend(turn)
            found.append(rows.generate(case["out"]))
        return [answer for chat in zip(*found, strict=True) for answer in chat]

    def _chosen(self, rows: Rows, options: list[str], count: int) -> list[list[int]]:
        return [[options.index(text)] for text in rows.select([options] * count)]

    def _text(self, ids: list[int]) -> str:
        return self._peer.tokenizer.decode(ids)


if __name__ == "__main__":
    side = Side(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    serve(side.run)
