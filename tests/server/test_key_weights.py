"""The account and the weight of a key go with its branches to the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lmprog import wire
from lmprog.server.fairness.accounts import KeyAccounts, MemoryPool
from lmprog.server.link.exchange import Exchange, nobodys
from lmprog.server.options.api_keys import ApiKey, digest


class Runtime:
    """A link without turns, which writes down what is sent."""

    turns = None
    memory = MemoryPool(1 << 20)

    def __init__(self) -> None:
        self.ops: list[wire.Op] = []

    def send(self, connection: object, ops: Sequence[wire.Op], served_name: str = "") -> None:
        self.ops += ops


@pytest.mark.parametrize("session", ["", "s"])
def test_branches_have_the_account_and_the_weight_of_their_key(session: str) -> None:
    runtime: Any = Runtime()
    key = ApiKey("heavy", digest("heavy"), weight=3.0)
    (account,) = KeyAccounts([key], 1280, 0.75, lambda: 0.0)
    Exchange(runtime, runtime, account, nobodys(), session).send(wire.Open(1), wire.Fork(1, (2,)))
    Exchange(runtime, runtime, None, nobodys(), session).send(wire.Open(3))
    assert runtime.ops == [
        wire.Open(1, "", session, 3.0, account="heavy"),
        wire.Fork(1, (2,)),
        wire.Open(3, "", session, 1.0),
    ]
