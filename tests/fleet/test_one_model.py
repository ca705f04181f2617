"""All replicas of a fleet have one model: others are refused by name, and no program goes on with
another model than the one that it began with.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lmprog
from lmprog import wire
from lmprog.backends.client import RuntimeBackend, describe
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import CheckpointMismatch, InvalidParameter, LmprogError, RuntimeGone
from lmprog.fleet.fleet_channel import FleetChannel
from lmprog.fleet.local_members import LocalMembers
from lmprog.fleet.members import Member
from lmprog.launch import RuntimeProcess, greet
from lmprog.launch.restarts import DelayLimits
from lmprog.native import compiler
from lmprog.runtime.assembly import assemble
from lmprog.transport import LocalRuntimeChannel
from tests.adapters.peft_files import Made, write_adapter
from tests.model.small_checkpoint import TEMPLATE, write_checkpoint
from tests.runtime.runtime_thread import RuntimeThread

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

PATIENCE = 60.0


def until(happens: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Replica:
    """A runtime in a thread; `die` ends it as a killed process would."""

    def __init__(self, folder: Path | str, **options: Any) -> None:
        self._channel = LocalRuntimeChannel()
        given = {"threads": 1, "scheduler": SchedulerConfig(num_pages=64), **options}
        loop, self.welcome = assemble(RuntimeConfig(str(folder), **given), self._channel)
        self._thread = RuntimeThread(loop, self._channel)

    def dial(self) -> Any:
        return greet(self._channel.connect())

    def die(self) -> None:
        self._thread.end()


@dataclass
class Places:
    """Members at fixed places, whose replicas may be replaced."""

    replicas: dict[str, Replica] = field(default_factory=dict)
    gone: list[Replica] = field(default_factory=list)
    sleepers: dict[str, Callable[[], None]] = field(default_factory=dict)
    """What wakes those that sleep."""

    @property
    def size(self) -> int:
        return len(self.replicas)

    def current(self) -> Sequence[Member]:
        return [
            Member(name, functools.partial(self._dial, name), wake=self.sleepers.get(name))
            for name in sorted({*self.replicas, *self.sleepers})
        ]

    def _dial(self, name: str) -> Any:
        assert name not in self.sleepers, "it sleeps"
        return self.replicas[name].dial()

    def put(self, name: str, replica: Replica) -> None:
        """In the place of the one that was there, which dies."""
        before = self.replicas.get(name)
        self.replicas[name] = replica
        if before is not None:
            before.die()
            self.gone.append(before)

    def end(self, name: str, why: str, grace: float) -> None:
        """It belongs to the test."""

    def close(self, grace: float) -> bool:
        for replica in self.replicas.values():
            replica.die()
        return True


@contextmanager
def fleet(**replicas: Replica) -> Iterator[tuple[RuntimeBackend, FleetChannel, Places]]:
    places = Places(dict(replicas))
    channel = FleetChannel(places)
    with RuntimeBackend(channel) as backend:
        yield backend, channel, places


def nothing() -> None:
    """In the middle of a program that nobody disturbs."""


@lmprog.function
def story(s: lmprog.Branch, seed: int, between: Callable[[], object] = nothing) -> str:
    s += f"Story {seed}: "
    for part in "abcd":
        s += lmprog.gen(
            part, max_tokens=12, temperature=1.0, seed=seed, ignore_eos=True, heal=False
        )
        s += "."
        if part == "c":  # which may be on its way still, while the first two are known
            assert s["a"]
            assert s["b"]
            between()
    return "/".join(s[part] for part in "abcd")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model")


def adapter(folder: Path, at: Path, seed: int) -> dict[str, Any]:
    made = Made(2, 4.0, ("q_proj", "v_proj"), strength=0.5, seed=seed)
    return {"lora": (f"clerk={write_adapter(folder, at, made)}",)}


OTHERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "weights": ("weights", {"seed": 1}, {}),
    "shape": ("config", {"rms_norm_eps": 1e-4}, {}),
    "rope": ("rope", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, {}),
    "tokenizer": ("tokenizer", {"swapped": "ab"}, {}),
    "template": ("template", {"template": TEMPLATE.upper().replace("M", "m")}, {}),
    "context": ("context", {}, {"context_len": 512}),
    "dtype": ("weight type", {}, {"dtype": "bfloat16", "kv_dtype": "float32"}),
    "quantization": ("weight type", {}, {"quantize": "int8"}),
    "keys and values": ("kv type", {}, {"kv_dtype": "bfloat16"}),
    "engine": ("engine", {}, {"engine": "torch"}),
}


@pytest.mark.parametrize(("part", "made", "options"), OTHERS.values(), ids=list(OTHERS))
def test_a_replica_with_another_model_under_one_name_is_refused_and_told_why(
    part: str,
    made: dict[str, Any],
    options: dict[str, Any],
    folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = Replica(folder)
    shutil.rmtree(folder)
    with fleet(first=first) as (backend, channel, places):
        alone = story.run(1, backend=backend).value
        places.put("second", Replica(write_checkpoint(folder, **made), **options))
        until(lambda: channel.refused)
        (difference,) = channel.refused.values()
        assert [one.split(" (")[0] for one in difference.split(", ")] == [part]
        assert "replica second is refused, since it has another model than first" in caplog.text
        assert [one.name for one in channel.replicas()] == ["first"]
        assert story.run(1, backend=backend).value == alone
        assert not channel.is_stranded
    assert caplog.text.count("is refused") == 1, "told once, however often it is tried"


def test_a_replica_with_another_adapter_under_one_name_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    first = Replica(folder, **adapter(folder, tmp_path / "one", 1))
    with fleet(first=first) as (_, channel, places):
        places.put("second", Replica(folder, **adapter(folder, tmp_path / "two", 2)))
        places.put("third", Replica(folder))
        places.put("fourth", Replica(folder, **adapter(folder, tmp_path / "copy", 1)))
        until(lambda: len(channel.refused) == 2 and len(channel.replicas()) == 2)
        assert channel.refused["second"].startswith("adapter clerk (")
        assert channel.refused["third"].startswith("adapter clerk (none instead of ")
        assert [one.name for one in channel.replicas()] == ["first", "fourth"]


def test_the_same_model_in_another_place_joins(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    with fleet(first=Replica(folder)) as (_, channel, places):
        places.put("second", Replica(tmp_path / "copy"))
        until(lambda: len(channel.replicas()) == 2)
        assert channel.refused == {}


def outcomes(
    backend: RuntimeBackend, between: Callable[[], None] = nothing
) -> dict[int, str | LmprogError]:
    """Eight stories at a time, or why there is none. `between` is called once all are in their
    middle, so that it finds each of them unfinished.
    """
    found: dict[int, str | LmprogError] = {}
    middle = threading.Barrier(8, between, PATIENCE)

    def tell(seed: int) -> None:
        try:
            found[seed] = story.run(seed, middle.wait, backend=backend).value
        except LmprogError as error:
            found[seed] = error

    threads = [threading.Thread(target=tell, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return found


def busiest(channel: FleetChannel) -> str:
    loads = channel.loads
    return max(loads, key=lambda name: loads[name])


def test_no_program_is_of_two_models_when_a_replaced_replica_comes_back(
    folder: Path, tmp_path: Path
) -> None:
    expected, other = outcomes_of(folder), Replica(write_checkpoint(tmp_path / "other", seed=1))
    with fleet(one=Replica(folder), two=Replica(folder)) as (backend, channel, places):
        until(lambda: len(channel.replicas()) == 2)
        replaced: list[str] = []

        def replace() -> None:
            replaced.append(busiest(channel))
            places.put(replaced[0], other)

        assert outcomes(backend, replace) == expected
        assert channel.num_moved > 0
        until(lambda: list(channel.refused) == replaced)


def test_a_program_whose_model_is_gone_fails_and_says_so(folder: Path, tmp_path: Path) -> None:
    """Its only replica comes back with other weights: nobody is left who could go on."""
    other = write_checkpoint(tmp_path / "other" / "model", seed=1)
    with fleet(one=Replica(folder)) as (backend, channel, places):
        expected = story.run(1, backend=backend).value

        def replace() -> None:
            places.put("one", Replica(other))
            until(lambda: channel.is_stranded)

        says = r"no replica is left with the model that this fleet began with.*one: weights \("
        with pytest.raises(RuntimeGone, match=says):
            story.run(1, replace, backend=backend)
        with pytest.raises(RuntimeGone, match=says):  # nor does a new one wait for nobody
            story.run(1, backend=backend)
        with pytest.raises(RuntimeGone, match=says):
            describe(backend)
        places.put("one", Replica(folder))
        until(lambda: channel.replicas())
        assert not channel.is_stranded
        assert story.run(1, backend=backend).value == expected


def test_a_program_that_waits_for_a_replica_fails_when_only_others_are_there(
    folder: Path, tmp_path: Path
) -> None:
    other = Replica(write_checkpoint(tmp_path / "other" / "model", seed=1))
    first = Replica(folder)
    with fleet(one=first) as (backend, channel, places):

        def replace_later() -> None:
            until(lambda: channel._router._homeless)
            places.put("one", other)

        later = threading.Thread(target=replace_later)

        def end_first() -> None:
            first.die()
            until(lambda: not channel.replicas())
            later.start()

        with pytest.raises(RuntimeGone, match="no replica is left with the model"):
            story.run(1, end_first, backend=backend)
        later.join()


def test_a_fleet_that_begins_anew_takes_the_next_model_and_no_old_program(
    folder: Path, tmp_path: Path
) -> None:
    other = write_checkpoint(tmp_path / "other" / "model", seed=1)
    expected = outcomes_of(other)
    with fleet(one=Replica(folder)) as (backend, channel, places):

        def replace() -> None:
            places.put("one", Replica(other))
            until(lambda: channel.is_stranded)
            channel.begin_anew()
            until(lambda: channel.replicas())

        with pytest.raises(RuntimeGone, match="the fleet's model was replaced"):
            story.run(1, replace, backend=backend)
        assert outcomes(backend) == expected
        assert channel.refused == {}


def test_a_later_generation_gets_new_programs_and_old_ones_end_with_their_model(
    folder: Path, tmp_path: Path
) -> None:
    later = write_checkpoint(tmp_path / "later" / "model", seed=1)
    of_later = outcomes_of(later)
    with fleet(one=Replica(folder)) as (backend, channel, places):
        of_first = outcomes(backend)
        began: list[str] = []

        def update() -> None:
            places.put("two", Replica(later, generation=1))
            until(lambda: len(channel.replicas()) == 2)
            began.append(story.run(1, backend=backend).value)

        assert story.run(0, update, backend=backend).value == of_first[0]
        assert began == [of_later[1]]
        assert [one.generation for one in channel.replicas()] == [0, 1]
        assert channel.refused == {}
        places.put("three", Replica(folder))
        until(lambda: channel.refused)
        assert channel.refused["three"].startswith("weights ("), "it is of an earlier generation"
        assert outcomes(backend) == of_later


def test_a_program_whose_last_replica_of_its_generation_dies_fails_and_says_so(
    folder: Path, tmp_path: Path
) -> None:
    later = write_checkpoint(tmp_path / "later" / "model", seed=1)
    with fleet(one=Replica(folder)) as (backend, channel, places):

        def update() -> None:
            places.put("two", Replica(later, generation=1))
            until(lambda: len(channel.replicas()) == 2)
            places.put("one", Replica(later, generation=1))
            until(lambda: [one.generation for one in channel.replicas()] == [1, 1])

        with pytest.raises(RuntimeGone, match="model was replaced"):
            story.run(0, update, backend=backend)
        assert story.run(1, backend=backend).value


def test_who_names_its_model_gets_that_one_or_an_error(folder: Path) -> None:
    replica = Replica(folder)
    said = []
    for model in (replica.welcome.digest, "of another"):
        with closing(replica.dial()) as connection:
            connection.send([wire.Open(1, model=model), wire.Read(1, 2)])
            (reply,) = connection.receive(PATIENCE)
            said.append(getattr(reply, "code", "done"))
    replica.die()
    assert said == ["done", "runtime_gone"]


def outcomes_of(folder: Path) -> dict[int, str | LmprogError]:
    """Of a single replica."""
    with fleet(only=Replica(folder)) as (backend, _, _):
        return outcomes(backend)


# --- real processes -------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {"threads": 1, "num_pages": 64}


def test_addresses_of_two_models_are_refused_at_once(folder: Path, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "other" / "model", seed=1)
    with (
        lmprog.Runtime(str(folder), **OPTIONS) as one,
        lmprog.Runtime(str(other), **OPTIONS) as two,
        pytest.raises(InvalidParameter, match=r"have one model, and .* has another .*weights \("),
    ):
        lmprog.Fleet([one.address, two.address])


def test_a_model_folder_that_is_replaced_mixes_no_program(folder: Path, tmp_path: Path) -> None:
    """Real processes: one replica dies and is started again on other weights of the same name."""
    expected, killed = outcomes_of(folder), []
    shutil.copytree(folder, tmp_path / "old")
    members = LocalMembers(
        lambda generation: RuntimeProcess(str(folder), **OPTIONS), 2, delays=DelayLimits(first=0.2)
    )
    members.until_started()
    channel = FleetChannel(members)
    with RuntimeBackend(channel) as backend:
        assert channel.wait_for(2, PATIENCE)

        def replace() -> None:
            shutil.rmtree(folder)
            write_checkpoint(folder, seed=1)
            killed.append(busiest(channel))
            os.kill(members.processes[killed[0]].pid, signal.SIGKILL)

        assert outcomes(backend, replace) == expected
        assert channel.num_moved > 0
        until(lambda: list(channel.refused) == killed)
        assert channel.refused[killed[0]].startswith("weights (")
        assert outcomes(backend) == expected
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "old", folder)
        until(lambda: len(channel.replicas()) == 2)  # it was ended, and started again
        assert channel.refused == {}


@lmprog.function
def halves(s: lmprog.Branch) -> str:
    s += "It begins: "
    s += lmprog.gen("first", max_tokens=8, ignore_eos=True)
    first = str(s["first"])
    s.pause("Go on?")
    s += lmprog.gen("second", max_tokens=8, ignore_eos=True)
    return first + str(s["second"])


def test_a_stopped_run_goes_on_with_its_own_model_only(folder: Path, tmp_path: Path) -> None:
    """In whatever type, and wherever its folder is now; another one of its name is refused."""
    path = tmp_path / "run.jsonl"
    another = write_checkpoint(tmp_path / "elsewhere" / folder.name, seed=1)
    there = Path(shutil.copytree(folder, tmp_path / "moved" / folder.name))
    with fleet(a=Replica(folder)) as (backend, _, _), pytest.raises(lmprog.Paused):
        halves.using(backend=backend, checkpoint=path).run()
    with (
        fleet(a=Replica(another)) as (backend, _, _),
        pytest.raises(CheckpointMismatch, match=r"the model .* has another weights now;"),
    ):
        lmprog.resume(path, halves, backend=backend, answer="yes")
    with fleet(a=Replica(there, kv_dtype="bfloat16")) as (backend, _, _):
        assert lmprog.resume(path, halves, backend=backend, answer="yes").value


def test_what_is_no_address_is_refused_with_a_sentence() -> None:
    with pytest.raises(InvalidParameter, match="'nano' has an unknown scheme; use ipc://PATH or"):
        lmprog.Fleet(["nano", "nano"])
    with pytest.raises(InvalidParameter, match="addresses is a list; write"):
        lmprog.Fleet("tcp://127.0.0.1:7000")
    with pytest.raises(InvalidParameter, match="is there twice"):
        lmprog.Fleet(["tcp://127.0.0.1:7000", "tcp://127.0.0.1:7000"])
    with pytest.raises(InvalidParameter, match="can be reached from other machines"):
        lmprog.Fleet(["tcp://10.0.0.1:7000"])
