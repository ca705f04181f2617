"""An `Api` on an OpenAI-compatible service: `/chat/completions` for messages, `/completions` for
text.

Combines request bodies, answers, a transport and its retry policy. Knows no branches and no HTTP
library.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import msgspec

from lmprog import wire
from lmprog.backends.blackbox.api import ApiAnswer, ApiRequest, JsonBody, TextListener, Transport
from lmprog.backends.blackbox.api_errors import broken_off, hidden_error, refuse_hidden
from lmprog.backends.blackbox.choice_scores import ChoiceScore, chosen
from lmprog.backends.blackbox.dialects import ApiDialect
from lmprog.backends.blackbox.openai_answer import Drafts, echoed, usage_of
from lmprog.backends.blackbox.openai_body import body_of, enforceable
from lmprog.backends.blackbox.response_schema import OPENAI_SUBSET, ResponseSchema, format_of
from lmprog.backends.blackbox.retry_policy import RetryPolicy
from lmprog.backends.blackbox.stop_strings import first_stop
from lmprog.backends.blackbox.transcript import ChatPrompt, Kind, Prompt, TextPrompt
from lmprog.errors import NotSupported, ProtocolError


@dataclass(frozen=True, slots=True)
class ApiService:
    """The model, and the conventions of its service."""

    model: str
    kind: Kind
    dialect: ApiDialect
    context_len: int = 0
    extra_body: Mapping[str, Any] | None = None
    """Fields added to every request."""
    leave_out: frozenset[str] = frozenset()
    """Fields that are never sent, because the service rejects them."""
    root: str = ""
    """The path prefix: "/v1" if the transport's address is that of the whole server."""
    find: Callable[[], ApiDialect | None] | None = None
    """Asks the service for its dialect, which is used instead; None: it did not say now. Blocks."""


