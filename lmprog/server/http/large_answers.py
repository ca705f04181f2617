"""Answers that may be large: how many log-probabilities a request may ask for, and how they are
encoded without holding up the event loop.

One entry is one log-probability with its token: a position has one for itself, and one for each of
the likely tokens there. Knows the wire's options and results; knows no routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

import msgspec

from lmprog import wire
from lmprog.server.http.http_errors import refused
from lmprog.server.http.limits import LIMITS

Made = TypeVar("Made")
Encode: TypeAlias = Callable[[Any], bytes]

IN_LOOP = 8192
"""Entries of an answer that is made on the event loop: some 6 ms of processor time."""
ROWS = 256
"""Of a longer list so many items are encoded at once: with 20 likely tokens each, a millisecond."""
DEPTH = 7
"""Levels of an answer in which long lists are looked for: those of programs are the deepest."""
WORTH_CUTTING = 4096
"""A text without `max_tokens` may be this long, or its request is refused."""
IDS_PER_ENTRY = 8
"""Token ids of an answer, or tokens of a text in it, that count as one entry: by their bytes."""
_thread = ThreadPoolExecutor(1, thread_name_prefix="lmprog-encode")
"""One large answer is made at a time, so that one is in memory twice."""


def asked_entries(
    sampling: wire.SamplingParams, prompt_tokens: int, context: int, copies: int = 1
) -> int:
    """How many a call may bring, at most. Its answer has those of the prompt `copies` times."""
    total = 0
    if sampling.prompt_logprobs is not None:
        scored = max(0, prompt_tokens - sampling.prompt_logprobs_start)
        total = scored * (1 + sampling.prompt_logprobs) * copies
    if sampling.logprobs is not None:
        most = context if sampling.max_tokens is None else min(sampling.max_tokens, context)
        total += sampling.num_sequences * most * (1 + sampling.logprobs)
    return total


def cut_to_entries(sampling: wire.SamplingParams, context: int) -> wire.SamplingParams:
    """A text without `max_tokens` ends where its answer may have no more log-probabilities, if it
    can be long until then.
    """
    if sampling.logprobs is None or sampling.max_tokens is not None:
        return sampling
    limit = int(LIMITS["entries"].maximum)
    most = limit // (sampling.num_sequences * (1 + sampling.logprobs))
    if not WORTH_CUTTING <= most < context:
        return sampling
    return msgspec.structs.replace(sampling, max_tokens=most)


def is_beyond(entries: int) -> bool:
    """Whether no answer may have so many."""
    return entries > LIMITS["entries"].maximum


def check_entries(entries: int, param: str) -> None:
    """Raises HttpError for more than one answer may have."""
    if is_beyond(entries):
        raise refused(
            f"The request asks for up to {entries:,} log-probabilities: tokens of all prompts and "
            "results, times one and the likely tokens at each. An answer has at most "
            f"{LIMITS['entries'].maximum:,}; send fewer prompts at once, a smaller n or "
            "max_tokens, or ask for fewer likely tokens.",
            param,
            "too_many_logprobs",
        )


def entries_in(replies: Iterable[wire.Reply]) -> int:
    """How many have come; token ids of results count, too."""
    total = 0
    for reply in replies:
        total += wire.count_logprobs(reply)
        if isinstance(reply, wire.CallDone):
            total += sum([len(output.tokens) for output in reply.outputs]) // IDS_PER_ENTRY
    return total


async def made_aside(make: Callable[[Encode], Made], entries: int) -> Made:
    """What `make` makes of values with the given encoder: here where it is little, else in a
    thread, in pieces that let the event loop go on.
    """
    if entries <= IN_LOOP:
        return make(msgspec.json.encode)
    return await asyncio.get_running_loop().run_in_executor(_thread, make, in_pieces)


def in_pieces(value: Any) -> bytes:
    """The same JSON as msgspec's, of which no long list is encoded at once: the encoder holds the
    interpreter until it returns.
    """
    return b"".join(_pieces(value, DEPTH))


def _pieces(value: Any, depth: int) -> Iterator[bytes]:
    if isinstance(value, list | tuple) and len(value) > ROWS:
        for at in range(0, len(value), ROWS):
            yield (b"," if at else b"[") + msgspec.json.encode(value[at : at + ROWS])[1:-1]
        yield b"]"
    elif depth and isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        yield from _object({name: getattr(value, field) for name, field in names}, depth)
    elif depth and isinstance(value, dict):
        yield from _object(value, depth)
    elif depth and isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield b"," if at else b"["
            yield from _pieces(item, depth - 1)
        yield b"]" if value else b"[]"
    else:
        yield msgspec.json.encode(value)


def _object(fields: Mapping[str, Any], depth: int) -> Iterator[bytes]:
    before = b"{"
    for name, field in fields.items():
        if field is not msgspec.UNSET:
            yield before + msgspec.json.encode(name) + b":"
            yield from _pieces(field, depth - 1)
            before = b","
    yield b"}" if before == b"," else b"{}"
