"""`/v1/responses`, asked by OpenAI's own client."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from lmprog.errors import InvalidParameter
from lmprog.server.fairness.accounts import HeldBytes, MemoryPool
from lmprog.server.http.http_errors import HttpError
from lmprog.server.openai.messages import ChatMessage
from lmprog.server.responses.stored_responses import (
    Kept,
    ResponseFile,
    ResponseServer,
    SavedResponse,
    Store,
    kept_at,
)
from tests.server.fake_runtime import Fake, asking
from tests.server.live import Live
from tests.tier.shared_stores import SERVER, redis_server

GREEDY: dict[str, Any] = {
    "temperature": 0,
    "max_output_tokens": 8,
    "extra_body": {"ignore_eos": True},
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
    },
    "strict": True,
}


@pytest.fixture
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_text_is_answered_with_one_message(client: openai.OpenAI) -> None:
    made = client.responses.create(
        model="nano", input="Say something.", metadata={"a": "b"}, **GREEDY
    )
    assert made.object == "response"
    assert made.status == "incomplete"
    assert made.incomplete_details
    assert made.incomplete_details.reason == "max_output_tokens"
    (item,) = made.output
    assert item.type == "message"
    assert made.output_text
    assert made.usage
    assert made.usage.output_tokens == 8
    assert made.usage.total_tokens == made.usage.input_tokens + 8
    assert made.metadata == {"a": "b"}
    again = client.responses.create(model="nano", input="Say something.", **GREEDY)
    assert again.output_text == made.output_text
    assert again.usage
    assert again.usage.input_tokens_details.cached_tokens > 0


def test_a_response_is_kept_and_forgotten(client: openai.OpenAI) -> None:
    made = client.responses.create(model="nano", input="Hello", **GREEDY)
    assert client.responses.retrieve(made.id) == made
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    unkept = client.responses.create(model="nano", input="Hello", store=False, **GREEDY)
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.retrieve(unkept.id)
    assert missing.value.code == "not_found"


def test_a_conversation_goes_on_from_its_last_response(client: openai.OpenAI, live: Live) -> None:
    first = client.responses.create(model="nano", input="Hello", instructions="Be brief.", **GREEDY)
    second = client.responses.create(
        model="nano", input="And now?", previous_response_id=first.id, **GREEDY
    )
    whole = client.responses.create(
        model="nano",
        input=[
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "And now?"},
        ],
        **GREEDY,
    )
    assert second.output_text == whole.output_text
    assert second.usage
    assert whole.usage
    assert second.usage.input_tokens == whole.usage.input_tokens
    error = live.refused("/v1/responses", input="x", previous_response_id="resp_none")
    assert error["param"] == "previous_response_id"


def test_a_stream_has_its_events_in_order_and_numbered(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="nano", input="Say something.", **GREEDY)
    events = list(
        client.responses.create(model="nano", input="Say something.", stream=True, **GREEDY)
    )
    kinds = [event.type for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert deltas > 0
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == "response.incomplete"
    assert said == whole.output_text == last.response.output_text
    created = events[0]
    assert created.type == "response.created"
    assert created.response.output == []
    assert client.responses.retrieve(last.response.id).output_text == said


def test_the_clients_own_accumulator_reads_the_stream(client: openai.OpenAI) -> None:
    text: Any = {
        "format": {"type": "json_schema", "name": "answer", "schema": {"enum": ["yes", "no"]}}
    }
    with client.responses.stream(model="nano", input="Say something.", text=text) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert json.loads(final.output_text) in ("yes", "no")


def test_a_function_is_called_and_its_answer_taken(client: openai.OpenAI) -> None:
    made = client.responses.create(
        model="nano",
        input="Weather in Oslo?",
        tools=[WEATHER],
        tool_choice="required",
        max_output_tokens=100,
        store=True,
    )
    call = made.output[0]
    assert call.type == "function_call"
    assert json.loads(call.arguments)["city"] in ("Oslo", "Rome")
    assert made.tools[0].type == "function"
    after = client.responses.create(
        model="nano",
        previous_response_id=made.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}],
        **GREEDY,
    )
    assert after.output_text
    events = list(
        client.responses.create(
            model="nano",
            input="Weather?",
            tools=[WEATHER],
            tool_choice={"type": "function", "name": "weather"},
            max_output_tokens=100,
            stream=True,
        )
    )
    kinds = [event.type for event in events]
    assert kinds[2:6] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    assert kinds[6:] == ["response.completed"]


def test_a_schema_confines_the_text(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
    made = client.responses.create(
        model="nano",
        input="Yes?",
        text={
            "format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
        },
        max_output_tokens=64,
    )
    assert isinstance(json.loads(made.output_text)["yes"], bool)


def test_log_probabilities_are_told_where_they_are_included(client: openai.OpenAI) -> None:
    made = client.responses.create(
        model="nano", input="Hi", include=["message.output_text.logprobs"], top_logprobs=2, **GREEDY
    )
    item = made.output[0]
    assert item.type == "message"
    part = item.content[0]
    assert part.type == "output_text"
    assert part.logprobs
    assert len(part.logprobs) == 8
    assert len(part.logprobs[0].top_logprobs) == 2


def test_a_response_in_the_background_is_asked_for_later_or_cancelled(
    client: openai.OpenAI,
) -> None:
    made = client.responses.create(model="nano", input="Hello", background=True, **GREEDY)
    assert made.status in ("queued", "in_progress")
    until = time.monotonic() + 60
    while (now := client.responses.retrieve(made.id)).status in ("queued", "in_progress"):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert now.status == "incomplete"
    assert now.output_text
    long = client.responses.create(
        model="nano",
        input="Hello",
        background=True,
        max_output_tokens=900,
        extra_body={"ignore_eos": True},
    )
    assert client.responses.cancel(long.id).status == "cancelled"
    assert client.responses.retrieve(long.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="nano", input="x", previous_response_id=long.id)
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(client.responses.create(model="nano", input="x", **GREEDY).id)


def test_events_in_the_background_are_told_to_who_comes_back(client: openai.OpenAI) -> None:
    asked = {"model": "nano", "input": "Hello", "background": True, "stream": True}
    with client.responses.create(
        **asked, extra_body={"ignore_eos": True, "max_output_tokens": 60}
    ) as gone:
        first = [next(gone) for _ in range(2)]
    name = first[0].response.id
    later = list(client.responses.retrieve(name, stream=True, starting_after=1))
    assert [event.sequence_number for event in later] == list(range(2, 2 + len(later)))
    assert later[-1].type == "response.incomplete"
    again = list(client.responses.retrieve(name, stream=True))
    assert again == [*first, *later]
    text = "".join(event.delta for event in again if event.type == "response.output_text.delta")
    assert text == client.responses.retrieve(name).output_text
    assert list(client.responses.retrieve(name, stream=True, starting_after=len(again))) == []
    plain = client.responses.create(model="nano", input="Hello", **GREEDY)
    with pytest.raises(openai.BadRequestError, match="begun with background=true and stream=true"):
        client.responses.retrieve(plain.id, stream=True)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        ({"input": [{"type": "function_call", "call_id": "1"}]}, "input[0].name"),
        ({"input": [{"type": "reasoning"}]}, "input"),
        ({"input": "x", "background": True, "store": False}, "background"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "x", "text": {"format": {"type": "yaml"}}}, "text.format"),
        ({"input": "x " * 100_000}, "input"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_by_name(live: Live, body: dict[str, Any], param: str) -> None:
    assert live.refused("/v1/responses", **body)["param"] == param


def test_messages_call_the_fields_by_this_dialects_names(live: Live) -> None:
    said = live.refused("/v1/responses", input="x", text={"format": {"type": "yaml"}})["message"]
    assert said == (
        "text.format.type is 'yaml'; it must be text, json_object, json_schema or structural_tag."
    )


def kept(name: str, size: int = 10, caller: str = "", account: str = "test") -> Kept:
    state = {"id": name, "background": False, "status": "completed", "tools": "x" * size}
    made = Kept(caller, account, state, [ChatMessage("user", "x")])
    made.seal(state, [ChatMessage("user", "x")])
    return made


def test_the_store_is_bounded_in_number_and_in_size_and_forgets_what_was_used_longest_ago() -> None:
    async def main() -> None:
        store = Store(20_000, MemoryPool(10**6), most=3)
        for name in "abc":
            store.put(kept(name))
        assert await store.get("", "a")
        store.put(kept("d"))
        assert [name for name in "abcd" if await store.get("", name)] == ["a", "c", "d"]
        store.put(kept("big", 18_000))
        assert len(store) == 1
        store.put(kept("bigger", 30_000))
        assert (len(store), store.num_bytes) == (0, 0)

    asyncio.run(main())


def test_only_responses_of_whoever_needs_the_memory_are_forgotten_for_it() -> None:
    async def main() -> None:
        pool = MemoryPool(100_000)
        store = Store(10**6, pool)
        for name in "abc":
            store.put(kept(f"other {name}", 9_000, account="two"))
            store.put(kept(name, 9_000, account="one"))
        HeldBytes(pool, "one").take(30_000)
        assert len(store) == 5
        assert await store.get("", "a") is None
        assert pool.held == store.num_bytes + 30_000

    asyncio.run(main())


@pytest.mark.parametrize("in_file", [False, True])
def test_nobody_sees_anothers_response(in_file: bool, tmp_path: Path) -> None:
    async def main() -> None:
        file = ResponseFile(str(tmp_path / "responses"), 10**6) if in_file else None
        store = Store(10**6, MemoryPool(10**6), file=file)
        one = kept("a", caller="alice")
        store.put(one)
        await store.written(one)
        assert await store.get("bob", "a") is None
        assert not await store.drop("bob", "a")
        found = await store.get("alice", "a")
        assert found is not None
        assert found.json == one.json
        assert await store.drop("alice", "a")
        assert store.num_bytes == 0
        assert await store.get("alice", "a") is None

    asyncio.run(main())


def row(name: str, size: int = 1000) -> SavedResponse:
    return SavedResponse(name, "", "", b"{}", b"", None, size)


def test_a_file_of_responses_is_bounded_and_forgets_what_was_used_longest_ago(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "responses")
    first, second = ResponseFile(path, 30_000), ResponseFile(path, 30_000)  # of two processes
    for number in range(30):
        (first, second)[number % 2].write(row(str(number)))
    assert first.read("", "0") is not None
    second.write(row("more"))
    assert first.num_bytes == second.num_bytes <= 30_000
    assert second.read("", "0") is not None, "it was used just now"
    assert first.read("", "1") is None
    first.write(row("0", 2000))
    assert second.num_bytes <= 30_000
    second.write(row("larger than all may be", 30_001))
    assert second.read("", "larger than all may be") is None
    assert (tmp_path / "responses").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("what", ["text", "another database", "a folder"])
def test_what_is_no_file_of_responses_is_refused_and_left_as_it_is(
    what: str, tmp_path: Path
) -> None:
    path = tmp_path / "responses"
    if what == "text":
        path.write_text("my notes, which nobody should lose " * 50)
    elif what == "another database":
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE mine (a)")
        other.close()
    else:
        path.mkdir()
    before = None if what == "a folder" else path.read_bytes()
    with pytest.raises(InvalidParameter, match="Responses cannot be kept") as caught:
        ResponseFile(str(path), 1000)
    assert caught.value.name == "responses_file"
    if before is not None and what == "text":
        assert path.read_bytes() == before


@pytest.fixture(params=["file", "server"])
def shared_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where gateways keep responses together: a file, or a real server."""
    if request.param == "file":
        yield str(tmp_path / "responses")
        return
    if SERVER is None:
        pytest.skip("neither valkey-server nor redis-server")
    with redis_server() as (url, _):
        yield url


