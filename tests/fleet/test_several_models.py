"""A fleet of several models: one for each name that its replicas serve, and each for itself."""

from __future__ import annotations

import logging
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import lmprog
from lmprog import wire
from lmprog.backends.client import RuntimeBackend
from lmprog.backends.connecting.fleet_backend import Fleet
from lmprog.config import RuntimeConfig
from lmprog.config_check import check_options
from lmprog.errors import InvalidParameter, LmprogError, RuntimeGone, UnknownName
from lmprog.fleet import model_lines, router
from lmprog.fleet.members import FORGET_SECONDS
from lmprog.fleet.model_lines import ModelLines
from lmprog.native import compiler
from tests.fleet.replicas import WELCOME
from tests.fleet.test_one_model import (
    PATIENCE,
    Places,
    Replica,
    adapter,
    outcomes,
    story,
    until,
)
from tests.model.small_checkpoint import write_checkpoint

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two models that differ in their weights."""
    one, other = (write_checkpoint(tmp_path / str(at) / "model", seed=at) for at in range(2))
    return one, other


class Several(Fleet):
    """A fleet of replicas in threads."""

    def __init__(self, **replicas: Replica) -> None:
        self.places = Places(dict(replicas))
        super().__init__(members=self.places)
        until(lambda: len(self.channel.replicas()) == len(replicas))

    @property
    def there(self) -> dict[str, str]:
        """Which replica serves what."""
        return {one.name: one.served_name for one in self.channel.replicas()}


def small(folder: Path, **more: Any) -> Replica:
    return Replica(folder, served_model_name="small", **more)


def large(folder: Path, **more: Any) -> Replica:
    return Replica(folder, served_model_name="large", **more)


def of(folder: Path) -> dict[int, str | LmprogError]:
    """What the model of this folder says by itself."""
    replica = Replica(folder)
    with RuntimeBackend(replica.dial()) as backend:
        found = outcomes(backend)
    replica.die()
    return found


def test_programs_of_two_models_run_at_once_and_each_has_its_own(
    folders: tuple[Path, Path],
) -> None:
    expected = [of(one) for one in folders]
    assert expected[0] != expected[1]
    with Several(a=small(folders[0]), b=large(folders[1]), c=large(folders[1])) as fleet:
        assert list(fleet.models) == ["small", "large"]
        found: dict[str, Any] = {}
        asking = [
            threading.Thread(target=lambda name=name, at=at: found.update({name: outcomes(at)}))
            for name, at in (("none", fleet), ("small", fleet["small"]), ("large", fleet["large"]))
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(PATIENCE)
        assert found == {"none": expected[0], "small": expected[0], "large": expected[1]}
        assert fleet["large"] is fleet["large"]
        assert fleet["large"].client.welcome.served_name == "large"


def test_a_name_that_nobody_serves_is_an_error_that_lists_those_served(
    folders: tuple[Path, Path],
) -> None:
    with Several(a=small(folders[0]), b=large(folders[1])) as fleet:
        with pytest.raises(UnknownName, match="no model 'tiny' here; served: 'small', 'large'"):
            fleet["tiny"]
        with closing(fleet.places.replicas["a"].dial()) as connection:  # nor by a runtime itself
            connection.send([wire.Open(1, served_name="large"), wire.Read(1, 2)])
            (reply,) = connection.receive(PATIENCE)
        assert getattr(reply, "code", "done") == "unknown_name"


def test_forks_appends_and_references_stay_with_the_model_of_their_program(
    folders: tuple[Path, Path],
) -> None:
    """A program may ask another model on the way; what that says is text here."""

    @lmprog.function
    def told(s: lmprog.Branch, other: Any = None) -> tuple[str, ...]:
        s += "A tale: "
        one, two = s.fork(2)
        for at, branch in enumerate((one, two)):
            branch += f"{at}: "
            branch += lmprog.gen("x", max_tokens=6, temperature=0, ignore_eos=True)
        s += one["x"] + two["x"]
        s += lmprog.gen("end", max_tokens=6, temperature=0, ignore_eos=True)
        (aside,) = s.fork(1, backend=other)
        more = aside.gen(max_tokens=6, temperature=0, ignore_eos=True)
        return str(one["x"]), str(two["x"]), str(s["end"]), str(more)

    with Several(a=small(folders[0]), b=large(folders[1]), c=small(folders[0])) as fleet:
        first, second = (told.run(backend=fleet[name]).value for name in ("small", "large"))
        alone = {}
        for name, at in (("small", "a"), ("large", "b")):
            with RuntimeBackend(fleet.places.replicas[at].dial()) as backend:
                alone[name] = told.run(backend=backend).value
        assert {"small": first, "large": second} == alone
        assert first != second
        mixed = told.run(fleet["large"], backend=fleet["small"]).value
        assert mixed[:3] == first[:3]
        assert mixed[3] != first[3]


def test_the_last_replica_of_a_model_dies_and_the_others_go_on(
    folders: tuple[Path, Path],
) -> None:
    """It comes back with other weights: an error for its own programs, and for nobody else."""
    expected = [of(one) for one in folders]
    with Several(a=small(folders[0]), b=large(folders[1])) as fleet:
        found: dict[str, Any] = {}

        def die() -> None:
            fleet.places.put("b", large(folders[0]))
            until(lambda: fleet.channel.is_stranded)
            found["small"] = outcomes(fleet["small"])

        with pytest.raises(RuntimeGone, match=r"began with to serve 'large'.*b: weights \("):
            story.run(1, die, backend=fleet["large"])
        assert found["small"] == expected[0]
        with pytest.raises(RuntimeGone, match="to serve 'large'"):
            story.run(1, backend=fleet["large"])
        assert fleet.there == {"a": "small"}
        fleet.places.put("b", large(folders[1]))
        until(lambda: len(fleet.channel.replicas()) == 2)
        assert outcomes(fleet["large"]) == expected[1]


def test_a_model_that_was_replaced_begins_anew_while_others_serve(
    folders: tuple[Path, Path],
) -> None:
    expected = of(folders[0])
    with Several(a=small(folders[0]), b=large(folders[1])) as fleet:
        found: dict[str, Any] = {}

        def replace() -> None:
            fleet.places.put("b", large(folders[0]))
            until(lambda: fleet.channel.is_stranded)
            fleet.channel.begin_anew()
            until(lambda: "b" in fleet.there)
            found["large"] = outcomes(fleet["large"])

        assert story.run(1, replace, backend=fleet["small"]).value == expected[1]
        assert found["large"] == expected


def test_wrong_weights_under_a_served_name_are_refused_and_another_name_is_not(
    folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    with Several(a=small(folders[0]), b=large(folders[1])) as fleet:
        fleet.places.put("wrong", small(folders[1]))
        until(lambda: fleet.channel.refused)
        assert fleet.channel.refused["wrong"].startswith("weights (")
        assert "another model than a, with which this fleet began to serve 'small'" in caplog.text
        assert fleet.there == {"a": "small", "b": "large"}
        with pytest.raises(InvalidParameter, match="have one model called 'small', and wrong has"):
            fleet.channel.check_models()
        fleet.places.put("wrong", Replica(folders[1], served_model_name="third"))
        until(lambda: "wrong" in fleet.there)
        assert fleet.channel.refused == {}
        assert list(fleet.models) == ["small", "large", "third"]


def test_one_model_is_updated_while_another_serves(folders: tuple[Path, Path]) -> None:
    """Programs that have begun end with the model that they have."""
    expected = [of(one) for one in folders]
    with Several(a=small(folders[0]), b=large(folders[0])) as fleet:
        seen: list[object] = []

        def update() -> None:
            fleet.places.put("c", large(folders[1], generation=1))
            until(lambda: "c" in fleet.there)
            seen.append(story.run(1, backend=fleet["large"]).value)
            seen.append(story.run(2, backend=fleet["small"]).value)

        assert story.run(0, update, backend=fleet["large"]).value == expected[0][0]
        assert seen == [expected[1][1], expected[0][2]]
        fleet.places.put("d", small(folders[1]))
        until(lambda: fleet.channel.refused)
        assert fleet.channel.refused["d"].startswith("weights ("), "only the other was updated"


def test_tokens_are_those_of_the_model_that_is_named(tmp_path: Path) -> None:
    one = write_checkpoint(tmp_path / "one")
    other = write_checkpoint(tmp_path / "other", swapped="ab")
    with Several(a=small(one), b=large(other)) as fleet:
        found = []
        for name in ("", "small", "large"):
            encode = wire.Encode(fleet.client.number(), "ab", served_name=name)
            call = fleet.client.call(encode)  # type: ignore[arg-type]
            reply = call.wait(PATIENCE)
            assert isinstance(reply, wire.TokensAre)
            found.append(reply.tokens)
        assert found[0] == found[1] == found[2][::-1]


def test_each_model_has_its_own_adapters(folders: tuple[Path, Path], tmp_path: Path) -> None:
    options = adapter(folders[0], tmp_path / "clerk", 1)
    with Several(a=small(folders[0]), b=large(folders[1], **options)) as fleet:
        asked = story.using(lora="clerk")
        with pytest.raises(UnknownName, match="clerk"):
            asked.run(1, backend=fleet["small"])
        plain = story.run(1, backend=fleet["large"]).value
        assert asked.run(1, backend=fleet["large"]).value != plain


def test_programs_without_a_name_get_the_first_members_model_whoever_answered_first() -> None:
    lines = ModelLines()
    for member, name in (("b", "large"), ("a", "small")):
        assert lines.admits(member, welcome(name))
    assert lines.default == "large"
    lines.prefer(["gone", "a", "b"])
    assert lines.default == "small"
    assert list(lines.firsts) == ["small", "large"]


def test_either_each_runtime_of_a_fleet_has_a_name_or_none_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for first, second, says in (
        ("", "large", "name (large instead of none)"),
        ("small", "", "name (none instead of small)"),
    ):
        lines = ModelLines()
        with caplog.at_level(logging.ERROR):
            assert lines.admits("a", welcome(first))
            assert not lines.admits("b", welcome(second))
        assert lines.refused == {"b": says}
        assert lines.stranded({"b"}, set(), 1) == [first]
        lines.open(first)
        assert lines.admits("b", welcome(second)), "nobody is left that has the other"
        assert list(lines.firsts) == [second] == [lines.default]


def welcome(name: str) -> wire.Welcome:
    return msgspec.structs.replace(WELCOME, served_name=name)


def test_a_served_name_is_no_longer_than_messages_have_room_for() -> None:
    check_options(RuntimeConfig(served_model_name="x" * 256))
    with pytest.raises(InvalidParameter, match="must be at most 256 characters"):
        check_options(RuntimeConfig(served_model_name="x" * 257))


def test_a_name_that_no_member_has_any_more_is_forgotten_after_a_while() -> None:
    """A member that is there and does not answer is waited for, and so is the default."""
    lines = ModelLines()
    for member, name in (("a", "small"), ("b", "large"), ("c", "large")):
        assert lines.admits(member, welcome(name))
    assert lines.forget({"b"}, 1.0) == lines.forget({"b"}, 1.0 + 9 * FORGET_SECONDS) == []
    assert lines.forget({"a"}, 1000.0) == lines.forget({"a", "c"}, 1020.0) == []
    assert lines.forget({"a"}, 1040.0) == lines.forget({"a"}, 1040.0 + FORGET_SECONDS) == []
    assert lines.forget({"a"}, 1041.0 + FORGET_SECONDS) == ["large"]
    assert list(lines.firsts) == ["small"]
    assert lines.admits("d", welcome("large")), "it may come back"


def test_programs_of_a_name_that_is_forgotten_fail_and_others_go_on(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_lines, "FORGET_SECONDS", 0.0)
    with Several(a=small(folders[0]), b=large(folders[1])) as fleet:
        expected = story.run(1, backend=fleet["small"]).value

        def leave() -> None:
            fleet.places.replicas.pop("b").die()
            until(lambda: fleet.models == ["small"])

        gone = fleet["large"]
        with pytest.raises(RuntimeGone, match="nobody serves 'large' any more"):
            story.run(1, leave, backend=gone)
        with pytest.raises(UnknownName, match="no model 'large' here; served: 'small'"):
            story.run(1, backend=gone)
        assert story.run(1, backend=fleet["small"]).value == expected


def test_a_model_that_sleeps_is_woken_by_who_asks_for_it_and_by_nobody_else(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps its name meanwhile, and is waited for longer than one that is gone."""
    monkeypatch.setattr(model_lines, "FORGET_SECONDS", 0.0)
    monkeypatch.setattr(router, "HOMELESS_SECONDS", 0.0)
    with Several(a=small(folders[0]), b=large(folders[1])) as fleet:
        before = {name: story.run(1, backend=fleet[name]).value for name in ("small", "large")}
        woken = threading.Event()
        fleet.places.sleepers["b"] = woken.set
        fleet.places.replicas.pop("b").die()
        until(lambda: fleet.there == {"a": "small"} and fleet.channel.is_asleep)
        assert story.run(1, backend=fleet["small"]).value == before["small"]
        assert list(fleet.models) == ["small", "large"]
        assert not woken.is_set()
        found: list[object] = []
        asking = threading.Thread(
            target=lambda: found.append(story.run(1, backend=fleet["large"]).value)
        )
        asking.start()
        assert woken.wait(PATIENCE)
        looks = fleet.channel._now
        until(lambda: fleet.channel._now > looks + 0.5)  # in which it is given up by nobody
        fleet.places.put("c", large(folders[1]))
        asking.join(PATIENCE)
        assert found == [before["large"]]


def test_one_that_sleeps_and_has_never_answered_is_woken_by_whoever_waits(
    folders: tuple[Path, Path],
) -> None:
    with Several(a=small(folders[0])) as fleet:
        woken = threading.Event()
        fleet.places.sleepers["unknown"] = woken.set
        fleet.places.replicas.pop("a").die()
        until(lambda: not fleet.there and fleet.channel.is_asleep)
        fleet.client.call(wire.Encode(fleet.client.number(), "ab"))  # type: ignore[arg-type]
        assert woken.wait(PATIENCE)


def test_who_asks_for_tokens_wakes_their_model(folders: tuple[Path, Path]) -> None:
    with Several(a=small(folders[0]), b=large(folders[1])) as fleet:
        woken = threading.Event()
        fleet.places.sleepers["b"] = woken.set
        fleet.places.replicas.pop("b").die()
        until(lambda: fleet.there == {"a": "small"} and fleet.channel.is_asleep)
        encode = wire.Encode(fleet.client.number(), "ab", served_name="large")
        fleet.client.call(encode)  # type: ignore[arg-type]
        assert woken.wait(PATIENCE)
