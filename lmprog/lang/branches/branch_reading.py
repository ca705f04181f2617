"""What can be read of a branch: its variables, its text, its messages, its errors.

Reading by name or as a whole waits; nothing here appends or asks for anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from lmprog import wire
from lmprog.errors import LmprogError, ProgramError, UnknownName
from lmprog.lang.branches import text_followers
from lmprog.lang.branches.cursor import Cursor
from lmprog.lang.branches.gen import Gen
from lmprog.lang.branches.log import gens_of, messages, plain_text
from lmprog.lang.branches.meta_info import meta_info
from lmprog.lang.branches.pending_call import PendingCall
from lmprog.lang.branches.variables import (
    Variable,
    Written,
    settle,
    value_now,
    variable_of,
    waited_for,
)


class BranchReading:
    """A branch's variables and text."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor

    # --- variables

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """All text appended inside becomes the variable `name`."""
        start = len(self.cursor.log)
        yield
        self.cursor.name(name, Written(tuple(self.cursor.log[start:])))

    def var(self, name: str) -> Gen[Any] | Variable:
        """The variable as something to await, or to put into later text without waiting."""
        found = self._named(name)
        return found if isinstance(found, Gen) else Variable(found)

    def get_var(self, name: str) -> Any:
        """The value of a variable; blocks until there is one. Raises why there is none."""
        return value_now(self._named(name))

    def set_var(self, name: str, value: object) -> None:
        self.cursor.name(name, variable_of(value, self.cursor.scope))

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def __setitem__(self, name: str, value: object) -> None:
        self.set_var(name, value)

    def __contains__(self, name: str) -> bool:
        return name in self.cursor.names

    def _named(self, name: str) -> object:
        if name not in self.cursor.names:
            known = ", ".join(sorted(self.cursor.names)) or "none yet"
            raise UnknownName(f"this branch has no variable {name!r}; it has: {known}", name=name)
        return self.cursor.names[name]

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """What is known about a generated variable, in SGLang's words; blocks. See also
        `Gen.meta`.
        """
        var = self._named(name)
        if not isinstance(var, Gen):
            raise UnknownName(
                f"{name!r} was not generated, so nothing is known about it", name=name
            )
        return meta_info(var)

    # --- text

    def text(self) -> str:
        """The whole text; blocks."""
        self.sync()
        if self.cursor.failure() is None and not self.cursor.has_roles():
            return plain_text(self.cursor.log)
        plain_text(self.cursor.log)  # raises the cause where there is no text
        call = self.cursor.read()
        self.cursor.scope.client.flush()
        return _text_of(call.wait())

    async def atext(self) -> str:
        """The same for an event loop."""
        await self.settled()
        known = plain_text(self.cursor.log)  # raises the cause where there is no text
        if not self.cursor.has_roles():
            return known
        return _text_of(await self.cursor.read().arrive())

    def messages(self) -> list[dict[str, str]]:
        """The chat turns so far; blocks."""
        self.sync()
        return messages(self.cursor.log)

    def sync(self) -> None:
        """Blocks until every result in this branch is done, well or not."""
        for gen in self._everything():
            gen.wait()

    async def settled(self) -> None:
        """The same for an event loop."""
        await settle(self._everything())

    def error(self) -> LmprogError | None:
        """Why the branch cannot go on; blocks until its calls are done. None while it can."""
        self.sync()
        failed = next((gen for gen in self.cursor.gens if gen.failure() is not None), None)
        return None if failed is None else failed.error_at_site()

    def _everything(self) -> list[PendingCall]:
        named = [gen for var in self.cursor.names.values() for gen in waited_for(var)]
        return list(dict.fromkeys([*gens_of(self.cursor.log), *self.cursor.gens, *named]))

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text as it comes, of one variable or of the whole branch; needs a streaming run."""
        return text_followers.texts(self.cursor, var_name)

    def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """The same for an event loop; with `return_meta_data` pairs of text and meta
        information.
        """
        return text_followers.texts_async(self.cursor, var_name, return_meta_data)

    def __repr__(self) -> str:
        return f"<branch {self.cursor.id}, {len(self.cursor.gens)} calls>"


def _text_of(outcome: object) -> str:
    if isinstance(outcome, LmprogError):
        raise outcome
    if not isinstance(outcome, wire.TextIs):
        raise ProgramError(f"asked for a text, the backend answered {type(outcome).__name__}")
    return outcome.text
