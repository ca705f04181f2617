"""`using(cache="folder")`: what has been answered is not asked again, and nothing else is believed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import lmprog
from lmprog import wire
from lmprog.backends.client import RuntimeBackend
from lmprog.errors import InvalidParameter
from lmprog.launch import greet
from lmprog.testing import Scripted
from tests.backends.programs import chat, on
from tests.backends.scripted_api import ScriptedApi
from tests.lang.small_runtime import Real


@lmprog.function
def travel(s: lmprog.Branch, country: str, question: str = "Why?") -> str:
    s.user(f"A city of {country}?")
    city = s.gen(name="city")
    with s.fork(2) as branches:
        for nth, branch in enumerate(branches):
            branch.user(f"Sight {nth} of {city}?")
            branch.gen(name="sight")
        s.user(f"Which of {branches[0]['sight']} and {branches[1]['sight']}?")
    best = s.select("first", "second", name="best")
    s.user(question)
    return (
        f"{city.value}/{best.value.text if hasattr(best.value, 'text') else best.value}/{s.gen()}"
    )


def answered(prompt: str) -> str:
    for said, answer in (
        ("A city of Peru?\n<|assistant|>\n", "Lima"),
        ("A city of Chile?\n<|assistant|>\n", "Arica"),
        ("Sight 0 of Lima?\n<|assistant|>\n", "the sea"),
        ("Sight 1 of Lima?\n<|assistant|>\n", "the hill"),
    ):
        if prompt.endswith(said):
            return answer
    return "second" if " and " in prompt.rpartition("<|user|>")[2] else "so it is"


def asked(folder: Path, *args: str, answers: Any = answered, **options: Any) -> tuple[Any, int]:
    """The run, and how many calls the backend had."""
    with Scripted(answers) as backend:
        run = travel.using(backend=backend, cache=folder, **options).run(*args)
        assert backend.runtime.open_branches() == 0
        return run, len(backend.asked)


def test_a_second_run_asks_nobody_and_is_the_same(tmp_path: Path) -> None:
    with Scripted(answered) as backend:
        plain = travel.using(backend=backend).run("Peru")
        prompts = backend.prompts
    first, num_first = asked(tmp_path, "Peru")
    second, num_second = asked(tmp_path, "Peru", answers=())
    assert plain.value == first.value == second.value == "Lima/second/so it is"
    assert (num_first, num_second) == (5, 0)
    assert (first.num_from_cache, second.num_from_cache) == (0, 5)
    assert first.usage.generated == plain.usage.generated > 0 == second.usage.computed
    assert plain.text() == first.text() == second.text() != ""
    with Scripted(answered) as backend:
        travel.using(backend=backend, cache=tmp_path / "other").run("Peru")
        assert sorted(backend.prompts) == sorted(prompts)


def test_what_changed_is_asked_and_the_rest_is_not(tmp_path: Path) -> None:
    asked(tmp_path, "Peru")
    assert asked(tmp_path, "Peru", "Since when?")[1] == 1
    assert asked(tmp_path, "Peru", temperature=0.5)[1] == 4  # a select has none of it
    assert asked(tmp_path, "Peru", max_tokens=3)[1] == 4
    assert asked(tmp_path, "Peru", cache_salt="tenant")[1] == 5
    assert asked(tmp_path, "Chile")[1] > 0
    assert asked(tmp_path, "Peru", answers=())[1] == 0


def test_another_model_is_asked(tmp_path: Path) -> None:
    asked(tmp_path, "Peru")
    with Scripted(answered) as backend:
        info = backend.runtime.info
        backend._client.welcome = wire.Welcome(1, "another", info.context_len, 0, 1, 1, 0)
        assert travel.using(backend=backend, cache=tmp_path).run("Peru").num_from_cache == 0


def test_other_weights_under_one_name_are_asked(tmp_path: Path) -> None:
    """Wherever the runtime's files are: its fingerprint says what they hold."""
    numbers = []
    for weights in ("one", "two", "one"):
        with Scripted(answered) as backend:
            info = backend._client.welcome
            backend._client.welcome = msgspec.structs.replace(
                info, fingerprint=wire.Fingerprint(weights=weights)
            )
            run = travel.using(backend=backend, cache=tmp_path).run("Peru")
            numbers.append(run.num_from_cache)
    assert numbers == [0, 0, 5]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[" * 100_000,
        lambda text: "null",
        lambda text: text.replace("lmprog reply 1", "lmprog reply 0"),
        lambda text: json.dumps({**json.loads(text), "digest": "0" * 32}),
        lambda text: json.dumps({**json.loads(text), "reply": "AAAA"}),
        lambda text: json.dumps({**json.loads(text), "key": "0" * 40}),
    ],
)
def test_a_damaged_file_is_asked_again(tmp_path: Path, damage: Callable[[str], str]) -> None:
    asked(tmp_path, "Peru")
    files = list(tmp_path.glob("*/*.json"))
    for file in files:
        file.write_text(damage(file.read_text()))
    run, num_asked = asked(tmp_path, "Peru")
    assert (len(files), num_asked, run.num_from_cache) == (5, 5, 0)
    assert asked(tmp_path, "Peru", answers=())[1] == 0  # and is whole again


def test_a_reply_to_another_question_is_not_believed(tmp_path: Path) -> None:
    asked(tmp_path, "Peru")
    files = sorted(tmp_path.glob("*/*.json"))
    texts = [file.read_text() for file in files]
    for file, text in zip(files, texts[1:] + texts[:1], strict=True):
        file.write_text(text)
    assert asked(tmp_path, "Peru")[1] == 5


def test_failures_are_not_kept(tmp_path: Path) -> None:
    with Scripted([lmprog.LmprogError("no")]) as backend, pytest.raises(lmprog.LmprogError):
        travel.using(backend=backend, cache=tmp_path).run("Peru")
    assert list(tmp_path.glob("*/*")) == []


