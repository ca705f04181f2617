"""The way of a request for texts that was understood: run it, and answer it whole or as a stream.

Chats and completions go it; what they ask for and how an answer looks is theirs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from lmprog import wire
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.http.large_answers import entries_in, made_aside
from lmprog.server.http.sse import EventStream, until_gone
from lmprog.server.openai.running_request import (
    RequestPrompt,
    RunningRequest,
    running,
    warned,
)
from lmprog.server.openai.shared_fields import GenerationFields

Started: TypeAlias = Callable[[], AbstractContextManager[RunningRequest]]
"""Sends the request's calls when it is entered, and closes them when it is left."""


class UnderstoodRequest(Protocol):
    """What a body asks for."""

    @property
    def prompts(self) -> tuple[RequestPrompt, ...]: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...


async def answer_request(
    gateway: Gateway,
    request: Request,
    body: GenerationFields,
    asked: UnderstoodRequest,
    events: Callable[[Started], AsyncGenerator[bytes, None]],
    whole: Callable[[RunningRequest, Sequence[wire.CallDone]], Any],
) -> Response:
    """`events` are the stream's, `whole` is the answer without one. Raises HttpError."""
    headers = warned(asked.warnings)
    started = partial(running, gateway, request, asked.prompts, bool(body.stream), body.cache_salt)
    if body.stream:
        return await EventStream.begin(request, events(started), gateway.settings, headers)
    with started() as run:
        dones = await until_gone(request, run.dones())
        answer = await made_aside(lambda encode: encode(whole(run, dones)), entries_in(dones))
    return Response(answer, headers=headers, media_type="application/json")
