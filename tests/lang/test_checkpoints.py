"""Runs that stop go on: after any result, in another process, on another runtime, token for token."""

from __future__ import annotations

import dataclasses
import datetime
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pydantic
import pytest

import lmprog
from lmprog import wire
from lmprog.backends.blackbox.openai_backend import OpenAI
from lmprog.backends.client import RuntimeBackend, describe
from lmprog.errors import (
    CheckpointMismatch,
    InvalidParameter,
    ProgramError,
    ProtocolError,
    RequestRejected,
)
from lmprog.lang.branches.checkpointed_calls import BegunCall
from lmprog.lang.checkpoints import checkpoint_file
from lmprog.launch import greet
from lmprog.testing import Hold, Scripted
from tests.backends.scripted_api import ScriptedApi
from tests.lang import stopped_programs
from tests.lang.small_runtime import Real
from tests.lang.stopped_programs import stopped, tokens_of


@pytest.fixture
def two() -> Iterator[list[RuntimeBackend]]:
    """Two runtimes of one model."""
    made = [Real() for _ in range(2)]
    backends = [RuntimeBackend(greet(real.channel.connect())) for real in made]
    yield backends
    for backend, real in zip(backends, made, strict=True):
        backend.close()
        real.end()


def test_a_run_goes_on_from_every_result_on_another_runtime_token_for_token(
    two: list[RuntimeBackend], seed: int, tmp_path: Path
) -> None:
    for number in range(seed, seed + 12):
        path = tmp_path / f"{number}.jsonl"
        whole = stopped.using(backend=two[0], checkpoint=path).run(number)
        lines = path.read_bytes().splitlines(keepends=True)
        for cut in range(1, len(lines)):
            torn = lines[cut][: len(lines[cut]) // 2]
            path.write_bytes(b"".join(lines[:cut]) + torn)
            again = lmprog.resume(path, stopped, backend=two[1])
            assert tokens_of(again) == tokens_of(whole), (number, cut)
            assert again.value == whole.value, (number, cut)


def test_a_killed_process_is_gone_on_from_in_another(
    two: list[RuntimeBackend], tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    argv = [sys.executable, "-m", "tests.lang.stopped_programs", str(path), "4"]
    root = Path(__file__).parents[2]
    ended = subprocess.run(argv, cwd=root, env={**os.environ, "DIES": "1"}, check=False)
    assert ended.returncode == -9
    run = lmprog.resume(path, backend=two[0])
    assert run.num_from_cache == 4
    whole = stopped_programs.killed.using(backend=two[1], seed=11).run(4)
    assert run.value == whole.value


def test_what_is_known_costs_nothing_and_the_rest_is_one_prefill(
    two: list[RuntimeBackend], tmp_path: Path
) -> None:
    @lmprog.function
    async def long(s: lmprog.Branch) -> list[str]:
        s.append("the an " * 20)
        for _ in range(5):
            s.append(" and " + await s.gen(max_tokens=8, heal=False, ignore_eos=True))
        async with s.fork(2) as branches:
            return await branches.map(lambda b: b.gen(max_tokens=3, heal=False, ignore_eos=True))

    path = tmp_path / "run.jsonl"
    whole = long.using(backend=two[0], checkpoint=path).run()
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:6]))
    before = describe(two[1])
    run = lmprog.resume(path, long, backend=two[1])
    assert run.value == whole.value
    assert run.usage.generated == 2 * 3
    assert run.num_from_cache == 5
    spent = {name: now - before[name] for name, now in describe(two[1]).items()}
    assert spent["generated_tokens"] == 2 * 3, "no result was generated again"
    assert spent["prefill_tokens"] <= max(gen.meta.usage.prompt for gen in run.scope.gens) + 2


