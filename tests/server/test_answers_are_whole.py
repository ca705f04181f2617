"""Every field of a runtime's answer, through every route: it is in the answer, or it stands in the
list of those that the route's dialect has no place for.

A field that is added to `wire.Output`, `CallDone`, `Usage`, `TokenLogprob`, `Chosen` or
`ScoredChoice` fails here until it is decided where it is shown.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from lmprog import wire
from lmprog.launch import greet
from lmprog.server.app import build_app
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.link.runtime_link import RuntimeLink
from lmprog.server.options.server_settings import ServerSettings
from lmprog.transport import ClientId, Gone, LocalRuntimeChannel

Json = dict[str, Any]
USAGE = wire.Usage(
    prompt=1009,
    cached=601,
    generated=307,
    forced=47,
    computed=701,
    recomputed=433,
    drafted=353,
    accepted=241,
    preemptions=13,
    queued_ms=11.5,
    prefill_ms=12.5,
    decode_ms=13.5,
)
LOGPROB = wire.TokenLogprob(81, "tk", -0.125, ((82, "tp", -0.25),))
PROMPT_LOGPROB = wire.TokenLogprob(91, "pt", -0.5, ((92, "pp", -0.75),))
OUTPUT = wire.Output(
    text="a text",
    tokens=(71, 72),
    finish="stop",
    stopped_by="halt",
    logprobs=(LOGPROB,),
    forced=((41, 43),),
    seam="sea",
    rest="rst",
    score=-4.5,
    healed=(73,),
)
NEXT = ((9175, "nx", -0.625),)
CHOICE = wire.ScoredChoice(-1.25, 0.75, (-2.5,), (-3.5,), ((9173, "to"),))
LEFT_OUT = "contains at #/contains: too many"
SHOWN_AS: Json = {
    **{f"Usage.{name}": getattr(USAGE, name) for name in USAGE.__struct_fields__},
    "Output.text": "a text",
    "Output.tokens": 71,
    "Output.finish": "stop",
    "Output.stopped_by": "halt",
    "Output.forced": 41,
    "Output.seam": "sea",
    "Output.rest": "rst",
    "Output.score": -4.5,
    "Output.healed": 73,
    "TokenLogprob.token": 81,
    "TokenLogprob.text": "tk",
    "TokenLogprob.logprob": -0.125,
    "TokenLogprob.top": -0.25,
    "CallDone.prompt_logprobs": -0.5,
    "CallDone.next_logprobs": -0.625,
    "CallDone.left_out": LEFT_OUT,
    "ScoredChoice.score": -1.25,
    "ScoredChoice.probability": 0.75,
    "ScoredChoice.logprobs": -2.5,
    "ScoredChoice.baseline": -3.5,
    "ScoredChoice.tokens": 9173,
}
"""A value of each field that nothing else in an answer has. `Output.logprobs`, `CallDone.outputs`
and the like are seen by their parts; `Output.calls` are of services only, and `Output.tags` decide
what of a text are calls.
"""
PARTS = {
    *(
        "Output.logprobs",
        "Output.ends",
        "Output.calls",
        "Output.tags",
        "CallDone.call",
        "CallDone.outputs",
        "CallDone.usage",
    ),
    *("Chosen.call", "Chosen.index", "Chosen.options", "Chosen.usage"),
}
_TIMES = {"Usage.queued_ms", "Usage.prefill_ms", "Usage.decode_ms"}
_WORK = {f"Usage.{name}" for name in ("forced", "computed", "recomputed", "preemptions")}
_WORK |= {"Usage.drafted", "Usage.accepted"}
_SELECT = {name for name in SHOWN_AS if name.startswith(("Chosen", "ScoredChoice"))}
_EXACT = {"Output.forced", "Output.seam", "Output.rest", "Output.healed"}
_OPENAIS = _TIMES | _WORK | _SELECT | _EXACT
_OPENAIS |= {"Output.tokens", "TokenLogprob.token", "CallDone.next_logprobs"}
CHAT: Json = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "stop": "halt"}
GEN: Json = {
    "op": "gen",
    "branch": "b",
    "call": "c",
    "stop": "halt",
    "logprobs": 1,
    "prompt_logprobs": 1,
}
OPEN: Json = {"op": "open", "branch": "b"}
SELECT: Json = {"op": "select", "branch": "b", "call": "c", "choices": ["no", "yes"]}
GENERATE: Json = {
    "text": "x",
    "sampling_params": {"stop": "halt"},
    "return_logprob": True,
    "top_logprobs_num": 1,
    "logprob_start_len": 0,
    "return_text_in_logprobs": True,
}
ROUTES: dict[str, tuple[str, Json, set[str]]] = {
    "chat": (
        "/v1/chat/completions",
        {**CHAT, "logprobs": True, "top_logprobs": 1, "prompt_logprobs": 1},
        _OPENAIS,
    ),
    "completion": (
        "/v1/completions",
        {"prompt": "x", "stop": "halt", "logprobs": 1, "prompt_logprobs": 1},
        _OPENAIS,
    ),
    "response": (
        "/v1/responses",
        {"input": "x", "stop": "halt", "top_logprobs": 1},
        _OPENAIS
        | {"Output.finish", "Output.stopped_by", "Output.score", "CallDone.prompt_logprobs"},
    ),
    "message": (
        "/v1/messages",
        {
            "messages": CHAT["messages"],
            "max_tokens": 5,
            "stop_sequences": ["halt"],
        },
        {
            *(_OPENAIS | {"Output.finish", "CallDone.prompt_logprobs", "Usage.prompt"}),
            "Output.score",
            "CallDone.left_out",  # nothing in a message asks for less than its schema
            *(name for name in SHOWN_AS if name.startswith("TokenLogprob")),
        },
    ),
    "generate": (
        "/generate",
        GENERATE,
        _TIMES | _WORK | _SELECT | _EXACT | {"Usage.generated", "Output.score"},
    ),
    "gen of a program": ("/v1/programs", {"ops": [OPEN, GEN]}, _SELECT),
    "select of a program": (
        "/v1/programs",
        {"ops": [OPEN, SELECT]},
        {name for name in SHOWN_AS if not name.startswith(("Chosen", "ScoredChoice", "Usage"))},
    ),
}
"""Path, body, and the fields that the dialect has no place for. Messages count the cached tokens of
a prompt apart; `/generate` counts its result's tokens.
"""


class Answering:
    """A runtime that answers every call with the values above."""

    def __init__(self) -> None:
        self.channel = LocalRuntimeChannel()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="answering")
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _serve(self) -> None:
        try:
            while not self._ended.is_set():
                for client, message in self.channel.receive(0.05):
                    self._answer(client, message)
        finally:
            self.channel.close()

    def _answer(self, client: ClientId, message: wire.Op | Gone) -> None:
        replies: list[wire.Reply] = []
        match message:
            case wire.Hello():
                replies = [wire.Welcome(wire.PROTOCOL_VERSION, "m", 4096, 256, 4, 64, 0)]
            case wire.Generate(call=call, stream=stream):
                delta = wire.Delta(call, 0, OUTPUT.text, 2, OUTPUT.logprobs)
                done = wire.CallDone(call, (OUTPUT,), USAGE, (PROMPT_LOGPROB,), NEXT, (LEFT_OUT,))
                replies = [delta, done] if stream else [done]
            case wire.Select(call=call):
                replies = [wire.Chosen(call, 1, (CHOICE, CHOICE), USAGE)]
            case wire.Encode(call=call):
                replies = [wire.TokensAre(call, (5,))]
            case wire.Read(call=call) | wire.Decode(call=call):
                replies = [wire.TextIs(call, "x", 1)]
        self.channel.send([(client, reply) for reply in replies])


@pytest.fixture(scope="module")
def answering() -> Iterator[Answering]:
    runtime = Answering()
    try:
        yield runtime
    finally:
        runtime.end()


def asked(runtime: Answering, path: str, body: Json) -> Any:
    async def run() -> Any:
        gateway = Gateway(ServerSettings(), RuntimeLink())
        gateway.link.replace(greet(runtime.channel.connect(), client="test"))
        transport = httpx2.ASGITransport(app=build_app(gateway), raise_app_exceptions=False)
        try:
            async with httpx2.AsyncClient(
                transport=transport, base_url="http://localhost"
            ) as client:
                answer = await client.post(path, json=body)
        finally:
            gateway.link.close()
        assert answer.status_code == 200, answer.text
        return answer.json()

    return asyncio.run(run())


def leaves(value: Any) -> Iterator[Any]:
    """All values, and the keys of objects, which are tokens in some dialects."""
    if isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def test_every_field_of_an_answer_is_among_those_looked_for() -> None:
    kinds = (wire.Usage, wire.Output, wire.TokenLogprob, wire.CallDone, wire.Chosen)
    declared = {
        f"{kind.__name__}.{name}"
        for kind in (*kinds, wire.ScoredChoice)
        for name in kind.__struct_fields__
    }
    assert declared == set(SHOWN_AS) | PARTS


@pytest.mark.parametrize("name", ROUTES)
def test_every_field_of_a_runtimes_answer_is_shown_or_known_to_have_no_place(
    answering: Answering, name: str
) -> None:
    path, body, absent = ROUTES[name]
    answer = asked(answering, path, body)
    if path == "/v1/programs":
        answer = answer["results"]["c"]  # the program's sums would hide what is missing
    found = list(leaves(answer))
    missing = {field for field, value in SHOWN_AS.items() if value not in found}
    assert missing == absent, answer


def test_a_selects_index_and_text_are_those_of_the_winner(answering: Answering) -> None:
    chosen = asked(answering, "/v1/programs", {"ops": [OPEN, SELECT]})["results"]["c"]
    assert (chosen["index"], chosen["text"]) == (1, "yes")


def test_every_field_has_a_place_in_some_route() -> None:
    homeless = set.intersection(*(absent for _, _, absent in ROUTES.values()))
    assert homeless == set()
