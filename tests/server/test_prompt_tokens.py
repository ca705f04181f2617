"""`truncate_prompt_tokens`, `return_token_ids` and `suffix`: prompts that a request wants as tokens,
or with a gap.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from lmprog.runtime.text.special_tokens import infill_texts
from lmprog.runtime.text.tokenizer import ByteTokenizer
from tests.runtime.words import Words
from tests.server.fake_runtime import Fake, asking

Json = dict[str, Any]
TOKENIZER = ByteTokenizer()
CHAT: Json = {"messages": [{"role": "user", "content": "tell me"}], "max_tokens": 5}


class Filling(Fake):
    """A model that fills gaps; which tokens mark them does not matter."""

    infill = ("<|system|>", "<|user|>", "<|tool|>")


@pytest.fixture(scope="module")
def filling() -> Iterator[Fake]:
    with Filling() as runtime:
        yield runtime


@pytest.fixture(scope="module")
def plain() -> Iterator[Fake]:
    with Fake() as runtime:
        yield runtime


def posted(runtime: Fake, path: str, body: Json) -> Json:
    async def run() -> Json:
        async with asking(runtime) as (client, _):
            answer = await client.post(path, json={"temperature": 0, "ignore_eos": True, **body})
            made: Json = answer.json()
            return made

    return asyncio.run(run())


def streamed(runtime: Fake, path: str, body: Json) -> list[Json]:
    async def run() -> str:
        async with asking(runtime) as (client, _):
            asked = {"temperature": 0, "ignore_eos": True, "stream": True, **body}
            return (await client.post(path, json=asked)).text

    lines = asyncio.run(run()).splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


# --- tokens


def test_a_chat_gives_the_tokens_of_its_prompt_and_of_each_choice(plain: Fake) -> None:
    without = posted(plain, "/v1/chat/completions", {**CHAT, "n": 2})
    answer = posted(plain, "/v1/chat/completions", {**CHAT, "n": 2, "return_token_ids": True})
    ids = answer["prompt_token_ids"]
    assert len(ids) == answer["usage"]["prompt_tokens"] == without["usage"]["prompt_tokens"]
    assert "tell me" in TOKENIZER.decode(ids)
    for given, plainly in zip(answer["choices"], without["choices"], strict=True):
        assert given["message"] == plainly["message"]
        assert TOKENIZER.decode(given["token_ids"]) == given["message"]["content"]
        assert len(given["token_ids"]) == 5
    assert "token_ids" not in without["choices"][0]
    assert "prompt_token_ids" not in without


def test_a_chat_that_is_truncated_is_its_last_tokens(plain: Fake) -> None:
    whole = posted(plain, "/v1/chat/completions", {**CHAT, "return_token_ids": True})
    asked = {**CHAT, "return_token_ids": True, "truncate_prompt_tokens": 6}
    cut = posted(plain, "/v1/chat/completions", asked)
    assert cut["prompt_token_ids"] == whole["prompt_token_ids"][-6:]
    assert cut["usage"]["prompt_tokens"] == 6
    same = {"prompt": cut["prompt_token_ids"], "max_tokens": 5}
    text = posted(plain, "/v1/completions", same)["choices"][0]["text"]
    assert cut["choices"][0]["message"]["content"] == text
    longer = posted(plain, "/v1/chat/completions", {**asked, "truncate_prompt_tokens": 10_000})
    assert longer["prompt_token_ids"] == whole["prompt_token_ids"]


def test_a_stream_gives_the_same_tokens_once(plain: Fake) -> None:
    asked = {**CHAT, "return_token_ids": True, "n": 2}
    whole = posted(plain, "/v1/chat/completions", asked)
    chunks = streamed(plain, "/v1/chat/completions", asked)
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    told = [one for chunk in chunks for one in chunk["choices"] if "token_ids" in one]
    expected = [(one["index"], one["token_ids"]) for one in whole["choices"]]
    assert sorted((one["index"], one["token_ids"]) for one in told) == expected
    body = {"prompt": ["ab", "cde"], "max_tokens": 3, "return_token_ids": True}
    plainly = posted(plain, "/v1/completions", body)["choices"]
    ends = [
        one
        for chunk in streamed(plain, "/v1/completions", body)
        for one in chunk["choices"]
        if "token_ids" in one
    ]
    keys = ("index", "token_ids", "prompt_token_ids")
    assert sorted([one[key] for key in keys] for one in ends) == [
        [one[key] for key in keys] for one in plainly
    ]


def test_a_truncated_prompt_is_echoed_as_it_was_run(plain: Fake) -> None:
    body = {"prompt": "abcdef", "echo": True, "max_tokens": 2, "truncate_prompt_tokens": 3}
    assert posted(plain, "/v1/completions", body)["choices"][0]["text"].startswith("def")


# --- suffix


def test_a_suffix_comes_before_the_gap_that_is_filled(filling: Fake) -> None:
    for prompt in ("head", TOKENIZER.encode("head")):
        body = {"prompt": prompt, "suffix": "tail", "max_tokens": 3, "return_token_ids": True}
        choice = posted(filling, "/v1/completions", body)["choices"][0]
        expected = TOKENIZER.encode("<|system|>head<|user|>tail<|tool|>")
        assert choice["prompt_token_ids"][-len(expected) :] == expected
        assert len(choice["token_ids"]) == 3
    refused = posted(filling, "/v1/completions", {"prompt": "a", "suffix": "b", "echo": True})
    assert refused["error"]["param"] == "echo"


def test_a_model_that_fills_no_gaps_refuses_a_suffix(plain: Fake) -> None:
    error = posted(plain, "/v1/completions", {"prompt": "a", "suffix": "b"})["error"]
    assert (error["param"], error["code"]) == ("suffix", "not_supported")
    assert posted(plain, "/v1/completions", {"prompt": "a", "suffix": ""})["choices"]


def test_the_marks_of_a_gap_are_those_that_are_single_tokens() -> None:
    names = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
    assert infill_texts(Words(*names)) == names
    assert infill_texts(Words(*names[:2])) == ()