def test_a_finished_run_asks_nothing_again_and_a_mismatch_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Scripted(["Paris"]) as scripted:
        assert capital.using(backend=scripted, checkpoint=path).run("France").value == "Paris"
    with Scripted([]) as scripted:
        again = capital.using(backend=scripted, checkpoint=path)
        assert again.run("France").value == "Paris"
        assert again.run("France").usage.prompt == 0
        with pytest.raises(CheckpointMismatch, match=r"arguments.*France.*Italy"):
            again.run("Italy")
        with pytest.raises(CheckpointMismatch, match=r"program .*capital.*other_capital"):
            other_capital.using(backend=scripted, checkpoint=path).run("France")
        with pytest.raises(CheckpointMismatch, match="seed"):
            again.using(seed=1).run("France")
        with pytest.raises(CheckpointMismatch, match=r"something else.*#0"):
            again.using(temperature=0.5).run("France")
        with pytest.raises(InvalidParameter, match="of one run"):
            again.map(["France", "France"])
    with Scripted([]) as scripted:
        scripted.client.welcome = _welcome_of(scripted.client.welcome, "another")
        with pytest.raises(CheckpointMismatch, match=r"model 'scripted'.*has 'another'"):
            capital.using(backend=scripted, checkpoint=path).run("France")


def test_an_edited_text_is_found_at_the_first_call_that_it_concerns(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    words = ["one ", "two ", "three "]

    @lmprog.function
    def edited(s: lmprog.Branch) -> str:
        for word in words:
            s.append(word)
            s.gen()
        try:
            return s.text()
        except CheckpointMismatch:
            return "swallowed"

    with Scripted(["a", "b", "c"]) as scripted:
        edited.using(backend=scripted, checkpoint=path).run()
    words[1] = "zwei "
    with Scripted([]) as scripted, pytest.raises(CheckpointMismatch, match="call #1"):
        edited.using(backend=scripted, checkpoint=path).run()


def test_a_damaged_file_is_refused_and_a_torn_end_is_not(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Scripted(["a", "b"]) as scripted:
        pair.using(backend=scripted, checkpoint=path).run()
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 3
    path.write_bytes(whole.replace(b'"label": "gen"', b'"label": "len"', 1))
    with pytest.raises(RequestRejected, match="damaged in line 2"):
        lmprog.resume(path, pair)
    path.write_bytes(lines[0] + lines[2])
    with pytest.raises(RequestRejected, match="damaged in line 2"):
        lmprog.resume(path, pair)
    path.write_bytes(lines[0].replace(b"checkpoint 1", b"checkpoint 9") + lines[1])
    with pytest.raises(ProtocolError, match="checkpoint 9"):
        lmprog.resume(path, pair)
    path.write_bytes(whole[:-1])
    with Scripted(["b"]) as scripted:
        assert lmprog.resume(path, pair, backend=scripted).value == "ab"
    assert len(path.read_bytes().splitlines()) == 3
    path.write_bytes(b"{")
    with Scripted(["a", "b"]) as scripted:
        assert pair.using(backend=scripted, checkpoint=path).run().value == "ab"


def test_a_file_belongs_to_one_run_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    program = pair.using(checkpoint=path)
    with Scripted(lambda prompt: Hold() if prompt else "a") as scripted:
        run = program.run(backend=scripted, stream=True)
        _wait_for_one(run)
        with pytest.raises(ProgramError, match="another run writes"):
            program.using(backend=scripted).run()
        run.scope.cancel()
        run.sync()
    with Scripted(["b"]) as scripted:
        assert program.using(backend=scripted).run().value == "ab"


@pytest.mark.parametrize("is_well", [True, False])
def test_a_file_is_free_before_it_is_told_that_its_run_has_ended(
    tmp_path: Path, is_well: bool
) -> None:
    path, goes_on, freed = tmp_path / "run.jsonl", threading.Event(), list[bool]()

    @lmprog.function
    def waiting(s: lmprog.Branch) -> None:
        s.gen()
        goes_on.wait()
        if not is_well:
            raise ValueError("no")

    def open_it(_: object) -> None:
        checkpoint_file.CheckpointFile(path).close()
        freed.append(True)

    with Scripted(["a"]) as scripted:
        run = waiting.using(backend=scripted, checkpoint=path).run(stream=True)
        run.outcome.add_done_callback(open_it)
        goes_on.set()
        assert (run.failure is None) == is_well
    assert freed == [True]


def test_a_checkpoint_of_a_running_run_is_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Scripted(lambda prompt: Hold() if prompt else "a") as scripted:
        run = pair.run(backend=scripted, stream=True)
        _wait_for_one(run)
        run.checkpoint(path)
        run.scope.cancel()
        run.sync()
    with Scripted(["b"]) as scripted:
        assert lmprog.resume(path, pair, backend=scripted).value == "ab"


def test_what_json_does_not_have_is_refused_where_it_is_given(tmp_path: Path) -> None:
    @lmprog.function
    def once(s: lmprog.Branch, given: object) -> None:
        s.once(lambda: given)

    with Scripted([]) as scripted:
        with pytest.raises(ProgramError, match="gave object, which JSON does not have"):
            once.using(backend=scripted).run(object())
        with pytest.raises(InvalidParameter, match="arguments that JSON has"):
            once.using(backend=scripted, checkpoint=tmp_path / "run").run(object())
        with pytest.raises(InvalidParameter, match="folder that is there"):
            once.using(checkpoint=tmp_path / "no" / "run")
        with pytest.raises(ProgramError, match="needs the checkpoint"):
            once.using(backend=scripted, answer=1).run(1)


class Row(pydantic.BaseModel):
    name: str
    when: datetime.date


@dataclasses.dataclass
class Point:
    x: int
    at: datetime.datetime


@lmprog.function
def described(s: lmprog.Branch, row: Row, *points: Point, day: datetime.date | None) -> str:
    s += f"{row.name} {row.when.year} {[point.at.hour for point in points]} {day and day.month}: "
    first = s.gen("first", max_tokens=2).value
    return f"{first}{s.gen('second', max_tokens=2).value}"


def test_arguments_are_what_their_parameters_types_say_when_a_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    row = Row(name="Ada", when=datetime.date(1815, 12, 10))
    points = [Point(x, datetime.datetime(2026, 1, 2, 3 + x)) for x in range(2)]
    day = datetime.date(2026, 11, 27)
    with Scripted(["a", "b"]) as scripted:
        run = described.using(backend=scripted, checkpoint=path)
        assert run.run(row, *points, day=day).value == "ab"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))  # after the first result
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return "c"

    with Scripted(answer) as scripted:
        assert lmprog.resume(path, described, backend=scripted).value == "ac"
    assert asked == ["Ada 1815 [3, 4] 11: a"]


