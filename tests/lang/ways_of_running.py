"""Every way of running a program, each in this process over the same fake model, whose every logit
depends on all tokens before it: whoever goes on from other tokens gives another answer.

    python -m tests.lang.ways_of_running 2000 [first seed]

The tokenizer is that of nano, so that texts heal and special tokens have names; the runtime is the
real one but for its model. Programs are drawn: texts that are cut anywhere and that spell special
tokens, generations confined to such texts, results in other branches, forks, joins, choices,
snapshots, failures. What is drawn does not depend on what is answered.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import lmprog
from lmprog import wire
from lmprog.backends import Backend
from lmprog.backends.blackbox.api_backend import ApiBackend
from lmprog.backends.blackbox.programs_api import ProgramsApi
from lmprog.backends.blackbox.retry_policy import RetryPolicy
from lmprog.backends.client import Client, ClientCall, RuntimeBackend
from lmprog.errors import LmprogError
from lmprog.fleet.router import Router
from lmprog.runtime.text.tokenizer import HfTokenizer
from lmprog.server.programs.program_body import ProgramBody, Translator
from lmprog.server.programs.running_program import result_of
from tests.runtime.talk import Talk

NANO = Path(lmprog.__file__).parent / "nano"
CONTEXT = 4096
SPELLS = ("say <|end|> now", "<|user|>", "a<|end|><|end|>", "<|assist", "ant|> so")
"""Texts with names of special tokens, or parts of them."""
WORDS = ("so ", "and then ", "the an", "nati", "x", "http:", " th", "\n", "", *SPELLS)
GIVEN_UP = "given up"
"""The name of calls that may have an answer before they are cancelled."""
STOPS = ("e", " a", "th")


# --- programs


@dataclass(frozen=True)
class Drawn:
    """What came of a program: by the place of each call its texts and tokens; what failed."""

    results: Mapping[str, object]
    failures: tuple[str, ...]
    texts: tuple[str, ...]
    """Of results that had been formatted before they were read."""


class Author:
    """Writes a program while it runs. With `reads`, each result is read as soon as it is asked for;
    without, at the end.
    """

    def __init__(self, s: lmprog.Branch, rng: random.Random, *, reads: bool) -> None:
        self.rng = rng
        self.reads = reads
        self.live = [s]
        self.groups: list[tuple[lmprog.Branch, Any]] = []
        self.results: list[tuple[lmprog.Gen[Any], str]] = []
        """Each with a text that it was formatted into before it was read."""
        self.snapshots: list[tuple[lmprog.Branch, Any]] = []
        self.failures: list[str] = []

    async def act(self) -> None:
        rng, branch = self.rng, self.rng.choice(self.live)
        acts = (self.write, self.write, self.ask, self.ask, self.ask, self.refer, self.refer)
        others = (self.fork, self.join, self.fail, self.go_back, self.wait)
        await rng.choice((*acts, *others))(branch)

    async def write(self, branch: lmprog.Branch) -> None:
        rng = self.rng
        text, is_turn = rng.choice(WORDS), rng.random() < 0.15
        if is_turn and text:
            branch.user(text)
        else:
            branch.append(text)

    async def ask(self, branch: lmprog.Branch) -> None:
        rng = self.rng
        number, kind = rng.randint(0, 4), rng.randrange(8)
        options: dict[str, Any] = {"max_tokens": number, "ignore_eos": rng.random() < 0.5}
        if kind == 0:
            gen: lmprog.Gen[Any] = branch.select("yes", "<|end|>", "nothing")
        elif kind == 1:
            gen = branch.gen(choices=list(SPELLS[:2]), max_tokens=24)
        elif kind == 2:
            gen = branch.gen(regex=r"[a-z]* ?<\|end\|>", max_tokens=20)
        elif kind == 3:
            gen = branch.gen(max_tokens=8, stop=list(rng.sample(STOPS, 2)))
        elif kind == 4:
            gen = branch.gen(n=2, **options)
        else:
            gen = branch.gen(heal=rng.random() < 0.8, **options)
        self.results.append((gen, f": {gen}!"))
        if self.reads:
            await gen

    async def refer(self, branch: lmprog.Branch) -> None:
        if self.results:
            gen, formatted = self.rng.choice(self.results)
            branch.append(formatted if self.rng.random() < 0.5 else gen)

    async def fork(self, branch: lmprog.Branch) -> None:
        if len(self.live) < 6:
            group = branch.fork(self.rng.randint(1, 3))
            self.live += group
            self.groups.append((branch, group))

    async def join(self, branch: lmprog.Branch) -> None:
        """A group none of whose children has living children itself."""
        at = self.rng.randrange(len(self.groups) or 1)
        how = self.rng.choice(["gather_variable", "concate_and_append", "concate_and_append"])
        if not self.groups:
            return
        group = list(self.groups[at][1])
        if any(parent in group for parent, _ in self.groups):
            return
        _, joined = self.groups.pop(at)
        self.live = [one for one in self.live if one not in group]
        joined.join(how)

    async def fail(self, branch: lmprog.Branch) -> None:
        """A call that is refused, or a fork that the program gives up."""
        if self.rng.random() < 0.5:
            try:
                await branch.gen(max_tokens=10 * CONTEXT)
            except LmprogError as error:
                self.failures.append(error.code)
            return
        with suppress(ValueError):
            async with branch.fork(2) as group:
                group[0].gen(GIVEN_UP, max_tokens=3)
                group[1].append("not ")
                raise ValueError

    async def go_back(self, branch: lmprog.Branch) -> None:
        """A snapshot, or back to one; nothing may refer to what is cancelled."""
        if self.rng.random() < 0.5 or not self.snapshots:
            self.snapshots.append((branch, branch.snapshot()))
            return
        branch, snapshot = self.rng.choice(self.snapshots)
        if branch in self.live and not any(parent is branch for parent, _ in self.groups):
            await branch.settled()
            branch.restore(snapshot)

    async def wait(self, branch: lmprog.Branch) -> None:
        if self.results:
            await self.rng.choice(self.results)[0]
        await asyncio.sleep(0)


@lmprog.function
async def drawn(s: lmprog.Branch, seed: int, reads: bool) -> tuple[list[str], list[str]]:
    """What failed, and the results as text."""
    rng = random.Random(seed)
    s.append("start ")
    author = Author(s, rng, reads=reads)
    for _ in range(rng.randint(6, 20)):
        await author.act()
    for branch in author.live:  # whatever stands there decides on what is generated now
        branch.append(rng.choice(["", " an", "d so"]))
        branch.gen(max_tokens=2, ignore_eos=True)
    return author.failures, [formatted for _, formatted in author.results]


def outcome(run: lmprog.Run[tuple[list[str], list[str]]]) -> Drawn:
    results = {
        gen.key: (gen.texts, [meta.tokens for meta in gen.metas])
        for gen in run.scope.all_gens()
        if gen.failure() is None and gen.name != GIVEN_UP
    }
    failures, texts = run.value
    return Drawn(results, tuple(failures), tuple(texts))


# --- backends


class Stepped:
    """A client's channel to replicas that its reading thread steps: the real runtime on the fake
    model. With `moves`, programs are moved to another replica between steps.
    """

    def __init__(self, num_replicas: int = 1, moves: random.Random | None = None) -> None:
        tokenizer = HfTokenizer(NANO)
        self.talks = {f"replica-{number}": _talk(tokenizer) for number in range(num_replicas)}
        self.info = wire.Welcome(
            wire.PROTOCOL_VERSION, "fake", CONTEXT, tokenizer.vocab_size, 16, 1024, 1
        )
        self.moves = moves
        self.num_moved = 0
        self._router = Router(random.Random(1), lambda: 0.0)
        for name in self.talks:
            self._router.join(name, self.info, slots=8)
        self._changed = threading.Condition()

    def send(self, ops: Sequence[wire.Op]) -> None:
        with self._changed:
            self._router.take_ops(ops)
            self._changed.notify()

    def receive(self, timeout: float) -> list[wire.Reply]:
        with self._changed:
            if not self._has_work():
                self._changed.wait(timeout)
            self._pass_on()
            for name, talk in self.talks.items():
                if talk.channel.inbox or not talk.scheduler.idle:
                    talk.loop.step()
                    sent, talk.channel.sent = talk.channel.sent, []
                    self._router.take_replies(name, [reply for _, reply in sent])
            if self.moves is not None and self.moves.random() < 0.2:
                self._move(self.moves.choice(list(self.talks)))
            heard = list(self._router.replies)
            self._router.replies.clear()
            return heard

    def close(self) -> None:
        with self._changed:  # between two steps
            for talk in self.talks.values():
                talk.scheduler.check()

    def _has_work(self) -> bool:
        talks = self.talks.values()
        return bool(self._router.outgoing) or any(
            talk.channel.inbox or not talk.scheduler.idle for talk in talks
        )

    def _pass_on(self) -> None:
        while self._router.outgoing:
            name, ops = self._router.outgoing.popleft()
            self.talks[name].say(*ops)

    def _move(self, name: str) -> None:
        """All that is at one replica goes to others; then the replica is there again."""
        before = self._router.num_moved
        self._router.evacuate(name)
        self._pass_on()
        self.num_moved += self._router.num_moved - before
        self._router.lose(name, died=False)
        self._router.join(name, self.info, slots=8)


def _talk(tokenizer: HfTokenizer) -> Talk:
    return Talk(tokenizer, context_len=CONTEXT, page_size=16, num_pages=1024, is_forcing=True)


class InPlaceOfHttp:
    """What lmprog's server makes of a request, without sockets: the bodies are checked and
    translated by the server's own code.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def post(self, path: str, body: dict[str, Any]) -> Mapping[str, Any]:
        assert path == "/v1/programs", path
        program = msgspec.json.decode(msgspec.json.encode(body), type=ProgramBody)
        number = self._client.number
        translator = Translator(number, number, "", None, stream=False, context=CONTEXT)
        for at, op in enumerate(program.ops):
            translator.take(at, op)
        made, calls = translator.made, list[ClientCall]()
        for op in made.ops:
            if isinstance(op, wire.Generate | wire.Select | wire.Read):
                calls.append(self._client.call(op))
            else:
                self._client.post(op)
        results = {}
        for call in calls:
            reply = await call.arrive()
            named = made.calls[call.id]
            results[named.name] = result_of(named, _as_reply(call.id, reply))
        self._client.post(*(wire.Close(op.branch) for op in made.ops if isinstance(op, wire.Open)))
        found: Mapping[str, Any] = msgspec.json.decode(msgspec.json.encode({"results": results}))
        return found

    async def open(self, path: str, body: dict[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        raise NotImplementedError("nothing is streamed here")

    async def close(self) -> None:
        """The client is another's."""


def _as_reply(call: int, reply: object) -> Any:
    if isinstance(reply, LmprogError):
        return wire.Failed(call, reply.code, reply.message, reply.details())
    return reply


# --- ways


@dataclass(frozen=True)
class Machines:
    """The backends that programs are run on."""

    runtime: Backend
    fleet: Backend
    moved: Stepped
    http: Backend


@contextmanager
def machines() -> Iterator[Machines]:
    moved = Stepped(3, random.Random(4))
    with RuntimeBackend(Stepped()) as runtime, RuntimeBackend(moved) as fleet:
        api = ProgramsApi("fake", CONTEXT, InPlaceOfHttp(runtime.client), RetryPolicy())
        with ApiBackend(api, RetryPolicy(), {}) as http:
            yield Machines(runtime, fleet, moved, http)


class Ways:
    """Runs one program in every way."""

    def __init__(self, on: Machines, seed: int, folder: Path) -> None:
        self._on = on
        self._seed = seed
        self._folder = folder
        self._path = folder / "run.jsonl"
        self._plain = drawn.using(backend=on.runtime, temperature=0, seed=seed)

    def _run(self, reads: bool = False, **using: Any) -> Drawn:
        return outcome(self._plain.using(**using).run(self._seed, reads))

    def plain(self) -> Drawn:
        """Results are read at the end; a checkpoint is written on the way."""
        run = self._plain.using(checkpoint=self._path).run(self._seed, False)
        run.save(self._folder / "saved.json")
        self._known = outcome(run)
        return self._known

    def read_early(self) -> Drawn:
        return self._run(reads=True)

    def cached(self, **using: Any) -> Drawn:
        """With an empty folder, and once more from there."""
        folder = self._folder / f"cache {len(using)}"
        first = self._run(cache=folder, **using)
        again = self._run(reads=True, cache=folder, **using)
        return first if first != self._known else again

    def resumed(self, **using: Any) -> Drawn:
        """From any line of the plain run's checkpoint."""
        lines = self._path.read_bytes().splitlines(keepends=True)
        cut = random.Random(self._seed).randint(1, len(lines))
        path = self._folder / "cut.jsonl"
        path.write_bytes(b"".join(lines[:cut]))
        return outcome(lmprog.resume(path, drawn, **{"backend": self._on.runtime, **using}))

    def moved(self) -> Drawn:
        return self._run(backend=self._on.fleet)

    def over_http(self) -> Drawn:
        return self._run(backend=self._on.http, reads=True)

    def cached_over_http(self) -> Drawn:
        return self.cached(backend=self._on.http)

    def resumed_with_cache(self) -> Drawn:
        return self.resumed(cache=self._folder / "other")

    def resumed_over_http(self) -> Drawn:
        """The model of the file is another then, as far as one knows: a file of its own."""
        path = self._folder / "http.jsonl"
        self._plain.using(backend=self._on.http, checkpoint=path).run(self._seed, False)
        self._path = path
        return self.resumed(backend=self._on.http)

    def replayed(self) -> Drawn | str:
        """The plain run, or what its replay found to be another."""
        again = lmprog.replay(self._folder / "saved.json", self._on.runtime)
        return self._known if again.is_same else str(again.differences[0])


def differences(on: Machines, seed: int, num_ways: int = 99) -> list[str]:
    """In which ways the program of that seed gives something else than plainly; of all ways so
    many, which the seed chooses.
    """
    with tempfile.TemporaryDirectory() as folder:
        ways = Ways(on, seed, Path(folder))
        plain = ways.plain()
        others: dict[str, Callable[[], object]] = {
            "read early": ways.read_early,
            "from a cache": ways.cached,
            "resumed": ways.resumed,
            "resumed with a cache": ways.resumed_with_cache,
            "moved": ways.moved,
            "over HTTP": ways.over_http,
            "over HTTP from a cache": ways.cached_over_http,
            "replayed": ways.replayed,
            "resumed over HTTP": ways.resumed_over_http,
        }
        chosen = random.Random(seed).sample(list(others), min(num_ways, len(others)))
        found = [
            f"{name}: {_first(plain, now)}"
            for name in others
            if name in chosen and (now := others[name]()) != plain
        ]
    return [f"program {seed} is another {one}" for one in found]


def _first(plain: Drawn, now: object) -> str:
    """Where they differ first."""
    if not isinstance(now, Drawn):
        return str(now)
    if plain.failures != now.failures:
        return f"{plain.failures} failed, now {now.failures}"
    for key in {**plain.results, **now.results}:
        before, after = plain.results.get(key), now.results.get(key)
        if before != after:
            return f"call {key} gave {before}, now {after}"
    return f"texts {plain.texts}, now {now.texts}"


def main(count: int = 2000, first: int = 0) -> int:
    """Prints what was wrong; 0 where nothing was."""
    began, wrong = time.process_time(), 0
    with machines() as on:
        for seed in range(first, first + count):
            for one in differences(on, seed):
                wrong += 1
                print(one, flush=True)
        moved = on.moved.num_moved
    spent = time.process_time() - began
    print(f"{count} programs from {first} on, {moved} moves, {wrong} differences; {spent:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
