"""Members of which each comes at most once: exactly these texts, in states that are forgotten and
made again.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator

import pytest

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.constraint import CompileLimits, State
from lmprog.constraints.inspect import accepts
from lmprog.constraints.net import FAIL, EachOnce, NetBuilder, Node
from lmprog.constraints.regular import RegularConstraint
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import UnsatisfiableConstraint
from tests.constraints.oracle import Judged
from tests.constraints.test_nets import walk

LIMITS = CompileLimits()
TEXTS = ("a", "b", "ab", "c", "ca")
AGAIN = "z"
LONGEST = 5


class Case:
    """Some of TEXTS, and how many of them."""

    def __init__(self, rng: random.Random) -> None:
        chosen = rng.sample(TEXTS, rng.randint(0, 4))
        split = rng.randint(0, len(chosen))
        self.required, self.optional = chosen[:split], chosen[split:]
        self.again = rng.random() < 0.4
        self.low = rng.randint(0, 4)
        self.high = rng.choice([None, rng.randint(1, LONGEST)])

    def node(self, net: NetBuilder) -> Node:
        def texts(of: list[str]) -> list[Node]:
            return [net.text(one.encode()) for one in of]

        again = net.text(AGAIN.encode()) if self.again else FAIL
        required, optional = texts(self.required), texts(self.optional)
        made = EachOnce(net.text(b","), required, optional, self.low, self.high, again)
        return net.once(made)

    def takes(self, items: tuple[str, ...]) -> bool:
        own = [one for one in items if one != AGAIN]
        counted = len(own) + min(items.count(AGAIN), 1)
        return (
            len(own) == len(set(own))
            and set(self.required) <= set(own) <= {*self.required, *self.optional}
            and (self.again or AGAIN not in items)
            and max(self.low, 1) <= counted
            and (self.high is None or len(items) <= self.high)
        )


def sequences() -> Iterator[tuple[str, ...]]:
    for size in range(1, LONGEST + 1):
        yield from itertools.product(("a", "b", "ab", "c", AGAIN), repeat=size)


def judged(case: Case, vocabulary: Vocabulary) -> Judged | None:
    net = NetBuilder()
    try:
        return Judged(net, case.node(net), vocabulary)
    except UnsatisfiableConstraint:
        return None


def test_exactly_the_texts_with_each_member_once_are_taken(small: Vocabulary) -> None:
    rng = random.Random(1)
    for _ in range(40):
        case = Case(rng)
        found = judged(case, small)
        taken = {",".join(items) for items in sequences() if case.takes(items)}
        if found is None:
            assert not taken
            continue
        constraint = RegularConstraint(found.engine, small, LIMITS)
        for text in taken:
            assert accepts(constraint, text), (vars(case), text)
        for items in rng.sample(list(sequences()), 150):
            text = ",".join(items)
            assert accepts(constraint, text) == (text in taken), (vars(case), text)


def test_members_within_members_are_what_the_oracle_says(small: Vocabulary) -> None:
    rng = random.Random(2)
    for _ in range(25):
        net = NetBuilder()
        inner = [Case(rng).node(net) for _ in range(3)]
        ways = EachOnce(net.text(b";"), inner[:1], inner[1:], 1, None, FAIL)
        root = net.alt([*inner, net.once(ways), net.seq([net.text(b"x"), inner[0]])])
        if root != FAIL:
            walk(net, root, small, rng)


def test_some_token_lowers_the_distance(small: Vocabulary) -> None:
    rng = random.Random(3)
    for _ in range(30):
        found = judged(Case(rng), small)
        for _ in range(12 if found else 0):
            assert found is not None
            far = found.engine.cost(found.here)
            tokens = found.tokens()
            if far:
                texts = [small.bytes_of(token) or b"" for token in tokens]
                costs = [found.engine.cost(found.engine.run(found.here, one)) for one in texts]
                assert min(costs) <= far - 1
            if not tokens:
                break
            found.advance(small.bytes_of(rng.choice(tokens)) or b"")


def walked(constraint: RegularConstraint, text: str) -> State:
    state: State | None = constraint.start
    for begin in range(0, len(text), 10):  # one call may add as many states as the memory holds
        assert state is not None, text
        state = constraint.advance_bytes(state, text[begin : begin + 10].encode())
    assert state is not None, text
    return state


def test_what_was_used_survives_where_states_are_forgotten(small: Vocabulary) -> None:
    names = [f"n{i}" for i in range(70)]  # more than a word of bits
    schema = wire.JsonSchema(
        json.dumps({"type": "array", "items": {"enum": names}, "uniqueItems": True, "minItems": 60})
    )
    tight = compile_constraint(schema, small, CompileLimits(max_states=200))
    assert isinstance(tight, RegularConstraint)
    rng = random.Random(4)
    held: list[tuple[State, list[str]]] = []
    for _ in range(6):
        order = rng.sample(names, 65)
        begun = [order[:end] for end in (1, 20, 65)]
        held += [(walked(tight, json.dumps(used)[:-1]), used) for used in begun]
        for state, used in held:
            assert tight.advance_bytes(state, f', "{used[-1]}"'.encode()) is None
            free = next(name for name in names if name not in used)
            assert tight.advance_bytes(state, f', "{free}"'.encode()) is not None
            assert (tight.advance_bytes(state, b"]") is not None) == (len(used) >= 60)
    assert tight.num_collections > 3


@pytest.mark.parametrize("whitespace", ["fixed", "compact", "flexible"])
def test_members_of_an_object_come_in_any_order_with_others_between(
    whitespace: str, small: Vocabulary, rng: random.Random
) -> None:
    schema = {
        "type": "object",
        "properties": {f"p{i}": {"type": "integer"} for i in range(30)},
        "required": ["p3", "p29"],
        "additionalProperties": {"type": "boolean"},
        "minProperties": 4,
        "maxProperties": 7,
    }
    made = compile_constraint(
        wire.JsonSchema(json.dumps(schema), whitespace, any_order=True),  # type: ignore[arg-type]
        small,
    )
    between = (",", ":") if whitespace == "compact" else (", ", ": ")
    for _ in range(200):
        names = rng.sample([*schema["properties"], "x", "y"], rng.randint(1, 8))  # type: ignore[misc]
        if rng.random() < 0.8:
            names = [*{*names[:6], "p3", "p29"}]
        rng.shuffle(names)
        value = {name: 5 if name in schema["properties"] else True for name in names}  # type: ignore[operator]
        valid = {"p3", "p29"} <= value.keys() and 4 <= len(value) <= 7
        # Two further members may share a name, so only one counts towards the fewest.
        if valid and len(names) - max(0, sum(name in "xy" for name in names) - 1) < 4:
            continue
        text = json.dumps(value, separators=between)
        assert accepts(made, text) == valid, text
    twice = json.dumps({"p3": 1, "p29": 2, "p4": 1, "p5": 1}, separators=between)
    assert accepts(made, twice)
    assert not accepts(made, twice.replace("p5", "p4"))


def test_a_budget_that_holds_the_required_members_always_closes(
    small: Vocabulary, rng: random.Random
) -> None:
    names = {f"p{i}": {"enum": ["a" * i, "b"]} for i in range(1, 9)}
    schema = {"properties": names, "required": ["p7", "p2"], "minProperties": 4, "type": "object"}
    spec = wire.JsonSchema(json.dumps(schema), any_order=True)
    made = compile_constraint(spec, small)
    for _ in range(20):
        state, left = made.start, made.distance(made.start) + rng.randint(0, 4)
        out = b""
        while left and not made.is_done(state):
            row = made.mask(state, left)
            moves = [token for token in range(1, len(small)) if row.allows(token)]
            if not moves:
                break
            token = rng.choice(moves)
            state, left = made.advance(state, token), left - 1
            out += small.bytes_of(token) or b""
        assert made.is_final(state)
        value = json.loads(out)
        assert value.keys() >= {"p7", "p2"}
        assert len(value) >= 4
