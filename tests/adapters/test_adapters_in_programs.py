"""`lora=` in the language: runs, forks and views of branches, against runtimes of merged weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lmprog
from lmprog import wire
from lmprog.backends.client import flush
from lmprog.errors import CheckpointMismatch, InvalidParameter, NotSupported, UnknownName
from lmprog.journal import needed
from lmprog.runtime.engine.model.locate import NANO
from tests.adapters.conftest import Adapted, runtime
from tests.backends.programs import on
from tests.backends.scripted_api import ScriptedApi

TEXT = "Anna lives in a small house near the river. " * 6
NAMES = ("", "one", "two")


@lmprog.function
def tale(s: lmprog.Branch, more: str = "") -> str:
    s.append(TEXT + more)
    return str(s.gen(max_tokens=12, temperature=0, heal=False).value)


@pytest.fixture(scope="module")
def tales(adapted: Adapted) -> dict[str, str]:
    """What each merged model says."""
    found = {name: tale.using(backend=one).run().value for name, one in adapted.merged.items()}
    assert len(set(found.values())) == 3, "adapters that change nothing would prove nothing"
    return found


def test_a_run_is_computed_by_its_adapter_and_finds_what_that_left_alone(
    adapted: Adapted, tales: dict[str, str]
) -> None:
    flush(adapted.backend)
    for again in (False, True):
        for name in NAMES:
            run = tale.using(backend=adapted.backend, lora=name).run()
            assert run.value == tales[name]
            assert (run.usage.cached > 0) == again, name
    assert tale.using(backend=adapted.backend).run().value == tales[""]


def test_runs_of_several_adapters_at_once_are_each_right(
    adapted: Adapted, tales: dict[str, str]
) -> None:
    jobs = [tale.using(backend=adapted.backend, lora=name) for name in NAMES * 3]

    @lmprog.function
    async def all_at_once(s: lmprog.Branch) -> list[str]:
        import asyncio

        runs = await asyncio.gather(*(job.arun() for job in jobs))
        return [run.value for run in runs]

    assert all_at_once.using(backend=adapted.backend).run().value == [tales[n] for n in NAMES * 3]


@pytest.mark.parametrize("around", NAMES)
def test_a_view_and_a_fork_may_have_another_adapter(
    adapted: Adapted, tales: dict[str, str], around: str
) -> None:
    @lmprog.function
    def views(s: lmprog.Branch) -> list[Any]:
        s.append(TEXT)
        asked: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "heal": False}
        found: list[Any] = []
        for name in NAMES:
            with s.copy() as other:
                found.append(other.with_(lora=name).gen(**asked).value)
            with s.fork(2, lora=name) as branches:
                found += [branch.gen(**asked).value for branch in branches]
                assert branches[0].text() == TEXT + found[-1]
        with s.copy(lora="one") as other:
            found.append(other.with_(lora=None).gen(**asked).value)
        with s.copy() as other:
            found.append(other.gen(**asked).value)
        return found

    said = views.using(backend=adapted.backend, lora=around).run().value
    assert said == [tales[name] for name in NAMES for _ in range(3)] + [tales[around]] * 2


def test_what_another_adapter_said_stays_in_the_branch(adapted: Adapted) -> None:
    @lmprog.function
    def twice(s: lmprog.Branch) -> tuple[str, str]:
        s.append(TEXT)
        # A text that has one way to be cut into tokens, whatever the weights of nano are.
        first = s.with_(lora="one").gen(regex=r" (yes|no), my friend\.", name="first").value
        assert s["first"] == first
        return first, s.gen(max_tokens=6, temperature=0, heal=False).value

    run = twice.using(backend=adapted.backend).run()
    assert run.text() == TEXT + "".join(run.value)
    base = tale.using(backend=adapted.merged[""])
    assert base.run(run.value[0]).value.startswith(run.value[1])


def test_a_select_and_a_judge_are_scored_by_the_adapter(adapted: Adapted) -> None:
    @lmprog.function
    def chosen(s: lmprog.Branch) -> list[float]:
        s.append(TEXT)
        return list(s.select("She", "The river", "Nobody").value.scores)

    for name in NAMES:
        here = chosen.using(backend=adapted.backend, lora=name).run().value
        there = chosen.using(backend=adapted.merged[name]).run().value
        assert here == pytest.approx(there, abs=1e-4)


def test_a_run_inside_a_run_has_its_adapter_unless_it_says_another(
    adapted: Adapted, tales: dict[str, str]
) -> None:
    @lmprog.function
    def outer(s: lmprog.Branch) -> list[str]:
        return [
            tale.run().value,
            tale.using(lora="two").run().value,
            tale.using(lora="").run().value,
        ]

    said = outer.using(backend=adapted.backend, lora="one").run().value
    assert said == [tales["one"], tales["two"], tales[""]]


def test_an_unknown_adapter_is_refused_with_the_nearest_name(adapted: Adapted) -> None:
    with pytest.raises(UnknownName, match=r"'onee'; did you mean 'one'\? valid: 'one', 'two'"):
        tale.using(backend=adapted.backend, lora="onee").run()
    with pytest.raises(UnknownName, match="without --lora"):
        tale.using(backend=adapted.merged[""], lora="one").run()

    @lmprog.function
    def forked(s: lmprog.Branch) -> str:
        s.append(TEXT)
        with pytest.raises(UnknownName, match="'twoo'; did you mean 'two'"):
            _ = s.with_(lora="twoo").gen(max_tokens=2).value
        return str(s.gen(max_tokens=2).value)

    assert forked.using(backend=adapted.backend).run().value
    with pytest.raises(InvalidParameter, match="lora=3 is not allowed"):
        tale.using(lora=3)  # type: ignore[arg-type]


def test_kept_replies_are_those_of_their_adapter(
    adapted: Adapted, tales: dict[str, str], tmp_path: Path
) -> None:
    for from_cache in (0, 1):
        for name in NAMES:
            run = tale.using(backend=adapted.backend, lora=name, cache=tmp_path).run()
            assert (run.value, run.num_from_cache) == (tales[name], from_cache)


def test_a_saved_run_is_replayed_with_its_adapters(adapted: Adapted, tmp_path: Path) -> None:
    run = tale.using(backend=adapted.backend, lora="one").run()
    run.save(tmp_path / "run.json")
    replayed = lmprog.replay(tmp_path / "run.json", backend=adapted.backend)
    assert (replayed.num_calls, replayed.differences) == (1, ())


@lmprog.function
def asking(s: lmprog.Branch) -> tuple[str, str]:
    s.append(TEXT)
    first = s.gen(max_tokens=6, temperature=0).value
    s.append(str(s.pause("go on?")))
    return first, s.gen(max_tokens=6, temperature=0).value


def test_a_checkpoint_is_resumed_only_where_its_adapter_is(
    adapted: Adapted, tmp_path: Path
) -> None:
    file = tmp_path / "run"
    with pytest.raises(lmprog.Paused):
        asking.using(backend=adapted.backend, lora="one", checkpoint=file).run()
    with pytest.raises(
        CheckpointMismatch, match="adapter 'one', and this backend does not have it"
    ):
        lmprog.resume(file, asking, backend=adapted.merged[""], answer=" Yes.")
    with (
        runtime(NANO, lora=(f"one={adapted.folders['two']}",)) as other,
        pytest.raises(CheckpointMismatch, match="'one', and this backend has another one"),
    ):
        lmprog.resume(file, asking, backend=other, answer=" Yes.")
    run = lmprog.resume(file, asking, backend=adapted.backend, answer=" Yes.")
    whole = asking.using(backend=adapted.merged["one"], checkpoint=tmp_path / "whole")
    with pytest.raises(lmprog.Paused):
        whole.run()
    wanted = lmprog.resume(
        tmp_path / "whole", asking, backend=adapted.merged["one"], answer=" Yes."
    )
    assert run.value == wanted.value


def test_a_resumed_run_forks_with_the_adapters_of_before() -> None:
    ops: list[wire.Op] = [
        wire.Open(1, "salt", lora="one"),
        wire.Fork(1, (2, 3), "two"),
        wire.Fork(1, (4,)),
        wire.Close(3),
    ]
    assert needed(ops) == [ops[0], wire.Fork(1, (2,), "two"), wire.Fork(1, (4,))]


def test_a_resumed_run_knows_which_adapter_gave_what(
    adapted: Adapted, tales: dict[str, str], tmp_path: Path
) -> None:
    """The first answer is known, the second one is asked; each of its adapter."""

    @lmprog.function
    def both(s: lmprog.Branch) -> tuple[str, str]:
        s.append(TEXT)
        with s.copy(lora="two") as other:
            first = other.gen(max_tokens=12, temperature=0, heal=False).value
        s.pause("go on?")
        with s.copy(lora="one") as other:
            return first, other.gen(max_tokens=12, temperature=0, heal=False).value

    file = tmp_path / "run"
    with pytest.raises(lmprog.Paused):
        both.using(backend=adapted.backend, checkpoint=file).run()
    run = lmprog.resume(file, both, backend=adapted.backend, answer="yes")
    assert run.value == (tales["two"], tales["one"])


def test_what_is_kept_on_disk_is_an_adapters_own_by_its_content(
    adapted: Adapted, tales: dict[str, str], tmp_path: Path
) -> None:
    """Found after a restart by the adapter that computed it, under whatever name; not by another
    one of that name, and not by the base."""
    one, two = (adapted.folders[name] for name in ("one", "two"))
    disk = {"kv_disk_mb": 64, "kv_disk_folder": str(tmp_path)}

    def said(name: str, **lora: Path) -> tuple[str, bool]:
        given = tuple(f"{name}={path}" for name, path in lora.items())
        with runtime(NANO, lora=given, **disk) as backend:
            run = tale.using(backend=backend, lora=name).run()
            return run.value, run.usage.cached > 0

    assert said("x", x=one) == (tales["one"], False)
    assert said("x", x=two) == (tales["two"], False)
    assert said("", x=one) == (tales[""], False)
    assert said("x", x=one) == (tales["one"], True)
    assert said("other", x=two, other=one) == (tales["one"], True)


def test_services_are_told_to_name_adapters_as_models() -> None:
    with (
        ScriptedApi(lambda _: "x") as api,
        on(api) as backend,
        pytest.raises(NotSupported, match="give its backend model='one'"),
    ):
        tale.using(backend=backend, lora="one").run()
