"""The `openai` package's older completions against a real server before nano."""

from __future__ import annotations

import re
from typing import Any

import openai
import pytest

from tests.server.live import Live


def test_a_logit_bias_forbids_and_forces_tokens(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "nano",
        "prompt": "One two",
        "max_tokens": 3,
        "temperature": 0,
    }
    forced = client.completions.create(**asked, logit_bias={"100": 100}).choices[0].text
    plain = client.completions.create(**asked).choices[0].text
    assert forced != plain


def test_completions_take_texts_and_token_ids_and_number_their_choices(
    client: openai.OpenAI,
) -> None:
    answer = client.completions.create(
        model="nano", prompt=["One two", "Three"], max_tokens=3, n=2, temperature=0
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == answer.choices[1].text
    ids = client.completions.create(
        model="nano", prompt=[[300, 301], [302]], max_tokens=2, echo=True
    )
    assert len(ids.choices) == 2
    best = client.completions.create(
        model="nano", prompt="One two", max_tokens=4, best_of=4, seed=1
    )
    assert len(best.choices) == 1


def test_echo_scores_the_prompt_without_generating(client: openai.OpenAI) -> None:
    text = "One two three four."
    answer = client.completions.create(
        model="nano", prompt=text, max_tokens=0, echo=True, logprobs=2
    )
    (choice,) = answer.choices
    assert choice.text == text
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.text_offset is not None
    assert "".join(choice.logprobs.tokens) == text
    assert choice.logprobs.token_logprobs[0] is None
    assert all(one < 0 for one in choice.logprobs.token_logprobs[1:])
    for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        assert text[offset:].startswith(token)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0


def test_scored_prompts_that_begin_alike_share_their_beginning(client: openai.OpenAI) -> None:
    """The harness's requests: tokens, `echo`, and only the choice at the end differs."""
    shared = [300 + number % 90 for number in range(120)]
    asked = [
        client.completions.create(
            model="nano", prompt=[*shared, last, 350], max_tokens=1, echo=True, logprobs=1,
            temperature=0,
        )
        for last in (310, 320, 310)
    ]  # fmt: skip
    first, other, again = (one.choices[0].logprobs for one in asked)
    assert first is not None
    assert other is not None
    assert again is not None
    assert first.token_logprobs is not None
    assert other.token_logprobs is not None
    assert again.token_logprobs is not None
    assert again.token_logprobs[1:] == pytest.approx(first.token_logprobs[1:], abs=1e-4)
    assert other.token_logprobs[:120] == first.token_logprobs[:120]
    assert other.token_logprobs[120:122] != first.token_logprobs[120:122]
    cached = [
        one.usage.prompt_tokens_details.cached_tokens
        for one in asked
        if one.usage and one.usage.prompt_tokens_details
    ]
    assert cached[0] == 0
    assert min(cached[1:]) >= 100


def test_a_completions_stream_is_the_completion(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "nano",
        "prompt": ["One two", "Three"],
        "max_tokens": 5,
        "temperature": 0,
    }
    whole = client.completions.create(**asked, echo=True)
    texts = ["", ""]
    for chunk in client.completions.create(**asked, echo=True, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    plain = client.completions.create(**asked, logprobs=2).choices[1].logprobs
    assert plain is not None
    streamed = [
        choice.logprobs
        for chunk in client.completions.create(**asked, logprobs=2, stream=True)
        for choice in chunk.choices
        if choice.index == 1 and choice.logprobs is not None
    ]
    assert [token for one in streamed for token in one.tokens or []] == plain.tokens
    assert [offset for one in streamed for offset in one.text_offset or []] == plain.text_offset


def test_messages_call_the_fields_as_the_request_does(live: Live) -> None:
    assert live.refused("/v1/completions", prompt=[10**6])["message"].startswith(
        "prompt names token 1000000, "
    )
    said = live.refused("/v1/completions", prompt="x", logit_bias={"99999": 1})["message"]
    assert said.startswith("logit_bias names token 99999, ")
    chats = "/v1/chat/completions"
    hello, schema = [{"role": "user", "content": "x"}], {"type": "object"}
    tool = {"type": "function", "name": "f"}
    for path, body, field, param in (
        (
            chats,
            {"messages": hello, "max_completion_tokens": 10**6},
            "max_completion_tokens",
            "messages",
        ),
        (chats, {"messages": hello, "max_tokens": 10**6}, "max_tokens", "messages"),
        ("/v1/responses", {"input": "x", "max_output_tokens": 10**6}, "max_output_tokens", "input"),
        (
            "/generate",
            {"text": "x", "sampling_params": {"max_new_tokens": 10**6}},
            "max_new_tokens",
            "text",
        ),
        (
            chats,
            {"messages": hello, "max_tokens": 1, "json_schema": schema},
            "max_tokens",
            "json_schema",
        ),
        (
            "/v1/responses",
            {
                "input": "x",
                "max_output_tokens": 1,
                "text": {"format": {"type": "json_schema", "schema": schema}},
            },
            "max_output_tokens",
            "text.format",
        ),
        (
            "/v1/responses",
            {
                "input": "x",
                "max_output_tokens": 1,
                "tools": [tool],
                "tool_choice": "required",
            },
            "max_output_tokens",
            "tools",
        ),
    ):
        error = live.refused(path, **body)
        assert re.findall(r"\bmax_\w+", error["message"]) in ([field], [field] * 2), error
        assert error["param"] == param
    old = live.refused(
        "/v1/chat/completions", messages=[{"role": "user", "content": "x"}], function_call="auto"
    )
    assert old == {
        "message": "function_call is out of date; use tool_choice.",
        "type": "invalid_request_error",
        "param": "function_call",
        "code": "not_supported",
    }
    assert live.http.get("/v1/models/").status_code == 404


def test_a_prompt_is_truncated_to_its_last_tokens_and_token_ids_are_given(live: Live) -> None:
    same = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
    asked = {**same, "return_token_ids": True}
    texts = ["The sea is wide and blue.", "Two ships"]
    whole = live.ok("/v1/completions", prompt=texts, **asked)
    plain = live.ok("/v1/completions", prompt=texts, **same)
    assert [one["text"] for one in whole["choices"]] == [one["text"] for one in plain["choices"]]
    assert whole["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    assert "token_ids" not in plain["choices"][0]
    for one, text in zip(whole["choices"], texts, strict=True):
        assert one["prompt_token_ids"] == live.ok("/tokenize", prompt=text)["tokens"]
        assert len(one["token_ids"]) == 4
        assert live.ok("/detokenize", tokens=one["token_ids"])["text"] == one["text"]
    rows = [one["prompt_token_ids"] for one in whole["choices"]]
    cut = live.ok("/v1/completions", prompt=[*texts, "x"], truncate_prompt_tokens=3, **asked)
    assert [one["prompt_token_ids"] for one in cut["choices"]][:2] == [row[-3:] for row in rows]
    short = live.ok("/v1/completions", prompt=rows[0][-3:], **asked)
    assert short["choices"][0]["token_ids"] == cut["choices"][0]["token_ids"]
    ids = live.ok("/v1/completions", prompt=rows[0], truncate_prompt_tokens=2, echo=True, **asked)
    assert ids["choices"][0]["prompt_token_ids"] == rows[0][-2:]
