"""What a fleet adds to a program, in calls of functions: the same on every machine, unlike time
(`python -m benchmarks.fleet overhead`).
"""

from __future__ import annotations

import random
import sys
from types import FrameType

from lmprog import wire
from lmprog.fleet.router import Router
from tests.fleet.replicas import WELCOME

PROGRAMS = 20
MOST_A_PROGRAM = 318
"""Calls of functions in Python and C in the router, from the opened branch to its end, with one
call and a prompt of seven blocks, where four replicas are to be chosen from."""


def one_program(router: Router, number: int) -> None:
    """As a program of one call is sent and answered."""
    call = wire.Generate(number, number, wire.SamplingParams(temperature=0.0, max_tokens=1))
    text = wire.TextPiece(f"Program {number} says that {'and so on ' * 44}")
    router.take_ops([wire.Open(number), wire.Append(number, (text,)), call])
    name, ops = router.outgoing.popleft()
    assert any(isinstance(op, wire.Generate) for op in ops)
    output = wire.Output("so", (7,), "length")
    router.take_replies(name, [wire.CallDone(number, (output,), wire.Usage())])
    assert len(router.replies) == 1
    router.take_ops([wire.Close(number)])
    assert not router.loads[name]
    router.outgoing.clear()
    router.replies.clear()


def test_a_program_of_one_call_costs_the_router_few_calls() -> None:
    router = Router(random.Random(1), lambda: 0.0)
    for name in "abcd":
        router.join(name, WELCOME, slots=8)
    router.outgoing.clear()
    one_program(router, 1)
    num_calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for number in range(2, 2 + PROGRAMS):
            one_program(router, number)
    finally:
        sys.setprofile(before)
    assert num_calls / PROGRAMS <= MOST_A_PROGRAM
