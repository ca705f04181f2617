"""What a name in a branch can stand for, and how it is read: now, or without blocking.

A variable is a plain value, a pending result, the list that a join gathered, or the text written
inside a `var_scope`. Knows results; does not know branches' ops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from lmprog import wire
from lmprog.lang.branches.gen import Gen
from lmprog.lang.branches.log import Item, flat, gens_of, plain_text
from lmprog.lang.branches.mark_text import split
from lmprog.lang.branches.marks import call_of
from lmprog.lang.branches.pending_call import PendingCall
from lmprog.lang.branches.run_context import RunContext


@dataclass(frozen=True, slots=True)
class Gathered:
    """The values of one name in several joined branches, in their order."""

    parts: tuple[Var, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """Text with results in it: appended between two points of a branch, or set as a variable."""

    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Reasoned:
    """The reasoning before the answer of a result."""

    gen: Gen[Any]


@dataclass(frozen=True, slots=True)
class Captured:
    """What a named piece of a pattern captured in the (first) result."""

    gen: Gen[Any]
    name: str


Var: TypeAlias = "Gen[Any] | Gathered | Written | Reasoned | Captured | object"


def waited_for(var: Var) -> list[PendingCall]:
    """The results that `var` needs before it has a value."""
    if isinstance(var, Gen):
        return [var]
    if isinstance(var, Reasoned | Captured):
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
    if isinstance(var, Captured):
        return var.gen.captures[var.name]
    if isinstance(var, Gathered):
        return [value_now(part) for part in var.parts]
    if isinstance(var, Written):
        return plain_text(list(var.items))
    return var


async def settle(gens: Sequence[PendingCall]) -> None:
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

    def contents(self) -> list[str | PendingCall]:
        """What it is in later text; of what was written, results that are pending stay so."""
        if isinstance(self._var, Written):
            items = flat(list(self._var.items))
            return [item for item in items if isinstance(item, str | PendingCall)]
        text = str(self.value)
        return [wire.Letters(text) if waited_for(self._var) else text]

    def __await__(self) -> Generator[Any, None, Any]:
        yield from settle(waited_for(self._var)).__await__()
        return value_now(self._var)

    def __str__(self) -> str:
        """The value as text; blocks."""
        return str(self.value)


def variable_of(value: object, run: RunContext) -> Var:
    """What a name stands for that is set to `value`: text with pending results keeps them."""
    if type(value) is not str:
        return value
    pieces = split(value)
    if all(isinstance(piece, str) for piece in pieces):
        return value
    return Written(
        tuple(piece if isinstance(piece, str) else call_of(piece, run) for piece in pieces)
    )
