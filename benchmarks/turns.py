"""Whole turns of real chat templates: thoughts, calls and formats, drawn by chance and read back.

    python -m benchmarks.turns --templates FOLDER            every `*.jinja` of a folder
    python -m benchmarks.turns --templates FOLDER --only NAME --seeds 3

Each template gets nano's tokenizer with its own tags as tokens, and a fake model of hashed logits
behind the real interpreter, scheduler, masks and gateway. A cell is a template, a mode (`auto` with
strict tools, `mixed` with one that is not, `required`, `named`, `format`, `both`: a format and
tools) and thoughts that are on, off or have a budget; each has `--seeds` turns with tags as likely
as `logit_bias` makes them. Of every turn is checked:

- calls are of the tools, their arguments and the format are valid, and where one must come it does;
- the thought is what stands before its end in the tokens, by a rule of this module's own, and
  `reasoning_tokens` counts its tokens; a budget is kept;
- in a thought no token with a text is masked while there is room;
- no tag of a call is left in the content;
- the same request again, streamed and with drafts, gives the same.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import tempfile
import threading
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import httpx2
import jsonschema

from benchmarks import runner
from lmprog import wire
from lmprog.config import SchedulerConfig
from lmprog.errors import LmprogError
from lmprog.launch import greet
from lmprog.runtime.assembly import template_facts
from lmprog.runtime.loop import Loop
from lmprog.runtime.programs.call_builder import ServedModel
from lmprog.runtime.programs.call_constraints import CallConstraints
from lmprog.runtime.programs.compile_pool import CompilePool
from lmprog.runtime.programs.interpreter import Interpreter
from lmprog.runtime.scheduling.drafting import Guess
from lmprog.runtime.scheduling.sampling_requests import SampleRequest, ScoreRequest, StepResults
from lmprog.runtime.scheduling.scheduler import Scheduler
from lmprog.runtime.text.chat_template import ChatTemplate, load_template
from lmprog.runtime.text.tokenizer import HfTokenizer
from lmprog.runtime.text.tool_call_derivation import tool_support
from lmprog.server.app import build_app
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.link.runtime_link import RuntimeLink
from lmprog.server.options.server_settings import ServerSettings
from lmprog.simulation.fake_engine import FakeEngine, Floats
from lmprog.simulation.plain_sampler import PlainSampler
from lmprog.tool_calls.stream import mark_of
from lmprog.transport import LocalRuntimeChannel

Json = dict[str, Any]
NANO = Path(__file__).parents[1] / "lmprog" / "nano"
EOS = "<|end-of-text|>"
ENDS = ("<|eom_id|>", "<|call|>", "<|return|>", "<|tool_response>", "<|calls|>", "<|flush|>")
"""What checkpoints declare as ends of an answer beside the template's own, where it names them."""
CONTEXT, PAGE, PAGES = 16_384, 16, 24_000
MOST, BUDGET, ROOM = 220, 12, 140
"""Tokens of an answer, of a thought with a budget, and of the end of an answer where masks may
hurry it."""
_TAG = re.compile(r"<[|｜/]?[^<>\s'\"{}=+]{1,40}[|｜]?>|\[/?[A-Z_]{3,20}\]|◁/?\w{1,20}▷|<\|\"\|>")

TOWN: Json = {"type": "string", "maxLength": 8, "pattern": "^[a-z]+$"}
WEATHER: Json = {
    "type": "object",
    "properties": {
        "town": TOWN,
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["c", "f"]},
        "hours": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["town", "days"],
    "additionalProperties": False,
}
SAY: Json = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "loud": {"type": "boolean"}},
    "required": ["text", "loud"],
    "additionalProperties": False,
}
NOW: Json = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS: Mapping[str, Json] = {"get_weather": WEATHER, "say": SAY, "now": NOW}
VERDICT: Json = {
    "type": "object",
    "properties": {"town": TOWN, "ok": {"type": "boolean"}},
    "required": ["town", "ok"],
    "additionalProperties": False,
}
FORMAT: Json = {"type": "json_schema", "json_schema": {"name": "v", "schema": VERDICT}}
NAMED: Json = {"type": "function", "function": {"name": "get_weather"}}


def tool(name: str, strict: bool = True) -> Json:
    about = {"name": name, "description": f"About {name}.", "parameters": SCHEMAS[name]}
    return {"type": "function", "function": {**about, "strict": strict}}


