"""What each route is for, and which structs it takes and gives: the part of the document that code
cannot tell itself.

A route that is missing here is documented all the same, by its path alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from lmprog.server.anthropic.messages_body import Countable, MessagesBody
from lmprog.server.openai import answers
from lmprog.server.openai.chat_completions import ChatBody
from lmprog.server.openai.completions import CompletionBody
from lmprog.server.programs.program_body import ProgramBody
from lmprog.server.responses.responses_body import ResponsesBody
from lmprog.server.sglang.generate import AbortRequest
from lmprog.server.sglang.generate_body import GenerateRequest
from lmprog.server.sglang.tokenize import DetokenizeRequest, TokenizeRequest


@dataclass(frozen=True, slots=True)
class Operation:
    """`body` and `answer` are structs, None where there is none or where its shape is free."""

    summary: str
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    streams: bool = False
    """Whether it can answer with server-sent events."""
    media: str = "application/json"
    """Of an answer that is not a stream."""


_MODEL = Operation("The model that is served, under SGLang's names.")
_SERVER = Operation("What the runtime is, and its counters.")
_TOKENIZE = Operation("The tokens of a text.", TokenizeRequest)
_DETOKENIZE = Operation("The text of tokens.", DetokenizeRequest)

OPERATIONS: dict[str, Operation] = {
    "/health": Operation("Whether the server lives; needs no key."),
    "/ready": Operation("Whether it can take requests; needs no key."),
    "/metrics": Operation("Counters and times, as Prometheus reads them.", media="text/plain"),
    "/version": Operation("The version of lmprog."),
    "/v1/models": Operation("The models: there is one."),
    "/v1/models/{model}": Operation("One model."),
    "/v1/chat/completions": Operation(
        "OpenAI's chats.", ChatBody, answers.ChatCompletion, streams=True
    ),
    "/v1/completions": Operation(
        "OpenAI's text completions.", CompletionBody, answers.Completion, streams=True
    ),
    "/v1/responses": Operation("OpenAI's responses.", ResponsesBody, streams=True),
    "/v1/responses/{response}": Operation("A response that was stored."),
    "/v1/responses/{response}/cancel": Operation(
        "Ends a response that is written in the background."
    ),
    "/v1/messages": Operation("Anthropic's messages.", MessagesBody, streams=True),
    "/v1/messages/count_tokens": Operation("How many tokens messages have.", Countable),
    "/v1/programs": Operation(
        "A whole program: forks, references, choices.", ProgramBody, streams=True
    ),
    "/generate": Operation("SGLang's native generation.", GenerateRequest, streams=True),
    "/abort_request": Operation("Ends requests of /generate by their rid.", AbortRequest),
    "/model_info": _MODEL,
    "/get_model_info": _MODEL,
    "/server_info": _SERVER,
    "/get_server_info": _SERVER,
    "/flush_cache": Operation(
        "Forgets all cached prefixes; for the administrator.", media="text/plain"
    ),
    "/health_generate": Operation("Whether the runtime still generates: one token.", media=""),
    "/tokenize": _TOKENIZE,
    "/v1/tokenize": _TOKENIZE,
    "/detokenize": _DETOKENIZE,
    "/v1/detokenize": _DETOKENIZE,
    "/openapi.json": Operation("This document."),
    "/docs": Operation("This document as a page.", media="text/html"),
}
