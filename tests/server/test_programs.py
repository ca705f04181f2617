"""`/v1/programs`: whole programs as JSON."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from lmprog import wire
from lmprog.cli.run import ServedFolder
from lmprog.errors import InvalidParameter, ProgramError, UnknownName
from lmprog.lang.branches.slots import Filling, Slot, Tuned
from lmprog.server.app import build_app
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.link.runtime_link import RuntimeLink
from lmprog.server.options.server_settings import ServerSettings
from lmprog.server.programs.program_body import ProgramBody, Translator
from tests.server.fake_runtime import Fake
from tests.server.live import Live

GREEDY = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
FORKING: list[dict[str, Any]] = [
    {"op": "open", "branch": "s"},
    {"op": "append", "branch": "s", "pieces": "Two ideas about bread.\n"},
    {"op": "fork", "branch": "s", "into": ["a", "b"]},
    {"op": "append", "branch": "a", "pieces": ["First: "]},
    {"op": "gen", "branch": "a", "call": "first", **GREEDY},
    {"op": "append", "branch": "b", "pieces": [{"text": "Second: "}]},
    {"op": "gen", "branch": "b", "call": "second", **GREEDY},
    {
        "op": "append",
        "branch": "s",
        "pieces": ["1. ", {"ref": "first"}, "\n2. ", {"ref": "second"}, {"gained": "b"}],
    },
    {"op": "select", "branch": "s", "call": "better", "choices": ["first", "second"]},
    {"op": "read", "branch": "s", "call": "all"},
]


def test_a_program_with_forks_references_and_a_choice_runs_in_one_request(live: Live) -> None:
    made = live.ok("/v1/programs", ops=FORKING)
    assert made["object"] == "program"
    assert made["status"] == "completed"
    results = made["results"]
    first, second = results["first"]["text"], results["second"]["text"]
    chosen = results["better"]["text"]
    assert chosen == ["first", "second"][results["better"]["index"]]
    assert sum(option["probability"] for option in results["better"]["options"]) == pytest.approx(1)
    assert results["all"]["text"] == (
        f"Two ideas about bread.\n1. {first}\n2. {second}Second: {second}{chosen}"
    )
    assert made["usage"]["generated_tokens"] == 12
    assert results["second"]["usage"]["cached_tokens"] > 0, "the fork's prefix was shared"
    assert results["first"]["outputs"][0]["finish_reason"] == "length"


def test_the_documented_program_runs(live: Live) -> None:
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    found = re.search(r"```json\n(.*?)```", page.partition("## Programs")[2], re.DOTALL)
    assert found
    made = live.ok("/v1/programs", **json.loads(found[1]))
    assert made["status"] == "completed"
    assert set(made["results"]) == {"flour", "oven", "better", "grade"}
    assert 1 <= int(made["results"]["grade"]["text"]) <= 10


LIMITLESS = [
    ("a text", [], {}, 128),
    ("a number", [], {"regex": "[0-9]{4}"}, 128),
    ("a choice", [], {"structured_outputs": {"choice": ["yes", "no"]}}, 128),
    ("a list", [], {"json_schema": {"type": "array", "items": {"type": "string"}}}, 1024),
    ("a turn", [{"begin": "assistant"}], {}, None),
    ("a turn with beams", [{"begin": "assistant"}], {"use_beam_search": True, "n": 2}, 128),
    ("a turn of several", [{"begin": "assistant"}], {"n": 3, "keep": "majority"}, 128),
    ("a turn that is over", [{"role": "user", "text": "Hi."}], {}, 128),
    ("JSON in a turn", [{"begin": "assistant"}], {"regex": "[0-9]"}, 128),
]


@pytest.mark.parametrize(
    ("pieces", "fields", "limit"), [case[1:] for case in LIMITLESS], ids=[c[0] for c in LIMITLESS]
)
@pytest.mark.parametrize("forks", [False, True])
def test_a_gen_without_a_limit_has_the_one_that_the_language_gives(
    pieces: list[Any], fields: dict[str, Any], limit: int | None, forks: bool
) -> None:
    count = itertools.count(1).__next__
    ops: list[dict[str, Any]] = [
        {"op": "open", "branch": "s"},
        {"op": "append", "branch": "s", "pieces": ["x", *pieces]},
    ]
    if forks:
        ops.append({"op": "fork", "branch": "s", "into": ["f"]})
    schema = fields.get("json_schema")
    if schema is not None:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        fields = {"response_format": form}
    gen = {"op": "gen", "branch": "f" if forks else "s", "call": "c", **fields}
    body = msgspec.convert({"ops": [*ops, gen]}, ProgramBody)
    translator = Translator(count, count, "", None, stream=False, context=4096)
    for at, op in enumerate(body.ops):
        translator.take(at, op)
    asked = translator.made.ops[-1]
    assert isinstance(asked, wire.Generate)
    assert asked.sampling.max_tokens == limit


def test_a_gen_takes_what_completions_take(live: Live) -> None:
    ops = [
        {"op": "open", "branch": "s"},
        {"op": "append", "branch": "s", "pieces": [{"tokens": [40, 41]}, "Digits: "]},
        {
            "op": "gen",
            "branch": "s",
            "call": "d",
            "regex": "[0-9]{4}",
            "n": 2,
            "logprobs": 1,
            "seed": 3,
            "max_tokens": 9,
        },
        {"op": "append", "branch": "s", "pieces": [" and ", {"ref": "d", "index": 1}]},
        {"op": "read", "branch": "s", "call": "text"},
    ]
    made = live.ok("/v1/programs", ops=ops)["results"]
    texts = [output["text"] for output in made["d"]["outputs"]]
    assert all(len(text) == 4 and text.isdecimal() for text in texts)
    assert made["text"]["text"].endswith(f"Digits: {texts[0]} and {texts[1]}")
    assert [one["text"] for one in made["d"]["outputs"][0]["logprobs"]]
    assert made["d"]["outputs"][0]["finish_reason"] == "constraint"


def test_a_chat_turn_is_written_by_the_models_template(live: Live) -> None:
    ops = [
        {"op": "open", "branch": "s"},
        {
            "op": "append",
            "branch": "s",
            "pieces": [{"role": "user", "text": "Hello"}, {"begin": "assistant"}],
        },
        {"op": "gen", "branch": "s", "call": "hi", **GREEDY},
        {"op": "append", "branch": "s", "pieces": [{"end": "assistant"}]},
        {"op": "read", "branch": "s", "call": "text"},
    ]
    made = live.ok("/v1/programs", ops=ops)["results"]
    assert "Hello" in made["text"]["text"]
    assert made["hi"]["text"] in made["text"]["text"]
    assert len(made["text"]["text"]) > len("Hello" + made["hi"]["text"])


def test_a_stream_has_deltas_results_and_an_end(live: Live) -> None:
    whole = live.ok("/v1/programs", ops=FORKING)["results"]
    *events, end = live.events("/v1/programs", ops=FORKING, stream=True)
    assert end == "[DONE]"
    first, *middle, last = [json.loads(one) for one in events]
    assert first["status"] == "running"
    assert last["status"] == "completed"
    assert first["id"] == last["id"]
    results = {one.pop("call"): one for one in middle if "type" in one}
    said = dict.fromkeys(("first", "second"), "")
    for one in middle:
        if "type" not in one:
            said[one["call"]] += one["text"]
    assert said == {"first": whole["first"]["text"], "second": whole["second"]["text"]}
    assert {name: result["text"] for name, result in results.items()} == {
        name: result["text"] for name, result in whole.items()
    }


def test_the_failure_of_one_call_leaves_the_others_their_results(live: Live) -> None:
    ops = [
        *({"op": "open", "branch": name} for name in "ab"),
        *({"op": "append", "branch": name, "pieces": "text"} for name in "ab"),
        {"op": "gen", "branch": "a", "call": "bad", "regex": "(", "max_tokens": 5},
        {"op": "gen", "branch": "b", "call": "good", **GREEDY},
    ]
    made = live.ok("/v1/programs", ops=ops)
    assert made["status"] == "failed"
    assert made["results"]["bad"]["error"]["param"] == "ops[4]"
    assert made["results"]["bad"]["error"]["status"] == 400
    assert made["results"]["good"]["outputs"]


OPEN = {"op": "open", "branch": "s"}
TEXT = {"op": "append", "branch": "s", "pieces": "x"}
GEN = {"op": "gen", "branch": "s", "call": "g", **GREEDY}


@pytest.mark.parametrize(
    ("ops", "param"),
    [
        ([], "ops"),
        ([OPEN, TEXT], "ops"),
        ([OPEN, OPEN, GEN], "ops[1].branch"),
        ([TEXT, GEN], "ops[0].branch"),
        ([OPEN, TEXT, GEN, GEN], "ops[3].call"),
        ([OPEN, {**TEXT, "pieces": [{"ref": "g"}]}, GEN], "ops[1].pieces[0]"),
        ([OPEN, TEXT, GEN, {**TEXT, "pieces": [{"ref": "g", "index": 1}]}], "ops[3].pieces[0]"),
        ([OPEN, {**TEXT, "pieces": [{"gained": "s"}]}, GEN], "ops[1].pieces[0]"),
        ([OPEN, {**TEXT, "pieces": [{"text": "a", "ref": "g"}]}, GEN], "ops[1].pieces[0]"),
        ([OPEN, {**TEXT, "pieces": [{}]}, GEN], "ops[1].pieces[0]"),
        ([OPEN, {**TEXT, "pieces": [{"role": "user"}]}, GEN], "ops[1].pieces[0]"),
        ([OPEN, {"op": "close", "branch": "s"}, GEN], "ops[2].branch"),
        ([OPEN, {"op": "fork", "branch": "s", "into": ["a", "s"]}, GEN], "ops[1].into[1]"),
        ([OPEN, TEXT, {**GEN, "model": "nano"}], "ops[2].model"),
        ([OPEN, TEXT, {**GEN, "max_tokens": -1}], "ops[2].max_tokens"),
        ([OPEN, {**TEXT, "pieces": [{"text": "a", "rest": "b"}]}, GEN], "ops[1].pieces[0]"),
        ([OPEN, {**TEXT, "pieces": [{"text": "a", "heals": True}]}, GEN], "ops[1].pieces[0]"),
        ([OPEN, TEXT, {**GEN, "regex": "a", "ebnf": "b"}], "ops[2].ebnf"),
        ([OPEN, TEXT, {**GEN, "temperature": 3}], "ops[2].temperature"),
        ([OPEN, TEXT, {**GEN, "wrong": 3}], "ops[2].wrong"),
        ([OPEN, {"op": "jump"}], "ops[1].op"),
        (
            [OPEN, {"op": "fork", "branch": "s", "into": [f"b{i}" for i in range(257)]}, GEN],
            "ops[1].into",
        ),
        ([OPEN] * 4097, "ops"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(
    live: Live, ops: list[dict[str, Any]], param: str
) -> None:
    assert live.refused("/v1/programs", ops=ops)["param"] == param


def test_too_many_branches_are_refused(live: Live) -> None:
    forks = [
        {"op": "fork", "branch": "s", "into": [f"{row}-{i}" for i in range(256)]}
        for row in range(4)
    ]
    error = live.refused("/v1/programs", ops=[OPEN, *forks, GEN])
    assert "1,024 branches" in error["message"]


def test_what_no_op_has_is_refused_in_words(live: Live) -> None:
    begun = [{"op": "open", "branch": "a"}, {"op": "append", "branch": "a", "pieces": "x"}]
    for op, message in (
        (
            {"op": "dance"},
            'ops[2].op is "dance", which is none of its values; docs/server.md lists them.',
        ),
        (
            {"op": "gen", "branch": "a", "call": "g", "keep": "some"},
            'ops[2].keep is "some", which is none of its values; docs/server.md lists them.',
        ),
        (
            {"op": "gen", "branch": "a", "call": "g", "colour": 1},
            'unknown field "ops[2].colour".',
        ),
    ):
        assert live.refused("/v1/programs", ops=[*begun, op])["message"] == message


def test_a_quoted_text_is_letters_whatever_it_spells(live: Live) -> None:
    def tokens_of(piece: Any) -> int:
        ops = [
            {"op": "open", "branch": "s"},
            {"op": "append", "branch": "s", "pieces": ["so ", piece]},
            {"op": "read", "branch": "s", "call": "all"},
        ]
        result = live.ok("/v1/programs", ops=ops)["results"]["all"]
        assert result["text"] == "so <|end|>"
        return int(result["num_tokens"])

    special = tokens_of({"text": "<|end|>"})
    assert tokens_of("<|end|>") == special < tokens_of({"text": "<|end|>", "quoted": True})
    ops = [
        {"op": "open", "branch": "s"},
        {"op": "append", "branch": "s", "pieces": [{"tokens": [5], "quoted": True}]},
        {"op": "read", "branch": "s", "call": "all"},
    ]
    assert "quoted belongs to a piece with text" in live.refused("/v1/programs", ops=ops)["message"]


# --- programs of a folder


class Noted:
    """A folder that notes what it is asked to run."""

    def __init__(self) -> None:
        self.parameters = {"greet": ["name"]}
        self.asked: list[tuple[Any, ...]] = []

    async def run(self, *asked: Any) -> tuple[Any, wire.Usage]:
        self.asked.append(asked)
        return {"said": "hello"}, wire.Usage(prompt=3)


def test_programs_of_a_folder_have_routes_and_run_as_who_asks(fake: Fake) -> None:
    folder = Noted()

    async def run() -> None:
        gateway = Gateway(ServerSettings(api_keys=("key",)), RuntimeLink())
        gateway.link.replace(fake.connect("test"))
        app = build_app(gateway, programs=folder)
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:1") as client:
            body = {"arguments": {"name": "Ann"}}
            assert (await client.post("/v1/programs/greet", json=body)).status_code == 401
            client.headers["authorization"] = "Bearer key"
            listed = (await client.get("/v1/programs")).json()["data"]
            assert listed == [{"id": "greet", "takes": ["name"]}]
            ran = (await client.post("/v1/programs/greet", json=body)).json()
            assert ran["value"] == {"said": "hello"}
            assert ran["usage"]["prompt_tokens"] == 3
            unknown = await client.post("/v1/programs/other", json=body)
            assert unknown.status_code == 404
            assert "no program 'other': greet" in unknown.text
        gateway.link.close()

    asyncio.run(run())
    assert folder.asked == [("greet", {"name": "Ann"}, "http://localhost:1", "key")]


GREET = """
import lmprog