def test_an_argument_that_its_type_does_not_read_back_is_refused(tmp_path: Path) -> None:
    @lmprog.function
    def untyped(s: lmprog.Branch, row) -> None:  # type: ignore[no-untyped-def]
        s += str(row)

    @lmprog.function
    def other(s: lmprog.Branch, row: datetime.date) -> None:
        s += str(row)

    point = Point(1, datetime.datetime(2026, 1, 2))
    with Scripted([]) as scripted:
        for program, given in ((untyped, point), (other, point), (other, object())):
            with pytest.raises(InvalidParameter, match="types of their parameters"):
                program.using(backend=scripted, checkpoint=tmp_path / "run").run(given)


def test_who_won_wins_again_and_losers_are_not_asked(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    @lmprog.function
    async def contests(s: lmprog.Branch) -> str:
        async with s.fork(3) as branches:
            branches += ["slow", "fast", "slow"]
            first = await lmprog.race(*[b.gen() for b in branches])
        async with s.fork(2) as branches:
            branches += ["slow", "fast"]
            second = await branches.race(_two_steps)
        s.pause("Go on?")
        return f"{first} {second}"

    answers = Scripted(lambda prompt: Hold() if "slow" in prompt else "42")
    with answers as scripted, pytest.raises(lmprog.Paused) as paused:
        contests.using(backend=scripted).run()
    paused.value.checkpoint(path)
    with Scripted([]) as scripted:
        assert lmprog.resume(path, contests, backend=scripted, answer=1).value == "42 42"


def test_a_resumed_run_streams_what_is_known_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Scripted(["a b"]) as scripted, pytest.raises(ProgramError):
        pair.using(backend=scripted, checkpoint=path).run()
    with Scripted(["c"]) as scripted:
        program = pair.using(backend=scripted, checkpoint=path)
        events = list(program.stream())
    assert [event.delta for event in events if isinstance(event, lmprog.Text)] == ["a b", "c"]
    assert [event.value for event in events if isinstance(event, lmprog.Value)] == ["a b", "c"]
    assert isinstance(events[-1], lmprog.Done)
    assert events[-1].value == "a bc"


def test_reasoning_and_attempts_are_resumed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    @lmprog.function
    async def thoughtful(s: lmprog.Branch) -> list[object]:
        s.user("How many?")
        number = s.gen(int, reasoning=True, tries=3, check=lambda n: n > 5)
        found = [await number, number.reasoning, number.meta.reasoning_tokens]
        s.user("Why?")
        return [*found, await s.gen(), (await s.atext()).count("How")]

    def answer(prompt: str) -> str:
        if prompt.endswith("<think>"):
            return "hmm so</think>"
        return "Because." if "Why" in prompt else "7" if "not right" in prompt else "3"

    with Scripted(answer) as scripted:
        whole = thoughtful.using(backend=scripted, checkpoint=path).run()
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 6
    for cut in range(1, 6):
        path.write_bytes(b"".join(lines[:cut]))
        with Scripted(answer) as scripted:
            again = lmprog.resume(path, thoughtful, backend=scripted)
            assert again.value == whole.value
            assert len(scripted.prompts) == 6 - cut


def test_other_backends_of_a_run_are_resumed_too(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    @lmprog.function
    async def judged(s: lmprog.Branch) -> str:
        s.user("A line.")
        await s.gen()
        s.user("Good?")
        verdict = await s.on("judge").select("yes", "no")
        s.user("Another.")
        return f"{verdict} {await s.gen()}"

    with Scripted(["one"]) as home, Scripted(["no"]) as judge, pytest.raises(ProgramError):
        judged.using(backend=home, backends={"judge": judge}, checkpoint=path).run()
    with Scripted(["two"]) as home, Scripted([]) as judge:
        run = lmprog.resume(path, judged, backend=home, backends={"judge": judge})
        assert run.value == "no two"
        assert home.prompts[0].count("one") == 1
        assert home.prompts[0].count("no\n") == 1


def test_other_backends_of_a_resumed_run_have_the_models_that_they_had(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    @lmprog.function
    async def judged(s: lmprog.Branch) -> str:
        s.user("Good?")
        verdict = await s.on("judge").select("yes", "no")
        s.pause("Go on?")
        return f"{verdict} {await s.on('judge').gen()}"

    def of_weights(scripted: Scripted, weights: str) -> dict[str, Scripted]:
        client = scripted.client
        told = wire.Fingerprint(weights=weights)
        client.welcome = msgspec.structs.replace(client.welcome, fingerprint=told)
        return {"judge": scripted}

    with Scripted([]) as home, Scripted(["no"]) as judge:
        begun = judged.using(backend=home, backends=of_weights(judge, "one"), checkpoint=path)
        with pytest.raises(lmprog.Paused):
            begun.run()
    with Scripted([]) as home, Scripted([]) as judge:
        there = {"backend": home, "backends": of_weights(judge, "two")}
        with pytest.raises(CheckpointMismatch, match=r"backend 'judge' has another weights now"):
            lmprog.resume(path, judged, answer="yes", **there)
    with Scripted([]) as home, Scripted(["same"]) as judge:
        there = {"backend": home, "backends": of_weights(judge, "one")}
        assert lmprog.resume(path, judged, answer="yes", **there).value == "no same"


def test_a_branch_on_a_service_is_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    @lmprog.function
    async def chatted(s: lmprog.Branch) -> str:
        s.user("A word?")
        with s.assistant():
            await s.gen(max_tokens=1)
        s.user("Another?")
        await s.gen(max_tokens=1)
        s.user("A third?")
        return await s.gen(max_tokens=1)

    with ScriptedApi(lambda text: f"w{len(text)} and more") as api:
        bodies: list[list[object]] = []
        with OpenAI("m", base_url=api.base_url, api_key="k") as backend:
            whole = chatted.using(backend=backend, checkpoint=path).run()
            bodies.append([request["messages"] for request in api.requests])
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:3]))
        api.requests.clear()
        with OpenAI("m", base_url=api.base_url, api_key="k") as backend:
            run = lmprog.resume(path, chatted, backend=backend)
            bodies.append([request["messages"] for request in api.requests])
    assert run.value == whole.value
    assert bodies[1] == bodies[0][2:]