@lmprog.function
def three(s: lmprog.Branch) -> list[str]:
    with s.fork(3) as branches:
        for branch in branches:
            branch.append("A number:")
        return sorted(branch.gen(max_tokens=4, temperature=1.0).value for branch in branches)


def test_samples_of_a_service_stay_different(tmp_path: Path) -> None:
    with Scripted(["1", "2", "3"]) as backend:
        assert three.using(backend=backend, cache=tmp_path).run().value == ["1", "2", "3"]
    with Scripted() as backend:
        assert three.using(backend=backend, cache=tmp_path).run().value == ["1", "2", "3"]


@lmprog.function
async def raced(s: lmprog.Branch) -> str:
    s += "Begin:"
    async with s.fork(3) as branches:
        return await lmprog.vote([branch.gen(max_tokens=4) for branch in branches])


def test_an_async_program_with_a_vote_is_answered_from_the_folder(tmp_path: Path) -> None:
    with Scripted(["a", "b", "b"]) as backend:
        assert asyncio.run(raced.using(backend=backend, cache=tmp_path).arun()).value == "b"
    with Scripted() as backend:
        run = raced.using(backend=backend, cache=tmp_path).run()
        assert (run.value, run.num_from_cache) == ("b", 3)


def test_a_stream_of_kept_answers_has_the_same_text_and_values(tmp_path: Path) -> None:
    def told(answers: Any) -> tuple[str, list[Any]]:
        with Scripted(answers) as backend:
            events = list(travel.using(backend=backend, cache=tmp_path).stream("Peru"))
        root = [event for event in events if isinstance(event, lmprog.Text) and not event.branch]
        values = [event.value for event in events if isinstance(event, lmprog.Value)]
        return "".join(event.text for event in root), sorted(map(str, values))

    assert told(answered) == told(())


def test_many_runs_share_a_folder(tmp_path: Path) -> None:
    with Scripted(answered) as backend:
        ready = travel.using(backend=backend, cache=tmp_path)
        ready.map(["Peru"] * 20)
        num_asked = len(backend.asked)
        again = ready.map(["Peru"] * 20)
        assert len(backend.asked) == num_asked
        assert backend.runtime.open_branches() == 0
    assert {run.num_from_cache for run in again.runs} == {5}
    assert not list(tmp_path.glob("*/.*"))


@lmprog.function
def around(s: lmprog.Branch, judge: Scripted) -> str:
    inner = travel.run("Peru")
    s.user(inner.value)
    return f"{inner.num_from_cache} {s.with_(backend=judge).gen().value}"


def test_runs_within_and_other_backends_have_the_cache_too(tmp_path: Path) -> None:
    with Scripted(answered) as backend, Scripted(["good"]) as judge:
        run = around.using(backend=backend, cache=tmp_path).run(judge)
        assert (run.value, run.num_from_cache) == ("0 good", 0)
    with Scripted() as backend, Scripted() as judge:
        run = around.using(backend=backend, cache=tmp_path).run(judge)
        assert (run.value, run.num_from_cache) == ("5 good", 1)


def test_a_service_is_not_asked_again(tmp_path: Path) -> None:
    @lmprog.function
    def two(s: lmprog.Branch) -> str:
        s.user("one?")
        first = s.gen().value
        s.user("two?")
        return first + s.gen().value

    with ScriptedApi(chat({"one?": "uno", "two?": "dos"})) as api, on(api) as backend:
        ready = two.using(backend=backend, cache=tmp_path)
        assert ready.run().value == "unodos"
        num_requests = len(api.requests)
        assert ready.run().value == "unodos"
        assert len(api.requests) == num_requests == 2
        with on(api, extra_body={"effort": "high"}) as other:
            assert two.using(backend=other, cache=tmp_path).run().num_from_cache == 0
        with on(api) as same:
            assert two.using(backend=same, cache=tmp_path).run().num_from_cache == 2


@lmprog.function
def told(s: lmprog.Branch) -> list[str]:
    s += "Once upon a time "
    first, second = [s.gen(max_tokens=6, ignore_eos=True).value for _ in range(2)]
    return [first, second, s.select("yes", "no").value]


@pytest.mark.parametrize(
    ("options", "num_kept"), [({"temperature": 0}, 3), ({"seed": 7}, 3), ({}, 1)]
)
def test_a_runtime_is_asked_again_only_for_samples_without_a_seed(
    real: Real, tmp_path: Path, options: dict[str, Any], num_kept: int
) -> None:
    with RuntimeBackend(greet(real.channel.connect())) as backend:
        ready = told.using(backend=backend, cache=tmp_path, **options)
        first, second = ready.run(), ready.run()
        if options:
            plain = told.using(backend=backend, **options).run()
            assert plain.value == first.value == second.value
            assert second.num_from_cache == num_kept
            assert second.usage.computed == 0 < first.usage.computed
        else:
            assert second.num_from_cache <= num_kept  # the select, if its text is the same
            assert second.usage.generated == first.usage.generated > 0


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for value in (tmp_path / "file", 3):
        with pytest.raises(InvalidParameter, match="cache="):
            travel.using(cache=value)  # type: ignore[arg-type]


def test_computing_the_beginning_ahead_is_never_answered_from_the_folder(tmp_path: Path) -> None:
    @lmprog.function
    def begun(s: lmprog.Branch, word: str) -> str:
        s += f"A long beginning. {word}"
        return s.gen().value

    with Scripted(lambda prompt: "x") as backend:
        ready = begun.using(backend=backend, cache=tmp_path)
        ready.cache()
        ready.cache()
        assert len(backend.asked) == 2
