"""Servers over HTTP: which one it is is found out, and programs use what it has."""

from __future__ import annotations

from typing import Any

import pytest

import lmprog
from lmprog.errors import (
    InvalidParameter,
    NotSupported,
    Overloaded,
    ProtocolError,
    RuntimeGone,
    ValidationFailed,
)
from tests.backends.programs import FACTS, capital, chat
from tests.backends.scripted_api import Fault, ScriptedApi


@lmprog.function
def choose(s: lmprog.Branch) -> lmprog.Selected:
    s.append("The capital of Italy is")
    return s.select(" Rome", " Paris", " London town").value


@lmprog.function
def answer(s: lmprog.Branch) -> str:
    s.user("hello")
    with s.assistant():
        s.append("hi ")
        return s.gen().value


def generate(api: ScriptedApi, body: dict[str, Any]) -> object:
    """SGLang's `/generate`."""
    if isinstance(body["text"], list):
        return [_scored(api, text, body["logprob_start_len"]) for text in body["text"]]
    params = {**body["sampling_params"], "max_tokens": body["sampling_params"]["max_new_tokens"]}
    written = api.write(body["text"], params)
    api.prompt_tokens += api.count(body["text"])
    finish = {"type": "stop", "matched": (params.get("stop") or [None])[0]}
    meta = {
        "finish_reason": finish,
        "prompt_tokens": api.count(body["text"]),
        "completion_tokens": len(written.tokens),
        "output_token_logprobs": [[-0.5, 7, token] for token in written.tokens],
    }
    if not body.get("stream"):
        whole = {"text": written.text, "meta_info": meta}
        return whole if params.get("n", 1) == 1 else [whole] * params["n"]
    pieces = ["".join(written.tokens[: end + 1]) for end in range(len(written.tokens))]
    told = [{"text": text, "meta_info": {**meta, "finish_reason": None}} for text in pieces[:-1]]
    return (*told, {"text": written.text, "meta_info": meta})


def _scored(api: ScriptedApi, text: str, begin: int) -> dict[str, Any]:
    tokens = api.tokens.findall(text)
    rows = []
    for end in range(begin, len(tokens)):
        likely = api.model("".join(tokens[:end])).startswith(tokens[end])
        rows.append([None if end == 0 else -0.1 if likely else -4.0, end, tokens[end]])
    meta = {
        "finish_reason": {"type": "length"},
        "prompt_tokens": len(tokens),
        "input_token_logprobs": rows,
    }
    return {"text": "", "meta_info": meta}


class SglangServer(ScriptedApi):
    def __init__(self) -> None:
        super().__init__(FACTS)
        self.owner = "sglang"
        self.extra["/generate"] = lambda body: generate(self, body)


def test_sglangs_server_is_asked_texts_by_its_own_route() -> None:
    with SglangServer() as api, lmprog.connect(api.url) as backend:
        run = capital.using(backend=backend, temperature=0.5, seed=7, top_k=3).run("Italy")
        assert run.value == " Rome"
        assert (run.usage.prompt, run.usage.generated) == (5, 1)
        params = api.requests[0]["sampling_params"]
        assert (params["max_new_tokens"], params["temperature"], params["top_k"]) == (8, 0.5, 3)
        assert isinstance(params["sampling_seed"], int)
        assert lmprog.get_server_info(backend)["context_len"] == 4096


def test_an_api_counts_the_tokens_of_its_answers_until_it_is_reset() -> None:
    with SglangServer() as api, lmprog.sglang.RuntimeEndpoint(api.url) as backend:
        capital.using(backend=backend).run("Italy").value
        used = backend.token_usage
        assert (used.prompt_tokens, used.completion_tokens) == (5, 1)
        used.reset()
        assert (used.prompt_tokens, used.requests) == (0, 0)
        assert backend.model_info == {
            "model_path": backend.client.welcome.model,
            "is_generation": True,
        }