def test_a_cache_and_a_checkpoint_go_together(two: list[RuntimeBackend], tmp_path: Path) -> None:
    path, folder = tmp_path / "run.jsonl", tmp_path / "cache"
    program = stopped.using(cache=folder, seed=5)
    whole = program.using(backend=two[0], checkpoint=path).run(7)
    lines = path.read_bytes().splitlines(keepends=True)
    shutil.rmtree(folder)
    for cut in range(1, len(lines), 3):
        path.write_bytes(b"".join(lines[:cut]))
        again = lmprog.resume(path, stopped, backend=two[1], cache=tmp_path / str(cut))
        assert again.value == whole.value


def test_the_checkpoint_is_believed_and_a_choice_is_not_computed_again(
    two: list[RuntimeBackend], tmp_path: Path
) -> None:
    """The file says that another option had won."""

    @lmprog.function
    async def selecting(s: lmprog.Branch) -> str:
        s.append("the an")
        kind = await s.select("x", "y")
        return kind + await s.gen(max_tokens=2)

    path = tmp_path / "run.jsonl"
    run = selecting.using(backend=two[0]).run()
    (select, _) = run.scope.gens
    outcome = select.call.wait()
    assert isinstance(outcome, wire.Chosen)
    other = wire.Chosen(outcome.call, 1 - outcome.index, outcome.options, outcome.usage)
    kept = BegunCall(select).kept(other)
    origin = run.scope.record.origin
    assert kept is not None
    assert origin is not None
    checkpoint_file.write(path, origin(), [kept])
    before = describe(two[1])
    again = lmprog.resume(path, selecting, backend=two[1])
    assert again.value[0] == "xy"[other.index]
    assert describe(two[1])["calls"] - before["calls"] == 1, "the generation alone"


