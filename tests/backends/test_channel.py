"""The channel of an API as a client sees it: every call has one last reply, whatever else goes
wrong.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading

import pytest

import lmprog
from lmprog import wire
from lmprog.backends.blackbox.api import ApiAnswer, ApiRequest, TextListener
from lmprog.backends.blackbox.api_backend import ApiBackend
from lmprog.backends.blackbox.retry_policy import RetryPolicy
from lmprog.backends.blackbox.transcript import TextPrompt
from lmprog.errors import Cancelled, LmprogError, NotSupported, ProtocolError, UnknownName
from tests.backends.test_speculation_is_exact import LetterModel


class Echo(LetterModel):
    """Says the last word of its prompt; waits where that is `wait`."""

    def __init__(self) -> None:
        super().__init__(0)
        self.prompts: list[str] = []
        self.cancelled = 0

    async def generate(self, request: ApiRequest, on_text: TextListener | None) -> ApiAnswer:
        assert isinstance(request.prompt, TextPrompt)
        self.prompts.append(request.prompt.text)
        word = request.prompt.text.split()[-1]
        if word == "wait":
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if word == "break":
            raise KeyError("a fault")
        return ApiAnswer(
            tuple(wire.Output(f" {word}", (), "stop") for _ in range(request.sampling.n)),
            wire.Usage(prompt=1),
        )


def on(model: Echo) -> ApiBackend:
    return ApiBackend(model, RetryPolicy(), {})


def test_ops_of_a_branch_run_in_order_and_those_of_others_do_not_wait_for_it() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        async with s.fork(2) as (slow, fast):
            slow.append("wait")
            waiting = slow.gen()
            fast.append("one")
            fast.gen()
            fast.append(" two")
            last = await fast.gen()
            waiting.cancel()
            with pytest.raises(Cancelled):
                await waiting
            return last

    model = Echo()
    with on(model) as backend:
        assert program.using(backend=backend).run().value == " two"
    assert model.prompts[1:] == ["one", "one one two"]
    assert model.cancelled == 1


def test_a_call_that_waits_behind_another_can_be_cancelled() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("wait")
        first, second = s.gen(), s.gen()
        second.cancel()
        with pytest.raises(Cancelled):
            second.value
        assert not first.done()
        first.cancel()
        with pytest.raises(Cancelled):
            first.value

    with on(Echo()) as backend:
        program.using(backend=backend).run()


def test_after_a_failure_the_later_calls_of_a_branch_fail_with_its_cause() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("break")
        s.gen("a")
        s.append("more")
        s.gen("b")
        for name in ("b", "a"):
            with pytest.raises(ProtocolError, match="not understood: KeyError"):
                s[name]

    with on(Echo()) as backend:
        program.using(backend=backend).run()


def test_a_joined_branch_gives_its_text_though_it_is_closed_at_once() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("x")
        forks = s.fork(2)
        forks += lambda i: f" {i}" + lmprog.gen()
        forks.join("concate_and_append")
        s += lmprog.gen("end")
        return s.text()

    model = Echo()
    with on(model) as backend:
        assert program.using(backend=backend).run().value == "x 0 0 1 1 1"
    assert model.prompts[-1] == "x 0 0 1 1"


def test_a_reference_beyond_the_results_of_a_call_is_said() -> None:
    with on(Echo()) as backend:
        client = backend.client
        client.post(wire.Open(1), wire.Append(1, (wire.TextPiece("one"),)))
        first = client.call(wire.Generate(1, 2, wire.SamplingParams(n=2)))
        client.post(wire.Append(1, (wire.Ref(2, 5),)))
        second = client.call(wire.Generate(1, 3))
        assert isinstance(first.wait(30), wire.CallDone)
        with pytest.raises(UnknownName, match="call 2, which is not known"):
            raise_if(second.wait(30))
        client.post(wire.Open(4), wire.Append(4, (wire.Ref(9),)))
        with pytest.raises(UnknownName, match="call 9, which is not known"):
            raise_if(client.call(wire.Generate(4, 5)).wait(30))
        with pytest.raises(UnknownName, match="branch 77 is not open"):
            raise_if(client.call(wire.Generate(77, 6)).wait(30))
        with pytest.raises(NotSupported, match="Inspect"):
            raise_if(client.call(wire.Inspect(7)).wait(30))


def raise_if(outcome: object) -> None:
    if isinstance(outcome, LmprogError):
        raise outcome


def test_a_fault_of_the_backend_itself_ends_everything_instead_of_hanging(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fault(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("one")
        return s.gen().value

    with on(Echo()) as backend:
        monkeypatch.setattr("lmprog.backends.blackbox.call_answers.AnswerState.plus", fault)
        with pytest.raises(ProtocolError, match="broken: ZeroDivisionError"):
            program.using(backend=backend).run()


def test_a_thousand_branches_are_one_thread() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> int:
        s.append("one")
        async with s.fork(1000) as branches:
            await branches.map(lambda b: b.gen())
            return threading.active_count()

    before = threading.active_count()
    with on(Echo()) as backend:
        assert program.using(backend=backend).run().value <= before + 3


def test_preview_and_explain_work_and_say_no_pages() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s.append("one two")
        return s.gen(max_tokens=8).value

    model = Echo()
    with on(model) as backend:
        assert program.using(backend=backend).preview()["gen 1"].text == "one two"
        assert "2 tokens" in str(
            program.using(backend=backend).preview()
        )  # a guess: four bytes a token
        explained = str(program.using(backend=backend).explain())
        assert "generated 8" in explained
        assert "pages" not in explained
    assert model.prompts == []


def test_closing_twice_and_asking_afterwards_are_no_hang() -> None:
    backend = on(Echo())
    backend.close()
    backend.close()
    with pytest.raises(LmprogError):
        lmprog.get_server_info(backend)


def test_a_process_that_never_closes_its_backend_ends_in_silence() -> None:
    code = """
        import lmprog
        lmprog.set_default_backend(lmprog.OpenAI("m", base_url="http://127.0.0.1:9/v1", retries=0))
        @lmprog.function
        def program(s):
            s.append("x")
            return s.gen().value
        try:
            program.run()
        except lmprog.LmprogError as error:
            print(type(error).__name__)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("RuntimeGone", "", 0)