STRICT = [tool(name) for name in SCHEMAS]
MODES: Mapping[str, Json] = {
    "auto": {"tools": STRICT},
    "mixed": {"tools": [tool("get_weather"), tool("say", False), tool("now")]},
    "required": {"tools": STRICT, "tool_choice": "required"},
    "named": {"tools": STRICT, "tool_choice": NAMED},
    "format": {"response_format": FORMAT},
    "both": {"tools": STRICT, "response_format": FORMAT},
}
THINKING: Mapping[str, Json] = {
    "on": {"reasoning": {"enabled": True}},
    "off": {"reasoning": {"enabled": False}},
    "budget": {"reasoning": {"enabled": True, "max_tokens": BUDGET}},
}


# -- a template's model


def checkpoint(folder: Path, source: str) -> None:
    """Files of a model with this template: nano's tokenizer, with the template's tags."""
    document = json.loads((NANO / "tokenizer.json").read_text("utf-8"))
    known = {one["content"]: one["id"] for one in document["added_tokens"]}
    tags = [EOS, *dict.fromkeys(_TAG.findall(source + conversation(ChatTemplate(source, {}))))]
    first = len(document["model"]["vocab"])
    for tag in [tag for tag in tags if tag not in known]:
        known[tag] = first
        is_special = tag[1] in "|｜" or tag[0] == "["
        added = {"id": first, "content": tag, "special": is_special, "normalized": False}
        rest = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        document["added_tokens"].append(added | rest)
        first += 1
    (folder / "tokenizer.json").write_text(json.dumps(document), "utf-8")
    config = {"eos_token": EOS, "bos_token": "", "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(source, "utf-8")
    template = load_template(folder)
    thought = tool_support(template).thought
    names = {EOS, *ENDS, turn_end(template), *(tag for tag in tags if "eos" in tag)}
    names -= {thought.end, *_TAG.findall(thought.begin)}
    ends = sorted(known[tag] for tag in names if tag in known)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))


def conversation(template: ChatTemplate, calls: bool = True) -> str:
    """A question and its answer, one with a call if the template takes it."""
    call = {"name": "qzq", "arguments": {"a": "b"}}
    made = [{"type": "function", "id": "abcdefghi", "function": call}]
    answer = {"role": "assistant", "content": "QZA", **({"tool_calls": made} if calls else {})}
    try:
        return template.render([{"role": "user", "content": "QZQ"}, answer], False)
    except LmprogError:
        return conversation(template, False) if calls else ""


_END = re.compile(r"end|eo[mst]|turn", re.IGNORECASE)


def turn_end(template: ChatTemplate) -> str:
    """The tag that ends an answer: one that ends what the user says, too, or the last one."""
    between, _, behind = conversation(template, False).rpartition("QZQ")[2].partition("QZA")
    tags = _TAG.findall(behind)
    shared = (tag for tag in tags if tag in between and _END.search(tag))
    return next(shared, tags[-1] if tags else "")


class WatchedSampler(PlainSampler):
    """Remembers, by seed and step, how many tokens each request allows."""

    def __init__(self) -> None:
        self.allowed: dict[int, dict[int, int]] = {}

    def sample(
        self, logits: Floats, samples: tuple[SampleRequest, ...], scores: tuple[ScoreRequest, ...]
    ) -> StepResults:
        for one in samples:
            count = -1 if one.mask is None else len(one.mask.tokens)
            self.allowed.setdefault(one.seed, {})[one.step] = count
        return super().sample(logits, samples, scores)


_KEY = 6
"""Tokens by which a place in an answer is found again."""


class Remembered:
    """Drafts what the same turn said without drafts, and now and then something else."""

    def __init__(self) -> None:
        self._behind: dict[tuple[int, ...], list[int]] = {}
        self._dice = random.Random(0)

    def learn(self, tokens: list[int]) -> None:
        for at in range(_KEY, len(tokens)):
            self._behind[tuple(tokens[at - _KEY : at])] = tokens[at : at + 4]

    def __call__(self, tokens: array[int], most: int, evidence: int) -> Guess:
        found = list(self._behind.get(tuple(tokens[-_KEY:]), ()))[:most]
        if found and self._dice.random() < 0.2:
            found[-1] = self._dice.randrange(256)
        return Guess(array("i", found))


class Served(NamedTuple):
    """A runtime that serves, and what it is asked through."""

    scheduler: Scheduler
    sampler: WatchedSampler
    drafts: Remembered
    channel: LocalRuntimeChannel
    welcome: wire.Welcome
    tokenizer: HfTokenizer


