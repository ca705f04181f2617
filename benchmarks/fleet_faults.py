"""Random programs of twelve kinds while the replicas below them fail in seven ways.

    python -m benchmarks.fleet_faults 5000 250            every replica for itself
    python -m benchmarks.fleet_faults 5000 250 --store    one store behind all
    python -m benchmarks.fleet_faults times               how soon a wrong, a silent, a hung one is found

Each program runs on one runtime without a fault, and then among others on a fleet of real processes. A
fault comes for every so many programs that begin, as soon as most of those that run at a time are under
way. With a store its pages are torn and its file is removed as well. A program is wrong where a text, a
token, a score or a stream is another one, and lost where it ends in an error. Ends with exit code 1
where one was. `moved` counts programs that were built again on another replica.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import lmprog
from benchmarks import runner
from lmprog.backends import Backend
from lmprog.backends.client import RuntimeBackend, describe
from lmprog.errors import LmprogError
from lmprog.fleet.fleet_channel import FleetChannel
from lmprog.fleet.local_members import LocalMembers, next_generation
from lmprog.fleet.members import FixedMembers
from lmprog.launch import RuntimeProcess
from lmprog.launch.restarts import DelayLimits, HangTimeouts

# -- programs

FAMILIES, SHARED = 12, 200
"""Programs begin with one of so many texts of so many characters."""
Between = Callable[[], object]
"""Called in the middle of a program: after its first call, before its last."""
SAMPLED: dict[str, Any] = {"temperature": 1.0, "ignore_eos": True}


def beginning(rng: random.Random) -> str:
    family = random.Random(rng.randrange(FAMILIES))
    own = "".join(rng.choices("abcdefgh ", k=rng.randrange(1, 30)))
    return "".join(family.choices("abcdefgh ", k=SHARED)) + own


def sampled(rng: random.Random, most: int = 24) -> dict[str, Any]:
    return {**SAMPLED, "max_tokens": rng.randint(1, most)}


async def chain(s: lmprog.Branch, rng: random.Random, between: Between) -> None:
    for part in range(3):
        await s.gen(**sampled(rng))
        s.append(f" and {part} ")
        if part == 1:
            between()


async def greedy(s: lmprog.Branch, rng: random.Random, between: Between) -> None:
    await s.gen(max_tokens=rng.randint(1, 30), temperature=0, heal=False)
    between()
    await s.gen(max_tokens=rng.randint(1, 30), temperature=0, heal=False)


async def chat(s: lmprog.Branch, rng: random.Random, between: Between) -> None:
    for turn in range(2):
        s.user(f"Question {turn} of {rng.randrange(100)}?")
        await s.gen(**sampled(rng))
        between() if turn == 0 else None


async def forks(s: lmprog.Branch, rng: random.Random, between: Between) -> None:
    children = s.fork(rng.randint(2, 4))
    for number, child in enumerate(children):
        child.append(f" {number}: ")
        child.gen(f"part {number}", **sampled(rng))
    between()
    children.join("concate_and_append")
    await s.gen(**sampled(rng))


async def choices(s: lmprog.Branch, rng: random.Random, between: Between) -> None:
    await s.select("this", "that", "those of them")
    between()
    s.append(" then ")
    await s.select("yes", "no", "neither", sample=True)


async def patterns(s: lmprog.Branch, rng: random.Random, between: Between) -> None:
    await s.gen(regex=r"[a-e]{2,8}-[0-9]{1,4}", max_tokens=20)
    between()
    await s.gen(regex=r"(red|green|blue)( and (red|green|blue)){0,3}\.", max_tokens=40)


async def typed(s: lmprog.Branch, rng: random.Random, between: Between) -> None:
    await s.gen(Literal["one", "two", "three"])
    between()
    await s.gen(list[int], max_tokens=24, on_incomplete="keep")


async def several(s: lmprog.Branch, rng: random.Random, between: Between) -> None:
    first = s.gen(n=3, **sampled(rng))
    between()
    await first
    await s.gen(n=2, **sampled(rng))


async def streamed(s: lmprog.Branch, rng: random.Random, between: Between) -> None:
    await s.gen("first", **sampled(rng))
    between()
    await s.gen("second", **{**SAMPLED, "max_tokens": rng.randint(20, 60)})


async def references(s: lmprog.Branch, rng: random.Random, between: Between) -> None:
    one, other = s.fork(2)
    result = one.gen(**sampled(rng))
    other.append("it says ", result, ", and so ")
    last = other.gen(**sampled(rng))
    between()
    await last
    s.append("in the end ", last)
    await s.gen(**sampled(rng))


async def snapshots(s: lmprog.Branch, rng: random.Random, between: Between) -> None:
    await s.gen(**sampled(rng))
    kept = s.snapshot()
    s.append(" once ")
    await s.gen(**sampled(rng))
    between()
    s.restore(kept)
    s.append(" again ")
    await s.gen(**sampled(rng))


async def stops(s: lmprog.Branch, rng: random.Random, between: Between) -> None:
    stop = list(rng.sample(["e", "th", " a", "zz"], 2))
    await s.gen(temperature=1.0, max_tokens=40, stop=stop, logprobs=2)
    between()
    await s.gen(temperature=1.0, max_tokens=40, stop_regex="[xyz]{2}", logprobs=0)


KINDS: tuple[Callable[..., Coroutine[Any, Any, None]], ...]
KINDS = (chain, greedy, chat, forks, choices, patterns, typed)
KINDS += (several, streamed, references, snapshots, stops)


@lmprog.function
async def drawn(s: lmprog.Branch, number: int, between: Between = int) -> list[object]:
    """The program of that number: its texts, tokens and scores, in order."""
    rng = random.Random(number)
    s.append(beginning(rng))
    await KINDS[number % len(KINDS)](s, rng, between)
    found: list[object] = []
    for gen in s.cursor.scope.all_gens():
        await gen
        scores = [round(one, 6) for one in dict(getattr(gen.value, "scores", {})).values()]
        found.append((gen.texts, [one.tokens for one in gen.metas], scores))
    return found


def outcome(backend: Backend, number: int, between: Between = int) -> object:
    """What comes of a program, with the texts that were streamed where it is of that kind."""
    ready = drawn.using(backend=backend, seed=number)
    if KINDS[number % len(KINDS)] is not streamed:
        return ready.run(number, between).value
    texts: dict[str | None, str] = {}
    value: object = None
    for event in ready.stream(number, between):
        if isinstance(event, lmprog.Text):
            texts[event.var] = texts.get(event.var, "") + event.delta
        elif isinstance(event, lmprog.Done):
            value = event.value
    return value, texts


# -- faults

REPLICAS, AT_ONCE = 3, 24
MODEL = "dummy:tiny"
RUNTIME: dict[str, Any] = {"dtype": "float32", "threads": 1, "num_pages": 320}
STORE_MB = 64
PATIENCE = 300.0
HANG = HangTimeouts(silence=1.0, stall=2.5, frozen=2.5)


class Faults:
    """Brings faults on the replicas of a fleet; `counts` says how often each kind."""

    def __init__(self, channel: FleetChannel, members: LocalMembers, seed: int) -> None:
        self._channel, self._members = channel, members
        self._rng = random.Random(seed)
        self.counts: Counter[str] = Counter()

    @property
    def kinds(self) -> list[Callable[[], None]]:
        return [
            *(self.killed, self.stopped, self.paused, self.told_to_end),
            *(self.drained, self.all_killed, self.updated),
        ]

    def bring(self, number: int) -> None:
        """The kinds take turns."""
        kind = self.kinds[number % len(self.kinds)]
        kind()
        self.counts[kind.__name__] += 1

    def _busiest(self) -> str:
        """Mostly; now and then another one."""
        loads = self._channel.loads
        if not loads or self._rng.random() < 0.2:
            return self._rng.choice(sorted(self._members.processes))
        return max(loads, key=loads.__getitem__)

    def _signal(self, names: list[str], number: int) -> None:
        for name in names:
            process = self._members.processes.get(name)
            if process is not None and process.alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def killed(self) -> None:
        self._signal([self._busiest()], signal.SIGKILL)

    def stopped(self) -> None:
        """For good: it is found to hang, and replaced."""
        self._signal([self._busiest()], signal.SIGSTOP)

    def paused(self) -> None:
        """Three times for a moment, in which it is silent."""
        name = self._busiest()
        for _ in range(3):
            self._signal([name], signal.SIGSTOP)
            time.sleep(self._rng.choice([0.05, 0.7, 1.7]))
            self._signal([name], signal.SIGCONT)
            time.sleep(0.05)

    def told_to_end(self) -> None:
        self._signal([self._busiest()], signal.SIGTERM)

    def drained(self) -> None:
        with contextlib.suppress(LmprogError):  # it may have died since
            self._channel.drain(self._busiest(), self._rng.choice([0.0, 0.5]))

    def all_killed(self) -> None:
        self._signal(list(self._members.processes), signal.SIGKILL)

    def updated(self) -> None:
        """To a generation of the same model."""
        self._channel.replace_all(next_generation(self._members), 0.5)


class StoreFaults(Faults):
    """Those of a shared store's file, too."""

    def __init__(self, channel: FleetChannel, members: LocalMembers, seed: int, at: Path) -> None:
        super().__init__(channel, members, seed)
        self._folder = at

    @property
    def kinds(self) -> list[Callable[[], None]]:
        return [*super().kinds, self.store_torn, self.store_removed]

    def store_torn(self) -> None:
        """Half of its pages are overwritten in part."""
        for path in self._files():
            with path.open("r+b") as file:
                for at in range(0, path.stat().st_size - 4096, 8192):
                    file.seek(at + self._rng.randrange(4096))
                    file.write(self._rng.randbytes(64))

    def store_removed(self) -> None:
        """Who has it open goes on with it; who starts makes a new one."""
        for path in self._files():
            path.unlink()

    def _files(self) -> list[Path]:
        return [one for one in self._folder.rglob("*") if one.is_file()]