def test_what_a_program_rehearses_is_in_no_checkpoint(tmp_path: Path) -> None:
    """A rehearsal has calls in the same places as its run, and is asked nothing that was kept."""

    @lmprog.function
    def other(s: lmprog.Branch) -> str:
        s.append("other: ")
        return s.gen().value

    @lmprog.function
    def planning(s: lmprog.Branch) -> tuple[str, int, str]:
        s.append("Q")
        first = s.gen().value
        calls = other.explain().calls
        other.trace()
        return first, calls, s.gen().value

    path = tmp_path / "run.jsonl"
    with Scripted(["one", "two"]) as scripted:
        planning.using(backend=scripted, checkpoint=tmp_path / "unused").trace()
        whole = planning.using(backend=scripted, checkpoint=path).run()
    assert not (tmp_path / "unused").exists()
    lines = path.read_bytes().splitlines(keepends=True)
    for cut in range(1, len(lines) + 1):
        path.write_bytes(b"".join(lines[:cut]))
        left = len(lines) - cut
        with Scripted(["one", "two"][2 - left :]) as scripted:
            again = lmprog.resume(path, planning, backend=scripted)
            assert again.value == whole.value
            asked = [op for frame in scripted.frames for op in frame]
            assert sum(isinstance(op, wire.Generate) for op in asked) == left


def test_a_checkpoint_of_another_protocol_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(Path(__file__).with_name("checkpoint_0_1.jsonl").read_bytes())
    with (
        Scripted([]) as scripted,
        pytest.raises(ProtocolError, match="begin anew with another file"),
    ):
        lmprog.resume(path, backend=scripted)


def test_runs_within_a_seeded_run_repeat_themselves(two: list[RuntimeBackend]) -> None:
    @lmprog.function
    async def around(s: lmprog.Branch) -> list[str]:
        return [(await stopped_programs.nested.arun("so ")).text() for _ in range(3)]

    seeded = around.using(backend=two[0], seed=3, temperature=2.0, ignore_eos=True)
    first = seeded.run().value
    assert seeded.run().value == first
    assert len(set(first)) > 1, "each has a seed of its own"


# --- programs


@lmprog.function
def capital(s: lmprog.Branch, country: str) -> str:
    s.append(f"The capital of {country} is ")
    return s.gen(max_tokens=8).value


@lmprog.function
def other_capital(s: lmprog.Branch, country: str) -> str:
    return s.gen(max_tokens=8).value


@lmprog.function
def pair(s: lmprog.Branch) -> str:
    s.gen()
    s.gen()
    return s.text()


def _welcome_of(welcome: wire.Welcome, model: str) -> wire.Welcome:
    return msgspec.structs.replace(welcome, model=model)


def _wait_for_one(run: lmprog.Run[str]) -> None:
    """Until the first call has its result."""
    while not (run.scope.gens and run.scope.gens[0].done()):
        time.sleep(0.001)


async def _two_steps(b: lmprog.Branch) -> str:
    await b.gen()
    return await b.gen()
