"""Beam search as requests ask for it, in vLLM's spelling: `use_beam_search`, whose width is
`best_of` or `n`.
"""

from __future__ import annotations

from typing import Any

import openai
import pytest

import lmprog
from tests.server.live import Live

STORY = "Mia lives in Oslo. Tom lives in Bonn.\nQ: Where does Tom live?\nA:"
ASKED: dict[str, Any] = {"prompt": STORY, "max_tokens": 6, "use_beam_search": True}


def texts(answer: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


def test_best_of_is_the_width_and_n_results_are_given(live: Live) -> None:
    wide = live.ok("/v1/completions", **ASKED, best_of=4, n=4)
    assert len(wide["choices"]) == 4
    scores = [choice["score"] for choice in wide["choices"]]
    assert scores == sorted(scores, reverse=True)
    narrow = live.ok("/v1/completions", **ASKED, best_of=4)
    assert texts(narrow) == texts(wide)[:1]
    assert narrow["choices"][0]["score"] == pytest.approx(scores[0], abs=1e-4)
    own = live.ok("/v1/completions", **ASKED, beam_width=4, n=2, logprobs=1)
    assert texts(own) == texts(wide)[:2]
    tokens = own["choices"][0]["logprobs"]["token_logprobs"]
    assert len(tokens) >= 1


def test_the_openai_package_says_it_by_extra_fields(client: openai.OpenAI, live: Live) -> None:
    asked: dict[str, Any] = {"model": "nano", "prompt": STORY, "max_tokens": 6, "n": 3}
    more = {"use_beam_search": True, "length_penalty": 0.5, "early_stopping": "never"}
    answer = client.completions.create(**asked, extra_body=more)
    assert len(answer.choices) == 3
    streamed = ["", "", ""]
    for chunk in client.completions.create(**asked, extra_body=more, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == [choice.text for choice in answer.choices]
    assert texts(live.ok("/v1/completions", **{**asked, **more})) == streamed


def test_chats_and_programs_have_it_too(live: Live) -> None:
    messages = [{"role": "user", "content": "Where is Oslo?"}]
    chat = {"messages": messages, "max_tokens": 6, "n": 2}
    answer = live.ok("/v1/chat/completions", **chat, use_beam_search=True, beam_width=3)
    assert len(answer["choices"]) == 2
    assert answer["choices"][0]["score"] >= answer["choices"][1]["score"]
    gen = {"op": "gen", "branch": "b", "call": "c", "n": 2, "beam_width": 4, **ASKED}
    del gen["prompt"]
    ops = [{"op": "open", "branch": "b"}, {"op": "append", "branch": "b", "pieces": STORY}, gen]
    made = live.ok("/v1/programs", ops=ops)["results"]["c"]["outputs"]
    wanted = live.ok("/v1/completions", **ASKED, beam_width=4, n=2)
    assert [one["text"] for one in made] == texts(wanted)
    assert made[0]["score"] == pytest.approx(wanted["choices"][0]["score"], abs=1e-4)


@lmprog.function
def towns(s: lmprog.Branch) -> tuple[list[str], list[float | None]]:
    s.append(STORY)
    found = s.beam(4, max_tokens=6, n=2, heal=False)
    return found.values, [meta.score for meta in found.metas]


def test_programs_search_on_a_server(live: Live) -> None:
    wanted = live.ok("/v1/completions", **ASKED, beam_width=4, n=2)
    with lmprog.sglang.RuntimeEndpoint(live.url) as server:
        values, scores = towns.using(backend=server).run().value
    assert values == texts(wanted)
    assert scores == pytest.approx([one["score"] for one in wanted["choices"]], abs=1e-4)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"use_beam_search": True, "temperature": 0.7}, "temperature"),
        ({"use_beam_search": True, "beam_width": 2, "n": 3}, "n=3"),
        ({"length_penalty": 0.5}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"beam_width": 3}, "beam_width"),
        ({"use_beam_search": True, "early_stopping": "soon"}, "early_stopping"),
        ({"use_beam_search": True, "beam_width": 129}, "beam_width"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(
    live: Live, fields: dict[str, Any], name: str
) -> None:
    assert name in live.refused("/v1/completions", prompt="x", **fields)["message"]
