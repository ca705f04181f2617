"""`@lmprog.function`: makes a program of a Python function whose first parameter is a branch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from lmprog.lang.branches.branch import Branch
from lmprog.lang.branches.scope import RunSettings
from lmprog.lang.program import AsyncProgram, Program

P = ParamSpec("P")
R = TypeVar("R")


class ProgramMethod(Protocol[P, R]):
    """A program in a class: read from an instance, it is that instance's program."""

    def __get__(self, instance: object, owner: type | None = None, /) -> Program[P, R]: ...


class Maker(Protocol):
    """`function` with its options given."""

    @overload
    def __call__(
        self, fn: Callable[Concatenate[Branch, P], Coroutine[Any, Any, R]], /
    ) -> AsyncProgram[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Branch, P], R], /) -> Program[P, R]: ...


@overload
def function(
    fn: Callable[Concatenate[Branch, P], Coroutine[Any, Any, R]], /
) -> AsyncProgram[P, R]: ...
@overload
def function(fn: Callable[Concatenate[Branch, P], R], /) -> Program[P, R]: ...
@overload
def function(
    fn: Callable[Concatenate[Any, Branch, P], Coroutine[Any, Any, R]], /
) -> ProgramMethod[P, R]: ...
@overload
def function(fn: Callable[Concatenate[Any, Branch, P], R], /) -> ProgramMethod[P, R]: ...
@overload
def function(fn: None = None, /, *, num_api_spec_tokens: int | None = None) -> Maker: ...
def function(
    fn: Callable[..., Any] | None = None, /, *, num_api_spec_tokens: int | None = None
) -> Any:
    """Makes a program of a function whose first parameter is a `Branch`; both `def` and `async
    def`.

    `num_api_spec_tokens`, also a setting of `using`, is for black-box APIs only: one request says
    so many tokens, from which later calls of the program are answered. A runtime that keeps its
    cache has no use for it.
    """

    def make(inner: Callable[..., Any]) -> Program[Any, Any]:
        kind = AsyncProgram if inspect.iscoroutinefunction(inner) else Program
        return kind(inner, settings=settings)

    settings = RunSettings(num_api_spec_tokens=num_api_spec_tokens)
    return make if fn is None else make(fn)
