"""Fleets before the same replicas, which know nothing of each other but what replicas pass on."""

from __future__ import annotations

import random
from collections.abc import Callable

from lmprog import wire
from lmprog.fleet.placement import BLOCK, keys_of
from lmprog.fleet.router import Router
from lmprog.runtime.programs.clients import PrefixNews

REPLICAS = ("replica-0", "replica-1", "replica-2")
WELCOME = wire.Welcome(wire.PROTOCOL_VERSION, "fake", 200, 64, 16, 1200, 1)
"""Of replicas that forget nothing of what is sent here, and are soon unequally full."""


class Gateways:
    """Routers that share replicas. A replica passes on what it is told, as the runtime does, and
    computes nothing.
    """

    def __init__(self, count: int, passes_on: bool = True) -> None:
        self.routers = [Router(random.Random(number)) for number in range(count)]
        self._passes_on = passes_on
        self._news = {name: PrefixNews(self._deliver_from(name)) for name in REPLICAS}
        self._next = 0
        for router in self.routers:
            for name in REPLICAS:
                router.join(name, WELCOME, slots=8)
        self._pass_on()

    def _deliver_from(self, name: str) -> Callable[[bytes, wire.Reply], None]:
        return lambda client, reply: self.routers[client[0]].take_replies(name, [reply])

    def _pass_on(self) -> None:
        for number, router in enumerate(self.routers):
            while router.outgoing:
                name, ops = router.outgoing.popleft()
                for op in ops:
                    if isinstance(op, wire.AwaitPrefixes) and self._passes_on:
                        self._news[name].answer(bytes([number]), op.call)
                    elif isinstance(op, wire.SharePrefix):
                        self._news[name].share(bytes([number]), op.keys)

    def home(self, gateway: int, text: str) -> str:
        """Where that gateway leads a program with this text; the program ends at once."""
        self._next += 10
        branch, router = self._next, self.routers[gateway]
        text_piece = wire.TextPiece(text)
        router.take_ops([wire.Open(branch), wire.Append(branch, (text_piece,))])
        router.take_ops([wire.Generate(branch, branch + 1)])
        home = router._branches[branch].home
        assert home is not None
        router.take_ops([wire.Close(branch)])
        router.take_replies(home.name, [wire.Failed(branch + 1, "cancelled", "closed")])
        assert not any(router.loads.values())
        self._pass_on()
        return home.name


def homes_differ(gateways: Gateways) -> int:
    """Of 60 families of prompts, how many have two homes."""
    draw = random.Random(3)
    families = ["".join(draw.choices("abcdefgh ", k=8 * BLOCK)) for _ in range(60)]
    homes: dict[str, set[str]] = {family: set() for family in families}
    for _ in range(4):
        draw.shuffle(families)
        for family in families:
            homes[family].add(gateways.home(draw.randrange(3), family + str(draw.random())))
    return sum(len(found) > 1 for found in homes.values())


def test_gateways_lead_a_prefix_to_where_another_one_has_sent_it() -> None:
    assert homes_differ(Gateways(3)) == 0
    assert homes_differ(Gateways(3, passes_on=False)) > 10, "by themselves they do not agree"


def test_a_gateway_that_comes_later_learns_from_the_programs_that_come() -> None:
    gateways = Gateways(2)
    text = "a" * 6 * BLOCK
    home = gateways.home(0, text)
    late = Router(random.Random(9))
    gateways.routers.append(late)
    for name in REPLICAS:
        late.join(name, WELCOME, slots=8)
    gateways._pass_on()
    assert gateways.home(0, text) == home
    assert late._memory.matched(keys_of(text), [0, 1, 2])[REPLICAS.index(home)] == 6


def test_a_long_text_is_shared_up_to_a_bound_and_a_short_one_not_at_all() -> None:
    router = Router(random.Random(1))
    router.join("replica-0", WELCOME, slots=8)
    router.outgoing.clear()
    for branch, text in ((1, "short"), (11, "x" * BLOCK * (wire.MAX_PREFIX_KEYS + 9))):
        router.take_ops([wire.Open(branch), wire.Append(branch, (wire.TextPiece(text),))])
        router.take_ops([wire.Generate(branch, branch + 1)])
    (_, short), (_, long) = router.outgoing
    assert not any(isinstance(op, wire.SharePrefix) for op in short)
    assert isinstance(long[0], wire.SharePrefix)
    assert len(long[0].keys) == wire.MAX_PREFIX_KEYS


def test_programs_of_another_adapter_are_sent_by_keys_of_their_own() -> None:
    """What a replica has cached for one adapter is of no use to another."""
    router, text = Router(random.Random(1)), "x" * 4 * BLOCK
    router.join("replica-0", WELCOME, slots=8)
    router.outgoing.clear()
    for branch, lora in ((1, ""), (11, "one"), (21, "two"), (31, "one")):
        router.take_ops([wire.Open(branch, "salt", lora=lora)])
        router.take_ops([wire.Append(branch, (wire.TextPiece(text),))])
        router.take_ops([wire.Generate(branch, branch + 1)])
    told = [ops[0].keys for _, ops in router.outgoing if isinstance(ops[0], wire.SharePrefix)]
    assert len(told) == 4
    assert told[1] == told[3]
    assert len(set(told)) == 3
