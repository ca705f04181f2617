"""The base class of all messages, and the types of their fields."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

Id: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
PrefixKey: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
MAX_PREFIX_KEYS = 256
"""The most blocks in one message; further blocks are left out."""
ShortText: TypeAlias = Annotated[str, Meta(max_length=256)]
SelectMethod: TypeAlias = Literal[
    "token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"
]
Whitespace: TypeAlias = Literal["fixed", "compact", "indented", "flexible"]
Keep: TypeAlias = Literal["first", "best", "fastest", "majority"]
ContestRule: TypeAlias = Literal["first", "majority"]
FinishReason: TypeAlias = Literal["stop", "length", "constraint"]


SHARES_PUBLIC = "~"
"""Prefix of the salts that share the runtime's public prefixes with each other."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all structs here; the tag is the class name."""