# -- the trial


class Trial:
    """Programs and faults, which wait for each other: so many programs begin for each fault."""

    def __init__(self, faults: Faults, channel: FleetChannel, programs: int, count: int) -> None:
        self._faults, self._channel = faults, channel
        self._each = programs / count if count else programs
        self._count = count
        self._begun = self._brought = self._open = 0
        self._changed = threading.Condition()
        self.differences: list[str] = []
        self.slowest = 0.0

    def run(self, backend: Backend, number: int, expected: object) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._begun < (self._brought + 1) * self._each, PATIENCE)
            self._begun += 1
            self._open += 1
            self._changed.notify_all()
        began = time.monotonic()
        try:
            found = outcome(backend, number)
            said = "" if found == expected else f"wrong: {_short(found)} for {_short(expected)}"
        except LmprogError as error:
            said = f"lost: {error}"
        with self._changed:
            self._open -= 1
            self.slowest = max(self.slowest, time.monotonic() - began)
            if said:
                kind = KINDS[number % len(KINDS)].__name__
                self.differences.append(f"program {number} ({kind}) {said}")
                print(self.differences[-1], flush=True)
            self._changed.notify_all()

    def bring_faults(self) -> None:
        """Body of a thread. A fault finds most programs under way, and most replicas up."""
        while self._brought < self._count:
            with self._changed:
                due = (self._brought + 1) * self._each
                self._changed.wait_for(lambda due=due: self._begun >= due, PATIENCE)  # type: ignore[misc]
            self._channel.wait_for(REPLICAS - 1, PATIENCE)
            self._faults.bring(self._brought)
            with self._changed:
                self._brought += 1
                self._changed.notify_all()