@contextmanager
def serving(folder: Path, with_drafts: bool) -> Iterator[Served]:
    tokenizer, template = HfTokenizer(folder), load_template(folder)
    tools, variables = template_facts(lambda: template, tokenizer)
    config = SchedulerConfig(
        page_size=PAGE, num_pages=PAGES, speculation="always" if with_drafts else "off"
    )
    scheduler, size = Scheduler(config, CONTEXT), tokenizer.vocab_size
    drafts, sampler = Remembered(), WatchedSampler()
    if scheduler.drafting is not None:
        scheduler.drafting.source = drafts
    about = ("turns", CONTEXT, size, PAGE, PAGES, 0)
    welcome = wire.Welcome(wire.PROTOCOL_VERSION, *about, tools=tools, template_variables=variables)
    shown = frozenset(tokenizer.shown)
    model = ServedModel(tokenizer, lambda: template, welcome, tags=shown)
    constraints = CallConstraints(tokenizer, size, CompilePool())
    interpreter = Interpreter(scheduler, model, constraints, time.monotonic, random.Random(0))
    channel = LocalRuntimeChannel()
    engine = FakeEngine(PAGES, PAGE, size)
    loop = Loop(channel, interpreter, scheduler, engine, sampler, time.monotonic)
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            loop.step()

    thread = threading.Thread(target=work, name="turns")
    thread.start()
    try:
        yield Served(scheduler, sampler, drafts, channel, welcome, tokenizer)
    finally:
        ended.set()
        thread.join()
        channel.close()


# -- what a turn must be


class Wrong(Exception):
    """What a turn breaks."""


def must(is_so: bool, words: str) -> None:
    if not is_so:
        raise Wrong(words)


class Expected(NamedTuple):
    """A turn's tokens, cut by this module's own rule."""

    thought: str
    num_thought: int
    free: range
    """Tokens that are certainly sampled within the thought."""
    rest: str


_ANALYSIS = re.compile(
    r"(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>(.*?)"
    r"(?:<\|end\|>|(?=<\|start\|>)|\Z)",
    re.DOTALL,
)


def expected(
    tokenizer: HfTokenizer, ids: list[int], about: wire.ToolSupport, state: wire.ThoughtState
) -> Expected:
    stream, text, begins = tokenizer.stream(), "", []
    for token in ids:
        begins.append(len(text))
        text += stream.push(token)
    text += stream.finish()
    if about.form.harmony:
        found = list(_ANALYSIS.finditer(text))
        num = sum(one.start() <= at < one.end() for one in found for at in begins)
        return Expected("\n\n".join(one[1] for one in found if one[1]), num, range(0), text)
    form = about.thought
    begin, at = 0, len(text) - len(text.lstrip())
    if form.begin and text.startswith(form.begin, at):  # also where the prompt has opened it
        begin = at + len(form.begin)
    elif state == "free":
        begin = -1
    if state == "closed" or begin < 0:
        return Expected("", 0, range(0), text)
    end = text.find(form.end, begin)
    behind = end + len(form.end) if end >= 0 else len(text) + 1
    num = sum(at < behind for at in begins)
    num_free = sum(at < end for at in begins) if end >= 0 else len(ids)
    free = range(num_free)
    if state == "free":  # of a tag in several tokens, some may be forced
        free = free[1:] if tokenizer.token_text(ids[0]) == form.begin else range(0)
    inside = text[begin:end] if end >= 0 else text[begin:]
    return Expected(inside.strip(), num, free, text[behind:])


def is_text(piece: bytes) -> bool:
    try:
        return bool(piece.decode())
    except UnicodeDecodeError:
        return False


