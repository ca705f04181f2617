"""Answers cases on an engine that is given whole prompts, and finds what they share in its cache.

Imports nothing but the standard library, for the same reason as `side_loop`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.peers.side_loop import Case

Generate = Callable[[Sequence[list[int]], int], list[list[int]]]
"""Prompts, and how many tokens each goes on for; gives those tokens."""


def answered(case: Case, generate: Generate) -> list[list[int]]:
    """Token ids of each generation of a case without choices."""
    if case["turns"]:
        return _chats(case, generate)
    shared, own = case["shared"], case["own"]
    if len(own) > 1:
        generate([shared], 1)  # so that the others find it: what is cached are whole runs
    return generate([shared + one for one in own], case["out"])


def _chats(case: Case, generate: Generate) -> list[list[int]]:
    texts: list[list[int]] = [[] for _ in case["turns"]]
    found = []
    for turn in zip(*case["turns"], strict=True):
        texts = [before + new for before, new in zip(texts, turn, strict=True)]
        answers = generate(texts, case["out"])
        texts = [text + answer for text, answer in zip(texts, answers, strict=True)]
        found.append(answers)
    return [answer for chat in zip(*found, strict=True) for answer in chat]
