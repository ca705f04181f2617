"""The requests that SGLang's own frontend makes, as far as they matter, and its arithmetic on the
answers.

The arithmetic is that of its three ways to choose, on one prompt: what the frontend would decide
must be what this project's own `select` says of the same tokens.
"""

from __future__ import annotations

import json
from statistics import fmean
from typing import Any

import pytest

from tests.server.live import Live

PROMPT = "Question: is the sea wide?\nAnswer:"
CHOICES = [" yes", " no, not at all", " maybe"]
GEN = {
    "max_new_tokens": 8,
    "min_new_tokens": 0,
    "n": 1,
    "stop": ["\n"],
    "stop_token_ids": [],
    "stop_regex": [],
    "temperature": 0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "ignore_eos": False,
    "regex": None,
    "json_schema": None,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
}


def scored(live: Live, start: int) -> list[list[list[Any]]]:
    """The second request of a select: all choices, with log-probabilities from `start` on."""
    made = live.ok(
        "/generate",
        text=[PROMPT + choice for choice in CHOICES],
        sampling_params={"max_new_tokens": 0, "temperature": 0},
        return_logprob=True,
        return_text_in_logprobs=True,
        logprob_start_len=start,
    )
    return [one["meta_info"]["input_token_logprobs"] for one in made]


def prompt_len(live: Live) -> int:
    made = live.ok("/generate", text=PROMPT, sampling_params={"max_new_tokens": 0})
    return int(made["meta_info"]["prompt_tokens"])


def own_select(live: Live, method: str) -> dict[str, Any]:
    ops = [
        {"op": "open", "branch": "s"},
        {"op": "append", "branch": "s", "pieces": PROMPT},
        {"op": "select", "branch": "s", "call": "c", "choices": CHOICES, "method": method},
    ]
    found: dict[str, Any] = live.ok("/v1/programs", ops=ops)["results"]["c"]
    return found


def likeliest_step_by_step(rows: list[list[float]]) -> int:
    """Token after token, only the choices that are likeliest stay; those at their end go on with
    their mean.
    """
    longest = max(map(len, rows))
    filled = [row + [fmean(row)] * (longest - len(row)) for row in rows]
    return max(range(len(rows)), key=lambda at: [round(value, 4) for value in filled[at]])


def test_what_it_asks_when_it_connects_is_answered(live: Live) -> None:
    assert live.http.get("/get_model_info").json()["model_path"] == "nano"
    assert live.http.get("/get_server_info").status_code == 200
    assert live.http.post("/flush_cache", json={"empty_cache": True}).status_code == 200


def test_a_generation_and_its_stream_say_the_same(live: Live) -> None:
    made = live.ok("/generate", text=PROMPT, sampling_params=GEN)
    position, pieces = 0, []
    for chunk in live.events("/generate", text=PROMPT, sampling_params=GEN, stream=True):
        if chunk == "[DONE]":
            break
        text = json.loads(chunk)["text"][position:]
        position += len(text)
        pieces.append(text)
    assert "".join(pieces) == made["text"]


def test_all_rows_of_a_select_are_numbers_with_texts(live: Live) -> None:
    start = prompt_len(live) - 2
    for rows, choice in zip(scored(live, start), CHOICES, strict=True):
        assert all(isinstance(row[0], float) for row in rows), "the frontend adds them up"
        assert all(isinstance(row[2], str) for row in rows), (
            "the frontend compares the first with the prompt's end"
        )
        assert "".join(row[2] for row in rows).endswith(choice)


def test_the_three_ways_to_choose_agree_with_our_own(live: Live) -> None:
    length = prompt_len(live)
    rows = [found[2:] for found in scored(live, length - 2)]  # without the prompt's last two
    for found, choice in zip(rows, CHOICES, strict=True):
        assert "".join(row[2] for row in found) == choice
    means = [fmean(row[0] for row in found) for found in rows]
    by_mean = own_select(live, "token_length_normalized")
    assert [option["score"] for option in by_mean["options"]] == pytest.approx(means, abs=1e-3)
    assert by_mean["index"] == means.index(max(means))
    greedy = own_select(live, "greedy_token_selection")
    assert greedy["index"] == likeliest_step_by_step([[row[0] for row in found] for found in rows])


def test_the_unconditional_request_gets_the_likelihood_of_what_it_sends(live: Live) -> None:
    ids = [[row[1] for row in found] for found in scored(live, prompt_len(live) - 2)]
    made = live.ok(
        "/generate", input_ids=ids, sampling_params={"max_new_tokens": 0}, return_logprob=True
    )
    for one, sent in zip(made, ids, strict=True):
        rows = one["meta_info"]["input_token_logprobs"]
        assert [row[1] for row in rows] == sent
        assert rows[0][0] is None, "the frontend takes this for 0"
        assert all(isinstance(row[0], float) for row in rows[1:])