def test_sglangs_server_streams_whole_texts_which_are_told_as_pieces() -> None:
    with SglangServer() as api, lmprog.sglang.RuntimeEndpoint(api.url + "/v1") as backend:
        assert backend.kind == "sglang"
        events = list(capital.using(backend=backend, stop=[], max_tokens=3).stream("Italy"))
        assert "".join(event.delta for event in events if isinstance(event, lmprog.Text)) == " Rome"
        assert api.paths == ["/generate"]


def test_sglangs_server_gives_n_results_and_logprobs() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> tuple[list[str], float]:
        s.append("The capital of Italy is")
        made = s.gen(n=2, stop=".", logprobs=0)
        return made.values, made.metas[1].logprobs[0].logprob

    with SglangServer() as api, lmprog.connect(api.url) as backend:
        assert program.using(backend=backend).run().value == ([" Rome"] * 2, -0.5)


def test_a_select_on_sglangs_server_scores_all_choices_after_a_text_that_is_computed_once() -> None:
    with SglangServer() as api, lmprog.connect(api.url) as backend:
        won = choose.using(backend=backend).run().value
        assert won.logprobs == {" Rome": (-0.1,), " Paris": (-4.0,), " London town": (-4.0, -4.0)}
        assert [request.get("logprob_start_len") for request in api.requests] == [None, 3]


@pytest.mark.parametrize(
    ("field", "options"), [("regex", {"regex": "R.*"}), ("json_schema", {"schema": {}})]
)
def test_sglangs_server_is_told_constraints(field: str, options: dict[str, Any]) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("The capital of Italy is")
        made: str = s.gen(stop=".", **options).value
        return made

    with SglangServer() as api, lmprog.connect(api.url) as backend:
        program.using(backend=backend).run()
        assert field in api.requests[0]["sampling_params"]


@pytest.mark.parametrize("owner", ["sglang", "vllm"])
def test_chats_on_such_servers_go_on_inside_of_turns(owner: str) -> None:
    with ScriptedApi(chat({"hello": "hi there"}), prefills=True) as api:
        api.owner = owner
        with lmprog.connect(api.url) as backend:
            assert answer.using(backend=backend).run().value == "there"
        assert api.paths == ["/v1/chat/completions"]


def test_vllms_server_is_asked_by_openais_api_with_its_own_fields() -> None:
    with ScriptedApi(FACTS) as api:
        api.owner = "vllm"
        with lmprog.sglang.RuntimeEndpoint(api.url) as backend:
            assert capital.using(backend=backend).run("Italy").value == " Rome"
            assert choose.using(backend=backend).run().value == " Rome"
            with pytest.raises(NotSupported, match="forget"):
                lmprog.flush_cache(backend)
        assert api.requests[0]["top_k"] == -1  # the server's own default may be another


@pytest.mark.parametrize(
    ("routes", "kind"),
    [([], "plain"), (["/version"], "vllm"), (["/version", "/server_info"], "sglang")],
)
def test_a_server_that_names_no_known_owner_is_known_by_its_routes(
    routes: list[str], kind: str
) -> None:
    with ScriptedApi(FACTS) as api:
        api.extra.update({route: lambda body: {} for route in routes})
        with lmprog.sglang.RuntimeEndpoint(api.url) as backend:
            assert backend.kind == kind


def test_a_stranger_and_nobody_are_told_apart() -> None:
    with ScriptedApi(FACTS) as api:
        with pytest.raises(ProtocolError, match="language models"):
            lmprog.connect(api.url + "/nothing")
        url = api.url
    with pytest.raises(RuntimeGone, match="cannot be reached"):
        lmprog.connect(url)
    with pytest.raises(InvalidParameter, match="retries"):
        lmprog.sglang.RuntimeEndpoint(url, retry=1)  # type: ignore[call-arg]


def test_the_key_is_sent_and_failures_are_asked_again() -> None:
    with SglangServer() as api, lmprog.connect(api.url, api_key="secret") as backend:
        api.faults = [Fault(503, headers={"retry-after": "0"})]
        assert capital.using(backend=backend).run("Italy").value == " Rome"
        assert [headers["authorization"] for headers in api.headers] == ["Bearer secret"] * 2


