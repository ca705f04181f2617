"""What a name in a branch can stand for, and how it is read: now, or without blocking.

A variable is a plain value, a pending result, the list that a join gathered, or the text written
inside a `var_scope`. Knows results; does not know branches' ops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

from lmprog.lang.branches.appended import Item, gens_of, plain_text
from lmprog.lang.branches.results_of_calls import Gen


@dataclass(frozen=True, slots=True)
class Gathered:
    """The values of one name in several joined branches, in their order."""

    parts: tuple[Var, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """The text appended between two points of a branch."""

    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Reasoned:
    """What was thought before the answer of a result."""

    gen: Gen[Any]


Var: TypeAlias = "Gen[Any] | Gathered | Written | Reasoned | object"


def waited_for(var: Var) -> list[Gen[Any]]:
    """The results that `var` needs before it has a value."""
    if isinstance(var, Gen):
        return [var]
    if isinstance(var, Reasoned):
        return [var.gen]
    if isinstance(var, Gathered):
        return [gen for part in var.parts for gen in waited_for(part)]
    if isinstance(var, Written):
        return gens_of(list(var.items))
    return []


def value_now(var: Var) -> Any:
    """The value; blocks until there is one. A result with n > 1 is the list of all n."""
    if isinstance(var, Gen):
        values = var.values
        return values[0] if len(values) == 1 or var.keeps_one else values
    if isinstance(var, Reasoned):
        return var.gen.reasoning
    if isinstance(var, Gathered):
        return [value_now(part) for part in var.parts]
    if isinstance(var, Written):
        return plain_text(list(var.items))
    return var


async def settle(gens: list[Gen[Any]]) -> None:
    """Waits, without blocking the thread, until all are done, well or not."""
    pending = [gen for gen in gens if not gen.done()]
    if pending:
        await asyncio.gather(*(gen.wait_async() for gen in pending))


class Variable:
    """A name's value, perhaps still to come: `await` it, or read `.value`, which blocks."""

    def __init__(self, var: Var) -> None:
        self._var = var

    @property
    def value(self) -> Any:
        return value_now(self._var)

    def contents(self) -> list[str | Gen[Any]]:
        """What it is in later text; of what was written, results that are pending stay so."""
        if isinstance(self._var, Written):
            return [
                item if isinstance(item, str | Gen) else plain_text([item])
                for item in self._var.items
            ]
        return [str(self.value)]

    def __await__(self) -> Generator[Any, None, Any]:
        yield from settle(waited_for(self._var)).__await__()
        return value_now(self._var)

    def __str__(self) -> str:
        return str(self._var if isinstance(self._var, Gen) else self.value)
