"""What a fleet costs and what its affinity brings.

    python -m benchmarks.fleet decisions    processor time of one routing decision, 64 replicas
    python -m benchmarks.fleet overhead     processor time of a call through a fleet, and directly
    python -m benchmarks.fleet hits 12      two replicas beside one with twice the pages, 12 orders
    python -m benchmarks.fleet gateways     the same fleet behind 1, 2 and 4 gateways
    python -m benchmarks.fleet deaths       how soon programs go on after SIGKILL of a replica
    python -m benchmarks.fleet store        what replicas find in a store that all of them share

`hits` runs 16 families of 20 prompts, shuffled, each family with a prefix of its own, on the
runtimes themselves: one with all pages, two with half of them each behind a fleet, and two that
take turns. Figures are the share of prompt tokens that were found in a tree.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import lmprog
from benchmarks import runner
from benchmarks.fleet_simulation import SimulatedFleet, World
from lmprog.backends import Backend
from lmprog.backends.client import RuntimeBackend, describe
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


def prompts(draw: random.Random, prefix: int = PREFIX) -> list[str]:
    """All prompts, shuffled."""
    letters = "abcdefghijklmnopqrstuvwxyz "
    found = []
    for _ in range(FAMILIES):
        shared = "".join(draw.choices(letters, k=prefix))
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


# -- one store behind all

AMPLE_MB = 8
"""Memory that holds all families."""
WHOLE = 335
"""Characters of a prefix that ends where a page does."""
HEAVY = "dummy:768x12"
"""88 million weights."""


def store() -> int:
    """Each figure beside its bar, in the order of prompts that the seed 7 gives. Ends with exit code 1
    where one is not met.
    """
    runner.head("what", "bar", "figure", "met", texts=4)
    are_met = []
    rows: list[tuple[float, bool, Callable[[str], tuple[float, str]]]] = [
        (0.95, True, found_cold),
        *(
            (1.05, False, partial(computed_in_a_quarter, prefix, at_random=at_random))
            for prefix, at_random in product((WHOLE, PREFIX), (False, True))
        ),
        (0.05, False, computed_after_death),
        (0.2, False, cost_of_loading),
        *((0.02, False, partial(added_by, kind)) for kind in FAULTS if SERVER is not None),
    ]
    for bar, is_least, measured in rows:
        with tempfile.TemporaryDirectory(
            ignore_cleanup_errors=True
        ) as folder:  # they may begin anew
            figure, said = measured(folder)
        are_met.append(figure >= bar if is_least else figure <= bar)
        sign = "at least" if is_least else "at most"
        runner.say(said, f"{sign} {bar:g}", f"{figure:.3f}", runner.verdict(are_met[-1]))
    return 0 if all(are_met) else 1


def stored(folder: str, megabytes: int) -> dict[str, Any]:
    """The options of a runtime with so much memory before a store of this machine."""
    shared = {"kv_store": "machine", "kv_disk_mb": 64, "kv_disk_folder": folder}
    return {**HALF, "kv_memory_mb": megabytes, **shared}


def found_cold(folder: str) -> tuple[float, str]:
    texts = prompts(random.Random(7))[:100]
    with lmprog.Runtime(MODEL, **stored(folder, AMPLE_MB)) as warm:
        asked(warm, texts, 4)
        at_best = sum(one.cached for one in asked(warm, texts, 4))
        with lmprog.Runtime(MODEL, **stored(folder, AMPLE_MB)) as cold:
            found = sum(one.cached for one in asked(cold, texts, 4))
    return (
        found / at_best,
        "tokens of 100 prompts that a cold replica finds, of those a warm one finds",
    )


def computed_in_a_quarter(prefix: int, folder: str, *, at_random: bool) -> tuple[float, str]:
    texts, draw = prompts(random.Random(7), prefix), random.Random(8)
    with lmprog.Runtime(MODEL, **{**HALF, "kv_memory_mb": AMPLE_MB}) as one:
        alone = computed(asked(one, texts, 4))
    with lmprog.Fleet.local(MODEL, replicas=2, **stored(folder, AMPLE_MB // 8)) as fleet:
        backends: list[Backend] = [fleet]
        if at_random:
            assert isinstance(fleet.members, LocalMembers)
            processes = fleet.members.processes.values()
            backends = [RuntimeBackend(one.connect("bench")) for one in processes]
        starts = range(0, len(texts), 4)
        parts = [asked(draw.choice(backends), texts[at : at + 4], 4) for at in starts]
    placed = "at random" if at_random else "by the fleet"
    said = f"computed by two with a quarter of the memory, placed {placed}, prefixes of {prefix}, of one's"
    return computed([one for part in parts for one in part]) / alone, said


def computed(usages: Sequence[lmprog.Usage]) -> int:
    return sum(one.prompt - one.cached for one in usages)


LONG, WRITTEN = 1600, 32
"""Tokens of a program before its pause: of its text, and that it writes."""


@lmprog.function
def two_parts(s: lmprog.Branch, text: str, between: Callable[[], object]) -> int:
    """Tokens of before the pause that are computed again after it."""
    s += text
    first = s.gen(max_tokens=WRITTEN, temperature=0, ignore_eos=True)
    assert str(first)
    between()
    s += "b" * OWN
    second = s.gen(max_tokens=1, temperature=0, ignore_eos=True)
    assert str(second)
    usage = second.usage
    assert usage is not None
    return max(0, usage.prompt - usage.cached - OWN)


def computed_after_death(folder: str) -> tuple[float, str]:
    """Eight programs pause for a second, and the busier of their two replicas is killed."""
    draw = random.Random(7)
    with lmprog.Fleet.local(MODEL, replicas=2, **stored(folder, AMPLE_MB)) as fleet:

        def kill() -> None:
            time.sleep(1.0)
            loads = fleet.channel.loads
            assert isinstance(fleet.members, LocalMembers)
            busiest = max(loads, key=loads.__getitem__)
            os.kill(fleet.members.processes[busiest].pid, signal.SIGKILL)
            while busiest in fleet.channel.loads:
                time.sleep(0.01)

        middle = threading.Barrier(8, kill)
        texts = ["".join(draw.choices("abcdefgh ", k=LONG)) for _ in range(8)]
        calls = [{"text": text, "between": middle.wait} for text in texts]
        again = [one.value for one in two_parts.run_batch(calls, backend=fleet, num_threads=8)]
        moved = fleet.channel.num_moved
    assert moved >= 4
    said = f"of the tokens of {moved} programs that moved, computed again after SIGKILL"
    return sum(again) / (moved * (LONG + WRITTEN)), said


def cost_of_loading(folder: str) -> tuple[float, str]:
    """Twelve prompts of 600 tokens, computed and, by another runtime, loaded."""
    draw = random.Random(7)
    texts = ["".join(draw.choices("abcdefgh ", k=600)) for _ in range(12)]
    options = {**stored(folder, 256), "kv_disk_mb": 1024}
    seconds, loaded = [], 0
    for _ in range(2):
        with lmprog.Runtime(HEAVY, **options) as runtime:
            one_token.using(backend=runtime).run("warm")
            before = processor_seconds(runtime.process.pid)
            calls = [{"text": text} for text in texts]
            usages = [run.usage for run in one_token.run_batch(calls, backend=runtime)]
            seconds.append(processor_seconds(runtime.process.pid) - before)
            loaded = sum(one.cached for one in usages)
            ends, wanted = time.monotonic() + 60.0, 0.95 * 600 * len(texts) // 16
            while time.monotonic() < ends and describe(runtime)["tier_pages"] < wanted:
                time.sleep(
                    0.1
                )  # what has been computed is written while nothing else is to be done
    assert loaded > 0.9 * 600 * len(texts)
    return seconds[1] / seconds[
        0
    ], "processor time of loading by that of computing, 88 million weights"


SERVER = shutil.which("valkey-server") or shutil.which("redis-server")
"""Without one what faults of a store add is not measured, which is said."""
FAULTS = ("hung", "full", "torn", "gone")


class FailingServer:
    """A server of pages, for two runtimes of this machine."""

    def __init__(self, folder: str) -> None:
        self._socket = f"{folder}/socket"
        self.url = f"unix://{self._socket}"
        assert SERVER is not None
        command = [SERVER, "--port", "0", "--unixsocket", self._socket, "--save", ""]
        self._process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tear)
        while not os.path.exists(self._socket):
            time.sleep(0.01)

    def fail(self, kind: str) -> None:
        match kind:
            case "hung":
                self._process.send_signal(signal.SIGSTOP)
            case "full":
                self._said("CONFIG SET maxmemory 1")
            case "torn":
                self._thread.start()
            case "gone":
                self._process.kill()

    def close(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._process.kill()
        self._process.wait()

    def _tear(self) -> None:
        """In every page, whenever one is there, some bytes are other ones."""
        while not self._ended.wait(0.01):
            for name in self._said("KEYS lmprog-kv:*").split():
                if name.startswith("lmprog-kv:"):
                    self._said(f"SETRANGE {name} 300 torn")

    def _said(self, command: str) -> str:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(self._socket)
            client.sendall(f"{command}\r\nQUIT\r\n".encode())
            return b"".join(iter(lambda: client.recv(1 << 16), b"")).decode()


def added_by(kind: str, folder: str) -> tuple[float, str]:
    """Programs one by one, each on a runtime without a store and on one whose store fails after a
    quarter of them; the answers must be the same. Then all of them, three times.
    """
    texts, took = prompts(random.Random(7)), {False: [0.0] * 0, True: [0.0] * 0}
    calm = len(texts) // 4
    few = {**HALF, "kv_memory_mb": AMPLE_MB // 8}
    server = FailingServer(folder)
    try:
        with (
            lmprog.Runtime(MODEL, **few) as plain,
            lmprog.Runtime(MODEL, **few, kv_store=server.url) as stored,
        ):
            for number, text in enumerate(texts[:calm] + 3 * texts):
                if number == calm:
                    assert describe(stored)["tier_pages_loaded"] > 0
                    server.fail(kind)
                    took = {False: [], True: []}
                values = []
                for is_stored in (False, True) if number % 2 else (True, False):
                    began = time.perf_counter()
                    run = ask.using(backend=stored if is_stored else plain).run(text)
                    took[is_stored].append(time.perf_counter() - began)
                    values.append(run.value)
                assert values[0] == values[1], text
    finally:
        server.close()
    alone, beside = (runner.percentile(took[one], 0.99) for one in (False, True))
    said = f"seconds that a store which is {kind} adds to the 99th percentile, which is {alone:.3f}"
    return beside - alone, said


def processor_seconds(pid: int) -> float:
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


# -- by itself


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


COMMANDS = runner.commands(decisions, overhead, hits, gateways, deaths, store)
