"""Events of a running runtime, over sockets; nothing of it where it is off."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import zmq

import lmprog
from lmprog.backends.client import RuntimeBackend, describe, flush
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import InvalidParameter
from lmprog.runtime.assembly import assemble
from lmprog.runtime.kv_events.kv_publisher import PublishingChannel
from lmprog.transport import EventSocket, LocalRuntimeChannel
from tests.adapters.peft_files import Made, write_adapter
from tests.kv_events.mirror import Mirror, prefixes_of
from tests.model.small_checkpoint import write_checkpoint
from tests.runtime.runtime_thread import serving

PLACE = "tcp://127.0.0.1:*"
END = b"\xff" * 8


def config(**options: Any) -> RuntimeConfig:
    # little memory: what is cached is evicted while the programs run
    scheduler = SchedulerConfig(page_size=4, num_pages=80, admission="unlimited")
    given = {"model": "dummy:tiny", "threads": 1, "scheduler": scheduler, **options}
    return RuntimeConfig(**given)


class Listener:
    """Subscribes and asks again, as vLLM's consumers do."""

    def __init__(self, events: EventSocket, topic: bytes = b"") -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._live = self._context.socket(zmq.SUB)
        self._live.setsockopt(zmq.SUBSCRIBE, topic)
        self._live.connect(events.address)
        self._replay = self._context.socket(zmq.DEALER)
        assert events.replay_address is not None
        self._replay.connect(events.replay_address)

    def asked(self, first: int) -> list[tuple[bytes, int, bytes]]:
        """All from that number on."""
        self._replay.send_multipart([b"", first.to_bytes(8, "big")])
        found = []
        while True:
            empty, topic, number, payload = self._replay.recv_multipart()
            assert empty == b""
            if number == END:
                assert (topic, payload) == (b"", b"")
                return found
            found.append((topic, int.from_bytes(number, "big"), payload))

    def heard(self) -> tuple[bytes, int, bytes]:
        topic, number, payload = self._live.recv_multipart()
        return topic, int.from_bytes(number, "big"), payload

    def close(self) -> None:
        self._context.destroy(linger=0)


@lmprog.function
def forked(s: lmprog.Branch, start: str, seed: int) -> str:
    s += start
    s += lmprog.gen("first", max_tokens=20, temperature=1.0, seed=seed, ignore_eos=True)
    forks = s.fork(3)
    for index, fork in enumerate(forks):
        fork += f" {index}:"
        fork += lmprog.gen("more", max_tokens=20, temperature=1.0, seed=index, ignore_eos=True)
    return "".join(fork["more"] for fork in forks)


def test_a_routers_mirror_equals_the_tree_after_programs_with_forks_evictions_and_a_flush() -> None:
    channel = LocalRuntimeChannel()
    asked = config(kv_events=PLACE, kv_events_replay=PLACE, kv_events_topic="kv@pod@dummy")
    loop, _ = assemble(asked, channel)
    assert isinstance(loop.channel, PublishingChannel)
    listener, mirror, numbers = Listener(loop.channel.events, b"kv@pod"), Mirror(), []

    def catch_up() -> None:
        for topic, number, payload in listener.asked(len(numbers)):
            assert topic == b"kv@pod@dummy"
            numbers.append(number)
            mirror.take(payload)

    try:
        with serving(loop, channel) as backend:
            for turn in range(3):
                arguments = [{"start": "Once upon a time. " * 2, "seed": n} for n in range(5)]
                forked.run_batch(arguments, backend=backend)
                wait_until_idle(backend)
                catch_up()
                assert mirror.prefixes == prefixes_of(loop.scheduler.tree), turn
            assert loop.scheduler.stats.evicted_pages > 0
            assert mirror.blocks
            flush(backend)
            catch_up()
            assert mirror.prefixes == prefixes_of(loop.scheduler.tree) == set()
            assert numbers == list(range(len(numbers)))
    finally:
        listener.close()
        loop.channel.close()


