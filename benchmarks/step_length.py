"""How long running streams wait for their next token while a long prompt is computed.

    python -m benchmarks.step_length [--model nano|random:768x12|FOLDER] [--prompts N] [--step-ms N]
                                     [--dtype float32|bfloat16] [--quantize int8|int4] [--chunks 32,64,2048]

Eight streams decode; prompts of 1,900 tokens come one after the other. Milliseconds of the runtime's
processor time from one token of the streams to the next, with steps bounded (`--step-ms`) and
without a bound, and what all prompts take. The bars: p99 at most 60 ms, and 0.9 of the prompts a
second that are computed without a bound.

Also what no choice of chunks can exceed: each step of 60 ms computes a token of each stream, and at
best every token costs what one of steps without a bound does. With `--chunks` only that is told:
what a prompt's token costs alone in chunks of so many, and so how long steps of so many tokens
last, of which eight are the streams', and what part of the prompts they give. The clock is the processor time of the
thread that computes; what other threads took beside it (memory asked for ahead) is told apart.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.checkpoints import checkpoint
from benchmarks.own_loop import OwnLoop, percentile
from lmprog import wire
from lmprog.runtime.text.tokenizer import load_tokenizer

STREAMS, PROMPT_TOKENS, BAR_MS, LEAST_PART = 8, 1900, 60.0, 0.9
WORDS = ("time", "people", "water", "little", "house", "number", "world", "again", "found", "small")


@dataclass(frozen=True)
class Gaps:
    """Seconds between two tokens of the streams while prompts were computed, and of all prompts."""

    beside_prompts: list[float]
    whole: float
    alone: float
    """Seconds of a step of the streams alone, the median."""
    others: float
    """Seconds of processor time that other threads took meanwhile."""


def prompts(folder: Path | None, count: int) -> list[str]:
    """Texts of random words, of about `PROMPT_TOKENS` tokens each."""
    dice, tokenizer = random.Random(1), load_tokenizer(folder)
    found = []
    for _ in range(count):
        text = " ".join(dice.choices(WORDS, k=PROMPT_TOKENS))
        found.append(text[: len(text) * PROMPT_TOKENS // len(tokenizer.encode(text))])
    return found


def measured(model: str, step_ms: int, texts: list[str], **fields: Any) -> Gaps:
    """One run on a fresh runtime."""
    own = OwnLoop(model, step_ms=step_ms, kv_memory_mb=3072, **fields)
    streams = [own.ask(b"streams", f"Once upon {i}", 1600) for i in range(STREAMS)]
    turns = [own.now()]
    for _ in range(16):
        own.turn()
        turns.append(own.now())
    alone = percentile([end - begin for begin, end in pairwise(turns[4:])], 0.5)
    began, gaps, process_began = own.now(), [], time.process_time()
    for text in texts:
        prompt = own.ask(b"prompts", text, 1)
        last, is_done = own.now(), False
        while not is_done:
            came = own.turn()
            if any(isinstance(one.reply, wire.Delta) and one.reply.call in streams for one in came):
                gaps.append(came[-1].at - last)
                last = came[-1].at
            for one in came:
                if isinstance(one.reply, wire.Failed):
                    raise RuntimeError(one.reply.message)
                is_done |= isinstance(one.reply, wire.CallDone) and one.reply.call == prompt
    whole = own.now() - began
    return Gaps(gaps, whole, alone, time.process_time() - process_began - whole)


def token_seconds(model: str, text: str, chunk: int, **fields: Any) -> float:
    """Of a token of a prompt that is computed alone, in chunks of so many."""
    own = OwnLoop(model, step_ms=0, max_chunk=chunk, kv_memory_mb=3072, **fields)
    for prompt in ("warm up", text):
        began, call = own.now(), own.ask(b"prompts", prompt, 1)
        while not any(
            isinstance(one.reply, wire.CallDone) and one.reply.call == call for one in own.turn()
        ):
            pass
    return (own.now() - began) / PROMPT_TOKENS


def chunk_lines(model: str, text: str, chunks: list[int], **fields: Any) -> list[str]:
    """What no choice of chunks of these sizes can exceed, of the prompts in the largest ones."""
    seconds = {chunk: token_seconds(model, text, chunk, **fields) for chunk in chunks}
    unbounded = seconds[max(chunks)]
    return [
        f"chunks of {chunk}: {1e3 * one:.2f} ms a token; such a step lasts {1e3 * chunk * one:.0f} ms "
        f"and gives {(chunk - STREAMS) / chunk * unbounded / one:.2f} of the prompts"
        for chunk, one in seconds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="nano")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--step-ms", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=3, help="in turns; the shortest time counts")
    parser.add_argument("--dtype", help="of the weights; the checkpoint's own if not given")
    parser.add_argument("--quantize", help="of the weights, when they are loaded")
    parser.add_argument("--chunks", help="only what a token costs in chunks of so many, alone")
    asked = parser.parse_args()
    weights = {"dtype": asked.dtype, "quantize": asked.quantize}
    with tempfile.TemporaryDirectory(prefix="lmprog-bench-") as scratch:
        model, folder = checkpoint(asked.model, Path(scratch))
        texts = prompts(folder, asked.prompts)
        if asked.chunks:
            sizes = [int(one) for one in asked.chunks.split(",")]
            print("\n".join(chunk_lines(model, texts[0], sizes, **weights)))
            return
        runs = [
            {ms: measured(model, ms, texts, **weights) for ms in (asked.step_ms, 0)}
            for _ in range(asked.repeat)
        ]
    found = {
        ms: Gaps(
            [gap for run in runs for gap in run[ms].beside_prompts],
            min(run[ms].whole for run in runs),
            min(run[ms].alone for run in runs),
            min(run[ms].others for run in runs),
        )
        for ms in (asked.step_ms, 0)
    }
    for step_ms, gaps in found.items():
        ordered = [1e3 * gap for gap in gaps.beside_prompts]
        print(
            f"{asked.model}, --step-ms {step_ms}: {len(ordered)} tokens, p50 "
            f"{percentile(ordered, 0.5):.1f} ms, p99 {percentile(ordered, 0.99):.1f} ms, longest "
            f"{max(ordered):.1f} ms; all prompts {gaps.whole:.2f} s, beside it "
            f"{gaps.others:.2f} s in other threads"
        )
    p99 = 1e3 * percentile(found[asked.step_ms].beside_prompts, 0.99)
    part = found[0].whole / found[asked.step_ms].whole
    alone = 1e3 * min(one.alone for one in found.values())
    num_tokens = (
        asked.prompts * PROMPT_TOKENS + STREAMS * len(found[0].beside_prompts) / asked.repeat
    )
    token = 1e3 * found[0].whole / num_tokens
    most = 1.0 - STREAMS * token / BAR_MS
    print(
        f"a step of the streams alone {alone:.1f} ms, a token without a bound {token:.2f} ms: steps "
        f"of {BAR_MS:.0f} ms give at most {most:.2f} of the prompts"
    )
    print(f"p99 {p99:.1f} ms, at most {BAR_MS:.0f}: {'met' if p99 <= BAR_MS else 'missed'}")
    print(
        f"prompts a second, of those without a bound: {part:.2f}, at least {LEAST_PART}: "
        f"{'met' if part >= LEAST_PART else 'missed'}"
    )


if __name__ == "__main__":
    main()