def test_gateways_that_share_a_place_continue_each_others_responses(shared_place: str) -> None:
    """Also one that was started after the other had ended; others' remain others'."""
    path = shared_place
    body: dict[str, Any] = {"input": "Hello", "max_output_tokens": 3, "ignore_eos": True}

    async def main() -> None:
        async with (
            asking(one, responses_file=path) as (first, _),
            asking(other, responses_file=path) as (second, _),
        ):
            whole = (await first.post("/v1/responses", json=body)).json()
            streamed = await first.post("/v1/responses", json=body | {"stream": True})
            last = json.loads(streamed.text.rpartition("data: ")[2])["response"]
            for made in (whole, last):
                place = f"/v1/responses/{made['id']}"
                found = (await second.get(place)).json()
                assert found == (await first.get(place)).json()
                assert found["output"] == made["output"]
                more = body | {"previous_response_id": made["id"]}
                assert (await second.post("/v1/responses", json=more)).status_code == 200
                assert (await second.get(f"{place}/input_items")).json()["data"]
            assert (await second.delete(place)).status_code == 200
            assert (await first.get(place)).status_code == 404
        async with asking(one, responses_file=path) as (third, _):
            more = body | {"previous_response_id": whole["id"]}
            assert (await third.post("/v1/responses", json=more)).status_code == 200

    with Fake() as one, Fake() as other:
        asyncio.run(main())


