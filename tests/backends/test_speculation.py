"""One request for several calls: how many requests and tokens it takes, and that results are those
without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

import lmprog
from lmprog.errors import Cancelled, InvalidParameter, NotSupported
from lmprog.lang.ops.expressions import GenOptions
from tests.backends.programs import chat, on
from tests.backends.scripted_api import Fault, ScriptedApi, document, until

TEXT = "Ada Lovelace, mathematician, was born in London."
FIELDS = "name: Ada Lovelace\njob: mathematician\ncity: London\n"
EXTRACTION = document(f"{TEXT}\n{FIELDS}")
VALUES = [" Ada Lovelace", " mathematician", " London"]


@lmprog.function
def extract(s: lmprog.Branch, text: str = TEXT) -> list[str]:
    """The program of the SGLang paper: three fields of one text."""
    s.append(text + "\nname:")
    name = s.gen("name", stop="\n")
    s.append("\njob:")
    job = s.gen("job", stop="\n")
    s.append("\ncity:")
    city = s.gen("city", stop="\n")
    return [name.value, job.value, city.value]


@lmprog.function(num_api_spec_tokens=64)
def extract_by_chat(s, text):  # type: ignore[no-untyped-def]
    """The same as SGLang programs write it for a chat model."""
    s += lmprog.user(text)
    s += lmprog.assistant(
        "name:" + lmprog.gen("name", stop="\n")
        + "\njob:" + lmprog.gen("job", stop="\n")
        + "\ncity:" + lmprog.gen("city", stop="\n")
    )  # fmt: skip


def test_three_fields_are_one_request_instead_of_three_and_a_third_of_the_input_tokens() -> None:
    figures = {}
    for num_tokens in (None, 64):
        with ScriptedApi(EXTRACTION) as api, on(api) as backend:
            run = extract.using(
                backend=backend, temperature=0, num_api_spec_tokens=num_tokens
            ).run()
            assert run.value == VALUES
            assert run.text() == f"{TEXT}\n{FIELDS}".removesuffix("\n")
            assert (run.usage.prompt, run.usage.generated) == (
                api.prompt_tokens,
                api.completion_tokens,
            )
            figures[num_tokens] = (len(api.requests), api.prompt_tokens)
    assert figures == {None: (3, 53), 64: (1, 13)}
    assert figures[64][1] <= figures[None][1] / 3


def test_a_chat_is_asked_for_a_whole_turn_also_where_text_of_the_program_begins_it() -> None:
    with ScriptedApi(chat({TEXT: FIELDS})) as api, on(api) as backend:
        state = extract_by_chat.using(backend=backend, temperature=0).run(TEXT)
        assert [state[name] for name in ("name", "job", "city")] == VALUES
        assert state.messages()[1] == {"role": "assistant", "content": FIELDS.removesuffix("\n")}
        [request] = api.requests
        assert request["messages"] == [{"role": "user", "content": TEXT}]
        assert "stop" not in request


def test_a_wrong_guess_falls_back_with_the_same_result() -> None:
    other = document(
        f"{TEXT}\nname: Ada Lovelace\nborn: 1815\n",
        f"{TEXT}\nname: Ada Lovelace\njob: poet\ncity: Rome\n",
    )
    results = []
    for num_tokens in (None, 64):
        with ScriptedApi(other) as api, on(api) as backend:
            run = extract.using(
                backend=backend, temperature=0, num_api_spec_tokens=num_tokens
            ).run()
            results.append(run.value)
            assert len(api.requests) == (3 if num_tokens is None else 2)
            assert backend.counters.speculation_dropped == (num_tokens is not None)
    assert results[0] == results[1] == [" Ada Lovelace", " poet", " Rome"]


def test_a_chat_that_went_on_otherwise_is_refused_as_without_speculation() -> None:
    """One error for the branch: the first, with the others as its notes."""
    with ScriptedApi(chat({TEXT: "name: Ada Lovelace\nborn: 1815\n"})) as api, on(api) as backend:
        with pytest.raises(NotSupported, match="cannot go on inside a turn") as caught:
            extract_by_chat.using(backend=backend).run(TEXT)
        assert any("<gen 'city'> failed, too" in note for note in caught.value.__notes__)
        assert len(api.requests) == 1  # nothing is asked for a second time
        assert backend.counters.speculation_dropped == 1


def test_a_chat_that_can_be_prefilled_goes_on_where_the_guess_was_wrong() -> None:
    def model(prompt: str) -> str:
        begun = prompt.rpartition("<assistant>")[2]
        known = (
            [FIELDS]
            if begun.startswith("name: Ada Lovelace\njob")
            else ["name: Ada Lovelace\nborn: 1815\n"]
        )
        return document(*known)(begun)

    with ScriptedApi(model, prefills=True) as api, on(api, prefill="continue") as backend:
        state = extract_by_chat.using(backend=backend).run(TEXT)
        assert [state[name] for name in ("name", "job", "city")] == VALUES
        assert len(api.requests) == 2


def test_what_was_said_is_dropped_at_the_end_of_a_turn() -> None:
    @lmprog.function(num_api_spec_tokens=64)
    def program(s: lmprog.Branch) -> list[str]:
        s.user("one")
        with s.assistant():
            first = s.gen(stop="\n")
        s.user("two")
        with s.assistant():
            second = s.gen(stop="\n")
        return [first.value, second.value]

    with ScriptedApi(chat({"one": "a\nb\n", "two": "c\nd\n"})) as api, on(api) as backend:
        assert program.using(backend=backend).run().value == ["a", "c"]
        assert len(api.requests) == 2


# --- where SGLang loses it


def test_22_speculation_survives_a_fork() -> None:
    @lmprog.function(num_api_spec_tokens=64)
    async def program(s: lmprog.Branch) -> list[str]:
        s.append(TEXT + "\nname:")
        await s.gen(stop="\n")
        async with s.fork(3) as branches:
            branches += "\njob:"
            return await branches.map(lambda b: b.gen(stop="\n"))

    with ScriptedApi(EXTRACTION) as api, on(api) as backend:
        assert program.using(backend=backend, temperature=0).run().value == [" mathematician"] * 3
        assert len(api.requests) == 1


def test_a_fork_that_begins_to_speculate_does_it_in_each_branch() -> None:
    @lmprog.function(num_api_spec_tokens=64)
    def program(s: lmprog.Branch) -> list[str]:
        s.append(TEXT)
        forks = s.fork(2)
        forks += "\nname:" + lmprog.gen("name", stop="\n") + "\njob:" + lmprog.gen("job", stop="\n")
        forks.join()
        return list(s["job"])

    with ScriptedApi(EXTRACTION) as api, on(api) as backend:
        assert program.using(backend=backend).run().value == [" mathematician"] * 2
        assert len(api.requests) == 2


def test_08_22_speculation_survives_bind_and_using() -> None:
    @lmprog.function(num_api_spec_tokens=64)
    def program(s: lmprog.Branch, text: str) -> list[str]:
        return extract(s, text)

    bound = program.using(temperature=0).bind(text=TEXT)
    assert bound.num_api_spec_tokens == 64
    with ScriptedApi(EXTRACTION) as api, on(api) as backend:
        assert bound.using(backend=backend).run().value == VALUES
        assert len(api.requests) == 1
        assert bound.using(backend=backend, num_api_spec_tokens=0).run().value == VALUES
        assert len(api.requests) == 4


def test_22_speculation_survives_threads() -> None:
    program = extract.using(num_api_spec_tokens=64, temperature=0)
    with ScriptedApi(EXTRACTION) as api, on(api) as backend:
        states = program.run_batch([{"text": TEXT}] * 8, backend=backend, num_threads=4)
        assert [state.value for state in states] == [VALUES] * 8
        assert len(api.requests) == 8


def test_22_speculation_survives_nested_runs() -> None:
    @lmprog.function(num_api_spec_tokens=64)
    def outer(s: lmprog.Branch) -> list[str]:
        return extract.run().value

    with ScriptedApi(EXTRACTION) as api, on(api) as backend:
        assert outer.using(backend=backend).run().value == VALUES
        assert len(api.requests) == 1


def test_22_speculation_survives_a_stream_which_tells_nothing_that_is_not_a_calls_own() -> None:
    program = extract.using(num_api_spec_tokens=64, temperature=0)
    with ScriptedApi(EXTRACTION) as api, on(api) as backend:
        events = list(program.using(backend=backend).stream())
        told = {
            name: "".join(
                event.delta
                for event in events
                if isinstance(event, lmprog.Text) and event.var == name
            )
            for name in ("name", "job", "city")
        }
        assert list(told.values()) == VALUES
        [request] = api.requests
        assert request["stream"] is True
    for event in events:
        if isinstance(event, lmprog.Text):
            assert "\n" not in event.delta


def test_22_speculation_survives_coroutines() -> None:
    @lmprog.function(num_api_spec_tokens=64)
    async def program(s: lmprog.Branch) -> list[str]:
        s.append(TEXT + "\nname:")
        name = await s.gen(stop="\n")
        s.append("\njob:")
        return [name, await s.gen(stop="\n")]

    async def main() -> list[list[str]]:
        runs = await asyncio.gather(*(program.using(backend=backend).arun() for _ in range(4)))
        return [run.value for run in runs]

    with ScriptedApi(EXTRACTION) as api, on(api) as backend:
        assert asyncio.run(main()) == [VALUES[:2]] * 4
        assert len(api.requests) == 4


# --- limits


def test_a_call_shorter_than_what_is_speculated_still_ends_at_its_own_max_tokens() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> list[str]:
        s.append(TEXT + "\nname:")
        first = s.gen(stop="\n", max_tokens=1)
        s.append(" Lovelace\njob:")
        return [first.value, s.gen(stop="\n", max_tokens=1).value]

    with ScriptedApi(EXTRACTION) as api, on(api) as backend:
        for num_tokens, requests in ((None, 2), (64, 3)):
            run = program.using(backend=backend, num_api_spec_tokens=num_tokens).run()
            assert run.value == [" Ada", " mathematician"]
            assert len(api.requests) == requests
        assert api.requests[-1]["logprobs"] == 0  # tells where its tokens end


def test_an_api_that_tells_no_tokens_is_asked_as_usual_where_they_matter() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append(TEXT + "\nname:")
        return s.gen(stop="\n", max_tokens=5).value

    with ScriptedApi(EXTRACTION) as api, on(api, leave_out=("logprobs",)) as backend:
        run = program.using(backend=backend, num_api_spec_tokens=64).run()
        assert run.value == " Ada Lovelace"
        assert len(api.requests) == 2
        assert (run.usage.prompt, run.usage.generated) == (api.prompt_tokens, api.completion_tokens)
    with ScriptedApi(EXTRACTION) as api, on(api) as backend:
        api.faults = [Fault(400, "logprobs are not supported")]
        assert program.using(backend=backend, num_api_spec_tokens=64).run().value == " Ada Lovelace"
        assert len(api.requests) == 2


@pytest.mark.parametrize(
    "options",
    [{"n": 2}, {"regex": "[^\n]+"}, {"presence_penalty": 0.5}, {"logprobs": 0}, {"top_p": 0.9}],
)
def test_calls_whose_text_would_be_another_are_not_answered_from_it(options: GenOptions) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append(TEXT + "\nname:")
        s.gen()
        s.append("\njob:")
        return s.gen("job", **options).value

    with ScriptedApi(EXTRACTION) as api, on(api, dialect="vllm") as backend:
        run = program.using(backend=backend, temperature=0, stop="\n", num_api_spec_tokens=64).run()
        assert run.value.startswith(" mathematician")
        assert len(api.requests) == 2


def test_where_tokens_are_counted_nothing_is_asked_beyond_a_call() -> None:
    program = extract.using(num_api_spec_tokens=64, max_total_tokens=1000)
    with ScriptedApi(EXTRACTION) as api, on(api) as backend:
        assert program.using(backend=backend).run().value == VALUES
        assert len(api.requests) == 3


def test_cancelling_a_branch_leaves_what_others_speculate() -> None:
    @lmprog.function(num_api_spec_tokens=64)
    def program(s: lmprog.Branch) -> list[str]:
        s.append(TEXT + "\nname:")
        first = s.gen(stop="\n").value
        with s.copy() as other:
            other.append(" (")
            other.gen(stop="\n").cancel()
        s.append("\njob:")
        return [first, s.gen(stop="\n").value]

    with ScriptedApi(EXTRACTION) as api, on(api) as backend:
        with contextlib.suppress(
            Cancelled
        ):  # nobody read the call, unless it was done before it was cancelled
            assert program.using(backend=backend).run().value == VALUES[:2]
        until(lambda: lmprog.get_server_info(backend)["open_branches"] == 0)


@pytest.mark.parametrize("value", [-1, 1.5, "64"])
def test_a_wrong_number_is_refused_where_it_is_written(value: object) -> None:
    with pytest.raises(InvalidParameter, match="num_api_spec_tokens"):
        lmprog.function(num_api_spec_tokens=value)  # type: ignore[call-overload]


def test_a_runtime_that_keeps_its_cache_ignores_it() -> None:
    from lmprog.testing import Scripted

    with Scripted(["a", "b", "c"]) as scripted:
        assert extract.using(backend=scripted, num_api_spec_tokens=64).run().value == [
            "a",
            "b",
            "c",
        ]


@lmprog.function(num_api_spec_tokens=64)
def sampled(s: lmprog.Branch, temperature: float) -> list[str]:
    s.append("Q:")
    s.gen(stop="\n", temperature=temperature)
    s.append("\n")
    with s.fork(2, temperature=temperature) as (left, right):
        return [left.gen(stop="\n").value, right.gen(stop="\n").value]


def test_the_rest_of_a_drawn_text_belongs_to_one_branch_of_a_fork() -> None:
    """The model draws a letter for each request: with one rest for both, both always agreed."""
    draws = random.Random(5)

    def model(prompt: str) -> str:
        answer = "first\n" if prompt.endswith("Q:") else ""
        return f"{answer}{draws.choice('AB')}\n"

    num_runs = 48
    with ScriptedApi(model) as api, on(api) as backend:
        pairs = [sampled.using(backend=backend).run(1.0).value for _ in range(num_runs)]
        assert len(api.requests) == 2 * num_runs  # one sibling is answered from the first request
    equal = sum(left == right for left, right in pairs)
    assert 8 <= equal <= 40  # 24 expected; beyond these bounds once in 300,000 times
    assert {left for left, _ in pairs} == {"A", "B"}


def test_at_temperature_0_all_branches_of_a_fork_share_the_rest() -> None:
    with ScriptedApi(document("Q:first\nsecond\n")) as api, on(api) as backend:
        assert sampled.using(backend=backend).run(0.0).value == ["second", "second"]
        assert len(api.requests) == 1


def test_a_turn_that_began_otherwise_is_asked_for_once() -> None:
    with ScriptedApi(chat({TEXT: "born: 1815\n"})) as api, on(api) as backend:
        with pytest.raises(NotSupported, match="cannot go on inside a turn"):
            extract_by_chat.using(backend=backend).run(TEXT)
        assert len(api.requests) == 1
