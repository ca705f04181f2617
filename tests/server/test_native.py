"""The native routes: SGLang's names and shapes, and what its clients do with them."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest

from tests.server.live import Live

GREEDY = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
TEXT = "The capital of France is"
END = 0
"""nano's token that ends a turn: told to go on, a model may still think it likeliest."""


def ids_of(live: Live, text: str) -> list[int]:
    tokens: list[int] = live.ok("/tokenize", prompt=text)["tokens"]
    return tokens


def test_a_text_is_answered_with_text_tokens_and_meta_info(live: Live) -> None:
    made = live.ok("/generate", text=TEXT, sampling_params=GREEDY, rid="mine")
    assert set(made) == {"text", "output_ids", "meta_info"}
    meta = made["meta_info"]
    assert meta["id"] == "mine"
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert meta["prompt_tokens"] == len(ids_of(live, TEXT))
    assert meta["completion_tokens"] == len(made["output_ids"]) == 8
    again = live.ok("/generate", text=TEXT, sampling_params=GREEDY)
    assert again["text"] == made["text"]
    assert again["meta_info"]["cached_tokens"] == meta["prompt_tokens"] - 1


def test_token_ids_are_answered_as_their_text(live: Live) -> None:
    ids = ids_of(live, TEXT)
    assert (
        live.ok("/generate", input_ids=ids, sampling_params=GREEDY)["text"]
        == live.ok("/generate", text=TEXT, sampling_params=GREEDY)["text"]
    )


def test_a_batch_is_a_list_in_its_order_with_parameters_of_its_own(live: Live) -> None:
    made = live.ok(
        "/generate",
        text=["One", "Two", "Three"],
        sampling_params=[{**GREEDY, "max_new_tokens": count} for count in (1, 2, 3)],
        rid="all",
    )
    assert [one["meta_info"]["completion_tokens"] for one in made] == [1, 2, 3]
    assert [one["meta_info"]["id"] for one in made] == ["all_0", "all_1", "all_2"]
    single = live.ok("/generate", text="Two", sampling_params={**GREEDY, "max_new_tokens": 2})
    assert made[1]["text"] == single["text"]
    ids = live.ok(
        "/generate", input_ids=[ids_of(live, "One"), ids_of(live, "Two")], sampling_params=GREEDY
    )
    assert ids[1]["text"].startswith(single["text"])


def test_n_results_are_a_list(live: Live) -> None:
    made = live.ok(
        "/generate", text=TEXT, sampling_params={"n": 3, "max_new_tokens": 4, "sampling_seed": 1}
    )
    assert len(made) == 3
    assert len({one["meta_info"]["id"] for one in made}) == 3


def test_a_stop_is_named_as_what_matched(live: Live) -> None:
    text = live.ok("/generate", text=TEXT, sampling_params=GREEDY)["text"]
    stop = text[3:5]
    made = live.ok("/generate", text=TEXT, sampling_params={**GREEDY, "stop": [stop]})
    assert made["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert made["text"] == text[: text.index(stop)]


@pytest.mark.parametrize(
    ("params", "pattern"),
    [
        ({"regex": "(yes|no)"}, None),
        (
            {
                "json_schema": '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'
            },
            "json",
        ),
    ],
)
def test_constraints_have_their_names(
    live: Live, params: dict[str, Any], pattern: str | None
) -> None:
    made = live.ok("/generate", text=TEXT, sampling_params={"max_new_tokens": 60, **params})
    if pattern:
        assert isinstance(json.loads(made["text"])["a"], int)
    else:
        assert made["text"] in ("yes", "no")


def test_log_probabilities_are_rows_of_value_token_and_text(live: Live) -> None:
    ids = ids_of(live, TEXT)
    asked = {"text": TEXT, "sampling_params": GREEDY, "return_logprob": True, "top_logprobs_num": 2}
    outputs_only = live.ok("/generate", **asked)["meta_info"]
    assert outputs_only["input_token_logprobs"] == []
    meta = live.ok("/generate", **asked, logprob_start_len=0, return_text_in_logprobs=True)[
        "meta_info"
    ]
    rows = meta["input_token_logprobs"]
    assert [row[1] for row in rows] == ids
    assert rows[0][0] is None
    assert all(row[0] <= 0 and isinstance(row[2], str) for row in rows[1:])
    assert isinstance(rows[0][2], str)
    assert meta["input_top_logprobs"][0] is None
    assert all(len(top) == 2 for top in meta["input_top_logprobs"][1:])
    assert len(meta["output_token_logprobs"]) == len(meta["output_top_logprobs"]) == 8
    for row, top in zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True):
        assert row == next(one for one in top if one[1] != END), (
            "greedy picks the likeliest that goes on"
        )
    later = live.ok("/generate", **asked, logprob_start_len=3)["meta_info"]["input_token_logprobs"]
    assert [row[1] for row in later] == ids[3:]
    assert [row[0] for row in later] == pytest.approx([row[0] for row in rows[3:]], abs=1e-4)
    assert {row[2] for row in later} == {None}
    by_ids = live.ok("/generate", **{**asked, "text": None, "input_ids": ids}, logprob_start_len=0)[
        "meta_info"
    ]
    assert by_ids["input_token_logprobs"][0] == [None, ids[0], None]
    assert [row[1] for row in by_ids["input_token_logprobs"]] == ids


