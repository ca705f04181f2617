"""Public prefixes are everybody's, and what follows them is told to nobody else."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

import pytest

from lmprog.config import SchedulerConfig
from lmprog.runtime.scheduling.namespaces import BASE_ALONE, NamedAdapter, Namespace, Namespaces
from lmprog.wire import SHARES_PUBLIC
from tests.runtime.rig import VOCAB, Rig, expected

PUBLIC = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 6, 6], [9]]


def common(one: Sequence[int], other: Sequence[int]) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def border(tokens: Sequence[int]) -> int:
    return max((len(one) for one in PUBLIC if list(tokens[: len(one)]) == one), default=0)


@pytest.mark.parametrize("page_size", [1, 3, 4])
@pytest.mark.parametrize("seed", range(12))
def test_nobody_is_told_more_than_what_is_public_or_their_own(page_size: int, seed: int) -> None:
    """Random prompts of several salts: what is found is at most what the salt left by itself, or
    the public prefix; and that prefix is found, while nothing is evicted. And answers are what they
    are without any cache."""
    dice = random.Random(seed)
    roomy = seed % 2 == 0
    num_pages = 4096 if roomy else 24
    config = SchedulerConfig(page_size=page_size, num_pages=num_pages, token_budget=32)
    rig = Rig(config, context_len=40 if roomy else 20)
    namespaces = Namespaces(VOCAB, PUBLIC)
    own: dict[str, list[list[int]]] = {}
    left: list[list[int]] = []
    for _ in range(60):
        salt = dice.choice(["", "x", SHARES_PUBLIC + "a", SHARES_PUBLIC + "b", SHARES_PUBLIC + "c"])
        start = dice.choice([*PUBLIC, [1, 2, 3], []])
        prompt = [*start, *(dice.randrange(3) for _ in range(dice.randrange(1, 6)))]
        namespace = namespaces.of(array("i", prompt), salt)
        mine = max((common(prompt, one) for one in own.get(salt, ())), default=0)
        reach = {"": len(prompt), "x": 0}.get(salt, border(prompt))
        public = max((min(common(prompt, one), reach) for one in left), default=0)
        sequence = rig.gen(prompt, 3, namespace=namespace)
        rig.run()
        assert list(sequence.tokens) == prompt + expected(prompt, 3)
        assert sequence.group.cached <= min(max(mine, public), len(prompt) - 1), (salt, prompt)
        assert not roomy or sequence.group.cached >= min(public, len(prompt) - 1), (salt, prompt)
        own.setdefault(salt, []).append(list(sequence.tokens)[:-1])
        if salt.startswith(SHARES_PUBLIC) or not salt:
            shared = len(sequence.tokens) - 1 if not salt else border(prompt)
            left.append(list(sequence.tokens)[:shared])


def test_a_sequence_is_apart_from_the_end_of_its_longest_public_prefix_on() -> None:
    namespaces = Namespaces(10, PUBLIC)
    one, other = (
        namespaces.of(array("i", [1, 2, 3, 4, 5, 7, 8]), SHARES_PUBLIC + salt) for salt in "ab"
    )
    assert (one.root, one.border) == (other.root, other.border) == ("", 5)
    keys = [list(namespace.keys(array("i", [1, 2, 3, 4, 5, 7, 8]))) for namespace in (one, other)]
    assert keys == [[1, 2, 3, 4, 5, -3, 8], [1, 2, 3, 4, 5, -13, 8]]
    assert [namespaces.token(key) for key in (*keys[0], *keys[1])] == [1, 2, 3, 4, 5, 7, 8] * 2
    assert list(one.keys(array("i", [1, 2, 3, 4, 5]))) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("tokens", "salt", "namespace"),
    [
        ([1, 2, 3, 4], "~a", Namespace("~a")),
        ([1, 2, 3, 4, 5], "a", Namespace("a")),
        ([1, 2, 3, 4, 5], "", Namespace("")),
        ([], "~a", Namespace("~a")),
        ([1, 2, 3, 4, 5, 6, 6, 6], "~a", Namespace("", 8, 10)),
    ],
    ids=["not whole", "a salt that shares nothing", "no salt", "nothing", "the longer one"],
)
def test_only_who_holds_all_of_a_public_prefix_shares_it(
    tokens: list[int], salt: str, namespace: Namespace
) -> None:
    assert Namespaces(10, PUBLIC).of(array("i", tokens), salt) == namespace


def test_salts_beyond_those_that_can_be_told_apart_share_nothing() -> None:
    namespaces = Namespaces(2**30, [[1]])
    found = [namespaces.of(array("i", [1, 2]), f"~{number}") for number in range(4)]
    assert [namespace.root for namespace in found] == ["", "", "~2", "~3"]
    assert [
        array("i", namespace.keys(array("i", [1, 2**30 - 1]))).itemsize for namespace in found
    ] == [4] * 4
    assert namespaces.of(array("i", [1, 2]), "~0") == found[0]


ADAPTED = NamedAdapter(1, "one", "aaaa")


@pytest.mark.parametrize("page_size", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_what_an_adapter_computed_is_found_by_nobody_else(page_size: int, seed: int) -> None:
    """Random prompts of several salts and adapters on a model that each adapter changes: answers
    are those of the adapter alone, and its own prefixes are found again."""
    dice = random.Random(seed)
    config = SchedulerConfig(page_size=page_size, num_pages=4096, token_budget=32)
    rig, namespaces = Rig(config, context_len=40), Namespaces(VOCAB, PUBLIC)
    adapters = [BASE_ALONE, ADAPTED, NamedAdapter(2, "two", "bbbb")]
    computed: set[tuple[int, str, tuple[int, ...]]] = set()
    for _ in range(60):
        adapter, salt = dice.choice(adapters), dice.choice(["", "x", "~a", "\0aaaaa:", "aaaa"])
        prompt = [*dice.choice(PUBLIC), *(dice.randrange(3) for _ in range(dice.randrange(1, 4)))]
        namespace = namespaces.of(array("i", prompt), salt, adapter)
        sequence = rig.gen(prompt, 3, namespace=namespace)
        rig.run()
        assert list(sequence.tokens) == prompt + expected(prompt, 3, adapter.number)
        known = (adapter.number, salt, tuple(prompt)) in computed
        assert not known or sequence.group.cached == len(prompt) - 1
        computed.add((adapter.number, salt, tuple(prompt)))


def test_no_salt_spells_the_root_of_an_adapter() -> None:
    spaces = Namespaces(10, PUBLIC)
    inside = spaces.of(array("i", [7]), "mine", ADAPTED).root
    assert inside not in ("", "mine")
    for salt in ("mine", inside, inside + "x", "\0" + inside, "\0"):
        assert spaces.of(array("i", [7]), salt).root != inside
    roots = {spaces.of(array("i", [7]), salt).root for salt in ("a", "\0a", "\0sa", "\0\0a")}
    assert len(roots) == 4


def test_an_adapter_of_the_same_name_with_other_content_shares_nothing() -> None:
    spaces = Namespaces(10, PUBLIC)
    one, other = (spaces.of(array("i", [7]), "", NamedAdapter(1, "x", d)).root for d in ("a", "b"))
    assert one != other


def test_public_prefixes_are_shared_within_an_adapter_only() -> None:
    tokens, spaces = array("i", [1, 2, 3, 4, 5, 7]), Namespaces(10, PUBLIC)
    found = [spaces.of(tokens, f"~{salt}", ADAPTED) for salt in "ab"]
    assert found[0].root == found[1].root != spaces.of(tokens, "~a").root
    assert found[0].keys(tokens) != found[1].keys(tokens)
    assert {one.adapter for one in found} == {1}
