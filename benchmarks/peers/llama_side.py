"""llama.cpp through its C interface: sequences that share their common beginning, one batch a step.

    python -m benchmarks.peers.llama_side FILE.gguf f32|bf16|f16 [THREADS]

The second argument is the type of keys and values.
A shared beginning is computed once and its cells are shared by other sequences (`seq_cp`); all
sequences of a case advance together. Tokens are chosen with numpy.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

import llama_cpp
import numpy as np

from benchmarks.peers.side_loop import Case, serve

_KV_TYPES = {"f32": 0, "f16": 1, "bf16": 30}
_CELLS = 16_384
_BATCH = 2048
_MOST_SEQUENCES = 64
_GROUP = 8
"""Questions of a case with choices that are scored together."""

Piece = tuple[int, int, int, bool]
"""Token, position, sequence, and whether its logits are wanted."""


class Llama:
    """A model with one context."""

    def __init__(self, path: str, kv_type: str, threads: int) -> None:
        llama_cpp.llama_backend_init()
        given = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), given)
        wanted = llama_cpp.llama_context_default_params()
        wanted.n_ctx, wanted.n_batch, wanted.n_ubatch = _CELLS, _BATCH, 512
        wanted.n_seq_max, wanted.kv_unified = _MOST_SEQUENCES, True
        wanted.n_threads = wanted.n_threads_batch = threads
        wanted.type_k = wanted.type_v = _KV_TYPES[kv_type]
        self._context = llama_cpp.llama_init_from_model(self._model, wanted)
        self._memory = llama_cpp.llama_get_memory(self._context)
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)

    def run(self, case: Case) -> list[list[int]]:
        llama_cpp.llama_memory_clear(self._memory, True)
        if case["choices"]:
            return self._chosen(case)
        if case["turns"]:
            return self._chats(case)
        shared, own = case["shared"], case["own"]
        self._decode([(token, at, 0, False) for at, token in enumerate(shared[:-1])])
        count = len(own)
        for sequence in range(1, count):
            self._share(0, sequence, len(shared) - 1)
        texts = [shared[-1:] + one for one in own]
        return self._generate(texts, [len(shared) - 1] * count, case["out"])

    def _chats(self, case: Case) -> list[list[int]]:
        count = len(case["turns"])
        at, found = [0] * count, list[list[list[int]]]()
        last: list[list[int]] = [[] for _ in range(count)]
        for turn in zip(*case["turns"], strict=True):
            texts = [before + new for before, new in zip(last, turn, strict=True)]
            answers = self._generate(texts, at, case["out"])
            at = [
                start + len(text) + case["out"] - 1 for start, text in zip(at, texts, strict=True)
            ]
            last = [answer[-1:] for answer in answers]  # sampled, not yet computed
            found.append(answers)
        return [answer for chat in zip(*found, strict=True) for answer in chat]

    def _generate(
        self, texts: Sequence[list[int]], starts: Sequence[int], num_new: int
    ) -> list[list[int]]:
        """Sequence i goes on with texts[i] from position starts[i], then greedily."""
        pieces = [
            (token, start + at, sequence, at == len(text) - 1)
            for sequence, (text, start) in enumerate(zip(texts, starts, strict=True))
            for at, token in enumerate(text)
        ]
        at = [start + len(text) for start, text in zip(starts, texts, strict=True)]
        new: list[list[int]] = [[] for _ in texts]
        for step in range(num_new):
            best = self._decode(pieces).argmax(1).tolist()
            for answer, token in zip(new, best, strict=True):
                answer.append(token)
            pieces = [(token, at[s] + step, s, True) for s, token in enumerate(best)]
        return new

    def _chosen(self, case: Case) -> list[list[int]]:
        shared, choices = case["shared"], case["choices"]
        self._decode([(token, at, 0, False) for at, token in enumerate(shared)])
        found = []
        for first in range(0, len(case["own"]), _GROUP):
            found += self._score_group(len(shared), case["own"][first : first + _GROUP], choices)
            for sequence in range(1, _MOST_SEQUENCES):
                llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return found

    def _score_group(
        self, start: int, own: Sequence[list[int]], choices: Sequence[list[int]]
    ) -> list[list[int]]:
        pieces = []
        for index, text in enumerate(own):
            self._share(0, 1 + index, start)
            pieces += [
                (token, start + at, 1 + index, at == len(text) - 1) for at, token in enumerate(text)
            ]
        before = _logprobs(self._decode(pieces))
        pieces, branch = [], 1 + len(own)
        for index, text in enumerate(own):
            for choice in choices:
                self._share(1 + index, branch, start + len(text))
                begin = start + len(text)
                pieces += [(token, begin + at, branch, True) for at, token in enumerate(choice)]
                branch += 1
        after, at, found = _logprobs(self._decode(pieces)), 0, []
        for index in range(len(own)):
            scores = []
            for choice in choices:
                total = before[index, choice[0]]
                total += sum(after[at + i, token] for i, token in enumerate(choice[1:]))
                scores.append(total / len(choice))
                at += len(choice)
            found.append([int(np.argmax(scores))])
        return found

    def _share(self, source: int, target: int, end: int) -> None:
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, 0, end)

    def _decode(self, pieces: Sequence[Piece]) -> np.ndarray:
        """Logits of the pieces whose logits are wanted, in their order. # [wanted, vocab]"""
        found = []
        for first in range(0, len(pieces), _BATCH):
            part, batch = pieces[first : first + _BATCH], self._batch
            for at, (token, position, sequence, wanted) in enumerate(part):
                batch.token[at], batch.pos[at] = token, position
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
                batch.logits[at] = wanted
            batch.n_tokens = len(part)
            if llama_cpp.llama_decode(self._context, batch):
                raise RuntimeError("llama_decode failed")
            count = sum(one[3] for one in part)
            if count:
                address = llama_cpp.llama_get_logits(self._context)
                held = ctypes.cast(address, ctypes.POINTER(ctypes.c_float * (count * self._vocab)))
                found.append(np.frombuffer(held.contents, np.float32).reshape(count, -1).copy())
        return np.concatenate(found) if found else np.zeros((0, self._vocab), np.float32)


def _logprobs(logits: np.ndarray) -> np.ndarray:
    moved = logits - logits.max(1, keepdims=True)
    found: np.ndarray = moved - np.log(np.exp(moved).sum(1, keepdims=True))
    return found


if __name__ == "__main__":
    serve(Llama(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1).run)
