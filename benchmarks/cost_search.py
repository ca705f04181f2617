"""How much can one client harm another, for each byte that it sends?

    python -m benchmarks.cost_search [--seconds 3600] [--model nano] [--seed 1] [--keep 20] [--megabytes 1]

Searches all fields of all routes of the server's own document (`/openapi.json`): bodies that were
harmful, or that reach what none before has reached, are changed and tried again. The harm of a body is
the processor time of gateway and runtime from when it was sent until another key's request of two
tokens is answered, less what that takes alone; who sent it leaves after a second. Worst bodies are
printed as they are found, and those beyond a bar: `BYSTANDERS_SECONDS`, `GROWN_MEGABYTES`. Knows
documents and requests; a `Target` knows the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import time
import urllib.parse
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import httpx2

from benchmarks import runner
from benchmarks.streams import post

Json = dict[str, Any]
HEAD_BYTES = 200
"""What a request takes beside its body."""
DEEPEST = 5
KEPT = 24
"""Bodies from which new ones are made."""
BYSTANDERS_SECONDS = 0.5
"""Of processor time: a bystander may wait no longer ..."""
MOST_P99 = 0.1
"""... and of 99 in a hundred bodies no longer than this."""
MOST_SHOWN = 60
"""Characters of a field's value."""
TRIED_AGAIN = 4
"""Times that a body beyond a bar is tried again."""
GROWN_MEGABYTES = 128
"""Neither process may become so much larger, beside the memory for keys and values that it is given:
that is in use before the search begins."""
FILLED_BY = 1000
"""Tokens of each prompt that fills it."""
TEXTS = (
    "a",
    "word ",
    "é🙂",
    "(.?){40}\\x00",
    "([a-z]*[a-z]*)*",
    "<tool_call>{",
    '{"a":[{"b":',
    "user\n<|im_start|>",
    "%lark\nstart: /a+/",
)
SCHEMAS: tuple[Json, ...] = (
    {"type": "array", "items": {"type": "integer"}, "maxItems": 500},
    {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(40)}},
    {"enum": [f"choice {n}" for n in range(300)]},
    {"type": "string", "pattern": "^([a-z]{1,20}-){1,20}[a-z]$"},
    {"$defs": {"n": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/n"}}, {"type": "null"}]}},
     "$ref": "#/$defs/n"},
)  # fmt: skip
OPEN_OBJECTS = ("schema", "parameters", "input_schema", "json_schema", "format")
"""Fields whose objects are schemas of the client."""


@dataclass(frozen=True, slots=True)
class Attack:
    path: str
    body: Json

    @property
    def raw(self) -> bytes:
        return json.dumps(self.body).encode()

    @property
    def reach(self) -> frozenset[str]:
        """What it tries, for comparisons: its route with each field, and how large that is."""
        sizes = {
            name: len(json.dumps(value)).bit_length() // 3 for name, value in self.body.items()
        }
        return frozenset(f"{self.path} {name} {size}" for name, size in sizes.items())


@dataclass(frozen=True, slots=True)
class Harm:
    """Processor seconds that a bystander waited longer; the answer's status, 0: none came; by how
    many megabytes a process has become larger than any before.
    """

    seconds: float
    status: int
    grown: float = 0.0
    again: tuple[float, ...] = ()
    """Seconds of the same body, tried again."""

    @property
    def is_beyond(self) -> bool:
        """Whether no request may do so much."""
        return self.seconds > BYSTANDERS_SECONDS or self.grown > GROWN_MEGABYTES

    @property
    def least(self) -> float:
        """Seconds that it took each time."""
        return min((self.seconds, *self.again))


class Target(Protocol):
    async def document(self) -> Json: ...

    async def harm(self, attack: Attack) -> Harm: ...


