"""Every limit of a request in one table: validation, the documentation and the tests of borders are
made from it.

`Annotated[float, within("temperature")]` gives a field its range. What depends on the model
(vocabulary, context) is the runtime's to check. Knows numbers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Meta

INT63 = 2**63 - 1
INT31 = 2**31 - 1
COUNTED = ("characters", "items")
"""Units that are lengths and not values."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Both ends belong to the range. `unit`: of a value, or what is counted."""

    minimum: float
    maximum: float
    unit: str
    note: str = ""

    def words(self) -> str:
        """For a message: `a number from 0 to 2`."""
        low, high = number(self.minimum), number(self.maximum)
        if self.unit in COUNTED:
            return f"{low} to {high} {self.unit}"
        return f"from {low} to {high}"


LIMITS: Mapping[str, Limit] = {
    "temperature": Limit(0.0, 2.0, "number", "0 is greedy"),
    "top_p": Limit(0.0, 1.0, "number"),
    "top_k": Limit(-1, INT31, "tokens", "-1 and 0 are off"),
    "min_p": Limit(0.0, 1.0, "number"),
    "frequency_penalty": Limit(-2.0, 2.0, "number"),
    "presence_penalty": Limit(-2.0, 2.0, "number"),
    "repetition_penalty": Limit(0.01, 10.0, "number", "1 is off"),
    "n": Limit(1, 128, "results"),
    "best_of": Limit(1, 128, "results"),
    "max_tokens": Limit(
        0, INT31, "tokens", "with the prompt at most the context; 0 only with echo"
    ),
    "max_completion_tokens": Limit(1, INT31, "tokens", "with the prompt at most the context"),
    "min_tokens": Limit(0, INT31, "tokens"),
    "seed": Limit(-INT63 - 1, INT63, "integer"),
    "logprobs": Limit(0, 20, "tokens", "of /v1/completions; a truth value in chats"),
    "top_logprobs": Limit(0, 20, "tokens"),
    "priority": Limit(-100, 100, "integer", "higher goes first"),
    "stop": Limit(0, 16, "items"),
    "stop[]": Limit(1, 256, "characters"),
    "stop_token_ids": Limit(0, 64, "items"),
    "stop_token_ids[]": Limit(0, INT31, "token id", "below the model's vocabulary"),
    "logit_bias": Limit(0, 1024, "items"),
    "logit_bias[]": Limit(-100.0, 100.0, "number"),
    "messages": Limit(1, 4096, "items"),
    "prompt": Limit(1, 1024, "items", "texts, each with its own results"),
    "prompt[]": Limit(0, INT31, "token id", "below the model's vocabulary"),
    "tools": Limit(0, 128, "items"),
    "name": Limit(1, 64, "characters", "of a tool or a schema"),
    "description": Limit(0, 16_384, "characters", "of a tool"),
    "regex": Limit(1, 4096, "characters"),
    "grammar": Limit(
        1, 65_536, "characters", "`ebnf`, `guided_grammar`, `structured_outputs.grammar`"
    ),
    "schema": Limit(2, 262_144, "characters", "as JSON text; also the parameters of a tool"),
    "choice": Limit(1, 1024, "items"),
    "choice[]": Limit(1, 4096, "characters"),
    "model": Limit(0, 256, "characters"),
    "cache_salt": Limit(1, 128, "characters"),
    "ops": Limit(1, 4096, "items", "of a program"),
    "branches": Limit(1, 1024, "branches", "of a program"),
    "into": Limit(1, 256, "items", "children of one fork"),
    "pieces": Limit(0, 1024, "items", "of one append"),
    "nesting": Limit(0, 64, "levels", "of arrays and objects in a body"),
}


def within(name: str) -> Meta:
    """The range of a field, for its type: of its value, or of its length."""
    limit = LIMITS[name]
    if limit.unit in COUNTED:
        return Meta(min_length=int(limit.minimum), max_length=int(limit.maximum))
    return Meta(ge=limit.minimum, le=limit.maximum)


def markdown() -> str:
    """The table of docs/server.md."""
    lines = ["| field | least | most | unit | remark |", "|---|---:|---:|---|---|"]
    for name, limit in LIMITS.items():
        lines.append(
            f"| `{name}` | {number(limit.minimum)} | {number(limit.maximum)} | {limit.unit} | {limit.note} |"
        )
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """With separators, and without a fraction that says nothing."""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