def test_a_response_that_cannot_be_written_stays_in_memory_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: ResponseFile, row: SavedResponse) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async def main() -> None:
        file = ResponseFile(str(tmp_path / "responses"), 10**6)
        store = Store(10**6, MemoryPool(10**6), file=file)
        store.put(one := kept("a"))
        await store.written(one)
        assert await store.get("", "a") is one

    monkeypatch.setattr(ResponseFile, "write", full)
    asyncio.run(main())
    assert "disk is full" in caplog.text


def tools(count: int) -> list[dict[str, Any]]:
    """Large where they are parsed, much larger than their text."""
    deep: dict[str, Any] = {"enum": list(range(500)), "x": [[] for _ in range(500)]}
    schema = {"type": "object", "properties": {"a": deep}}
    return [{"type": "function", "name": f"tool{at}", "parameters": schema} for at in range(count)]


@pytest.mark.parametrize("way", ["whole", "stream", "background"])
def test_what_stored_responses_hold_is_what_the_store_counts(
    fake: Fake, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores: list[Store] = []
    made = Store.__init__

    def remember(self: Store, *given: Any, **more: Any) -> None:
        stores.append(self)
        made(self, *given, **more)

    monkeypatch.setattr(Store, "__init__", remember)
    body: dict[str, Any] = {"input": "Hello " * 40, "max_output_tokens": 3, "ignore_eos": True}
    body |= {"tools": tools(16), "tool_choice": "none", "metadata": {"a": "b" * 500}}
    body |= {} if way == "whole" else {way: True}

    async def run() -> tuple[int, int, int]:
        async with asking(fake, max_stored_bytes=500_000) as (client, _):

            async def ask(count: int) -> None:
                for _ in range(count):
                    answer = await client.post("/v1/responses", json=body)
                    assert answer.status_code == 200, answer.text
                    while len(asyncio.all_tasks()) > 1:  # of those in the background
                        await asyncio.sleep(0.01)

            await ask(2)
            store = stores[-1]
            before, had = held(), store.num_bytes
            await ask(8)
            counted = store.num_bytes - had
            for _ in range(500):  # other threads let go of the last request a moment later
                grown = held() - before
                if grown < 1.15 * counted + 100_000:
                    break
                await asyncio.sleep(0.01)
            await ask(8)
            return grown, counted, store.num_bytes

    def held() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        grown, counted, at_last = asyncio.run(run())
    finally:
        tracemalloc.stop()
    assert counted > 8 * 30_000
    assert grown < 1.15 * counted + 100_000
    assert at_last <= 500_000
    assert len(stores[-1]) < 18


@pytest.mark.skipif(SERVER is None, reason="neither valkey-server nor redis-server")
def test_a_server_of_responses_gives_each_its_own_and_fails_with_a_status(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with redis_server() as (url, process):
        server = ResponseServer(url, 10**4)
        row = SavedResponse("a", "one", "one", b"{}", b"\x90", None, 100)
        server.write(row)
        assert server.read("one", "a") == row
        assert server.read("two", "a") is None
        assert not server.drop("two", "a")
        server.write(SavedResponse("large", "one", "one", b"{}", b"\x90", None, 10**5))
        assert server.read("one", "large") is None
        assert server.drop("one", "a")
        assert server.read("one", "a") is None
        process.kill()
        process.wait()

        async def main() -> None:
            store = Store(10**6, MemoryPool(10**6), file=server)
            with pytest.raises(HttpError) as caught:
                await store.get("one", "a")
            assert caught.value.problem.status == 503
            store.put(made := kept("b"))
            await store.written(made)
            assert await store.get("", "b") is made, "what could not be written stays in memory"

        asyncio.run(main())
        with pytest.raises(InvalidParameter, match="no address"):
            kept_at("redis://", 10)
        assert isinstance(kept_at(url, 10), ResponseServer), "one that is away is asked later"
    assert "does not answer yet" in caplog.text