class OpenAIApi:
    """An OpenAI-compatible API. Owns its transport."""

    def __init__(
        self, service: ApiService, transport: Transport, retry_policy: RetryPolicy
    ) -> None:
        self.model = service.model
        self.kind: Kind = service.kind
        self.context_len = service.context_len
        self._service = service
        self._transport = transport
        self._retry_policy = retry_policy
        self._found: ApiDialect | None = None

    @property
    def dialect(self) -> ApiDialect:
        """Found out where it first matters; a service that does not say is asked again."""
        if self._found is None and self._service.find is not None:
            self._found = self._service.find()
        return self._found or self._service.dialect

    @property
    def can_prefill(self) -> bool:
        return self.dialect.prefill != "none"

    async def generate(self, request: ApiRequest, on_text: TextListener | None) -> ApiAnswer:
        dialect = self.dialect
        is_chat = isinstance(request.prompt, ChatPrompt)
        by_format = dialect.confines == "response_format"
        wrapping = format_of(request.constraint, OPENAI_SUBSET) if by_format else None
        is_changed = wrapping is not None and wrapping.is_changed
        left = request.sampling.stop[0 if is_changed else dialect.max_stops :]
        if is_changed:  # stops are for the program's text, not for JSON in another form
            request = replace(request, sampling=msgspec.structs.replace(request.sampling, stop=()))
        is_changed = is_changed or bool(left)
        path = "/chat/completions" if is_chat else "/completions"
        body = self._complete(body_of(request, self.model, dialect, wrapping))
        drafts = Drafts(request.sampling.n, None if is_changed else on_text)
        if on_text is None or is_changed:
            drafts.take(await self._post(path, body))
        else:
            await self._stream(path, body, drafts)
        outputs = tuple(_changed(output, wrapping, left) for output in drafts.outputs())
        if is_changed and on_text is not None:
            for index, output in enumerate(outputs):
                if output.text:
                    on_text(index, output.text, 1)
        return ApiAnswer(outputs, drafts.usage)

    def _complete(self, body: JsonBody) -> JsonBody:
        merged = {**body, **(self._service.extra_body or {})}
        return {
            name: value for name, value in merged.items() if name not in self._service.leave_out
        }

    async def _post(self, path: str, body: JsonBody) -> Mapping[str, Any]:
        async def send() -> Mapping[str, Any]:
            answer = await self._transport.post(self._service.root + path, body)
            if not isinstance(answer, Mapping):
                raise ProtocolError(
                    f"the API answered {str(answer)[:200]!r}, which is not a JSON object"
                )
            refuse_hidden(answer)
            return answer

        return await self._retry_policy.run(send)

    async def _stream(self, path: str, body: JsonBody, drafts: Drafts) -> None:
        """Retries only until the first chunk: streamed text cannot be taken back."""
        streamed = self._complete(
            {**body, "stream": True, "stream_options": {"include_usage": True}}
        )
        stream = await self._retry_policy.run(
            lambda: self._transport.open(self._service.root + path, streamed)
        )
        async with contextlib.aclosing(cast("Any", stream)):
            pieces: AsyncIterator[Mapping[str, Any]] = self._retry_policy.pieces(stream)
            async for piece in pieces:
                if (error := hidden_error(piece)) is not None:
                    raise broken_off(error)
                drafts.take(piece)

    # --- selections

    def enforces(self, constraint: wire.Constraint, prompt: Prompt) -> bool:
        return enforceable(constraint, self.dialect, is_chat=isinstance(prompt, ChatPrompt))

    async def select(self, prompt: Prompt, op: wire.Select) -> wire.Chosen | None:
        if not isinstance(prompt, TextPrompt) or not self.dialect.scores:
            return None
        texts = [prompt.text + choice for choice in op.choices]
        found, usage = await self._echo(texts, op.choices)
        alone: tuple[tuple[float, ...], ...] = ()
        if op.method == "unconditional_likelihood_normalized":
            alone, more = await self._echo(list(op.choices), op.choices)
            usage = wire.Usage(
                prompt=usage.prompt + more.prompt, computed=usage.computed + more.computed
            )
        return chosen(op, ChoiceScore(found, alone, usage))

    async def _echo(
        self, texts: list[str], choices: Sequence[str]
    ) -> tuple[tuple[tuple[float, ...], ...], wire.Usage]:
        """All texts in one request; for each, the log-probabilities of its choice's tokens."""
        body: JsonBody = {
            "model": self.model,
            "prompt": texts,
            "max_tokens": 0,
            "echo": True,
            "logprobs": 0,
        }
        answer = await self._post("/completions", self._complete({**body, "temperature": 0.0}))
        by_index = sorted(answer.get("choices") or (), key=lambda choice: choice.get("index") or 0)
        if len(by_index) != len(choices):
            raise ProtocolError(
                f"asked to score {len(choices)} choices, the API answered {len(by_index)}"
            )
        found: list[tuple[float, ...]] = []
        for choice, text in zip(by_index, choices, strict=True):
            numbers = echoed(choice, len(text))
            if not numbers or any(number is None for number in numbers):
                raise NotSupported(
                    f"the API does not tell the likelihood of all tokens of {text!r}: a "
                    "text's first token has none"
                )
            found.append(tuple(number for number in numbers if number is not None))
        return tuple(found), usage_of(answer)

    async def flush(self) -> None:
        raise NotSupported("this API has no request that makes it forget its cache")

    async def close(self) -> None:
        await self._transport.close()


def _changed(
    output: wire.Output, wrapping: ResponseSchema | None, left: Sequence[str]
) -> wire.Output:
    """The output with its text read from JSON, and cut at stop strings that were not sent."""
    text = output.text if wrapping is None else wrapping.read(output.text, output.finish)
    stop = first_stop(text, left) if left else None
    if stop is None:
        return msgspec.structs.replace(output, text=text)
    return msgspec.structs.replace(
        output, text=text[: stop.begin], finish="stop", stopped_by=stop.of(text)
    )