def test_nothing_generated_means_the_prompts_own_likelihood(live: Live) -> None:
    made = live.ok(
        "/generate",
        input_ids=[[5, 6, 7], [8, 9]],
        sampling_params={"max_new_tokens": 0},
        return_logprob=True,
    )
    assert [one["text"] for one in made] == ["", ""]
    assert [one["meta_info"]["completion_tokens"] for one in made] == [0, 0]
    assert [[row[1] for row in one["meta_info"]["input_token_logprobs"]] for one in made] == [
        [5, 6, 7],
        [8, 9],
    ]
    assert made[0]["meta_info"]["output_token_logprobs"] == []


def test_a_stream_says_all_that_there_is_so_far(live: Live) -> None:
    whole = live.ok("/generate", text=TEXT, sampling_params=GREEDY)
    *chunks, end = live.events("/generate", text=TEXT, sampling_params=GREEDY, stream=True)
    assert end == "[DONE]"
    parsed = [json.loads(chunk) for chunk in chunks]
    texts = [one["text"] for one in parsed]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert texts[-1] == whole["text"]
    assert [one["meta_info"]["finish_reason"] for one in parsed[:-1]] == [None] * (len(parsed) - 1)
    assert parsed[-1]["output_ids"] == whole["output_ids"]
    assert len({one["meta_info"]["id"] for one in parsed}) == 1


def test_a_streams_log_probabilities_grow_with_its_text(live: Live) -> None:
    """So many tokens that a busy gateway does not find all of them at once: what waits is joined."""
    asked: dict[str, Any] = {
        "text": TEXT,
        "sampling_params": {**GREEDY, "max_new_tokens": 512, "ignore_eos": True},
        "return_logprob": True,
        "top_logprobs_num": 1,
    }
    whole = live.ok("/generate", **asked)["meta_info"]
    *chunks, _ = live.events("/generate", **asked, stream=True)
    metas = [json.loads(chunk)["meta_info"] for chunk in chunks]
    lengths = [len(meta["output_token_logprobs"]) for meta in metas]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]
    for meta in metas:
        count = len(meta["output_token_logprobs"])
        assert meta["output_token_logprobs"] == whole["output_token_logprobs"][:count]
        assert meta["output_top_logprobs"] == whole["output_top_logprobs"][:count]


def test_a_stream_of_a_batch_says_which(live: Live) -> None:
    params = {"temperature": 0, "max_new_tokens": 3, "ignore_eos": True, "n": 2}
    *chunks, _ = live.events("/generate", text=["One", "Two"], sampling_params=params, stream=True)
    last = {json.loads(chunk)["index"]: json.loads(chunk) for chunk in chunks}
    assert sorted(last) == [0, 1, 2, 3]
    assert all(one["meta_info"]["finish_reason"] for one in last.values())


def test_an_abort_ends_a_request_by_its_name_and_says_so(live: Live) -> None:
    params = {"max_new_tokens": 1500, "ignore_eos": True}
    events = live.events("/generate", text=TEXT, sampling_params=params, stream=True, rid="long")
    next(events)
    assert live.post("/abort_request", rid="another").status_code == 200
    assert json.loads(next(events))["meta_info"]["finish_reason"] is None
    assert live.post("/abort_request", rid="long").status_code == 200
    *_, last, end = events
    assert end == "[DONE]"
    assert json.loads(last)["meta_info"]["finish_reason"]["type"] == "abort"
    assert json.loads(last)["text"]


