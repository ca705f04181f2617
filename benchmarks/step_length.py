"""How long running streams wait for their next token while a long prompt is computed.

    python -m benchmarks.step_length [--model nano|random:768x12|FOLDER] [--prompts N] [--step-ms N]
                                     [--dtype float32|bfloat16] [--quantize int8|int4] [--chunks 32,64,2048]
    python -m benchmarks.step_length --beside 1000 [--model random:1024x24] ...
    python -m benchmarks.step_length schemas [--processor]

Eight streams decode; prompts of 1,900 tokens come one after the other. Milliseconds of the runtime's
processor time from one token of the streams to the next, with steps bounded (`--step-ms`) and
without a bound, and what all prompts take. Where the first of several tokens were part of a
character, each has taken an equal part of the time until their text. The bars: p99 at most 60 ms, and 0.9 of the prompts a
second that are computed without a bound.

Also what no choice of chunks can exceed: each step of 60 ms computes a token of each stream, and at
best every token costs what one of steps without a bound does. With `--chunks` only that is told:
what a prompt's token costs alone in chunks of so many, and so how long steps of so many tokens
last, of which eight are the streams', and what part of the prompts they give. The clock is the processor time of the
thread that computes; what other threads took beside it (memory asked for ahead) is told apart.

With `--beside N`: one stream and one prompt of N tokens, after a short one of the same kind. The bars:
no step takes more than two of `--step-ms` and a step of the stream alone, the stream's gaps have a p99
of at most two, and the prompt takes at most 1.3 times what it takes alone.

`schemas`: 16 streams on nano, beside so many calls a second with a schema each that nobody had before,
beside as many without, and alone, in turns. The bar: the streams' gaps have a p99 of at most 1.2 times
that beside calls without a schema. Both by the clock, which other processes share, and by the processor time
of all threads, in which nothing is computed beside anything else.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from benchmarks import runner
from benchmarks.constrained import Bench, collect_as_the_runtime_does
from benchmarks.models import prepared
from benchmarks.own_loop import ME, Came, OwnLoop
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
    alone = runner.percentile([end - begin for begin, end in pairwise(turns[4:])], 0.5)
    began, gaps, process_began = own.now(), [], time.process_time()
    for text in texts:
        prompt = own.ask(b"prompts", text, 1)
        last, is_done = own.now(), False
        while not is_done:
            came = own.turn()
            if count := num_tokens(came, streams):
                gaps += [(came[-1].at - last) / count] * count
                last = came[-1].at
            is_done = any(
                isinstance(one.reply, wire.CallDone) and one.reply.call == prompt for one in came
            )
    whole = own.now() - began
    return Gaps(gaps, whole, alone, time.process_time() - process_began - whole)


def num_tokens(came: list[Came], calls: Collection[int]) -> int:
    """Of which each of these streams has text by now, in this turn."""
    each = [one.reply for one in came if isinstance(one.reply, wire.Delta)]
    return max([delta.num_tokens for delta in each if delta.call in calls], default=0)


def token_seconds(model: str, text: str, chunk: int, **fields: Any) -> float:
    """Of a token of a prompt that is computed alone, in chunks of so many."""
    own = OwnLoop(model, step_ms=0, max_chunk=chunk, kv_memory_mb=3072, **fields)
    for prompt in ("warm up", text):
        began = own.now()
        own.finish(own.ask(b"prompts", prompt, 1))
    return (own.now() - began) / PROMPT_TOKENS


def beside(model: str, step_ms: int, text: str, **fields: Any) -> None:
    """One prompt alone, then beside a stream, of one runtime."""
    own = OwnLoop(model, step_ms=step_ms, kv_memory_mb=1024, share=False, **fields)
    for prompt in (text[: len(text) // 4], text):
        began = own.now()
        own.finish(own.ask(b"prompts", prompt, 1))
    by_itself = own.now() - began
    stream = own.ask(b"streams", "Once upon", 1900)
    turns = [own.now()]
    for _ in range(12):
        own.turn()
        turns.append(own.now())
    alone = runner.percentile([end - begin for begin, end in pairwise(turns[4:])], 0.5)
    last, gaps, steps = own.now(), list[float](), list[float]()
    began, asked, is_done = last, own.ask(b"prompts", text, 1), False
    while not is_done:
        begins = own.now()
        came = own.turn()
        steps.append(1e3 * (own.now() - begins))
        if count := num_tokens(came, {stream}):
            gaps += [1e3 * (came[-1].at - last) / count] * count
            last = came[-1].at
        is_done = any(
            isinstance(one.reply, wire.CallDone) and one.reply.call == asked for one in came
        )
    whole = own.now() - began
    p99 = runner.percentile(gaps, 0.99)
    print(
        f"{model}, --step-ms {step_ms}: a step of the stream {1e3 * alone:.1f} ms; beside the "
        f"prompt {len(gaps)} tokens, p50 {runner.percentile(gaps, 0.5):.1f} ms; the prompt "
        f"{whole:.2f} s, alone {by_itself:.2f} s"
    )
    most, part = 2 * step_ms + 1e3 * alone, whole / by_itself
    print(
        f"longest step {max(steps):.1f} ms, at most {most:.0f}: "
        f"{runner.verdict(max(steps) <= most)}"
    )
    print(f"p99 {p99:.1f} ms, at most {2 * step_ms}: {runner.verdict(p99 <= 2 * step_ms)}")
    print(f"prompt beside the stream {part:.2f}, at most 1.3: {runner.verdict(part <= 1.3)}")


def print_chunks(seconds: dict[int, float]) -> None:
    """What no choice of chunks of these sizes can exceed, of the prompts in the largest ones."""
    unbounded = seconds[max(seconds)]
    for chunk, one in seconds.items():
        print(
            f"chunks of {chunk}: {1e3 * one:.2f} ms a token; such a step lasts "
            f"{1e3 * chunk * one:.0f} ms and gives {(chunk - STREAMS) / chunk * unbounded / one:.2f} "
            "of the prompts"
        )


def report(model: str, step_ms: int, num_prompts: int, runs: dict[int, list[Gaps]]) -> None:
    """Of all gaps, and of the shortest times."""
    best = {ms: min(each, key=lambda one: one.whole) for ms, each in runs.items()}
    for ms, each in runs.items():
        gaps = [1e3 * gap for one in each for gap in one.beside_prompts]
        p50, p99 = (runner.percentile(gaps, part) for part in (0.5, 0.99))
        print(
            f"{model}, --step-ms {ms}: {len(gaps)} tokens, p50 {p50:.1f} ms, p99 {p99:.1f} ms, "
            f"longest {max(gaps):.1f} ms; all prompts {best[ms].whole:.2f} s, beside it "
            f"{min(one.others for one in each):.2f} s in other threads"
        )
    gaps = [1e3 * gap for one in runs[step_ms] for gap in one.beside_prompts]
    p99, part = runner.percentile(gaps, 0.99), best[0].whole / best[step_ms].whole
    alone = 1e3 * min(one.alone for each in runs.values() for one in each)
    num_gaps = sum(len(one.beside_prompts) for one in runs[0]) / len(runs[0])
    token = 1e3 * best[0].whole / (num_prompts * PROMPT_TOKENS + STREAMS * num_gaps)
    print(
        f"a step of the streams alone {alone:.1f} ms, a token without a bound {token:.2f} ms: steps "
        f"of {BAR_MS:.0f} ms give at most {1.0 - STREAMS * token / BAR_MS:.2f} of the prompts"
    )
    print(f"p99 {p99:.1f} ms, at most {BAR_MS:.0f}: {runner.verdict(p99 <= BAR_MS)}")
    print(
        f"prompts a second, of those without a bound: {part:.2f}, at least {LEAST_PART}: "
        f"{runner.verdict(part >= LEAST_PART)}"
    )


MOST_OF_PLAIN, ANSWER_TOKENS = 1.2, 24


def new_schema(number: int) -> wire.Constraint:
    """One of some fields of its own, as calls of tools have."""
    properties = {
        f"name_{number}": {"type": "string", "maxLength": 20},
        "kind": {"enum": ["plain", "other", f"kind {number}"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 100 + number},
    }
    required = [*properties][:2]
    return wire.JsonSchema(json.dumps({"properties": properties, "required": required}))


class Gap(NamedTuple):
    """Milliseconds between two texts of the streams."""

    clock: float
    processor: float
    """Of all threads of the process."""


def gaps_beside(
    bench: Bench, rate: int, tokens: int, streams: int, is_new: bool
) -> tuple[list[Gap], int]:
    """Between texts of the streams, beside so many other calls a second, whose branches are closed
    behind them; and how many those were.
    """
    asked = {bench.ask(None, tokens, stream=True) for _ in range(streams)}
    bench.turns(8)
    found, others = list[Gap](), set[int]()
    began = last = bench.clock()
    clock, processor = time.perf_counter(), time.process_time()
    while not asked <= bench.ended:
        while len(others) < (last - began) * rate:
            schema = new_schema(bench.num_calls) if is_new else None
            others.add(bench.ask(schema, ANSWER_TOKENS, stream=False))
        replies = bench.turns(1)
        ends = [one.call for one in replies if isinstance(one, wire.CallDone)]
        bench.channel.inbox += [(ME, wire.Close(call)) for call in ends if call in others]
        if any(isinstance(reply, wire.Delta) and reply.call in asked for reply in replies):
            before, clock, processor = (clock, processor), time.perf_counter(), time.process_time()
            found.append(Gap(1e3 * (clock - before[0]), 1e3 * (processor - before[1])))
            last = bench.clock()
    bench.rest()
    assert others <= bench.ended
    assert bool(others) == bool(rate)
    assert not bench.refused
    return found, len(others)


def schemas(
    *,
    rate: Annotated[int, "new schemas a second"] = 120,
    streams: int = 16,
    tokens: Annotated[int, "of each stream"] = 300,
    repeat: Annotated[int, "rounds, of all three in turn"] = 3,
    processor: Annotated[bool, "calls come by the process's processor time, not the clock"] = False,
) -> None:
    bench = Bench(time.process_time if processor else time.perf_counter)
    gaps_beside(bench, rate, 40, streams, True)
    collect_as_the_runtime_does()
    sides = {"alone": (0, False), "beside calls": (rate, False), "beside new schemas": (rate, True)}
    runs = runner.in_turn(
        {
            name: partial(gaps_beside, bench, one, tokens, streams, new)
            for name, (one, new) in sides.items()
        },
        repeat,
    )
    p99: dict[str, Gap] = {}
    for name, each in runs.items():
        gaps = [gap for one, _ in each for gap in one]
        middle, p99[name] = (
            Gap(*both)
            for both in zip(
                *(runner.middle_and_p99(sorted(of)) for of in zip(*gaps, strict=True)), strict=True
            )
        )
        print(
            f"{name}: {len(gaps)} gaps, {sum(count for _, count in each) / len(gaps):.2f} calls a "
            f"gap; p50 {middle.clock:.1f} ms, p99 {p99[name].clock:.1f} ms; of the processor "
            f"p50 {middle.processor:.1f} ms, p99 {p99[name].processor:.1f} ms"
        )
    new, plain = p99["beside new schemas"], p99["beside calls"]
    for name, part in (
        ("clock", new.clock / plain.clock),
        ("processor", new.processor / plain.processor),
    ):
        print(
            f"p99 beside new schemas, of that beside calls, by the {name}: {part:.2f}, at most "
            f"{MOST_OF_PLAIN}: {runner.verdict(part <= MOST_OF_PLAIN)}"
        )


def main(
    *,
    model: str = "nano",
    prompts_: int = 8,
    step_ms: int = 50,
    repeat: Annotated[int, "in turns; the shortest time counts"] = 3,
    dtype: Annotated[str | None, "of the weights; the checkpoint's own if not given"] = None,
    quantize: Annotated[str | None, "of the weights, when they are loaded"] = None,
    beside_: Annotated[int, "only one stream beside a prompt of so many tokens"] = 0,
    chunks: Annotated[runner.Ints, "only what a token costs in chunks of so many, alone"] = (),
) -> None:
    weights = {"dtype": dtype, "quantize": quantize}
    with prepared(model) as (name, folder):
        texts = prompts(folder, prompts_)
        if beside_:
            beside(name, step_ms, texts[0][: len(texts[0]) * beside_ // PROMPT_TOKENS], **weights)
            return
        if chunks:
            print_chunks({one: token_seconds(name, texts[0], one, **weights) for one in chunks})
            return
        sides = {ms: partial(measured, name, ms, texts, **weights) for ms in (step_ms, 0)}
        runs = runner.in_turn({str(ms): side for ms, side in sides.items()}, repeat)
    report(model, step_ms, prompts_, {int(ms): each for ms, each in runs.items()})


COMMANDS = runner.commands(main, schemas)