class Fields:
    """Bodies, as a server's document describes them."""

    def __init__(self, document: Json, rng: random.Random, most_bytes: int) -> None:
        self._document = document
        self._rng = rng
        self._most = most_bytes
        self.bodies: dict[str, Json] = {}
        """The schema of each route's body."""
        for path, methods in document["paths"].items():
            content = methods.get("post", {}).get("requestBody", {}).get("content", {})
            if "application/json" in content and "{" not in path:
                self.bodies[path] = self._known(content["application/json"]["schema"])

    def new(self) -> Attack:
        made = self._any()
        while len(made.raw) > self._most:
            made = self._any()
        return made

    def _any(self) -> Attack:
        path = self._rng.choice(sorted(self.bodies))
        schema = self.bodies[path]
        names = sorted(schema.get("properties", {}))
        chosen = set(schema.get("required", ())) | {"model", "messages", "prompt", "input", "text"}
        chosen = {name for name in chosen if name in names and name != "model"}
        chosen |= set(self._rng.sample(names, min(len(names), self._rng.randrange(4))))
        return Attack(path, {name: self._field(schema, name) for name in sorted(chosen)})

    def changed(self, attack: Attack, other: Attack) -> Attack:
        """With a field more, less, of another value, or of the `other` one."""
        schema, body = self.bodies[attack.path], dict(attack.body)
        for _ in range(self._rng.randrange(1, 4)):
            names = sorted(schema.get("properties", {}))
            name = self._rng.choice([*names, *body, *body])
            match self._rng.randrange(6):
                case 0:
                    body.pop(name, None)
                case 1 if name in other.body and name in names:
                    body[name] = other.body[name]
                case 2 if isinstance(body.get(name), list | str) and body[name]:
                    times = self._rng.choice((2, 8, 64))
                    grown = body[name] * times
                    body[name] = grown[: self._most // 8]
                case _ if name in names:
                    body[name] = self._field(schema, name)
        made = Attack(attack.path, body)
        return made if len(made.raw) <= self._most else attack

    def _known(self, schema: Json) -> Json:
        while "$ref" in schema:
            found: Any = self._document
            for part in schema["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            schema = found
        return schema

    def _field(self, schema: Json, name: str) -> Any:
        if name in OPEN_OBJECTS and self._rng.random() < 0.5:
            return self._rng.choice(SCHEMAS)
        if name == "model":
            return None
        return self._value(schema["properties"][name], DEEPEST, name)

    def _value(self, schema: Json, depth: int, name: str = "") -> Any:
        schema, rng = self._known(schema), self._rng
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        for key in ("anyOf", "oneOf"):
            if key in schema:
                kinds = [one for one in schema[key] if one.get("type") != "null"]
                return self._value(rng.choice(kinds or schema[key]), depth, name)
        match schema.get("type"):
            case "string":
                return self._text(int(schema.get("maxLength", self._most // 16)))
            case "integer" | "number" as kind:
                low, high = schema.get("minimum", -2), schema.get("maximum", 4096)
                made = rng.choice((low, high, min(high, 2), min(high, 64), min(high, 2000)))
                return int(made) if kind == "integer" else float(made)
            case "boolean":
                return rng.random() < 0.5
            case "array" if depth:
                most = int(schema.get("maxItems", 4096))
                count = min(most, rng.choice((1, 2, 4, 16, 128, 1024)))
                one = schema.get("items", {})
                items = [self._value(one, depth - 1, name) for _ in range(min(4, count))]
                fit = self._most // 2 * len(items) // len(json.dumps(items))
                return (items * (count // max(1, len(items)) + 1))[: max(1, min(count, fit))]
            case "object" if depth and "properties" in schema:
                required = schema.get("required", ())
                names = [
                    one for one in schema["properties"] if one in required or rng.random() < 0.2
                ]
                return {one: self._field(schema, one) for one in names}
            case "object":
                return rng.choice((*SCHEMAS, {str(n): 1 for n in range(rng.choice((1, 64, 512)))}))
        return rng.choice((None, 1, self._text(200)))

    def _text(self, most: int) -> str:
        text = self._rng.choice(TEXTS)
        size = min(most, self._rng.choice((1, 20, 200, 2_000, 20_000, 200_000)))
        return (text * (size // len(text) + 1))[:size]


class Search:
    """The worst bodies so far. Chance comes from the seed alone."""

    def __init__(self, document: Json, seed: int, most_bytes: int = 1 << 20) -> None:
        self._rng = random.Random(seed)
        self.fields = Fields(document, self._rng, most_bytes)
        self.worst: list[tuple[float, Attack, Harm]] = []
        """By harm for each byte, the worst first."""
        self._fresh: deque[Attack] = deque(maxlen=KEPT)
        """Those that reached what none before had."""
        self.reached: set[str] = set()
        self.seconds: list[float] = []
        """Of each body tried, the first time ..."""
        self.least: list[float] = []
        """... and the least where it was tried again."""

    @property
    def tried(self) -> int:
        return len(self.seconds)

    def next(self) -> Attack:
        """The body to try now."""
        if len(self.worst) < KEPT or self._rng.random() < 0.25:
            return self.fields.new()
        known = [attack for _, attack, _ in self.worst] + list(self._fresh)
        return self.fields.changed(self._rng.choice(known), self._rng.choice(known))

    def learn(self, attack: Attack, harm: Harm) -> bool:
        """What came of it. Whether it is the worst of all."""
        self.seconds.append(harm.seconds)
        self.least.append(harm.least)
        is_new = not attack.reach <= self.reached and harm.status == 200
        self.reached |= attack.reach if harm.status == 200 else set()
        score = harm.least / (len(attack.raw) + HEAD_BYTES)
        is_worst = not self.worst or score > self.worst[0][0]
        self.worst = sorted([*self.worst, (score, attack, harm)], key=lambda one: -one[0])[:KEPT]
        if is_new:
            self._fresh.append(attack)
        return is_worst


OPERATOR = "operator"
"""The key of who may read metrics."""


class LiveTarget:
    """A server with two keys: one for who harms, one for the bystander."""

    KEYS = ("harmful", "bystander")

    def __init__(self, url: str, pids: tuple[int, ...]) -> None:
        self._url, self._pids = url, pids
        where = urllib.parse.urlsplit(url)
        self._where = (str(where.hostname), int(where.port or 80))
        self.alone = 0.0
        self._first: dict[int, float] = {}
        """Megabytes of each process before the search ..."""
        self._largest: dict[int, float] = {}
        """... and when it was largest."""

    async def document(self) -> Json:
        headers = {"authorization": f"Bearer {self.KEYS[0]}"}
        async with httpx2.AsyncClient(base_url=self._url, headers=headers, timeout=60) as client:
            found: Json = (await client.get("/openapi.json")).json()
            await self._fill(client)
        self.alone = min([await self._bystander() for _ in range(5)])
        self._grown()
        self._first = dict(self._largest)
        return found

    async def _fill(self, client: httpx2.AsyncClient) -> None:
        metrics = await client.get("/metrics", headers={"authorization": f"Bearer {OPERATOR}"})
        found = re.search(r"^lmprog_kv_pool_tokens\S* (\S+)$", metrics.text, re.MULTILINE)
        assert found is not None
        rng = random.Random(0)
        for _ in range(int(float(found[1])) // FILLED_BY + 1):
            prompt = [rng.randrange(FILLED_BY) for _ in range(FILLED_BY)]
            body = {"prompt": prompt, "max_tokens": 1}
            assert (await client.post("/v1/completions", json=body)).status_code == 200

    async def harm(self, attack: Attack) -> Harm:
        reader, writer = await asyncio.open_connection(*self._where)
        key = f"authorization: Bearer {self.KEYS[0]}"
        writer.write(post(self._url, attack.path, attack.raw, key))
        await asyncio.sleep(0.02)  # it is there before the other one
        waited = await self._bystander()
        status = 0
        try:
            async with asyncio.timeout(1.0):
                status = int((await reader.readline()).split(b" ", 2)[1])
        except (TimeoutError, ConnectionError, IndexError):
            pass
        writer.transport.abort()
        while await self._bystander() > 3 * self.alone + 0.01:  # until it is over
            await asyncio.sleep(0.1)
        return Harm(max(0.0, waited - self.alone), status, self._grown())

    @property
    def growth(self) -> Iterable[tuple[float, float]]:
        """Megabytes of each process before the search, and by how many it was larger at most."""
        return [(one, self._largest[pid] - one) for pid, one in self._first.items()]

    def _grown(self) -> float:
        """Megabytes by which a process is larger than ever before."""
        most = 0.0
        for pid in self._pids:
            now = runner.Footprint.of(pid).kilobytes / 1024
            most = max(most, now - self._largest.get(pid, now))
            self._largest[pid] = max(now, self._largest.get(pid, now))
        return most

    async def _bystander(self) -> float:
        before = runner.processor_time(*self._pids)
        reader, writer = await asyncio.open_connection(*self._where)
        body = json.dumps({"prompt": "Tell", "max_tokens": 2, "ignore_eos": True}).encode()
        key = f"authorization: Bearer {self.KEYS[1]}"
        writer.write(post(self._url, "/v1/completions", body, key, "connection: close"))
        await reader.read()
        writer.close()
        return runner.processor_time(*self._pids) - before


async def searched(target: Target, search: Search, goes_on: Callable[[], bool]) -> None:
    """Tries bodies for as long as it `goes_on`, and prints each that is the worst so far, or that
    does more than one may.
    """
    while goes_on():
        attack = search.next()
        harm = await target.harm(attack)
        if harm.is_beyond:
            again = [(await target.harm(attack)).seconds for _ in range(TRIED_AGAIN)]
            harm = replace(harm, again=tuple(again))
        if search.learn(attack, harm) or harm.is_beyond:
            print(_line(attack, harm), flush=True)


def _line(attack: Attack, harm: Harm) -> str:
    size = len(attack.raw)
    fields = {name: json.dumps(value) for name, value in attack.body.items()}
    shown = ", ".join(f"{name} {text[:MOST_SHOWN]}" for name, text in fields.items())
    costs = f"{harm.seconds:8.3f} s  {harm.grown:+7.1f} MB"
    if harm.again:
        costs += f"  (again {', '.join(f'{one:.3f}' for one in harm.again)})"
    return f"{costs}  {size:>9,} bytes  {harm.status}  {attack.path} {shown}"


async def _run(target: LiveTarget, seed: int, until: float, keep: int, megabytes: int) -> None:
    with contextlib.suppress(PermissionError):
        os.nice(-10)  # else the server's work while this process waits counts as harm
    search = Search(await target.document(), seed, megabytes << 20)
    await searched(target, search, lambda: time.monotonic() < until)
    print(f"\n{search.tried:,} bodies tried, {len(search.reached):,} kinds of field reached")
    p99, idle = runner.percentile(search.seconds, 0.99), target.alone
    most = MOST_P99 + idle  # beside once idle, which is taken off
    print(
        f"a bystander alone {idle:.4f} s; p99 {p99:.4f} s more, longest {max(search.seconds):.3f}"
    )
    print(f"p99 at most {most:.4f}: {runner.verdict(p99 <= most)}")
    longest = max(search.least)
    print(
        f"longest of bodies each time they were tried {longest:.3f}, at most {BYSTANDERS_SECONDS}: "
        f"{runner.verdict(longest <= BYSTANDERS_SECONDS)}"
    )
    for name, (first, grown) in zip(("gateway", "runtime"), target.growth, strict=True):
        is_met = runner.verdict(grown <= GROWN_MEGABYTES)
        print(f"{name} {first:,.0f} MB, {grown:+,.0f} at most {GROWN_MEGABYTES}: {is_met}")
    for _, attack, harm in search.worst[:keep]:
        print(_line(attack, harm))


@runner.command
def main(
    *,
    seconds: float = 3600.0,
    model: str = "nano",
    seed: int = 1,
    keep: int = 20,
    megabytes: int = 1,
) -> None:
    """Searches for `seconds` bodies of so many `megabytes` at most; then prints the `keep` worst
    ones, by the harm of each byte.
    """
    settings: Mapping[str, Any] = {"api_keys": LiveTarget.KEYS, "admin_key": OPERATOR}
    command = ["-m", "lmprog.server", "--model", model, "--port", "0"]
    with runner.started([*command, "--settings", json.dumps(settings)]) as said:
        target = LiveTarget(said["url"], (said["pid"], *runner.children_of(said["pid"])))
        asyncio.run(_run(target, seed, time.monotonic() + seconds, keep, megabytes))