def test_a_text_that_the_server_broke_off_is_no_result() -> None:
    with SglangServer() as api, lmprog.connect(api.url) as backend:
        finish = {"type": "abort", "message": "out of memory"}
        api.extra["/generate"] = lambda body: {
            "text": " Ro",
            "meta_info": {"finish_reason": finish},
        }
        with pytest.raises(RuntimeGone, match="out of memory"):
            capital.using(backend=backend).run("Italy")


# --- lmprog's own

USAGE = {
    "prompt_tokens": 5,
    "cached_tokens": 4,
    "generated_tokens": 1,
    "forced_tokens": 0,
    "computed_tokens": 2,
}


def result(text: str) -> dict[str, Any]:
    output = {"text": text, "tokens": [1], "finish_reason": "stop", "stopped_by": None}
    return {"type": "gen", "text": text, "outputs": [output], "usage": USAGE}


def test_on_lmprogs_server_a_branch_travels_as_it_stands() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("Loose. ")
        s.user("hello")
        with s.assistant():
            s.append("It is ")
            return s.gen(regex="[a-z]+", max_tokens=9, stop="!").value

    with ScriptedApi(FACTS) as api:
        api.owner = "lmprog"
        api.extra["/v1/programs"] = lambda body: {"results": {"c": result("fine")}}
        with lmprog.connect(api.url) as backend:
            run = program.using(
                backend=backend, num_api_spec_tokens=64
            ).run()  # ignored: the server keeps its cache
        assert run.value == "fine"
        assert (run.usage.prompt, run.usage.cached, run.usage.computed) == (5, 4, 2)
        append, gen = api.requests[0]["ops"][1:]
        pieces = [
            "Loose. ",
            {"begin": "user"},
            "hello",
            {"end": "user"},
            {"begin": "assistant"},
            "It is ",
        ]
        assert append["pieces"] == pieces
        assert gen["structured_outputs"] == {"regex": "[a-z]+"}
        assert (gen["max_tokens"], gen["stop"]) == (9, ["!"])


def test_on_lmprogs_server_results_go_back_as_the_tokens_that_they_were() -> None:
    """Where the last token of the text before was taken back, they stand in its place. A stop may
    have left no token, and an empty answer still ends the text before it.
    """

    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("see http:")
        s.gen(heal=True)
        s.append(" and ")
        s.gen(stop="x")
        s.gen(stop="x")
        s.append(" or ")
        s.gen(stop="x")
        s.gen()

    answers = iter(
        [
            ("//a", {"tokens": [5, 6], "seam": ":", "healed": []}),
            ("b c", {"tokens": [7], "rest": " c"}),
            ("", {"tokens": []}),
            ("d", {"tokens": [], "rest": " d", "healed": [9]}),
            ("e", {"tokens": [8]}),
        ]
    )

    def answer(body: dict[str, Any]) -> object:
        text, more = next(answers)
        made = result(text)
        made["outputs"][0].update(more)
        return {"results": {"c": made}}

    with ScriptedApi(FACTS) as api:
        api.owner = "lmprog"
        api.extra["/v1/programs"] = answer
        with lmprog.connect(api.url) as backend:
            run = program.using(backend=backend).run()
        assert run.text() == "see http://a and b c or de"
        appended = [request["ops"][1]["pieces"] for request in api.requests]
        assert appended[0] == ["see http:"]
        assert appended[1] == ["see http:", {"tokens": [5, 6], "heals": True}, " and "]
        assert appended[2] == [*appended[1], {"tokens": [7], "rest": " c"}]
        assert appended[3] == [*appended[2], {"tokens": []}, " or "]
        assert appended[4] == [*appended[3], {"tokens": [9], "heals": True, "rest": " d"}]
        heals = [request["ops"][2].get("heal") for request in api.requests]
        assert heals == [True, True, None, True, None]


