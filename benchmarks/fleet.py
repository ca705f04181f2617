"""What a fleet costs and what its affinity brings.

    python -m benchmarks.fleet decisions    processor time of one routing decision, 64 replicas
    python -m benchmarks.fleet hits         two replicas beside one with twice the pages
    python -m benchmarks.fleet deaths       how soon programs go on after SIGKILL of a replica
    python -m benchmarks.fleet simulation   64 and 1,000 replicas in virtual time, 100,000 sessions

`hits` runs 16 families of 20 prompts, shuffled, each family with a prefix of its own, on the
runtimes themselves: one with all pages, two with half of them each behind a fleet, and two that
take turns. Figures are the share of prompt tokens that were found in a tree.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import lmprog
from benchmarks import fleet_simulation
from lmprog.backends import Backend
from lmprog.fleet.local_members import LocalMembers
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


@lmprog.function
def write(s: lmprog.Branch, text: str) -> str:
    s += text
    s += lmprog.gen("answer", max_tokens=400, temperature=1.0, seed=1, ignore_eos=True)
    return s["answer"]


def deaths(times: int = 5) -> None:
    """Kills the busier of two replicas of nano under eight programs: seconds until its programs are
    on the other one, and whether each program ended as it does without a death.
    """
    calls = [{"text": f"Story {number} begins."} for number in range(8)]
    with lmprog.Fleet.local("nano", replicas=2, threads=1, kv_memory_mb=64) as fleet:
        calm = [run.value for run in write.run_batch(calls, backend=fleet, num_threads=8)]
        waits, same = [], 0
        for _ in range(times):
            fleet.channel.wait_for(2, timeout=120.0)
            results: list[list[str]] = []
            thread = threading.Thread(
                target=lambda found=results: found.append(
                    [run.value for run in write.run_batch(calls, backend=fleet, num_threads=8)]
                )
            )
            thread.start()
            while sum(fleet.channel.loads.values()) < len(calls):
                time.sleep(0.001)
            time.sleep(0.3)
            loads, moved = fleet.channel.loads, fleet.channel.num_moved
            busiest = max(loads, key=loads.__getitem__)
            assert isinstance(fleet.members, LocalMembers)
            began = time.perf_counter()
            os.kill(fleet.members.processes[busiest].pid, signal.SIGKILL)
            while fleet.channel.num_moved == moved and thread.is_alive():
                time.sleep(0.001)
            waits.append(time.perf_counter() - began)
            thread.join()
            same += sum(one == other for one, other in zip(results[0], calm, strict=True))
        moved = fleet.channel.num_moved
    print(
        f"{times} deaths: moved after {min(waits):.3f} to {max(waits):.3f} s; {moved} programs moved; "
        f"{same} of {times * len(calls)} programs ended as without a death"
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
    simulation = fleet_simulation.main
    parts = {"decisions": decisions, "hits": hits, "deaths": deaths, "simulation": simulation}
    for name in names or parts:
        parts[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
