"""What a trial of a grammar runs in a process of its own: see `llguidance_engine.py`.

A script that imports nothing of lmprog, so that it begins soon. Reads a job as JSON, compiles the
grammar with llguidance, takes a few random steps in it, and writes llguidance's form of it or why
there is none. Where that needs more processor time, memory or stack than it may, the system ends
the process.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

from lmprog.linux import limit_own

_STEPS, _BYTES = 16, 256
_EOS = _BYTES


class _Bytes:
    """A tokenizer whose tokens are bytes."""

    bos_token_id = None
    eos_token_id = _EOS
    tokens = [*(bytes([byte]) for byte in range(_BYTES)), b"\xff<eos>"]  # noqa: RUF012
    special_token_ids = [_EOS]  # noqa: RUF012

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def _on_stack(size: int, work: Callable[[], Any]) -> Any:
    """The result of `work` in a thread with a stack of so many bytes."""
    out: list[Any] = []
    threading.stack_size(size)
    thread = threading.Thread(target=lambda: out.append(work()))
    thread.start()
    thread.join()
    return out[0]


def _compiled(job: dict[str, Any]) -> tuple[str, Any]:
    import llguidance

    tokenizer = llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(_Bytes()), n_vocab=_BYTES + 1, eos_token=[_EOS]
    )
    grammar = llguidance.grammar_from(job["format"], job["text"])
    limits = llguidance.LLParserLimits(initial_lexer_fuel=job["lexer_fuel"])
    return grammar, llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)


def _take_steps(matcher: Any) -> None:
    rng = random.Random(0)
    for _ in range(_STEPS):
        mask = matcher.compute_bitmask()
        tokens = [token for token in range(_BYTES) if mask[token >> 3] >> (token & 7) & 1]
        if matcher.is_error() or not tokens:
            return
        matcher.deep_copy().consume_token(rng.choice(tokens))
        matcher.consume_token(rng.choice(tokens))


def main() -> None:
    job = json.load(sys.stdin)
    seconds, memory = job["seconds"], job["memory"]
    limit_own(seconds, memory)
    try:
        grammar, matcher = _on_stack(job["stack"], lambda: _compiled(job))
    except IndexError:  # the thread has said why on the standard error
        sys.exit(1)
    error = matcher.get_error() if matcher.is_error() else ""
    if not error:
        _on_stack(job["step_stack"], lambda: _take_steps(matcher))
    json.dump({"grammar": grammar, "error": error}, sys.stdout)


if __name__ == "__main__":
    main()
