"""What a fleet costs and what its affinity brings.

    python -m benchmarks.fleet decisions    processor time of one routing decision, 64 replicas
    python -m benchmarks.fleet overhead     processor time of a call through a fleet, and directly
    python -m benchmarks.fleet hits 12      two replicas beside one with twice the pages, 12 orders
    python -m benchmarks.fleet gateways     the same fleet behind 1, 2 and 4 gateways
    python -m benchmarks.fleet deaths       how soon programs go on after SIGKILL of a replica

`hits` runs 16 families of 20 prompts, shuffled, each family with a prefix of its own, on the
runtimes themselves: one with all pages, two with half of them each behind a fleet, and two that
take turns. Figures are the share of prompt tokens that were found in a tree.
"""

from __future__ import annotations

import os
import random
import signal
import time
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import lmprog
from benchmarks import runner
from benchmarks.fleet_simulation import SimulatedFleet, World
from lmprog.backends import Backend
from lmprog.fleet.local_members import LocalMembers
from lmprog.fleet.placement import BLOCK, PrefixMemory, best, keys_of

# -- on runtimes

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
    return str(s["answer"])


def prompts(draw: random.Random) -> list[str]:
    """All prompts, shuffled."""
    letters = "abcdefghijklmnopqrstuvwxyz "
    found = []
    for _ in range(FAMILIES):
        shared = "".join(draw.choices(letters, k=PREFIX))
        found += [shared + "".join(draw.choices(letters, k=OWN)) for _ in range(PROMPTS)]
    draw.shuffle(found)
    return found


def asked(backend: Backend, texts: Sequence[str], at_once: int) -> list[lmprog.Usage]:
    calls = [{"text": text} for text in texts]
    runs = ask.run_batch(calls, backend=backend, num_threads=max(1, at_once))
    return [one.usage for one in runs]


def share(usages: Sequence[lmprog.Usage]) -> float:
    """Of prompt tokens that were found."""
    return float(sum(one.cached for one in usages) / sum(one.prompt for one in usages))


def share_found(backends: Sequence[Backend], texts: Sequence[str], at_once: int) -> float:
    """Backends take turns; a fleet is one backend."""
    usages: list[lmprog.Usage] = []
    for turn, start in enumerate(range(0, len(texts), at_once)):
        backend = backends[turn % len(backends)]
        usages += asked(backend, texts[start : start + at_once], at_once)
    return share(usages)


