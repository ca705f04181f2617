"""Programs on an OpenAI-compatible API: what is asked, and what comes back."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

import lmprog
from lmprog import wire
from lmprog.errors import (
    InvalidParameter,
    NotSupported,
    RequestRejected,
)
from tests.backends.programs import FACTS, capital, chat, on
from tests.backends.scripted_api import ScriptedApi, until


@lmprog.function
async def clerk(s: lmprog.Branch, mail: str) -> tuple[str, str]:
    s.system("You are a clerk.")
    s.user(mail)
    with s.assistant():
        first = s.gen(max_tokens=8)
    s.user("Sure?")
    s.assistant(lmprog.gen("second"))
    return await first, await s.var("second")


def test_a_program_of_text_is_completions_and_its_usage_is_summed() -> None:
    with ScriptedApi(FACTS) as api, on(api) as backend:
        run = capital.using(backend=backend, temperature=0.5, seed=7).run("France")
        assert run.value == " Paris"
        assert run.text() == "The capital of France is Paris"
        assert (
            (run.usage.prompt, run.usage.generated)
            == (api.prompt_tokens, api.completion_tokens)
            == (5, 2)
        )
        [request] = api.requests
        assert api.paths == ["/v1/completions"]
        assert request["prompt"] == "The capital of France is"
        assert (request["temperature"], request["max_tokens"], request["stop"]) == (0.5, 8, ["."])
        assert run.get_meta_info("answer")["finish_reason"]["type"] == "stop"


def test_a_program_of_turns_is_a_chat_with_its_messages_unchanged() -> None:
    model = chat({"hello": "hi there", "Sure?": "yes"})
    with ScriptedApi(model) as api, on(api) as backend:
        run = clerk.using(backend=backend).run("hello")
        assert run.value == ("hi there", "yes")
        assert api.paths == ["/v1/chat/completions"] * 2
        expected = [
            {"role": "system", "content": "You are a clerk."},
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "hi there"},
            {"role": "user", "content": "Sure?"},
        ]
        assert api.requests[1]["messages"] == expected
        assert run.messages()[:4] == expected
        assert run.text().startswith("<|system|>\nYou are a clerk.\n")


def test_a_generation_outside_of_turns_is_an_assistants_turn_of_its_own() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> tuple[str, str]:
        s.user("hello")
        first = s.gen()
        s.user("Sure?")
        return first.value, s.gen().value

    model = chat({"hello": "hi there", "Sure?": "yes"})
    with ScriptedApi(model) as api, on(api) as backend:
        assert program.using(backend=backend).run().value == ("hi there", "yes")
        assert api.requests[1]["messages"][1] == {"role": "assistant", "content": "hi there"}


@pytest.mark.parametrize("is_chat_model", [True, None])
def test_text_outside_of_turns_on_a_chat_is_refused_and_says_what_to_do(
    is_chat_model: bool | None,
) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.user("hello")
        s.append("and then")
        return s.gen().value

    with ScriptedApi(FACTS) as api, on(api, is_chat_model=is_chat_model) as backend:
        with pytest.raises(NotSupported, match=r"'and then' is outside of turns.*s\.user"):
            program.using(backend=backend).run()
        assert api.requests == []


def test_a_turn_on_a_completion_model_is_refused_and_says_what_to_do() -> None:
    with (
        ScriptedApi(FACTS) as api,
        on(api, is_chat_model=False) as backend,
        pytest.raises(NotSupported, match="is_chat_model=True"),
    ):
        clerk.using(backend=backend).run("x")


def test_a_generation_in_the_users_turn_is_refused() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.user("Say: ", lmprog.gen("x"))

    with (
        ScriptedApi(FACTS) as api,
        on(api) as backend,
        pytest.raises(NotSupported, match=r"s\.assistant"),
    ):
        program.using(backend=backend).run()


def test_going_on_inside_of_a_turn_needs_an_api_that_can_and_else_says_what_to_do() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.user("hello")
        s.assistant("hi ", lmprog.gen("x"))
        return str(s["x"])

    model = chat({"hello": "hi there"})
    with ScriptedApi(model, prefills=True) as api:
        with on(api) as backend, pytest.raises(NotSupported, match="num_api_spec_tokens"):
            program.using(backend=backend).run()
        assert api.requests == []
        with on(api, prefill="continue") as backend:
            assert program.using(backend=backend).run().value == "there"
        assert api.requests[0]["continue_final_message"] is True


# --- what else can be asked


def test_n_results_come_from_one_request() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> list[str]:
        s.append("The capital of Italy is")
        return s.gen(n=3, stop=".").values

    with ScriptedApi(FACTS) as api, on(api) as backend:
        assert program.using(backend=backend).run().value == [" Rome"] * 3
        assert [request["n"] for request in api.requests] == [3]


def test_a_stream_tells_its_pieces_and_the_usage_at_its_end() -> None:
    with ScriptedApi(FACTS) as api, on(api) as backend:
        events = list(capital.using(backend=backend).stream("Italy"))
        assert [event.delta for event in events if isinstance(event, lmprog.Text)] == [" Rome"]
        assert isinstance(events[-1], lmprog.Done)
        assert events[-1].usage.prompt == 5
        assert api.requests[0]["stream_options"] == {"include_usage": True}


def test_more_stop_strings_than_the_api_takes_are_looked_for_here() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("The capital of Italy is")
        return s.gen(stop=["!", "?", ";", ":", "."]).value

    with ScriptedApi(FACTS) as api, on(api) as backend:
        for event in (run := program.using(backend=backend)).stream():
            assert not isinstance(event, lmprog.Text) or event.delta == " Rome"
        assert run.run().value == " Rome"
        assert [len(request["stop"]) for request in api.requests] == [4, 4]


def test_logprobs_come_with_texts_and_without_token_ids() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> tuple[wire.TokenLogprob, ...]:
        s.append("The capital of Italy is")
        return s.gen(stop=".", logprobs=0).meta.logprobs

    with ScriptedApi(FACTS) as api, on(api) as backend:
        (found,) = program.using(backend=backend).run().value
        assert (found.text, found.logprob, found.token) == (" Rome", -0.5, -1)


def test_an_option_that_the_api_does_not_have_is_refused_with_its_name() -> None:
    with (
        ScriptedApi(FACTS) as api,
        on(api) as backend,
        pytest.raises(NotSupported, match="top_k=5"),
    ):
        capital.using(backend=backend, top_k=5).run("Italy")
    with ScriptedApi(FACTS) as api, on(api, dialect="vllm") as backend:
        capital.using(backend=backend, top_k=5).run("Italy")
        assert api.requests[0]["top_k"] == 5


def test_fields_can_be_added_and_left_out() -> None:
    with (
        ScriptedApi(FACTS) as api,
        on(api, extra_body={"user": "me"}, leave_out=("seed",)) as backend,
    ):
        capital.using(backend=backend).run("Italy")
        assert api.requests[0]["user"] == "me"
        assert "seed" not in api.requests[0]


def test_a_reference_to_a_pending_result_is_filled_in() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.append("The capital of Italy is")
        city = s.gen(stop=".")
        with s.copy() as other:
            other.append(f"x{city}x")
            return await other.atext()

    with ScriptedApi(FACTS) as api, on(api) as backend:
        assert program.using(backend=backend).run().value == "The capital of Italy is Romex Romex"


def test_branches_run_at_the_same_time_in_one_thread_each_a_request() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> list[str]:
        s.append("The capital of")
        async with s.fork(12) as branches:
            branches += lambda i: " Italy is" if i % 2 else " France is"
            return await branches.map(lambda b: b.gen(stop="."))

    with ScriptedApi(FACTS) as api, on(api) as backend:
        api.hold.clear()
        task = program.using(backend=backend).stream()
        iterator = iter(task)
        import threading

        seen: list[object] = []
        thread = threading.Thread(target=lambda: seen.extend(iterator))
        thread.start()
        until(lambda: len(api.requests) == 12)  # all are asked before any is answered
        api.hold.set()
        thread.join()
        assert isinstance(seen[-1], lmprog.Done)
        assert seen[-1].value == [" Paris", " Rome"] * 6


def test_no_more_requests_are_open_than_allowed() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> list[str]:
        s.append("The capital of Italy is")
        async with s.fork(6) as branches:
            return await branches.map(lambda b: b.gen(stop="."))

    async def main() -> None:
        api.hold.clear()
        task = asyncio.create_task(program.using(backend=backend).arun())
        while len(api.requests) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert len(api.requests) == 2
        api.hold.set()
        await task

    with ScriptedApi(FACTS) as api, on(api, concurrency=2) as backend:
        asyncio.run(main())
        assert len(api.requests) == 6


# --- options


def test_unknown_options_are_refused_with_those_that_exist() -> None:
    with pytest.raises(InvalidParameter, match=r"retry.*retries"):
        lmprog.OpenAI("m", retry=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidParameter, match="vllm"):
        lmprog.OpenAI("m", base_url="http://localhost:1", dialect="vlm")


def test_no_key_is_said_when_the_backend_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(RequestRejected, match="OPENAI_API_KEY"):
        lmprog.OpenAI("gpt-x")


def test_the_key_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    with ScriptedApi(FACTS) as api, on(api) as backend:
        capital.using(backend=backend).run("Italy")
        assert api.headers[0]["authorization"] == "Bearer sk-1"


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("gpt-3.5-turbo-instruct", "text"),
        ("davinci-002", "text"),
        ("gpt-4o", "chat"),
        ("o3", "chat"),
    ],
)
def test_openais_own_models_are_chats_but_for_the_old_ones(model: str, kind: str) -> None:
    from lmprog.backends.blackbox.openai_backend import kind_of

    assert kind_of(model, None, True) == kind


def test_importing_lmprog_imports_no_api_package() -> None:
    code = (
        "import sys, lmprog; lmprog.function, lmprog.OpenAI\n"
        "names = ('openai', 'httpx', 'httpx2', 'anthropic', 'litellm', 'torch', 'transformers')\n"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