class Turns:
    """One template's turns."""

    def __init__(self, served: Served, seeds: int) -> None:
        self.served, self.tokenizer = served, served.tokenizer
        self._about = served.welcome.tools
        self.seeds = seeds
        pieces = map(self.tokenizer.token_bytes, range(self.tokenizer.vocab_size))
        self._ordinary = sum(piece is not None and is_text(piece) for piece in pieces)
        """Tokens that are whole characters."""
        form, thought = self._about.form, self._about.thought
        shown = json.dumps([form.literals, form.begin, form.end, thought.begin, thought.end])
        if form.keyed is not None:
            shown += str(form.keyed)
        if form.harmony:
            shown += "<|start|><|channel|><|message|><|end|><|constrain|>"
        texts = [self.tokenizer.token_text(one) for one in range(self.tokenizer.vocab_size)]
        self._tags = [
            one for one, text in enumerate(texts) if _TAG.fullmatch(text) and text in shown
        ]
        self._mark = mark_of(form)

    @property
    def has_ids(self) -> bool:
        """Whether what is written for the model in a named call has an id."""
        return "id" in self._about.form.slots

    def body(self, mode: str, thinking: str, seed: int) -> Json:
        cell = list(MODES).index(mode) * len(THINKING) + list(THINKING).index(thinking)
        heat = 3.5 + seed % 4
        liked = {str(one): heat for one in [*self._tags, *self.tokenizer.eos_ids]}
        return {
            "messages": [{"role": "user", "content": "How is the weather in Oslo?"}],
            "max_tokens": MOST,
            "temperature": 1.0,
            "seed": cell * 1000 + seed,
            "logit_bias": liked,
            "return_token_ids": True,
            **MODES[mode],
            **THINKING[thinking],
        }

    def check(self, mode: str, thinking: str, body: Json, answer: Json) -> Counter[str]:
        (choice,) = answer["choices"]
        message, ids = choice["message"], choice["token_ids"]
        calls = message.get("tool_calls") or []
        content = message["content"] or ""
        form, thought = self._about.form, self._about.thought
        variables = {thought.switch: thinking != "off"} if thought.switch else {}
        state = thought.state(variables)
        told = expected(self.tokenizer, ids, self._about, state)
        num_free = self._check_thought(thinking, body["seed"], answer, told)
        for call in calls:
            name = call["function"]["name"]
            must(name in SCHEMAS, f"calls {name!r}")
            _valid(call["function"]["arguments"], SCHEMAS[name], "arguments")
        must(len({call["id"] for call in calls}) == len(calls), "ids twice")
        if mode in ("required", "named"):
            must(bool(calls), "no call")
            must(not content.strip(), "content beside a call that must be made")
        if mode == "named":
            must([call["function"]["name"] for call in calls] == ["get_weather"], "other calls")
        if mode == "format" or (mode == "both" and not calls):
            _valid(content, VERDICT, "format")
        if not (self._mark.only_at_start or form.harmony or mode in ("format", "named")):
            before, mark, _ = told.rest.partition(self._mark.text)
            must(bool(calls) or not mark, "a call that is not read")
            must(content.strip() == before.strip() or mode == "required", "other content")
        reason = "tool_calls" if calls else "stop"
        if mode not in ("auto", "mixed"):
            # a text may be whole with its last token
            ends = choice["finish_reason"] in (reason, "length")
            must(ends, f"ends by {choice['finish_reason']}")
        if form.harmony:
            must("<|channel|>" not in content, "a channel in the content")
        num_formats = mode == "format" or (mode == "both" and not calls)
        found = Counter(calls=len(calls), thoughts=told.num_thought > 0, formats=num_formats)
        return found + Counter({"free tokens": num_free})

    def _check_thought(self, thinking: str, seed: int, answer: Json, told: Expected) -> int:
        """How many tokens were sampled in the thought with every text allowed."""
        (choice,) = answer["choices"]
        seen = choice["message"].get("reasoning_content", "")
        must(seen.strip() == told.thought.strip(), "another thought")
        details = answer["usage"].get("completion_tokens_details") or {}
        must(details.get("reasoning_tokens", 0) == told.num_thought, "another count of thoughts")
        slack = BUDGET + 12
        if thinking == "budget" and not self._about.form.harmony:
            must(told.num_thought <= slack, f"a thought of {told.num_thought} tokens")
        allowed = self.served.sampler.allowed.get(seed, {})
        most = min(MOST - ROOM, BUDGET if thinking == "budget" else MOST)
        read, num_free = b"", 0
        for step, token in enumerate(choice["token_ids"][:most]):
            is_free = step in told.free and (not read or is_text(read))
            count = allowed.get(step, -1) if is_free else -1
            read = (b"" if is_text(read) else read) + (self.tokenizer.token_bytes(token) or b"")
            must(count < 0 or count >= self._ordinary, f"{count} of {self._ordinary} in a thought")
            num_free += is_free
        return num_free


def _valid(text: str, schema: Json, what: str) -> None:
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError) as error:
        raise Wrong(f"{what} invalid: {str(error).splitlines()[0]}") from None


def plain(answer: Json) -> Json:
    """Without what two answers may differ in: the ids of calls."""
    (choice,) = answer["choices"]
    message = choice["message"]
    calls = [one["function"] for one in message.get("tool_calls") or ()]
    return {
        "content": message["content"] or "",
        "thought": message.get("reasoning_content", ""),
        "calls": [(one["name"], json.loads(one["arguments"])) for one in calls],
        "finish": choice["finish_reason"],
        "reasoning_tokens": answer["usage"]["completion_tokens_details"]["reasoning_tokens"],
    }


