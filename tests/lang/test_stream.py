"""Streams: typed events, texts by name, ends."""

from __future__ import annotations

import asyncio

import pytest

import lmprog
from lmprog.backends.client import CallOp, Client, ClientCall
from lmprog.errors import ModelError, ProgramError, UnknownName
from lmprog.lang.branches import scope as scopes
from lmprog.testing import Hold, Scripted
from tests.backends.scripted_api import until


@lmprog.function
def plain(s: lmprog.Branch) -> str:
    s.append("Q")
    s.gen("a")
    s.append("R")
    return s.select("u", "v", name="b").value


@lmprog.function
async def awaiting(s: lmprog.Branch) -> str:
    s.append("Q")
    await s.gen("a")
    s.append("R")
    return await s.select("u", "v", name="b")


@pytest.mark.parametrize("program", [plain, awaiting])
def test_a_stream_gives_text_then_values_then_done(program: lmprog.Program[[], str]) -> None:
    with Scripted(["one two", "v"]) as scripted:
        events = list(program.using(backend=scripted).stream())
    assert events[:2] == [lmprog.Text("a", "one"), lmprog.Text("a", " two")]
    assert events[2:4] == [lmprog.Value("a", "one two"), lmprog.Value("b", "v")]
    last = events[4]
    assert isinstance(last, lmprog.Done)
    assert (last.value, last.usage.generated) == ("v", 2)


@pytest.mark.parametrize("program", [plain, awaiting])
def test_a_stream_can_be_followed_on_an_event_loop(program: lmprog.Program[[], str]) -> None:
    async def main() -> list[object]:
        return [event async for event in program.using(backend=scripted).stream()]

    with Scripted(["one two", "v"]) as scripted:
        assert len(asyncio.run(main())) == 5


def test_a_stream_that_fails_raises_after_what_had_come() -> None:
    seen: list[object] = []
    with Scripted(["one", ModelError("not finite")]) as scripted, pytest.raises(ModelError):
        seen.extend(awaiting.using(backend=scripted).stream())
    assert seen == [lmprog.Text("a", "one"), lmprog.Value("a", "one")]


def test_an_async_stream_that_fails_raises_after_what_had_come() -> None:
    async def main() -> None:
        async for event in awaiting.using(backend=scripted).stream():
            seen.append(event)  # noqa: PERF401

    seen: list[object] = []
    with Scripted(["one", ModelError("not finite")]) as scripted, pytest.raises(ModelError):
        asyncio.run(main())
    assert seen == [lmprog.Text("a", "one"), lmprog.Value("a", "one")]


def test_leaving_a_stream_early_ends_the_run() -> None:
    with Scripted(lambda prompt: "one" if prompt == "Q" else Hold()) as scripted:
        stream = iter(awaiting.using(backend=scripted).stream())
        assert next(stream) == lmprog.Text("a", "one")
        stream.close()  # type: ignore[attr-defined]
        until(lambda: scripted.runtime.open_branches() == 0)  # in a thread of its own


def test_leaving_an_async_stream_early_ends_the_run() -> None:
    async def main() -> None:
        stream = awaiting.using(backend=scripted).stream().__aiter__()
        assert await anext(stream) == lmprog.Text("a", "one")
        await stream.aclose()  # type: ignore[attr-defined]
        assert scripted.runtime.open_branches() == 0

    with Scripted(lambda prompt: "one" if prompt == "Q" else Hold()) as scripted:
        asyncio.run(main())


def test_text_iter_gives_the_branch_in_its_own_order() -> None:
    with Scripted(["one two", "v"]) as scripted:
        state = plain.run(backend=scripted, stream=True)  # type: ignore[call-arg]
        assert list(state.text_iter()) == ["Q", "one", " two", "R", "v"]
        assert list(state.text_iter("a")) == ["one", " two"]
        assert state["b"] == "v"


def test_text_iter_gives_what_joined_branches_gained() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s += "two:"
        forks = s.fork(2)
        forks += lambda i: f" [{i}" + lmprog.gen("tip") + "]"
        forks.join("concate_and_append")
        s += " and " + lmprog.gen("end")

    with Scripted(lambda prompt: "!" if " and " in prompt else "?") as scripted:
        state = program.run(backend=scripted, stream=True)  # type: ignore[call-arg]
        assert "".join(state.text_iter()) == "two: [0?] [1?] and !" == state.text()


def test_text_async_iter_can_give_meta_information() -> None:
    async def main() -> list[tuple[str, dict[str, object]]]:
        state = plain.run(backend=scripted, stream=True)  # type: ignore[call-arg]
        return [pair async for pair in state.text_async_iter("a", return_meta_data=True)]

    with Scripted(["one two", "v"]) as scripted:
        pairs = asyncio.run(main())
    assert [text for text, _ in pairs] == ["one", " two", ""]
    assert pairs[-1][1]["completion_tokens"] == 2


def test_streaming_a_name_that_the_program_never_sets_raises() -> None:
    with Scripted(["one", "v"]) as scripted:
        state = plain.run(backend=scripted, stream=True)  # type: ignore[call-arg]
        with pytest.raises(UnknownName, match="never set 'zzz'"):
            list(state.text_iter("zzz"))


def test_a_run_that_does_not_stream_says_so() -> None:
    with Scripted(["one", "v"]) as scripted:
        state = plain.using(backend=scripted).run()
        with pytest.raises(ProgramError, match="stream=True"):
            list(state.text_iter())


def test_a_follower_may_look_at_a_generation_before_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[bool] = []
    begin = Client.begin

    def look_and_begin(client: Client, op: CallOp, call: ClientCall) -> None:
        scope = scopes.current.get()
        assert scope is not None
        looked.extend(gen.done() for gen in scope.gens)
        begin(client, op, call)

    monkeypatch.setattr(Client, "begin", look_and_begin)
    with Scripted(["one two", "v"]) as scripted:
        assert list(plain.run(backend=scripted, stream=True).text_iter("a")) == ["one", " two"]  # type: ignore[call-arg]
    assert looked[0] is False


def test_events_name_their_branch() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> None:
        s.append("Q")
        await s.gen("root")
        async with s.fork(2) as branches:
            await branches.map(lambda b: b.gen("leaf"))

    with Scripted(lambda prompt: "x") as scripted:
        events = list(program.using(backend=scripted).stream())
    texts = {
        (event.var, event.path, event.branch) for event in events if isinstance(event, lmprog.Text)
    }
    assert texts == {
        ("root", (), "root"),
        ("leaf", (0, 0), "fork0[0]"),
        ("leaf", (0, 1), "fork0[1]"),
    }
    values = [(event.path, event.value) for event in events if isinstance(event, lmprog.Value)]
    assert sorted(values) == [((), "x"), ((0, 0), "x"), ((0, 1), "x")]
