"""A run as a stream of events. Knows how to start a run, and to end one that nobody reads any
more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Generic, TypeVar, cast

from lmprog.lang import threads
from lmprog.lang.runs.executor import Job, RunSettings, awaiting, in_thread, open_run
from lmprog.lang.runs.results import stop_runs
from lmprog.lang.streaming.feed import Done, Event, Feed

R = TypeVar("R")


class Stream(Generic[R]):
    """A run that goes on while its events are read. Leaving the loop early ends the run."""

    def __init__(self, job: Job, settings: RunSettings) -> None:
        self._job = job
        self._settings = settings

    def __iter__(self) -> Iterator[Event | Done[R]]:
        feed = Feed()
        run = open_run(self._settings, feed)
        thread = in_thread(self._job, run)
        try:
            yield from feed.follow(feed.unseen())
            threads.wait([thread])
            yield Done(cast(R, run.value), run.usage)
        finally:
            stop_runs([run], "nobody reads the stream any more")

    async def __aiter__(self) -> AsyncIterator[Event | Done[R]]:
        feed = Feed()
        run = open_run(self._settings, feed)
        task = asyncio.ensure_future(awaiting(self._job, run))
        try:
            async for event in feed.follow_async(feed.unseen()):
                yield event
            await task
            yield Done(cast(R, run.value), run.usage)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
