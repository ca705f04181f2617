"""A branch as programs see it, in both spellings of the language.

`s.gen(...)` and `s.select(...)` return results that are awaited or read; `s += lmprog.gen("x")` and
`s["x"]` do the same by name. Nothing here waits except where a value is read. Knows no tokens and
no wire.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, overload

from lmprog import wire
from lmprog.errors import InvalidParameter, LmprogError, ProgramError, UnknownName
from lmprog.lang.branches.appended import gens_of, messages, plain_text
from lmprog.lang.branches.best_result import By, best_options
from lmprog.lang.branches.cursor import Cursor
from lmprog.lang.branches.fork_group import Branches, OnError
from lmprog.lang.branches.results_of_calls import Gen
from lmprog.lang.branches.variables import Variable, Written, settle, value_now, waited_for
from lmprog.lang.ops.expressions import (
    GenOptions,
    RoleBeginExpr,
    RoleEndExpr,
    SelectOptions,
    gen_op,
    leading,
    select_op,
)
from lmprog.lang.ops.meta import Selected
from lmprog.lang.ops.sampling import Sampling, SamplingOptions, sampling_of
from lmprog.lang.programs.budget import Budget
from lmprog.lang.streaming import follow

if TYPE_CHECKING:
    from typing_extensions import TypeForm, Unpack

T = TypeVar("T")


class ForkOptions(SamplingOptions, total=False):
    """What a fork, a copy or a view of a branch can be told; the last two limit what all its calls
    take together.
    """

    timeout: float | None
    max_total_tokens: int | None


class Turn:
    """A chat turn: complete when it was given content, else to be written inside `with`."""

    def __init__(self, branch: Branch, role: str, content: tuple[object, ...]) -> None:
        self._branch = branch
        self._role = role
        self._complete = bool(content)
        if content:
            branch.append(RoleBeginExpr(role), *content, RoleEndExpr(role))

    def __enter__(self) -> Branch:
        if self._complete:
            raise ProgramError(
                f"this {self._role} turn has its content already; write `with s.{self._role}():`"
            )
        self._complete = True
        self._branch.append(RoleBeginExpr(self._role))
        return self._branch

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            self._branch.append(
                RoleEndExpr(self._role)
            )  # also after an error, which the program may go on from
        except LmprogError:
            if kind is None:  # else the branch is over, and the error on its way says why
                raise


class Branch:
    """One growing text of a program."""

    def __init__(
        self, cursor: Cursor, sampling: Sampling | None = None, budget: Budget | None = None
    ) -> None:
        self.cursor = cursor
        self._sampling = cursor.scope.sampling if sampling is None else sampling
        self._budget = budget  # of this view; the cursor has that of its run or fork

    # --- appending
    # ----------------------------------------------------------------------------------------------

    def append(self, *contents: object) -> None:
        """Appends text, ops, results (also pending ones), or lists of these."""
        with self._limited():
            for content in contents:
                self.cursor.put(content, self._sampling)

    def __iadd__(self, content: object) -> Branch:
        self.append(content)
        return self

    def system(self, *content: object) -> Turn:
        """A system turn: `s.system("...")`, or `with s.system():`."""
        return Turn(self, "system", content)

    def user(self, *content: object) -> Turn:
        return Turn(self, "user", content)

    def assistant(self, *content: object) -> Turn:
        return Turn(self, "assistant", content)

    def turn(self, role: str, *content: object) -> Turn:
        """A turn of any role that the checkpoint's template knows."""
        return Turn(self, role, content)

    @overload
    def gen(
        self, name: str | None = None, max_tokens: int | None = None, **more: Unpack[GenOptions]
    ) -> Gen[str]: ...
    @overload
    def gen(
        self,
        tp: TypeForm[T],
        /,
        max_tokens: int | None = None,
        *,
        name: str | None = None,
        **more: Unpack[GenOptions],
    ) -> Gen[T]: ...
    def gen(self, *what: Any, **options: Any) -> Gen[Any]:
        """Generates here. The result has the type that was asked for; `str` without one.

        `choices=` confines the text to one of several; `select` scores them instead.
        """
        first, max_tokens = leading(what, options)
        op = gen_op(first, max_tokens, options)
        with self._limited():
            return self.cursor.request(op, self._sampling)

    @overload
    def best_of(
        self,
        k: int,
        name: str | None = None,
        max_tokens: int | None = None,
        *,
        by: By = "logprob",
        **more: Unpack[GenOptions],
    ) -> Gen[str]: ...
    @overload
    def best_of(
        self,
        k: int,
        tp: TypeForm[T],
        /,
        max_tokens: int | None = None,
        *,
        by: By = "logprob",
        **more: Unpack[GenOptions],
    ) -> Gen[T]: ...
    def best_of(self, k: int, *what: Any, by: By = "logprob", **options: Any) -> Gen[Any]:
        """Generates `k` times at once and goes on from the likeliest, by the mean log-probability
        of its tokens. Those that cannot be it any more are ended early. `.values` has the others
        that ended behind it.

        `by=lmprog.Judge(question)`: goes on from the one after which, with the question behind it,
        " yes" is likeliest.
        """
        return self.gen(*what, **best_options(k, by, options))

    def select(
        self,
        *choices: str | Sequence[str],
        name: str | None = None,
        **options: Unpack[SelectOptions],
    ) -> Gen[Selected]:
        """Appends the likeliest of `choices`; the result is that text, with the figures of all."""
        given = [
            choice if isinstance(choice, Iterable) and not isinstance(choice, str) else [choice]
            for choice in choices
        ]
        texts = [text for choice in given for text in choice]
        op = select_op(texts, {**options, "name": name})
        with self._limited():
            return self.cursor.request(op, self._sampling)

    def with_(self, **options: Unpack[ForkOptions]) -> Branch:
        """The same branch, with other sampling, and perhaps limits, for what is asked through this
        view.
        """
        budget = self._budget_of(options, "view") or self._budget
        return Branch(self.cursor, sampling_of(options).over(self._sampling), budget)

    def over(self, sampling: Sampling) -> Branch:
        """`with_` for a `Sampling`."""
        return Branch(self.cursor, sampling.over(self._sampling), self._budget)

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """What is asked inside is within this view's budget."""
        around = self.cursor.budget
        self.cursor.budget = self._budget or around
        try:
            yield
        finally:
            self.cursor.budget = around

    def _budget_of(self, options: ForkOptions, what: str) -> Budget | None:
        """The limits among `options`, taken out of them, within those of this branch; their time
        begins now.
        """
        timeout, tokens = options.pop("timeout", None), options.pop("max_total_tokens", None)
        if timeout is None and tokens is None:
            return None
        budget = Budget(
            self._budget or self.cursor.budget, timeout=timeout, max_total_tokens=tokens, what=what
        )
        budget.begin()
        return budget

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """All text appended inside becomes the variable `name`."""
        start = len(self.cursor.log)
        yield
        self.cursor.name(name, Written(tuple(self.cursor.log[start:])))

    # --- forking
    # ------------------------------------------------------------------------------------------------

    def fork(
        self, size: int = 1, *, on_error: OnError = "raise", **options: Unpack[ForkOptions]
    ) -> Branches:
        """`size` branches that go on from here; use it with `with` or `async with`, which joins and
        frees them.

        `timeout` (seconds) and `max_total_tokens` limit what the calls of these branches take
        together.
        """
        if not isinstance(size, int) or not 1 <= size <= 4096:
            allowed = "1 <= size <= 4096"
            raise InvalidParameter(
                f"fork({size!r}) is not allowed; give {allowed}",
                name="size",
                value=repr(size),
                allowed=allowed,
            )
        budget = self._budget_of(options, "fork")
        sampling = sampling_of(options).over(self._sampling)
        with self._limited():
            children = self.cursor.fork(size, budget)
        return Branches(self, [Branch(child, sampling) for child in children], on_error)

    @contextmanager
    def copy(self, **options: Unpack[ForkOptions]) -> Iterator[Branch]:
        """One branch that goes on from here, closed at the end of the `with`; options as for
        `fork`.
        """
        budget = self._budget_of(options, "copy")
        sampling = sampling_of(options).over(self._sampling)
        with self._limited():
            [child] = self.cursor.fork(1, budget)
        try:
            yield Branch(child, sampling)
            if budget is not None:
                # also a copy that got all its results may have taken more than it was given
                budget.check()
        finally:
            child.close_when_done()

    # --- variables
    # ----------------------------------------------------------------------------------------------

    def var(self, name: str) -> Gen[Any] | Variable:
        """The variable as something to await, or to put into later text without waiting."""
        found = self._named(name)
        return found if isinstance(found, Gen) else Variable(found)

    def get_var(self, name: str) -> Any:
        """The value of a variable; blocks until there is one. Raises why there is none."""
        return value_now(self._named(name))

    def set_var(self, name: str, value: object) -> None:
        self.cursor.name(name, value)

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
        return follow.meta_info(var)

    # --- reading
    # ------------------------------------------------------------------------------------------------

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

    def _everything(self) -> list[Gen[Any]]:
        named = [gen for var in self.cursor.names.values() for gen in waited_for(var)]
        return list(dict.fromkeys([*gens_of(self.cursor.log), *self.cursor.gens, *named]))

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text as it comes, of one variable or of the whole branch; needs a streaming run."""
        return follow.texts(self.cursor, var_name)

    def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """The same for an event loop; with `return_meta_data` pairs of text and meta
        information.
        """
        return follow.texts_async(self.cursor, var_name, return_meta_data)

    def __repr__(self) -> str:
        return f"<branch {self.cursor.id}, {len(self.cursor.gens)} calls>"


def _text_of(outcome: object) -> str:
    if isinstance(outcome, LmprogError):
        raise outcome
    if not isinstance(outcome, wire.TextIs):
        raise ProgramError(f"asked for a text, the backend answered {type(outcome).__name__}")
    return outcome.text
