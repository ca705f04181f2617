"""Following a streaming run: the text of a variable or of a branch, piece by piece, in the branch's
own order.

Knows logs and feeds; sends nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

from lmprog.errors import ProgramError, UnknownName
from lmprog.lang.branches.cursor import Cursor
from lmprog.lang.branches.gen import Gen
from lmprog.lang.branches.log import GainedBy, Item
from lmprog.lang.branches.pending_call import PendingCall
from lmprog.lang.ops.meta import Selected
from lmprog.lang.streaming.feed import Feed


def _feed_of(cursor: Cursor) -> Feed:
    feed = cursor.scope.feed
    if feed is None:
        raise ProgramError(
            "this run does not stream; start it with run(..., stream=True), or use stream(...)"
        )
    return feed


class _Reader:
    """Where a follower stands in a branch: which item of its log, how much of that item."""

    def __init__(self, cursor: Cursor, var_name: str | None) -> None:
        self._cursor = cursor
        self._var_name = var_name
        self._at: list[tuple[list[Item], int]] = [
            (cursor.log, 0)
        ]  # an item; in joined branches inside one another
        self._delta = 0  # how much of that item was given
        self.call: PendingCall | None = None

    def more(self) -> Iterator[str]:
        """What has come since the last time; raises why a generation on the way failed."""
        if self._var_name is None:
            yield from self._whole()
            return
        var = self._cursor.names.get(self._var_name)
        if var is not None:
            if not isinstance(var, Gen):
                raise ProgramError(f"{self._var_name!r} was not generated, so it does not stream")
            if var is not self.call:  # the first attempt, or the next one
                self.call, self._delta = var, 0
            yield from self._of(var)
        elif self._cursor.closed:
            raise UnknownName(f"the program never set {self._var_name!r}", name=self._var_name)

    def _whole(self) -> Iterator[str]:
        while self._at:
            log, index = self._at[-1]
            if index == len(log):
                if len(self._at) == 1:
                    return  # the branch itself may go on
                self._at.pop()
                continue
            item = log[index]
            if isinstance(item, str):
                yield item
            elif isinstance(item, PendingCall):
                self.call = item
                is_done = yield from self._of(item)
                if not is_done:
                    return
                self._delta = 0
            self._at[-1] = (log, index + 1)
            if isinstance(item, GainedBy):
                self._at.append((item.log, item.base))

    def _of(self, gen: PendingCall) -> Generator[str, None, bool]:
        """What has come of one result; gives whether that was all of it."""
        is_done, deltas = gen.call.done(), gen.deltas
        while self._delta < len(deltas):
            self._delta += 1
            yield deltas[self._delta - 1]
        if is_done:
            text = gen.own_text()  # raises the cause
            if not deltas and not self._delta:  # a selection, or a backend that does not stream
                self._delta = 1
                yield text
        return is_done


def texts(cursor: Cursor, var_name: str | None) -> Iterator[str]:
    """Blocking; see `Branch.text_iter`."""
    return _feed_of(cursor).follow(_Reader(cursor, var_name).more)


def texts_async(cursor: Cursor, var_name: str | None, with_meta: bool) -> AsyncIterator[Any]:
    """See `Branch.text_async_iter`. Meta information comes with an empty text, when a result is
    complete.
    """
    reader = _Reader(cursor, var_name)
    more: Callable[[], Iterator[Any]] = reader.more
    reported: PendingCall | None = None
    if with_meta:

        def more() -> Iterator[tuple[str, dict[str, Any]]]:
            nonlocal reported
            for piece in reader.more():
                yield piece, {}
            gen = reader.call
            if isinstance(gen, Gen) and gen is not reported and gen.done():
                reported = gen
                yield "", meta_info(gen)

    return _feed_of(cursor).follow_async(more)


def meta_info(gen: Gen[Any]) -> dict[str, Any]:
    """A result's meta information under the names that SGLang gives it."""
    meta = gen.meta
    info: dict[str, Any] = {
        "prompt_tokens": meta.usage.prompt,
        "completion_tokens": meta.usage.generated,
        "cached_tokens": meta.usage.cached,
        "forced_tokens": meta.usage.forced,
        "finish_reason": {"type": meta.finish, "matched": meta.stopped_by},
        "output_ids": list(meta.tokens),
    }
    if meta.reasoning_tokens is not None:
        info["reasoning_tokens"] = meta.reasoning_tokens
    if meta.left_out:
        info["constraint_left_out"] = list(meta.left_out)
    if meta.finish == "select":
        chosen: Selected = gen.value
        info["normalized_prompt_logprobs"] = list(chosen.scores.values())
        info["input_token_logprobs"] = [_triples(chosen, text) for text in chosen.logprobs]
    if meta.logprobs:
        info["output_token_logprobs"] = [
            (item.logprob, item.token, item.text) for item in meta.logprobs
        ]
        info["output_top_logprobs"] = [
            [(lp, token, text) for token, text, lp in item.top] for item in meta.logprobs
        ]
    if meta.prompt_logprobs:
        info["input_token_logprobs"] = [
            (item.logprob, item.token, item.text) for item in meta.prompt_logprobs
        ]
        info["input_top_logprobs"] = [
            [(lp, token, text) for token, text, lp in item.top] for item in meta.prompt_logprobs
        ]
    if meta.next_logprobs:
        info["next_token_logprobs"] = [(lp, token, text) for token, text, lp in meta.next_logprobs]
    return info


def _triples(chosen: Selected, text: str) -> list[tuple[float, int | None, str | None]]:
    """The tokens of one option: log-probability, id and text, where they are known."""
    tokens = chosen.tokens[text] or [(None, None)] * len(chosen.logprobs[text])
    return [
        (logprob, token, name)
        for logprob, (token, name) in zip(chosen.logprobs[text], tokens, strict=True)
    ]