def test_blocks_of_programs_with_an_adapter_are_told_by_its_name(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model")
    made = Made(2, 4.0, ("q_proj", "v_proj"), strength=0.5, seed=1)
    clerk = write_adapter(model, tmp_path / "clerk", made)
    channel = LocalRuntimeChannel()
    asked = config(
        model=str(model), kv_events=PLACE, kv_events_replay=PLACE, lora=(f"clerk={clerk}",)
    )
    loop, _ = assemble(asked, channel)
    assert isinstance(loop.channel, PublishingChannel)
    listener, mirror = Listener(loop.channel.events), Mirror()
    try:
        with serving(loop, channel) as backend:
            for name in ("clerk", ""):
                forked.using(backend=backend, lora=name).run("abc" * 8, 1)
            wait_until_idle(backend)
            for _, _, payload in listener.asked(0):
                mirror.take(payload)
    finally:
        listener.close()
        loop.channel.close()
    told = [mirror.adapters[block] for block in mirror.blocks]
    assert set(told) == {"clerk", None}
    own = {mirror.blocks[block] for block in mirror.blocks if mirror.adapters[block]}
    assert all(set(keys) == {"clerk"} for keys, _ in own), "a name in each block, and no salt"


def wait_until_idle(backend: RuntimeBackend) -> None:
    """Until the branches of programs that ended are closed; the last answer comes a turn later."""
    while any(describe(backend)[name] for name in ("open_branches", "running", "waiting")):
        time.sleep(0.02)
    describe(backend)


def test_listeners_hear_what_is_published_and_those_who_come_too_late_for_a_replay_get_all() -> (
    None
):
    events = EventSocket(PLACE, PLACE, "topic")
    listener = Listener(events)
    answers: list[list[tuple[bytes, int, bytes]]] = []
    try:
        live: tuple[bytes, int, bytes] | None = None
        sent = 0
        while live is None or sent < 2:  # a subscription takes a moment
            events.publish(b"x" * 100)
            sent += 1
            if listener._live.poll(10):
                live = listener.heard()
        assert (live[0], live[2]) == (b"topic", b"x" * 100)
        assert live[1] < sent
        for first, wanted in ((sent - 1, [(b"topic", sent - 1, b"x" * 100)]), (sent, [])):
            asking = threading.Thread(target=lambda at=first: answers.append(listener.asked(at)))
            asking.start()
            serve_until_ended(events, asking)
            assert answers.pop() == wanted
        events._kept.popleft()
        asking = threading.Thread(target=lambda: answers.append(listener.asked(0)))
        asking.start()
        serve_until_ended(events, asking)
        assert answers.pop() == [(b"topic", sent - 1, b"everything")]
    finally:
        listener.close()
        events.close()


def listening(context: zmq.Context[zmq.Socket[bytes]], port: int) -> zmq.Socket[bytes]:
    """A router at that port, once whoever was there has let go of it, which ZeroMQ does later."""
    while True:
        router = context.socket(zmq.SUB)
        router.setsockopt(zmq.SUBSCRIBE, b"pod")
        try:
            router.bind(f"tcp://127.0.0.1:{port}")
        except zmq.ZMQError as error:
            router.close(0)
            if error.errno != zmq.EADDRINUSE:
                raise
            time.sleep(0.01)
        else:
            return router


def test_a_router_that_listens_is_connected_to_also_when_it_comes_later_and_again() -> None:
    with zmq.Context() as context:
        probe = context.socket(zmq.SUB)
        port = probe.bind_to_random_port("tcp://127.0.0.1")
        probe.close(0)
        events = EventSocket(f"tcp://127.0.0.1:{port}", PLACE, "pod", connects=True)
        try:
            for _ in range(2):
                router = listening(context, port)
                sent: list[bytes] = []
                while not router.poll(10):
                    sent.append(b"%d" % len(sent))
                    events.publish(sent[-1])
                topic, _, payload = router.recv_multipart()
                assert topic == b"pod"
                assert payload in sent
                router.close(0)
        finally:
            events.close()


def serve_until_ended(events: EventSocket, asking: threading.Thread) -> None:
    while asking.is_alive():
        events.serve_replays(lambda: b"everything")
        time.sleep(0.005)
    asking.join()


def test_nothing_is_made_and_nothing_is_called_where_no_events_are_asked_for() -> None:
    channel = LocalRuntimeChannel()
    loop, _ = assemble(config(), channel)
    assert loop.channel is channel
    assert loop.scheduler.tree.watcher is None
    channel.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kv_events": "tcp://0.0.0.0:*"}, "kv_events_open allows"),
        ({"kv_events": "http://127.0.0.1:80"}, "unknown scheme"),
        ({"kv_events_replay": PLACE}, "kv_events_replay is for kv_events"),
        ({"kv_events_topic": "kv@a@b"}, "kv_events_topic is for kv_events"),
        ({"kv_events_open": True}, "kv_events_open is for kv_events"),
        ({"kv_events_connect": True}, "kv_events_connect is for kv_events"),
        ({"kv_events": "tcp://10.0.0.9:1", "kv_events_connect": True}, "kv_events_open allows"),
    ],
)
def test_events_that_cannot_be_published_as_asked_are_refused_at_the_start(
    options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidParameter, match=reason):
        assemble(config(**options), LocalRuntimeChannel())


def test_events_of_a_cache_that_is_off_are_refused() -> None:
    off = RuntimeConfig(model="dummy:tiny", kv_events=PLACE, scheduler=SchedulerConfig(share=False))
    with pytest.raises(InvalidParameter, match="share = False"):
        assemble(off, LocalRuntimeChannel())


def test_addresses_of_other_machines_are_for_those_who_say_so() -> None:
    events = EventSocket("tcp://0.0.0.0:*", None, "", is_open=True)
    assert events.address.startswith("tcp://0.0.0.0:")
    events.close()
