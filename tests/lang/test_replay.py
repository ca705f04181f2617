"""Saved runs: done again they give the same tokens, and they say so where they do not."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

import lmprog
from lmprog import wire
from lmprog.backends.client import RuntimeBackend
from lmprog.cli import main
from lmprog.errors import ContextOverflow, ModelError, ProtocolError, RequestRejected
from lmprog.lang.checkpoints import checkpoint_file
from lmprog.lang.checkpoints.checkpoint_file import (
    KeptCall,
    Line,
    RunOrigin,
    SavedContest,
    SavedOp,
)
from lmprog.lang.runs.run_replay import Recording, replay
from lmprog.launch import greet
from lmprog.testing import Hold, Scripted
from tests.lang.small_runtime import Real


@lmprog.function
async def program(s: lmprog.Branch, question: str) -> str:
    s.append(question)
    first = s.gen(name="first", max_tokens=5, n=2)
    s.append(f" so {first} then ")
    async with s.fork(3, temperature=0.9) as branches:
        drafts = await branches.map(lambda b: b.gen(max_tokens=4))
    s.append(lmprog.vote(drafts))
    return await s.select("yes", "no", name="kind", temperature=2.0)


@lmprog.function
def joining(s: lmprog.Branch) -> None:
    s += "a" + lmprog.gen("x", max_tokens=3)
    forks = s.fork(2)
    forks += lmprog.gen("part", max_tokens=2) + " so "
    forks.join("concate_and_append")
    s += f"{s.var('x')} " + lmprog.gen("after", max_tokens=4)


def test_a_saved_run_is_done_again_token_for_token_although_no_seed_was_given(
    backend: RuntimeBackend, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    for number in range(5):
        run = program.using(backend=backend, ignore_eos=True).run(f"question {number} ")
        run.save(path)
        replayed = replay(path, backend)
        assert replayed.differences == ()
        assert (replayed.num_calls, replayed.num_tokens, replayed.num_skipped) == (
            5,
            2 * 5 + 3 * 4,
            0,
        )


def test_joined_text_is_replayed(backend: RuntimeBackend, tmp_path: Path) -> None:
    joining.using(backend=backend, ignore_eos=True).run().save(tmp_path / "run.json")
    replayed = replay(tmp_path / "run.json", backend)
    assert replayed.is_same
    assert replayed.num_calls == 4


@lmprog.function
async def contested(s: lmprog.Branch, number: int) -> str:
    s.append(f"number {number} is ")
    await s.best_of(4, max_tokens=8)
    await s.gen(n=4, keep="fastest", max_tokens=12, stop="a")
    await s.gen(n=5, keep="majority", max_tokens=1)
    async with s.fork(3) as branches:
        voted = await lmprog.vote([b.gen(max_tokens=1) for b in branches])
    async with s.fork(3) as branches:
        raced = await branches.race(lambda b: b.gen(max_tokens=12, stop="b"))
    s.append(voted + raced)
    return await s.gen(max_tokens=3)


def test_contests_under_load_are_replayed_with_what_won_them(real: Real, tmp_path: Path) -> None:
    """The runs share their steps with others, and the replays have the runtime to themselves."""

    async def main() -> list[lmprog.Run[str]]:
        return await asyncio.gather(
            *(contested.using(backend=backend).arun(number) for number in range(12))
        )

    with RuntimeBackend(greet(real.channel.connect())) as backend:
        for number, run in enumerate(asyncio.run(main())):
            run.save(tmp_path / f"{number}.json")
            replayed = replay(tmp_path / f"{number}.json", backend)
            assert replayed.differences == ()
            assert replayed.num_contests == 2
            assert replayed.num_calls + replayed.num_skipped == 10


def test_another_majority_is_a_difference(tmp_path: Path) -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        async with s.fork(3) as branches:
            return await lmprog.vote(
                [b.gen(name=name) for b, name in zip(branches, "uvw", strict=True)]
            )

    with Scripted(["a", "b", "b"]) as scripted:
        run = program.using(backend=scripted).run()
        assert run.value == "b"
        run.save(tmp_path / "run.json")
    with Scripted(["a", "b", "b"]) as scripted:
        assert replay(tmp_path / "run.json", scripted).is_same
    with Scripted(["a", "c", "a"]) as scripted:
        replayed = replay(tmp_path / "run.json", scripted)
    assert [str(one) for one in replayed.differences] == [
        "v: it was 'b' [], now 'c' []",
        "w: it was 'b' [], now 'a' []",
        "the majority of 3: it was v, now u",
    ]


def test_a_race_keeps_the_winner_that_it_had(tmp_path: Path) -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> str:
        async with s.fork(2) as branches:
            branches[0].append("slow")
            return await branches.race(lambda b: b.gen())

    with Scripted(lambda prompt: Hold() if prompt else "quick") as scripted:
        program.using(backend=scripted).run().save(tmp_path / "run.json")
    with Scripted(["quick"]) as scripted:
        replayed = replay(tmp_path / "run.json", scripted)
    assert (replayed.num_calls, replayed.num_skipped, replayed.num_contests) == (1, 1, 1)
    assert replayed.is_same


def test_the_seed_of_a_run_repeats_it(backend: RuntimeBackend) -> None:
    seen = set()
    for _ in range(4):
        run = program.using(backend=backend, ignore_eos=True).run("the question ")
        again = program.using(backend=backend, ignore_eos=True, seed=run.seed).run("the question ")
        assert again.text() == run.text()
        seen.add(run.text())
    assert len(seen) > 1, "runs without a seed differ"


def test_a_difference_names_the_call_and_both_results(
    backend: RuntimeBackend, tmp_path: Path
) -> None:
    run = program.using(backend=backend, ignore_eos=True).run("the question ")
    recording = Recording.of(run.scope)
    call, kept = next(iter(recording.calls.items()))
    done = kept.reply
    assert isinstance(done, wire.CallDone)
    output = wire.Output("other", (1, 2), "stop")
    other = wire.CallDone(call, (output, *done.outputs[1:]), done.usage)
    wrong = {**recording.calls, call: dataclasses.replace(kept, reply=other)}
    replayed = dataclasses.replace(recording, calls=wrong).replay(backend)
    assert not replayed.is_same
    [difference] = replayed.differences
    assert difference.label == "first"
    assert difference.before.startswith("'other' [1, 2]")
    assert str(difference).startswith("first: it was 'other'")


def test_calls_that_failed_are_left_out(backend: RuntimeBackend, tmp_path: Path) -> None:
    @lmprog.function
    def failing(s: lmprog.Branch) -> str:
        s.append("abc")
        with pytest.raises(ContextOverflow):
            s.gen(max_tokens=10_000).value
        return s.gen(max_tokens=4, ignore_eos=True).value

    failing.using(backend=backend).run().save(tmp_path / "run.json")
    replayed = replay(tmp_path / "run.json", backend)
    assert (replayed.num_calls, replayed.num_skipped, replayed.is_same) == (1, 1, True)


def test_a_run_within_another_is_replayed_without_that_other(
    backend: RuntimeBackend, tmp_path: Path
) -> None:
    """It was given a result that its own recording does not have."""
    path = tmp_path / "inner.json"

    @lmprog.function
    async def inner(s: lmprog.Branch, about: str) -> str:
        s.append(f"in {about}: ")
        return await s.gen(max_tokens=3)

    @lmprog.function
    async def outer(s: lmprog.Branch) -> None:
        s.append("out ")
        (await inner.arun(f"{s.gen(max_tokens=12)}")).save(path)  # a mark, and not yet a text

    outer.using(backend=backend).run()
    again = lmprog.replay(path, backend)
    assert (again.num_calls, again.differences) == (1, ())


def test_calls_that_were_cancelled_are_left_out(tmp_path: Path) -> None:
    @lmprog.function
    def cancelling(s: lmprog.Branch) -> None:
        with s.copy() as other:
            gen = other.gen()
            gen.cancel()
            gen.was_read = True
        s.gen("kept")

    with Scripted([Hold(), "one"]) as scripted:
        cancelling.using(backend=scripted).run().save(tmp_path / "run.json")
    with Scripted(["one"]) as scripted:
        replayed = replay(tmp_path / "run.json", scripted)
    assert (replayed.num_calls, replayed.num_skipped) == (1, 1)


def test_another_model_is_refused_with_both_names(backend: RuntimeBackend, tmp_path: Path) -> None:
    program.using(backend=backend, ignore_eos=True).run("the question ").save(tmp_path / "run.json")
    with (
        Scripted() as scripted,
        pytest.raises(ModelError, match=r"made with model 'fake'.*this backend has 'scripted'"),
    ):
        replay(tmp_path / "run.json", scripted)


def test_files_that_are_no_saved_runs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with Scripted(["one"]) as scripted:
        lmprog.function(lambda s: s.append(lmprog.gen("x"))).using(backend=scripted).run().save(
            path
        )
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [next(iter(line)) for line in lines] == ["format", "op", "op", "call"]
    assert (lines[-1]["label"], lines[-1]["gave"]) == ("x", ["one"])
    whole = path.read_text()

    with pytest.raises(FileNotFoundError, match="no saved run"):
        Recording.read(tmp_path / "absent.json")
    for text in ("nonsense", "[]", "{}", "{}\n", whole.replace('"x"', '"y"', 1)):
        path.write_text(text)
        with pytest.raises(RequestRejected, match="no saved run"):
            Recording.read(path)
    first, *others = whole.splitlines(keepends=True)
    path.write_text(first + others[-1])
    with pytest.raises(RequestRejected, match="damaged in line 2"):
        Recording.read(path)
    path.write_text(whole.replace('"lmprog run 2"', '"lmprog run 3"'))
    with pytest.raises(ProtocolError, match="run 3"):
        Recording.read(path)


@pytest.mark.parametrize(
    "lines",
    [
        [SavedContest("first", (1, 2), 2)],
        [SavedOp(wire.Generate(1, 2)), SavedContest("first", (2,), 2)],
        [SavedOp(wire.Open(1)), KeptCall("2", "", "x", wire.Chosen(2, 0, (), wire.Usage()))],
    ],
)
def test_a_saved_run_with_results_of_no_calls_is_refused(tmp_path: Path, lines: list[Line]) -> None:
    path = tmp_path / "run"
    checkpoint_file.write(path, RunOrigin("", {}, {}, "fake", 1, 1), lines, "saved run")
    with pytest.raises(RequestRejected, match="results of no calls"):
        Recording.read(path)


def test_a_saved_run_of_the_first_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{\n "format": "lmprog run 1",\n "protocol": 7\n}\n')
    with pytest.raises(ProtocolError, match="save the run again"):
        Recording.read(path)


def test_a_saved_run_is_not_resumed_and_a_checkpoint_not_replayed(tmp_path: Path) -> None:
    with Scripted(["one"]) as scripted:
        run = lmprog.function(lambda s: s.gen().value).using(backend=scripted).run()
        run.save(tmp_path / "saved")
        run.checkpoint(tmp_path / "kept")
        with pytest.raises(RequestRejected, match=r"no checkpoint.*run\.checkpoint"):
            lmprog.resume(tmp_path / "saved", backend=scripted)
        with pytest.raises(RequestRejected, match=r"no saved run.*run\.save"):
            replay(tmp_path / "kept", scripted)


def test_the_command_says_what_is_wrong_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(tmp_path / "absent.json")]) == 2
    assert "no saved run" in capsys.readouterr().err
    assert main(["replay", "x", "--address", "ipc://x", "--model", "y"]) == 2
