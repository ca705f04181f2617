"""Best-of-n generation: `best_of` for both forms of the language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from lmprog import wire
from lmprog.errors import InvalidParameter
from lmprog.lang.ops.expressions import GenOp, gen_op, leading

Judge = wire.Judge
By: TypeAlias = "Literal['logprob'] | Judge"
"""What is best: what is likeliest, or what a judge finds best."""


def best_options(k: int, by: By, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a `gen` that keeps the best of `k`. Raises `InvalidParameter`."""
    if by != "logprob" and not isinstance(by, Judge):
        allowed = "'logprob', or lmprog.Judge(question)"
        raise InvalidParameter(
            f"by={by!r} is not allowed; give {allowed}", name="by", value=repr(by), allowed=allowed
        )
    return {"keep": "best", **options, "n": k, "judge": by if isinstance(by, Judge) else None}


def best_of(k: int, *what: Any, by: By = "logprob", **options: Any) -> GenOp[Any]:
    """The best of `k` generations; all other arguments as in `gen`. See `Branch.best_of`."""
    name, max_tokens = leading(what, options)
    return gen_op(name, max_tokens, best_options(k, by, options))