def test_an_abort_of_a_batch_ends_all_of_it(live: Live) -> None:
    params = {"max_new_tokens": 1500, "ignore_eos": True}
    events = live.events(
        "/generate", text=["One", "Two"], sampling_params=params, stream=True, rid="both"
    )
    next(events)
    live.ok("/abort_request", rid="both")
    last = {
        json.loads(one)["index"]: json.loads(one)["meta_info"] for one in events if one != "[DONE]"
    }
    assert [last[at]["finish_reason"]["type"] for at in (0, 1)] == ["abort", "abort"]


def test_abort_needs_to_know_what(live: Live) -> None:
    assert live.refused("/abort_request")["param"] == "rid"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "input_ids"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [1, [2]]}, "input_ids"),
        ({"input_ids": [[1], []]}, "input_ids[1]"),
        ({"input_ids": [10**9]}, "input_ids"),
        ({"input_ids": [2**31]}, "input_ids[0]"),
        ({"input_ids": [1.5]}, "input_ids[0]"),
        ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
        ({"text": "a", "rid": ["x", "y"]}, "rid"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        (
            {"text": "a", "sampling_params": {"max_new_tokens": "8"}},
            "sampling_params.max_new_tokens",
        ),
        ({"text": "a", "sampling_params": {"regex": "a", "ebnf": "b"}}, "ebnf"),
        ({"text": "a", "sampling_params": {"regex": "("}}, "regex"),
        ({"text": "a", "sampling_params": {"logit_bias": {"x": 1}}}, "logit_bias"),
        ({"text": "a", "sampling_params": {"logit_bias": {"99999999": 1}}}, "logit_bias"),
        (
            {"text": "a", "sampling_params": {"allowed_token_ids": []}},
            "sampling_params.allowed_token_ids",
        ),
        ({"text": "a", "extra_key": "mine"}, "cache_salt"),
        ({"text": "a " * 200_000}, "text"),
        ({"text": ""}, "text"),
        (
            {"text": "a", "sampling_params": {"min_new_tokens": 9, "max_new_tokens": 3}},
            "min_new_tokens",
        ),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_by_name(live: Live, body: dict[str, Any], param: str) -> None:
    if body.get("input_ids") == [[1], []]:
        param = "input_ids"
    error = live.refused("/generate", **body)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


def test_another_model_is_not_found(live: Live) -> None:
    assert live.post("/generate", text="a", model="other").status_code == 404


def test_unknown_fields_are_warned_of(live: Live) -> None:
    response = live.post("/generate", text="a", sampling_params={"max_new_tokens": 1}, lora="x")
    assert "lora" in response.headers["warning"]


def test_the_server_tells_what_it_is(live: Live) -> None:
    for path in ("/model_info", "/get_model_info"):
        assert live.http.get(path).json()["model_path"] == "nano"
    for path in ("/server_info", "/get_server_info"):
        info = live.http.get(path).json()
        assert info["internal_states"][0]["pages"] > 0
        assert info["max_total_num_tokens"] > 1000
    assert live.http.get("/health_generate").status_code == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_flushed_cache_is_empty(live: Live, method: str) -> None:
    live.ok("/generate", text=TEXT, sampling_params=GREEDY)
    headers = {"x-requested-with": "test"} if method == "GET" else {}
    assert live.http.request(method, "/flush_cache", headers=headers).status_code == 200
    assert (
        live.ok("/generate", text=TEXT, sampling_params=GREEDY)["meta_info"]["cached_tokens"] == 0
    )


def test_tokens_and_texts_are_translated(live: Live) -> None:
    one = live.ok("/tokenize", prompt="hello world")
    assert one["count"] == len(one["tokens"])
    assert one["max_model_len"] >= 1024
    many = live.ok("/v1/tokenize", prompt=["hello world", ""], add_special_tokens=False)
    assert many["count"] == [len(row) for row in many["tokens"]]
    assert live.ok("/detokenize", tokens=one["tokens"])["text"] == "hello world"
    assert live.ok("/v1/detokenize", tokens=many["tokens"])["text"] == ["hello world", ""]
    assert live.ok("/detokenize", tokens=[])["text"] == ""
    assert live.refused("/detokenize", tokens=[10**9])["param"] == "tokens"
    assert live.refused("/tokenize", prompt="a " * 500_000)["code"] == "context_length_exceeded"


def test_numbers_are_finite(live: Live) -> None:
    made = live.ok(
        "/generate", text=TEXT, sampling_params=GREEDY, return_logprob=True, logprob_start_len=0
    )
    assert all(math.isfinite(row[0]) for row in made["meta_info"]["output_token_logprobs"])
