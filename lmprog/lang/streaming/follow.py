"""Following a streaming run: the text of a variable or of a branch, piece by piece, in the branch's
own order.

Knows logs and feeds; sends nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from lmprog.errors import ProgramError, UnknownName
from lmprog.lang.branches.appended import GainedBy, Item
from lmprog.lang.branches.cursor import Cursor
from lmprog.lang.branches.results_of_calls import Gen
from lmprog.lang.ops.meta import Selected
from lmprog.lang.streaming.feed import Feed


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
    if meta.finish == "select":
        chosen: Selected = gen.value
        info["normalized_prompt_logprobs"] = list(chosen.scores.values())
        info["input_token_logprobs"] = [list(logprobs) for logprobs in chosen.logprobs.values()]
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
    return info


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
        self.gen: Gen[Any] | None = None

    def more(self) -> Iterator[str]:
        """What has come since the last time; raises why a generation on the way failed."""
        if self._var_name is None:
            yield from self._whole()
            return
        var = self._cursor.names.get(self._var_name)
        if var is not None:
            self.gen = var if isinstance(var, Gen) else None
            if self.gen is None:
                raise ProgramError(f"{self._var_name!r} was not generated, so it does not stream")
            yield from self._of(self.gen)
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
            elif isinstance(item, Gen):
                self.gen = item
                yield from self._of(item)
                if not item.done():
                    return
                self._delta = 0
            self._at[-1] = (log, index + 1)
            if isinstance(item, GainedBy):
                self._at.append((item.child.log, item.child.base))

    def _of(self, gen: Gen[Any]) -> Iterator[str]:
        done = gen.done()
        while self._delta < len(gen.deltas):
            self._delta += 1
            yield gen.deltas[self._delta - 1]
        if done and not gen.deltas:
            gen.deltas.append(gen.text)  # a selection, or a backend that does not stream
            self._delta = 1
            yield gen.deltas[0]
        elif done:
            gen.text  # noqa: B018  (raises the cause)


def texts(cursor: Cursor, var_name: str | None) -> Iterator[str]:
    """Blocking; see `Branch.text_iter`."""
    return _feed_of(cursor).follow(_Reader(cursor, var_name).more)


def texts_async(cursor: Cursor, var_name: str | None, with_meta: bool) -> AsyncIterator[Any]:
    """See `Branch.text_async_iter`. Meta information comes with an empty text, when a result is
    complete.
    """
    reader = _Reader(cursor, var_name)
    more: Callable[[], Iterator[Any]] = reader.more
    told: Gen[Any] | None = None
    if with_meta:

        def more() -> Iterator[tuple[str, dict[str, Any]]]:
            nonlocal told
            for piece in reader.more():
                yield piece, {}
            gen = reader.gen
            if gen is not None and gen is not told and gen.done():
                told = gen
                yield "", meta_info(gen)

    return _feed_of(cursor).follow_async(more)