def test_on_lmprogs_server_a_select_is_the_runtimes_own() -> None:
    options = [
        {"text": text, "score": score, "probability": 0.5}
        for text, score in ((" Rome", -1.0), (" Paris", -2.0))
    ]
    select = {"type": "select", "index": 0, "text": " Rome", "options": options, "usage": USAGE}

    @lmprog.function
    def program(s: lmprog.Branch) -> lmprog.Selected:
        s.append("Which?")
        return s.select(" Rome", " Paris").value

    with ScriptedApi(FACTS) as api:
        api.owner = "lmprog"
        api.extra["/v1/programs"] = lambda body: {"results": {"c": select}}
        with lmprog.connect(api.url) as backend:
            assert program.using(backend=backend).run().value.scores == {
                " Rome": -1.0,
                " Paris": -2.0,
            }


def test_on_lmprogs_server_the_prompts_log_probabilities_are_asked_for_and_told() -> None:
    output = {"text": "x", "tokens": [9], "finish_reason": "stop", "stopped_by": None}
    likely = [
        {"token": 5, "text": "o", "logprob": -0.5},
        {"token": 6, "text": "a", "logprob": -1.0},
    ]
    prompt = [{"token": 5, "text": "o", "logprob": -0.5, "top": likely}]
    result = {"type": "gen", "outputs": [output], "usage": USAGE, "prompt_logprobs": prompt}

    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s += "To" + lmprog.gen("x", return_logprob=True, logprob_start_len=0, top_logprobs_num=2)

    with ScriptedApi(FACTS) as api:
        api.owner = "lmprog"
        api.extra["/v1/programs"] = lambda body: {"results": {"c": result}}
        with lmprog.connect(api.url) as backend:
            meta = program.using(backend=backend).run().get_meta_info("x")
        assert api.requests[0]["ops"][-1]["prompt_logprobs"] == 2
    assert meta["input_token_logprobs"] == [(-0.5, 5, "o")]
    assert meta["input_top_logprobs"] == [[(-0.5, 5, "o"), (-1.0, 6, "a")]]


def test_on_lmprogs_server_pieces_come_as_a_stream_and_errors_as_errors() -> None:
    pieces: list[dict[str, Any]] = [{"status": "running"}, {"call": "c", "index": 0, "text": "fi"}]
    with ScriptedApi(FACTS) as api:
        api.owner = "lmprog"
        with lmprog.connect(api.url) as backend:
            ready = capital.using(backend=backend)
            api.extra["/v1/programs"] = lambda body: (
                *pieces,
                {"call": "c", **result("fi")},
                {"status": "completed"},
            )
            assert [
                event.delta for event in ready.stream("Italy") if isinstance(event, lmprog.Text)
            ] == ["fi"]
            wrong = {"message": "no", "code": "validation", "status": 400}
            api.extra["/v1/programs"] = lambda body: {
                "results": {"c": {"type": "error", "error": wrong}}
            }
            with pytest.raises(ValidationFailed, match="no"):
                ready.run("Italy")
            full = {"message": "full", "code": "overloaded", "status": 429}
            api.extra["/v1/programs"] = lambda body: (
                *pieces,
                {"call": "c", "type": "error", "error": full},
            )
            with pytest.raises(Overloaded, match="full"):
                list(ready.stream("Italy"))
            assert len(api.requests) == 3


def test_a_router_before_lmprogs_servers_is_found_out_and_says_what_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ScriptedApi(FACTS) as api:
        api.owner = "local"  # as sglang-router says of every model
        api.extra["/get_server_info"] = lambda body: {"router_manager": True}
        with lmprog.sglang.RuntimeEndpoint(api.url) as backend:
            assert (backend.kind, backend.lost) == ("sglang", None)
        assert caplog.text == ""
        api.extra["/get_model_info"] = lambda body: {"server": "lmprog", "context_length": 512}
        with lmprog.sglang.RuntimeEndpoint(api.url) as backend:
            assert (backend.kind, backend.client.welcome.context_len) == ("vllm", 512)
            assert backend.lost is not None
        assert backend.lost in caplog.text