def _short(found: object) -> str:
    text = repr(found)
    return text if len(text) < 400 else f"{text[:400]}..."


@contextmanager
def fleet(store: Path | None) -> Iterator[tuple[FleetChannel, LocalMembers]]:
    shared = {} if store is None else {"kv_disk_mb": STORE_MB, "kv_disk_folder": str(store)}
    options = {**RUNTIME, **shared} | ({"kv_store": "machine"} if store is not None else {})
    members = LocalMembers(
        lambda generation: RuntimeProcess(MODEL, **{**options, "generation": generation}),
        REPLICAS,
        delays=DelayLimits(settled=0.0),  # faults come faster than any real ones
    )
    members.until_started()
    channel = FleetChannel(members, hang=HANG)
    channel.wait_for(REPLICAS, PATIENCE)
    yield channel, members


def trial(programs: int = 5000, faults: int = 250, *, store: bool = False, first: int = 0) -> int:
    """Prints each difference, and how many there were."""
    numbers = range(first, first + programs)
    with (
        lmprog.Runtime(MODEL, **{**RUNTIME, "num_pages": 4 * RUNTIME["num_pages"]}) as alone,
        ThreadPoolExecutor(AT_ONCE) as threads,
    ):
        expected = list(threads.map(partial(outcome, alone), numbers))
    print(f"{programs} programs have run on one runtime", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="lmprog-store-", ignore_cleanup_errors=True) as folder,
        fleet(Path(folder) if store else None) as (channel, members),
        RuntimeBackend(channel) as backend,
        ThreadPoolExecutor(AT_ONCE) as threads,
    ):
        brought = (
            StoreFaults(channel, members, first, Path(folder))
            if store
            else Faults(channel, members, first)
        )
        tried = Trial(brought, channel, programs, faults)
        bringing = threading.Thread(target=tried.bring_faults)
        bringing.start()
        list(threads.map(partial(tried.run, backend), numbers, expected))
        bringing.join()
        figures = describe(backend)
        moved = channel.num_moved
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(brought.counts.items()))
    lost = sum(" lost: " in one for one in tried.differences)
    print(f"{programs} programs from {first} on, {faults} faults ({kinds}); {moved} moved")
    if store:
        told = ("stored", "loaded", "lost", "abandoned")
        pages = ", ".join(f"{int(figures[f'tier_pages_{name}'])} {name}" for name in told)
        print(f"pages of the store, by the runtimes that were there last: {pages}")
    print(f"{len(tried.differences) - lost} wrong, {lost} lost; slowest {tried.slowest:.1f} s")
    return 1 if tried.differences else 0


