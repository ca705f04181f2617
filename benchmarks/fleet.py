"""What a fleet costs and what its affinity brings.

    python -m benchmarks.fleet decisions    processor time of one routing decision, 64 replicas
    python -m benchmarks.fleet hits         two replicas beside one with twice the pages
    python -m benchmarks.fleet simulation   64 and 1,000 replicas in virtual time, 100,000 sessions

`hits` runs 16 families of 20 prompts, shuffled, each family with a prefix of its own, on the
runtimes themselves: one with all pages, two with half of them each behind a fleet, and two that
take turns. Figures are the share of prompt tokens that were found in a tree.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import lmprog
from benchmarks import fleet_simulation
from lmprog.backends import Backend
from lmprog.fleet.placement import choose, mark_of
from lmprog.fleet.prefix_memory import BLOCK, PrefixMemory, keys_of

FAMILIES, PROMPTS = 16, 20
PREFIX, OWN = 330, 30
"""Characters of a prompt that its family shares, and that are its own; a byte is a token here."""
MODEL = "dummy:tiny"
SCARCE_MB = 4
"""Pages in all: half of them hold fewer than all families."""


@lmprog.function
def ask(s: lmprog.Branch, text: str) -> str:
    s += text
    s += lmprog.gen("answer", max_tokens=8, temperature=0, ignore_eos=True)
    return s["answer"]


def prompts(draw: random.Random) -> list[str]:
    """All prompts, shuffled."""
    letters = "abcdefghijklmnopqrstuvwxyz "
    found = []
    for _ in range(FAMILIES):
        shared = "".join(draw.choices(letters, k=PREFIX))
        found += [shared + "".join(draw.choices(letters, k=OWN)) for _ in range(PROMPTS)]
    draw.shuffle(found)
    return found


def share_found(backends: Sequence[Backend], texts: Sequence[str], at_once: int) -> float:
    """Backends take turns; a fleet is one backend."""
    cached = needed = 0
    for start in range(0, len(texts), at_once * len(backends)):
        for index, backend in enumerate(backends):
            batch = texts[start + index * at_once : start + (index + 1) * at_once]
            if batch:
                runs = ask.run_batch(
                    [{"text": text} for text in batch], backend=backend, num_threads=at_once
                )
                cached += sum(run.usage.cached for run in runs)
                needed += sum(run.usage.prompt for run in runs)
    return cached / needed


def hits() -> None:
    """Prints the table for few and many programs at once, each for three orders of the prompts."""
    print("| programs at once | order | one runtime | fleet of two | ratio | two in turns |")
    print("|-|-|-|-|-|-|")
    for at_once in (4, 64):
        for order in (7, 8, 9):
            texts = prompts(random.Random(order))
            half: dict[str, Any] = {
                "dtype": "float32",
                "threads": 1,
                "kv_memory_mb": SCARCE_MB // 2,
            }
            with lmprog.Runtime(MODEL, **{**half, "kv_memory_mb": SCARCE_MB}) as one:
                alone = share_found([one], texts, at_once)
            with lmprog.Fleet.local(MODEL, replicas=2, **half) as fleet:
                affine = share_found([fleet], texts, at_once)
            with lmprog.Runtime(MODEL, **half) as first, lmprog.Runtime(MODEL, **half) as second:
                turns = share_found([first, second], texts, max(1, at_once // 2))
            print(
                f"| {at_once} | {order} | {alone:.3f} | {affine:.3f} | {affine / alone:.3f} "
                f"| {turns:.3f} |",
                flush=True,
            )


def decisions() -> None:
    """Microseconds of processor time for finding a program's replica among 64."""
    draw = random.Random(7)
    memory = PrefixMemory()
    replicas = list(range(64))
    for replica in replicas:
        memory.add(replica, 4096)
    families = ["".join(draw.choices("abcdef ", k=40 * BLOCK)) for _ in range(2000)]
    for family in families:
        memory.remember(draw.choice(replicas), keys_of(family))
    marks = [mark_of(str(replica)) for replica in replicas]
    loads = [draw.randrange(32) for _ in replicas]
    texts = [draw.choice(families) for _ in range(2000)]
    began = time.process_time()
    for text in texts:
        keys = keys_of(text)
        matched = memory.matched(keys, replicas)
        index = choose(matched, loads, memory.held, 32, mark_of(text[:BLOCK]), marks)
        memory.remember(index, keys)
    took = (time.process_time() - began) / len(texts)
    print(
        f"{1e6 * took:.0f} us a decision, 64 replicas, prefixes of 40 blocks of {BLOCK} characters"
    )


def main(names: Sequence[str]) -> None:
    """Runs the parts that are named, or all."""
    parts = {"decisions": decisions, "hits": hits, "simulation": fleet_simulation.main}
    for name in names or parts:
        parts[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
