"""The module-level functions that create ops: `lmprog.gen`, `lmprog.select`, `lmprog.user`, ...

They return values, which have no effect until they are appended to a branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

from lmprog.errors import NotSupported
from lmprog.lang.ops.expressions import (
    Concat,
    Expr,
    GenOp,
    GenOptions,
    RoleBeginExpr,
    RoleEndExpr,
    SelectOp,
    SelectOptions,
    ToolOptions,
    gen_op,
    gen_signature,
    leading,
    select_op,
)
from lmprog.lang.ops.keywords import QUOTED
from lmprog.lang.ops.sampling import sampling_of

if TYPE_CHECKING:
    from typing_extensions import TypeForm, Unpack

    from lmprog.lang.ops.text_patterns import TextPattern
    from lmprog.lang.ops.tool_calls import ToolReply
    from lmprog.lang.ops.tool_functions import Tool, ToolFunction
    from lmprog.tool_calls.thoughts import Marks

T = TypeVar("T")


@overload
def gen(
    name: str | None = None, max_tokens: int | None = None, **options: Unpack[GenOptions]
) -> GenOp[str]: ...
@overload
def gen(
    pattern: TextPattern,
    /,
    max_tokens: int | None = None,
    *,
    name: str | None = None,
    **options: Unpack[GenOptions],
) -> GenOp[str]: ...
@overload
def gen(
    what: TypeForm[T],
    /,
    max_tokens: int | None = None,
    *,
    name: str | None = None,
    **options: Unpack[GenOptions],
) -> GenOp[T]: ...
@overload
def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    tools: Sequence[ToolFunction | Tool],
    **options: Unpack[ToolOptions],
) -> GenOp[ToolReply]: ...
def gen(*what: Any, **options: Any) -> Any:
    """A generation. With `choices=` it is a `select`, as in SGLang."""
    name, max_tokens = leading(what, options)
    if options.get("choices") is not None:
        return _scored(name, options)
    return gen_op(name, max_tokens, options)


gen.__signature__ = gen_signature()  # type: ignore[attr-defined]


def _scored(name: str | None, options: dict[str, Any]) -> SelectOp:
    """SGLang's `gen(name, choices=...)`: sampling keywords are checked but do not affect the
    scores.
    """
    rest = {key: value for key, value in options.items() if key not in ("choices", "heal", "keep")}
    scoring: dict[str, Any] = {
        key: rest.pop(key)
        for key in ("name", "choices_method", "timeout", "priority")
        if key in rest
    }
    if name is not None:
        scoring["name"] = name
    sampling_of(rest)
    return select_op(options["choices"], scoring)


def gen_int(
    name: str | None = None, max_tokens: int | None = None, **options: Unpack[GenOptions]
) -> GenOp[int]:
    """A generation of an integer."""
    return gen_op(int, max_tokens, {**options, "name": name})


def gen_string(
    name: str | None = None, max_tokens: int | None = None, **options: Unpack[GenOptions]
) -> GenOp[str]:
    """A generation of one string in double quotes, with any characters that JSON allows."""
    return gen_op(str, max_tokens, {**options, "name": name, "regex": QUOTED})


def select(
    name: str | Sequence[str] | None = None,
    choices: Sequence[str] | None = None,
    **options: Unpack[SelectOptions],
) -> SelectOp:
    """A choice by likelihood: `select("kind", ["invoice", "other"])`, or unnamed `select(["a",
    "b"])`.
    """
    if choices is None and name is not None and not isinstance(name, str):
        name, choices = None, name
    merged: dict[str, Any] = {**options}
    if name is not None:
        merged["name"] = name
    return select_op(choices or (), merged)


def role(name: str, content: object = None) -> Concat:
    """A complete chat message, formatted by the checkpoint's own template."""
    inner = () if content is None else (content,)
    return Concat((RoleBeginExpr(name), *inner, RoleEndExpr(name)))


def system(content: object = None) -> Concat:
    return role("system", content)


def user(content: object = None) -> Concat:
    return role("user", content)


def assistant(content: object = None) -> Concat:
    return role("assistant", content)


def system_begin() -> RoleBeginExpr:
    return RoleBeginExpr("system")


def system_end() -> RoleEndExpr:
    return RoleEndExpr("system")


def user_begin() -> RoleBeginExpr:
    return RoleBeginExpr("user")


def user_end() -> RoleEndExpr:
    return RoleEndExpr("user")


def assistant_begin() -> RoleBeginExpr:
    return RoleBeginExpr("assistant")


def assistant_end() -> RoleEndExpr:
    return RoleEndExpr("assistant")


def separate_reasoning(
    expr: object = None,
    model_type: str | None = None,
    *,
    marks: tuple[str, str] | Marks | None = None,
) -> Concat:
    """`expr`, with reasoning separated from the answers of its generations: `s["x"]` and the rest
    of the program see only the answer; `s["x_reasoning_content"]` is the reasoning. Without `marks`
    they are those of the model's own template; `model_type`, SGLang's name of a family, says no
    more than that.
    """
    from lmprog.tool_calls.thoughts import marks_of

    known = marks_of(True if marks is None else marks)
    assert known is not None
    parts = (
        expr.parts
        if isinstance(expr, Concat)
        else tuple(expr)
        if isinstance(expr, list | tuple)
        else (expr,)
    )
    return Concat(tuple(_apart(part, known) for part in parts if part is not None))


def _apart(part: object, marks: Marks) -> object:
    if isinstance(part, Concat | list | tuple):
        return separate_reasoning(part, marks=marks)
    return replace(part, reasoning=marks) if isinstance(part, GenOp) else part


def image(path: str) -> Expr:
    """Raises an error: no model that lmprog runs accepts images."""
    raise NotSupported(f"images are not supported by this model (asked for {path!r})")


def video(path: str, num_frames: int) -> Expr:
    """Raises an error: no model that lmprog runs accepts videos."""
    raise NotSupported(
        f"videos are not supported by this model (asked for {path!r}, {num_frames} frames)"
    )
