"""Checked by mypy in `test_typing`, never run: what the language promises about types."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal, TypedDict, assert_type

import lmprog
import lmprog.sglang
from lmprog.lang.branches.branch import Branches, Raced
from lmprog.lang.branches.mapped import Mapped
from lmprog.lang.ops.expressions import GenOp


class Color(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int


class Row(TypedDict):
    name: str


def values(s: lmprog.Branch) -> None:
    assert_type(s.gen(), lmprog.Gen[str])
    assert_type(s.gen("name", max_tokens=5), lmprog.Gen[str])
    assert_type(s.gen(temperature=0.5), lmprog.Gen[str])
    assert_type(s.gen(int), lmprog.Gen[int])
    assert_type(s.gen(bool, name="flag", max_tokens=5), lmprog.Gen[bool])
    assert_type(s.gen(Color), lmprog.Gen[Color])
    assert_type(s.gen(Point), lmprog.Gen[Point])
    assert_type(s.gen(Row), lmprog.Gen[Row])
    assert_type(s.gen(list[int]), lmprog.Gen[list[int]])
    assert_type(s.gen(int | None), lmprog.Gen[int | None])
    assert_type(s.gen(Literal["yes", "no"]), lmprog.Gen[Literal["yes", "no"]])
    assert_type(s.gen(int).value, int)
    assert_type(s.gen(int).values, list[int])
    assert_type(s.select("a", "b"), lmprog.Gen[lmprog.Selected])
    assert_type(lmprog.gen("x"), GenOp[str])
    assert_type(lmprog.gen(int), GenOp[int])
    assert_type(lmprog.sglang.gen_int("x"), GenOp[int])


def mistakes(s: lmprog.Branch) -> None:
    s.gen(temprature=1)  # type: ignore[call-overload]
    s.gen(max_tokens="many")  # type: ignore[call-overload]
    s.select("a", top_p=0.5, nonsense=1)  # type: ignore[call-arg]
    s.fork("three")  # type: ignore[arg-type]


@lmprog.function
def plain(s: lmprog.Branch, question: str, k: int = 3) -> list[str]:
    with s.fork(k, temperature=0.5) as branches:
        assert_type(branches, Branches)
        assert_type(branches[0], lmprog.Branch)
        mapped = branches.map(lambda b: b.gen(int))
        assert_type(mapped, Mapped[int])
        assert_type(mapped.value, list[int])
        assert_type(branches.race(lambda b: b.gen(int)), Raced[int])
        assert_type(branches.race(lambda b: b.gen(int).value).value, int)
    return []


@lmprog.function
async def awaiting(s: lmprog.Branch, question: str) -> Point:
    assert_type(await s.gen(int), int)
    async with s.fork(2) as branches:
        assert_type(await branches.map(lambda b: b.gen(Point)), list[Point])
    assert_type(plain(s, "why?"), list[str])
    return await awaiting(s, "again")


async def running() -> None:
    assert_type(plain.run("why?", k=2), lmprog.Run[list[str]])
    assert_type(awaiting.run("why?").value, Point)
    assert_type((await awaiting.arun("why?")).value, Point)
    assert_type(awaiting.using(temperature=0).run("why?").value, Point)
    assert_type(awaiting.map(["a"], concurrency=2), lmprog.Results[Point])
    async for event in awaiting.stream("why?"):
        if isinstance(event, lmprog.Text):
            assert_type(event.delta, str)
    plain.run(3)  # type: ignore[arg-type]
    plain.run("why?", depth=3)  # type: ignore[call-arg]
    plain.using(temprature=1)  # type: ignore[call-arg]