# -- times

SILENT_SECONDS = 2.0
"""After a replica has fallen silent programs are asked."""


def times(count: int = 5) -> int:
    """Each of the three so many times: the seconds from the least to the most, beside the bar. Ends
    with exit code 1 where one is not met.
    """
    runner.head("what", "bar", "seconds", "met", texts=4)
    are_met = []
    for bar, measured in ((1.0, refused), (2.0, beside_silent), (10.0, restarted)):
        seconds = [measured() for _ in range(count)]
        are_met.append(max(seconds) <= bar)
        said = f"{min(seconds):.2f} to {max(seconds):.2f}"
        runner.say(measured.__doc__, f"{bar:g} s", said, runner.verdict(are_met[-1]))
    return 0 if all(are_met) else 1


def refused() -> float:
    """a runtime with another model is there: refused by name"""
    with tempfile.TemporaryDirectory() as folder, lmprog.Runtime(MODEL, **RUNTIME) as right:
        place = f"ipc://{folder}/socket"
        members = FixedMembers([right.address, place])
        with lmprog.Fleet(members=members) as fleet:
            with RuntimeProcess("dummy:64x3", address=place, threads=1, num_pages=64):
                began = time.monotonic()
                until(lambda: fleet.channel.refused)
                took = time.monotonic() - began
            assert list(fleet.channel.refused) == [place]
    return took


def beside_silent() -> float:
    """one of two is silent: the slowest of 40 programs asked 2 s later"""
    members = LocalMembers(lambda generation: RuntimeProcess(MODEL, **RUNTIME), 2)
    members.until_started()
    with lmprog.Fleet(members=members) as fleet, ThreadPoolExecutor(8) as threads:
        assert fleet.channel.wait_for(2, PATIENCE)
        list(threads.map(partial(outcome, fleet), range(48)))
        silent = sorted(members.processes)[0]
        os.kill(members.processes[silent].pid, signal.SIGSTOP)
        time.sleep(SILENT_SECONDS)

        def taken(number: int) -> float:
            began = time.monotonic()
            outcome(fleet, number)
            return time.monotonic() - began

        took = list(threads.map(taken, range(40)))
        assert fleet.channel.loads.get(silent, 0) == 0
    return max(took)


def restarted() -> float:
    """a runtime at an address hangs: until it serves again, started by whoever owns it"""
    with tempfile.TemporaryDirectory() as folder:
        place = f"ipc://{folder}/socket"
        command = [sys.executable, "-m", "lmprog.cli", "serve", MODEL, "--address", place]
        command += ["--threads", "1", "--kv-memory-mb", "16"]

        def owned() -> subprocess.Popen[bytes]:
            return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        owner = owned()
        try:
            with lmprog.Fleet([place]) as fleet:
                outcome(fleet, 1)
                pid = int(describe(fleet)["pid"])
                os.kill(pid, signal.SIGSTOP)
                began = time.monotonic()
                assert owner.wait(PATIENCE) == 1
                owner = owned()
                outcome(fleet, 1)
                return time.monotonic() - began
        finally:
            owner.terminate()
            owner.wait(PATIENCE)


def until(happens: Callable[[], object]) -> None:
    ends = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < ends
        time.sleep(0.005)


COMMANDS = runner.commands(trial, times)
