"""How failures of an API are told: asked again, raised at once, ended by deadlines and
cancelling.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

import lmprog
from lmprog.errors import (
    Cancelled,
    ContextOverflow,
    DeadlineExceeded,
    Overloaded,
    ProtocolError,
    RequestRejected,
    RuntimeGone,
    UnknownName,
)
from tests.backends.programs import FACTS, capital, on
from tests.backends.scripted_api import Fault, ScriptedApi, until

Answer = dict[str, Any]

# --- failures


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_a_passing_failure_is_asked_again(status: int) -> None:
    with ScriptedApi(FACTS) as api, on(api) as backend:
        api.faults = [Fault(status, headers={"retry-after": "0"})] * 2
        assert capital.using(backend=backend).run("Italy").value == " Rome"
        assert (backend.counters.requests, backend.counters.retries) == (3, 2)


PLACES: dict[str, Callable[[Answer], Answer]] = {
    "in place of the answer": lambda error: {"error": error},
    "in a choice": lambda error: {
        "choices": [{"message": {"content": ""}, "error": error, "finish_reason": "error"}]
    },
    "as an object": lambda error: {"object": "error", **error},
}


@pytest.mark.parametrize("place", PLACES)
def test_an_error_with_the_status_200_is_the_error_that_it_says(place: str) -> None:
    answers = [{"message": "busy", "code": 429}, {"message": "no such thing", "code": 400}]
    with ScriptedApi(FACTS) as api, on(api) as backend:
        api.extra["/v1/completions"] = lambda body: PLACES[place](answers.pop(0))
        with pytest.raises(RequestRejected, match="no such thing"):
            capital.using(backend=backend).run("Italy")
        assert (backend.counters.requests, backend.counters.retries) == (2, 1)


@pytest.mark.parametrize("place", PLACES)
def test_an_error_within_a_stream_is_told(place: str) -> None:
    with ScriptedApi(FACTS) as api, on(api) as backend:
        api.extra["/v1/completions"] = lambda body: (PLACES[place]({"message": "gone"}),)
        with pytest.raises(RuntimeGone, match="gone"):
            list(capital.using(backend=backend).stream("Italy"))


def test_the_service_says_how_long_to_wait() -> None:
    with ScriptedApi(FACTS) as api, on(api) as backend:
        api.faults = [Fault(429, headers={"retry-after": "0.7"})]
        begin = time.monotonic()
        capital.using(backend=backend).run("Italy")
        assert time.monotonic() - begin >= 0.7


def test_a_time_to_wait_that_was_told_to_one_call_holds_for_all() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> list[str]:
        s.append("The capital of Italy is")
        async with s.fork(4) as branches:
            return await branches.map(lambda b: b.gen(stop="."))

    with ScriptedApi(FACTS) as api, on(api, concurrency=1) as backend:
        api.faults = [Fault(429, headers={"retry-after": "0.5"})] * 2
        begin = time.monotonic()
        assert program.using(backend=backend).run().value == [" Rome"] * 4
        assert time.monotonic() - begin >= 1.0
        assert len(api.requests) == 6


def test_after_the_last_try_the_failure_is_told_with_its_numbers() -> None:
    with ScriptedApi(FACTS) as api, on(api, retries=1) as backend:
        api.faults = [Fault(429, "slow down", headers={"retry-after": "0.01"})] * 2
        with pytest.raises(Overloaded, match="slow down") as caught:
            capital.using(backend=backend).run("Italy")
        assert caught.value.retry_after == 0.01
        assert len(api.requests) == 2


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(400, "bad"), RequestRejected),
        (Fault(401, "wrong key"), RequestRejected),
        (Fault(404, "the model m does not exist", "model_not_found"), UnknownName),
        (Fault(400, "This model's maximum context length is 8,192 tokens."), ContextOverflow),
        (Fault(429, "pay first", "insufficient_quota"), Overloaded),
    ],
)
def test_a_lasting_failure_is_told_at_once(fault: Fault, kind: type[Exception]) -> None:
    with ScriptedApi(FACTS) as api, on(api) as backend:
        api.faults = [fault]
        with pytest.raises(kind, match=fault.message):
            capital.using(backend=backend).run("Italy")
        assert len(api.requests) == 1


def test_a_refused_call_leaves_its_branch_usable() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("The capital of Italy is")
        with pytest.raises(RequestRejected):
            s.gen().value
        return s.gen(stop=".").value

    with ScriptedApi(FACTS) as api, on(api) as backend:
        api.faults = [Fault(400)]
        assert program.using(backend=backend).run().value == " Rome"


def test_a_server_that_is_not_there_is_said_to_be_unreachable() -> None:
    with ScriptedApi(FACTS) as api:
        url = api.base_url
    with (
        lmprog.OpenAI("m", base_url=url, retries=0) as backend,
        pytest.raises(RuntimeGone, match="cannot be reached"),
    ):
        capital.using(backend=backend).run("Italy")


def test_a_stream_that_breaks_off_raises_after_what_had_come() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("The capital of Italy is")
        return s.gen().value

    with ScriptedApi(FACTS) as api, on(api) as backend:
        api.faults = [Fault(200, "out of memory", breaks_after=1)]
        seen: list[str] = []
        with pytest.raises(RuntimeGone, match="out of memory"):
            seen.extend(
                event.delta
                for event in program.using(backend=backend).stream()
                if isinstance(event, lmprog.Text)
            )
        assert seen == [" Rome"]


def test_an_answer_that_is_none_is_a_protocol_error_and_no_hang() -> None:
    with ScriptedApi(FACTS) as api, on(api) as backend:
        api.extra["/v1/completions"] = lambda body: {"choices": []}
        with pytest.raises(ProtocolError):
            capital.using(backend=backend).run("Italy")
        api.extra["/v1/completions"] = lambda body: {"choices": [{"index": 5}]}
        with pytest.raises(ProtocolError, match="not understood"):
            capital.using(backend=backend).run("Italy")


def test_a_late_answer_is_asked_again_and_then_told() -> None:
    with ScriptedApi(FACTS) as api, on(api, timeout=0.1, retries=1) as backend:
        api.hold.clear()
        with pytest.raises(DeadlineExceeded, match=r"timeout=0\.1 s"):
            capital.using(backend=backend).run("Italy")
        assert (backend.counters.requests, backend.counters.retries) == (2, 1)


def test_the_deadline_of_a_run_ends_its_requests() -> None:
    with ScriptedApi(FACTS) as api, on(api) as backend:
        api.hold.clear()
        with pytest.raises(DeadlineExceeded):
            capital.using(backend=backend, timeout=1.0).run("Italy")
        until(lambda: api.left == len(api.requests))  # none at all where this machine is very slow


def test_cancelling_a_task_ends_its_requests_and_the_backend_goes_on() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        s.append("The capital of Italy is")
        return await s.gen(stop=".")

    async def main() -> None:
        task = asyncio.create_task(program.using(backend=backend).arun())
        while not api.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with ScriptedApi(FACTS) as api, on(api) as backend:
        api.hold.clear()
        asyncio.run(main())
        until(lambda: api.left == 1)
        api.hold.set()
        assert program.using(backend=backend).run().value == " Rome"
        until(lambda: lmprog.get_server_info(backend)["open_branches"] == 0)


def test_closing_the_backend_ends_what_waits() -> None:
    with ScriptedApi(FACTS) as api, on(api) as backend:
        api.hold.clear()
        state = capital.using(backend=backend).run("Italy", stream=True)  # type: ignore[call-arg]
        until(lambda: api.requests)
        backend.close()
        assert state.error() is not None
        until(lambda: api.left == 1)
    with pytest.raises(Cancelled, match="closed"):
        capital.using(backend=backend).run("Italy")
