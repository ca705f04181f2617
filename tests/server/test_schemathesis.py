"""Requests drawn from the OpenAPI document, right ones and wrong ones: none of them makes the
server fail.

A small number of cases in the usual suite; `LMPROG_SCHEMATHESIS=2000` tries as many. Each answer
must be below 500 and JSON where it says so, every refusal in the one form, and the server must be
well afterwards.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest

from tests.conftest import SEED
from tests.server.live import Live

CASES = int(os.environ.get("LMPROG_SCHEMATHESIS", "150"))
SECONDS = 60.0 if CASES <= 500 else 1800.0
"""After these no new case is begun."""
LEFT_OUT = ("/v1/responses/{response}/cancel", "/flush_cache", "/ui", "/admin")
CHATS = ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens")
CONFINING = (
    *(
        "functions",
        "function_call",
        "audio",
        "modalities",
        "tools",
        "tool_choice",
        "stream_options",
        "continue_final_message",
    ),
    *(
        "response_format",
        "regex",
        "ebnf",
        "json_schema",
        "structured_outputs",
        "system",
        "top_logprobs",
        "min_tokens",
    ),
    *(
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "logit_bias",
        "stop_token_ids",
    ),
)
"""Fields that are refused, or refuse one another, nearly always as they are drawn; left out of
every second chat.
"""
SHORT = 8
"""Most tokens that a drawn request may generate: long ones try the runtime, which is not what is
tried here.
"""


def shortened(value: object) -> object:
    """The body with its number of tokens, results and options held down, so that many cases fit in
    the time.
    """
    if isinstance(value, list):
        return [shortened(one) for one in value]
    if not isinstance(value, dict):
        return value
    made = {key: shortened(one) for key, one in value.items()}
    for key in (
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "max_new_tokens",
        "n",
        "best_of",
    ):
        count = made.get(key)
        if isinstance(count, int) and count > SHORT:
            made[key] = SHORT
    return made


def bounded(path: str, body: object) -> object:
    """Where nothing says how long, the answer would be as long as the context."""
    if not isinstance(body, dict):
        return body
    made = shortened(body)
    assert isinstance(made, dict)
    if made.get("model"):  # almost any name is a 404, and nothing behind it would be tried
        made["model"] = "nano"
    for name in ("cache_salt", "extra_key"):  # refused by this server, whatever they are
        made.pop(name, None)
    if path == "/generate" and isinstance(made.get("sampling_params"), dict):
        made["sampling_params"].setdefault("max_new_tokens", SHORT)
    elif path.endswith("completions"):
        made.setdefault("max_tokens", SHORT)
    elif path == "/v1/responses":
        made.setdefault("max_output_tokens", SHORT)
    elif path.startswith("/api/") and isinstance(made.get("options"), dict | None):
        made["options"] = {**(made.get("options") or {}), "num_predict": SHORT}
    elif path.startswith("/completion"):
        made["n_predict"] = SHORT
    return made


def plausible(path: str, body: object) -> object:
    """Chats whose roles and parts exist: drawn ones are any texts, and no chat would ever be
    written by the model.
    """
    if (
        path not in CHATS
        or not isinstance(body, dict)
        or not isinstance(body.get("messages"), list)
    ):
        return body
    made = {
        name: value
        for name, value in body.items()
        if name not in CONFINING or len(body["messages"]) % 2
    }
    made["messages"] = [
        _turn(turn) if isinstance(turn, dict) else turn for turn in body["messages"]
    ]
    return made


def _turn(turn: dict[str, Any]) -> dict[str, Any]:
    content = turn.get("content")
    if isinstance(content, list):
        content = [
            {"type": "text", "text": str(part.get("text", "x"))}
            for part in content
            if isinstance(part, dict)
        ]
    role = ("user", "assistant")[len(str(turn.get("role"))) % 2]
    return {"role": role, "content": "x" if content is None else content}


def test_no_request_makes_the_server_fail(live: Live) -> None:
    # here, and not above: it takes longer to import than most tests to run, in each test process
    schemathesis = pytest.importorskip("schemathesis")
    right, wrong = schemathesis.GenerationMode
    schema = schemathesis.openapi.from_dict(live.http.get("/openapi.json").json())
    operations = [
        found.ok()
        for found in schema.get_all_operations()
        if not found.ok().path.startswith(LEFT_OUT)
    ]
    assert len(operations) > 15
    with_body = [operation for operation in operations if operation.body]
    share = math.ceil(CASES / (2 * len(with_body)))  # the others have one request each
    began = time.monotonic()
    tried: dict[int, int] = {}

    for operation in operations:
        explore(live, operation, right, share, began + SECONDS, tried)
    for operation in with_body:
        explore(live, operation, wrong, share, began + SECONDS, tried)
    print(f"{sum(tried.values())} cases: {dict(sorted(tried.items()))}")
    assert sum(tried.values()) > min(CASES // 2, 50)
    assert (
        live.ok("/generate", text="well", sampling_params={"max_new_tokens": 1})["text"] is not None
    )
    assert live.http.get("/server_info").json()["internal_states"][0]["open_branches"] == 0


def explore(
    live: Live, operation: Any, mode: Any, count: int, until: float, tried: dict[int, int]
) -> None:
    """Draws `count` requests for one operation."""

    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.seed(SEED)
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        if time.monotonic() < until:
            likely = mode.is_positive
            check(live, case, operation.path, tried, plausible if likely else lambda _, body: body)

    ask()


def check(
    live: Live, case: Any, path: str, tried: dict[int, int], mended: Callable[[str, object], object]
) -> None:
    given = case.as_transport_kwargs(base_url=live.url)
    if "json" in given:
        given["json"] = bounded(path, mended(path, given["json"]))
    if not all(_sendable(value) for value in (given.get("headers") or {}).values()):
        return
    response = live.http.request(
        given["method"],
        given["url"],
        headers={
            name: value for name, value in (given.get("headers") or {}).items() if value is not None
        },
        **({"json": given["json"]} if "json" in given else {}),
    )
    tried[response.status_code] = tried.get(response.status_code, 0) + 1
    assert response.status_code < 500, (path, given.get("json"), response.text[:500])
    if response.status_code >= 400:
        fields = {"message", "type", "details"}
        if not path.startswith("/v1/messages"):
            fields = {"message", "type", "param", "code"}
        said = response.json()
        if path.startswith("/api/"):
            assert set(said) == {"error", "param", "code"}
        else:
            assert set(said["error"]) == fields
    elif response.headers.get("content-type", "").startswith("application/json"):
        response.json()


def _sendable(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isprintable()
