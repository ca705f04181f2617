"""What a fleet costs and what its affinity brings.

    python -m benchmarks.fleet decisions    processor time of one routing decision, 64 replicas
    python -m benchmarks.fleet overhead     processor time of a call through a fleet, and directly
    python -m benchmarks.fleet hits 12      two replicas beside one with twice the pages, 12 orders
    python -m benchmarks.fleet gateways     the same fleet behind 1, 2 and 4 gateways
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
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lmprog
from benchmarks import fleet_simulation
from lmprog.backends import Backend
from lmprog.fleet.local_members import LocalMembers
from lmprog.fleet.placement import BLOCK, PrefixMemory, choose, keys_of, mark_of

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


HALF: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_memory_mb": SCARCE_MB // 2}


def hits(orders: int = 3) -> None:
    """Prints the table for few and many programs at once, each for so many orders of the prompts,
    and the least ratio of a fleet to one runtime.
    """
    print("| programs at once | order | one runtime | fleet of two | ratio | two in turns |")
    print("|-|-|-|-|-|-|")
    ratios: list[float] = []
    for at_once in (4, 64):
        for order in range(7, 7 + orders):
            texts = prompts(random.Random(order))
            with lmprog.Runtime(MODEL, **{**HALF, "kv_memory_mb": SCARCE_MB}) as one:
                alone = share_found([one], texts, at_once)
            with lmprog.Fleet.local(MODEL, replicas=2, **HALF) as fleet:
                affine = share_found([fleet], texts, at_once)
            with lmprog.Runtime(MODEL, **HALF) as first, lmprog.Runtime(MODEL, **HALF) as second:
                turns = share_found([first, second], texts, max(1, at_once // 2))
            ratios.append(affine / alone)
            print(
                f"| {at_once} | {order} | {alone:.3f} | {affine:.3f} | {affine / alone:.3f} "
                f"| {turns:.3f} |",
                flush=True,
            )
    print(f"ratios: {min(ratios):.3f} to {max(ratios):.3f}")


def gateways(orders: int = 3) -> None:
    """The share that is found where the prompts come through several gateways: in turns of 16
    programs; through all of them at once, 16 programs together; and so once each family has been
    seen, which is not counted.
    """
    print("| gateways | order | in turns | at once | at once, families known |")
    print("|-|-|-|-|-|")
    for count in (1, 2, 4):
        for order in range(7, 7 + orders):
            texts = prompts(random.Random(order))
            ways = (share_found, share_found_at_once, share_found_later)
            found = [f"{_through(count, texts, way):.3f}" for way in ways]
            print(f"| {count} | {order} | {' | '.join(found)} |", flush=True)


def _through(
    count: int, texts: Sequence[str], way: Callable[[Sequence[Backend], Sequence[str], int], float]
) -> float:
    """The share that is found through so many gateways before two new runtimes."""
    with lmprog.Runtime(MODEL, **HALF) as first, lmprog.Runtime(MODEL, **HALF) as second:
        fleets = [lmprog.Fleet([first.address, second.address]) for _ in range(count)]
        for fleet in fleets:
            fleet.channel.wait_for(2)
        found = way(fleets, texts, 16)
        for fleet in fleets:
            fleet.close()
    return found


def share_found_at_once(backends: Sequence[Backend], texts: Sequence[str], at_once: int) -> float:
    """All backends at the same time, each with its share of the texts and of `at_once`."""
    each = [list(texts[index :: len(backends)]) for index in range(len(backends))]

    def run(backend: Backend, own: list[str]) -> list[lmprog.Usage]:
        runs = ask.run_batch(
            [{"text": text} for text in own],
            backend=backend,
            num_threads=max(1, at_once // len(backends)),
        )
        return [one.usage for one in runs]

    with ThreadPoolExecutor(len(backends)) as threads:
        usages = [one for part in threads.map(run, backends, each) for one in part]
    return sum(one.cached for one in usages) / sum(one.prompt for one in usages)


def share_found_later(backends: Sequence[Backend], texts: Sequence[str], at_once: int) -> float:
    """As `share_found_at_once`, after one prompt of each family, which is not counted."""
    first = {text[:PREFIX]: text for text in reversed(texts)}
    for text in first.values():
        ask.run(text, backend=backends[0])
    rest = [text for text in texts if first[text[:PREFIX]] != text]
    return share_found_at_once(backends, rest, at_once)


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
    """Microseconds of processor time for finding a program's replica among 64, and what a block
    that is remembered costs.
    """
    draw = random.Random(7)
    families = ["".join(draw.choices("abcdef ", k=40 * BLOCK)) for _ in range(2000)]
    replicas = list(range(64))
    tracemalloc.start()
    memory = PrefixMemory()
    for replica in replicas:
        memory.add(replica, 4096)
    for family in families:
        memory.remember(draw.choice(replicas), keys_of(family))
    bytes_held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
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
        f"{1e6 * took:.0f} us a decision, 64 replicas, prefixes of 40 blocks of {BLOCK} "
        f"characters; {bytes_held / (40 * len(families)):.0f} bytes of memory a block"
    )


@lmprog.function
def one_token(s: lmprog.Branch, text: str) -> str:
    s += text
    s += lmprog.gen("answer", max_tokens=1, temperature=0)
    return s["answer"]


def overhead(calls: int = 400) -> None:
    """Milliseconds of this process's time for a program of one call, on a runtime and on a fleet of
    it alone, in turns of forty.
    """
    spent = {"directly": 0.0, "through a fleet": 0.0}
    texts = [f"Program {number} says that {'and so on ' * 40}" for number in range(40)]
    with (
        lmprog.Runtime(MODEL, dtype="float32", threads=1, kv_memory_mb=16) as runtime,
        lmprog.Fleet([runtime.address]) as fleet,
    ):
        one_token.run("to begin", backend=fleet)
        for _ in range(max(1, calls // len(texts))):
            for name, backend in zip(spent, (runtime, fleet), strict=True):
                began = time.process_time()
                for text in texts:
                    one_token.run(text, backend=backend)
                spent[name] += time.process_time() - began
    each = {name: 1e3 * seconds / calls for name, seconds in spent.items()}
    more = each["through a fleet"] - each["directly"]
    print(" ".join(f"{name} {ms:.3f} ms;" for name, ms in each.items()), f"{more:.3f} ms more")


def main(names: Sequence[str]) -> None:
    """Runs the parts that are named, or all; a number behind a name is how many orders or times."""
    parts: dict[str, Callable[..., None]] = {
        "decisions": decisions,
        "overhead": overhead,
        "hits": hits,
        "gateways": gateways,
        "deaths": deaths,
        "simulation": fleet_simulation.main,
    }
    words = list(names or parts)
    while words:
        part = parts[words.pop(0)]
        part(*([int(words.pop(0))] if words and words[0].isdecimal() else []))


if __name__ == "__main__":
    main(sys.argv[1:])