@lmprog.function
def greet(s: lmprog.Branch, name: str) -> dict:
    s.instruction("task", "Greet.")
    s += f" {name}:"
    return {"named": name, "said": s.gen(max_tokens=2, temperature=0).value}
"""


def test_a_program_of_a_folder_takes_its_tuned_file(live: Live, tmp_path: Path) -> None:
    def ran(**arguments: Any) -> tuple[Any, wire.Usage]:
        return asyncio.run(ServedFolder(tmp_path).run("greet", arguments, live.url, None))

    with pytest.raises(UnknownName, match="No file of"):
        ServedFolder(tmp_path)
    (tmp_path / "greeting.py").write_text(GREET)
    value, usage = ran(name="Ann")
    assert value["named"] == "Ann"
    fillings = {"task": Filling(text="Greet whoever comes in, at any time of day.")}
    slots = {"task": Slot("task", "instruction", "Greet.")}
    Tuned("greet", fillings, slots).save(tmp_path / "greet.json")
    assert ran(name="Ann")[1].prompt > usage.prompt + 5
    with pytest.raises(InvalidParameter, match="takes \\(name\\)"):
        ran(nmae="Ann")
    slots = {"task": Slot("task", "instruction", "Say hello")}
    Tuned("greet", fillings, slots).save(tmp_path / "greet.json")
    with pytest.raises(ProgramError, match="default was 'Say hello'"):
        ran(name="Ann")
    (tmp_path / "again.py").write_text(GREET)
    with pytest.raises(InvalidParameter, match="Two files"):
        ServedFolder(tmp_path)