def joined(text: str) -> Json:
    """The answer that the events of a stream are."""
    content = thought = ""
    calls: dict[int, Json] = {}
    finish, usage = None, dict[str, Any]()
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line.removeprefix("data: "))
        must("error" not in event, f"the stream fails: {event}")
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            delta = choice["delta"]
            content += delta.get("content") or ""
            thought += delta.get("reasoning_content") or ""
            for part in delta.get("tool_calls") or ():
                call = calls.setdefault(part["index"], {"name": "", "arguments": ""})
                for name in call:
                    call[name] += part["function"].get(name) or ""
            finish = choice["finish_reason"] or finish
    made = [{"function": call} for _, call in sorted(calls.items())]
    message = {"content": content, "reasoning_content": thought, "tool_calls": made}
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}


async def _ask(client: httpx2.AsyncClient, body: Json) -> httpx2.Response:
    return await client.post("/v1/chat/completions", json=body, timeout=600)


@asynccontextmanager
async def _client(served: Served) -> AsyncIterator[httpx2.AsyncClient]:
    gateway = Gateway(ServerSettings(max_running=4096, max_waiting=4096), RuntimeLink())
    gateway.link.replace(greet(served.channel.connect(), client="turns"))
    transport = httpx2.ASGITransport(app=build_app(gateway))
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client
    finally:
        gateway.link.close()


class Cell(NamedTuple):
    mode: str
    thinking: str


async def _cell(
    turns: Turns,
    cell: Cell,
    first: httpx2.AsyncClient,
    second: httpx2.AsyncClient,
    again: Served,
    found: Counter[str],
) -> str:
    """What is wrong with its turns; "" where nothing is."""
    bodies = [turns.body(*cell, seed) for seed in range(turns.seeds)]
    answers = await asyncio.gather(*(_ask(first, body) for body in bodies))
    made = [one.json() for one in answers]
    for one in made:
        again.drafts.learn(one["choices"][0]["token_ids"] if "choices" in one else [])
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    streams = await asyncio.gather(*(_ask(second, body | streaming) for body in bodies))
    for body, answer, told, stream in zip(bodies, answers, made, streams, strict=True):
        found["turns"] += 1
        if answer.status_code != 200:
            return f"refused: {told['error']['message']}"
        try:
            found += turns.check(*cell, body, told)
            if not (cell.mode == "named" and turns.has_ids):  # of chance, in the prompt
                must(plain(joined(stream.text)) == plain(told), "drafts or streams differ")
        except Wrong as error:
            text = turns.tokenizer.decode(told["choices"][0]["token_ids"], skip_special=False)
            return f"failed: {error} {tuple(cell)} in {text!r}"
    return ""


async def _all(turns: Turns, again: Served, found: Counter[str]) -> list[str]:
    words = []
    async with _client(turns.served) as first, _client(again) as second:
        for cell in itertools.starmap(Cell, itertools.product(MODES, THINKING)):
            said = await _cell(turns, cell, first, second, again, found)
            found[said.partition(":")[0] or "passed"] += 1
            words += [said] if said else []
    return words


COUNTS = ("passed", "failed", "refused", "turns")
"""Of cells, and of turns."""
SEEN = ("calls", "thoughts", "formats", "free tokens", "drafted tokens")
"""What must have been there for the counts to say anything."""


def measured(source: str, seeds: int, found: Counter[str]) -> tuple[list[str], wire.ToolSupport]:
    """What is wrong; what there was is added to `found`."""
    with tempfile.TemporaryDirectory() as name:
        checkpoint(Path(name), source)
        with serving(Path(name), False) as served, serving(Path(name), True) as again:
            words = asyncio.run(_all(Turns(served, seeds), again, found))
            found["drafted tokens"] += again.scheduler.stats.accepted_tokens
            return words, served.welcome.tools


@runner.command
def main(
    *,
    templates: Annotated[Path, "a folder of `*.jinja`"],
    only: Annotated[str, "those whose names contain this"] = "",
    seeds: int = 20,
    shows: Annotated[bool, "texts of what fails"] = False,
) -> int:
    runner.head("template", "calls", "thoughts", *COUNTS, texts=3)
    total = Counter[str]()
    for path in sorted(templates.glob("*.jinja")):
        if only not in path.stem:
            continue
        found = Counter[str]()
        words, about = measured(path.read_text("utf-8"), seeds, found)
        form = "channels" if about.form.harmony else about.dialect or "derived"
        thought = about.thought.begin and f"{about.thought.begin} ({about.thought.prompt})"
        runner.say(path.stem, form, thought or "none", *(found[name] for name in COUNTS))
        for said, count in Counter(one[: 9999 if shows else 90] for one in words).items():
            print(f"    {count} {said}", flush=True)
        total += found
    print("\n" + ", ".join(f"{total[name]:,} {name}" for name in (*COUNTS, *SEEN)))
    return 0 if min(total[name] for name in SEEN) and not total["failed"] else 1