def share_found_at_once(backends: Sequence[Backend], texts: Sequence[str], at_once: int) -> float:
    """All backends at the same time, each with its share of the texts and of `at_once`."""
    count = len(backends)
    each = [texts[index::count] for index in range(count)]
    with ThreadPoolExecutor(count) as threads:
        parts = threads.map(asked, backends, each, [at_once // count] * count)
        return share([one for part in parts for one in part])


def share_found_later(backends: Sequence[Backend], texts: Sequence[str], at_once: int) -> float:
    """As `share_found_at_once`, after one prompt of each family, which is not counted."""
    first = {text[:PREFIX]: text for text in reversed(texts)}
    for text in first.values():
        ask.using(backend=backends[0]).run(text)
    rest = [text for text in texts if first[text[:PREFIX]] != text]
    return share_found_at_once(backends, rest, at_once)


HALF: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_memory_mb": SCARCE_MB // 2}


def hits(orders: int = 3) -> None:
    """Prints the table for few and many programs at once, each for so many orders of the prompts,
    and the least ratio of a fleet to one runtime.
    """
    columns = ("one runtime", "fleet of two", "ratio", "two in turns")
    runner.head("programs at once", "order", *columns, texts=2)
    ratios: list[float] = []
    for at_once, order in product((4, 64), range(7, 7 + orders)):
        texts = prompts(random.Random(order))
        with lmprog.Runtime(MODEL, **{**HALF, "kv_memory_mb": SCARCE_MB}) as one:
            alone = share_found([one], texts, at_once)
        with lmprog.Fleet.local(MODEL, replicas=2, **HALF) as fleet:
            affine = share_found([fleet], texts, at_once)
        with lmprog.Runtime(MODEL, **HALF) as first, lmprog.Runtime(MODEL, **HALF) as second:
            turns = share_found([first, second], texts, max(1, at_once // 2))
        ratios.append(affine / alone)
        figures = (alone, affine, affine / alone, turns)
        runner.say(at_once, order, *(f"{figure:.3f}" for figure in figures))
    print(f"ratios: {min(ratios):.3f} to {max(ratios):.3f}")


def gateways(orders: int = 3) -> None:
    """The share that is found where the prompts come through several gateways: in turns of 16
    programs; through all of them at once, 16 programs together; and so once each family has been
    seen, which is not counted.
    """
    columns = ("in turns", "at once", "at once, families known")
    runner.head("gateways", "order", *columns, texts=2)
    for count, order in product((1, 2, 4), range(7, 7 + orders)):
        texts, cells = prompts(random.Random(order)), []
        for way in (share_found, share_found_at_once, share_found_later):
            with lmprog.Runtime(MODEL, **HALF) as first, lmprog.Runtime(MODEL, **HALF) as second:
                addresses = [first.address, second.address]
                with ExitStack() as stack:
                    fleets = [stack.enter_context(lmprog.Fleet(addresses)) for _ in range(count)]
                    for fleet in fleets:
                        fleet.channel.wait_for(2)
                    cells.append(f"{way(fleets, texts, 16):.3f}")
        runner.say(count, order, *cells)


@lmprog.function
def write(s: lmprog.Branch, text: str) -> str:
    s += text
    s += lmprog.gen("answer", max_tokens=400, temperature=1.0, seed=1, ignore_eos=True)
    return str(s["answer"])


def deaths(times: int = 5) -> None:
    """Kills the busier of two replicas of nano under eight programs: seconds until its programs are
    on the other one, and whether each program ended as it does without a death.
    """
    calls = [{"text": f"Story {number} begins."} for number in range(8)]

    def written(fleet: lmprog.Fleet) -> list[str]:
        return [run.value for run in write.run_batch(calls, backend=fleet, num_threads=8)]

    with (
        lmprog.Fleet.local("nano", replicas=2, threads=1, kv_memory_mb=64) as fleet,
        ThreadPoolExecutor(1) as threads,
    ):
        calm = written(fleet)
        waits, same = [], 0
        for _ in range(times):
            fleet.channel.wait_for(2, timeout=120.0)
            results = threads.submit(written, fleet)
            while sum(fleet.channel.loads.values()) < len(calls):
                time.sleep(0.001)
            time.sleep(0.3)
            loads, moved = fleet.channel.loads, fleet.channel.num_moved
            busiest = max(loads, key=loads.__getitem__)
            assert isinstance(fleet.members, LocalMembers)
            began = time.perf_counter()
            os.kill(fleet.members.processes[busiest].pid, signal.SIGKILL)
            while fleet.channel.num_moved == moved and not results.done():
                time.sleep(0.001)
            waits.append(time.perf_counter() - began)
            same += sum(map(str.__eq__, results.result(), calm))
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
    replicas = World(SimulatedFleet()).replicas
    tracemalloc.start()
    memory = PrefixMemory()
    for one in replicas:
        memory.add(one.number, 4096)
        one.load = draw.randrange(one.slots)
    for family in families:
        memory.remember(draw.choice(replicas).number, keys_of(family))
    bytes_held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    rounds = []
    for _ in range(20):
        texts = [draw.choice(families) for _ in range(100)]
        began = time.process_time()
        for text in texts:
            keys = keys_of(text)
            memory.remember(replicas[best(replicas, keys, keys[0], memory)].number, keys)
        rounds.append(1e6 * (time.process_time() - began) / len(texts))
    print(
        f"{median(rounds):.0f} us a decision, {min(rounds):.0f} in the best of 20 rounds; 64 replicas, "
        f"prefixes of 40 blocks of {BLOCK} characters; {bytes_held / (40 * len(families)):.0f} bytes "
        "of memory a block"
    )


@lmprog.function
def one_token(s: lmprog.Branch, text: str) -> str:
    s += text
    s += lmprog.gen("answer", max_tokens=1, temperature=0)
    return str(s["answer"])


def overhead(calls: int = 400) -> None:
    """Milliseconds of this process's time for a program of one call, on a runtime and on a fleet of
    it alone: the medians of turns of forty, after one that is not counted.
    """
    texts = [f"Program {number} says that {'and so on ' * 40}" for number in range(40)]
    with (
        lmprog.Runtime(MODEL, dtype="float32", threads=1, kv_memory_mb=16) as runtime,
        lmprog.Fleet([runtime.address]) as fleet,
    ):

        def spent(backend: Backend) -> float:
            return runner.seconds(
                lambda: [one_token.using(backend=backend).run(text) for text in texts]
            )

        sides = {"directly": partial(spent, runtime), "through a fleet": partial(spent, fleet)}
        runner.in_turn(sides, 1)  # what is done once is no cost of a call
        found = runner.medians(sides, max(1, calls // len(texts)))
    each = {name: 1e3 * took / len(texts) for name, took in found.items()}
    more = each["through a fleet"] - each["directly"]
    print(" ".join(f"{name} {ms:.3f} ms;" for name, ms in each.items()), f"{more:.3f} ms more")


COMMANDS = runner.commands(decisions, overhead, hits, gateways, deaths)
