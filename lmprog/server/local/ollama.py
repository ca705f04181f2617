"""Ollama's routes: `/api/chat`, `/api/generate`, and what tools ask before (`/api/tags`,
`/api/show`, `/api/ps`, `/api/version`).

A chat is one of OpenAI's with other names, and an answer comes as lines of JSON. The model is
always loaded: what keeps one loaded, and on which hardware, has no effect. Knows both bodies, and
how chats and completions reach the runtime.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lmprog import wire
from lmprog.server.gateway.gateway import Gateway, version
from lmprog.server.gateway.routes import GatewayRouter
from lmprog.server.http.bodies import RequestBody
from lmprog.server.http.foreign_fields import unsupported
from lmprog.server.http.http_errors import refused
from lmprog.server.http.json_body import Given, described
from lmprog.server.http.limits import LIMITS, within
from lmprog.server.http.sse import LineStream, line, until_gone
from lmprog.server.local.llama_cpp import LlamaOptions
from lmprog.server.openai import answers, chat_completions, completions
from lmprog.server.openai.chat_completions import ChatBody
from lmprog.server.openai.completions import CompletionBody
from lmprog.server.openai.messages import CalledFunction, CalledTool, ChatMessage
from lmprog.server.openai.output_constraint import NamedSchema, ResponseFormat
from lmprog.server.openai.running_request import RequestPrompt, fitted, running, warned
from lmprog.server.openai.tools import AnswerPart, ChatTool, Toolbox
from lmprog.tool_calls.harmony import ThoughtText
from lmprog.tool_calls.reading import ParsedCall

Json = dict[str, Any]
SPOKEN = "0.12.6"
"""The version of Ollama whose requests are understood: some tools refuse older ones."""
SILENT = (
    *("keep_alive", "num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread"),
    *("use_mmap", "use_mlock", "numa", "low_vram", "vocab_only", "f16_kv", "logits_all"),
    *("embedding_only", "penalize_newline", "truncate", "shift", "verbose"),
)
"""Known fields that cannot change an answer here: no warning is given."""
_FOREVER = "9999-12-31T23:59:59Z"
_NAMES = {"prompt": "messages", "max_tokens": "options.num_predict"}


class OllamaFunction(msgspec.Struct):
    name: Annotated[str, within("name")]
    arguments: dict[str, Any] = {}


class OllamaCall(msgspec.Struct):
    function: OllamaFunction
    id: str | None = None


class OllamaMessage(msgspec.Struct):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaOptions(LlamaOptions, kw_only=True):
    """`num_predict` below 1: up to the context's end."""

    num_predict: Annotated[int, Meta(ge=-2, le=int(LIMITS["max_tokens"].maximum))] | None = None


class OllamaBody(msgspec.Struct, kw_only=True):
    """What both routes take."""

    model: Annotated[str, within("model")]
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: OllamaOptions | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, within("top_logprobs")] | None = None


class OllamaChat(OllamaBody, kw_only=True):
    """Without messages it asks for the model to be loaded."""

    messages: Annotated[list[OllamaMessage], Meta(max_length=4096)] = []
    tools: Annotated[list[ChatTool], within("tools")] | None = None


class OllamaGenerate(OllamaBody, kw_only=True):
    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[str] | None = None


class OllamaModel(msgspec.Struct, kw_only=True):
    """`name` is the older spelling."""

    model: Annotated[str, within("model")] = ""
    name: Annotated[str, within("model")] = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was understood."""

    prompt: RequestPrompt
    box: Toolbox
    model: str
    is_chat: bool
    began: float
    wants_logprobs: bool
    warnings: tuple[str, ...]


class Ollama:
    """What the routes do."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def model(self, asked: str) -> str:
        """The name that is served. Its tag may be said: there is one of each. Raises 404."""
        plain = asked.removesuffix(":latest")
        return self._gateway.check_model(plain if plain in self._gateway.names else asked)

    def chat(self, body: OllamaChat) -> tuple[ChatBody, tuple[str, ...]]:
        """The same as OpenAI has it, and warnings. Raises HttpError."""
        messages = [_message(one, f"messages[{at}]") for at, one in enumerate(body.messages)]
        return self._as_chat(body, messages, body.tools)

    def prompted(self, body: OllamaGenerate) -> tuple[ChatBody, tuple[str, ...]]:
        """A prompt as the user's turn. Raises HttpError."""
        system = [ChatMessage("system", body.system)] if body.system else []
        return self._as_chat(body, [*system, ChatMessage("user", body.prompt)], None)

    def _as_chat(
        self, body: OllamaBody, messages: list[ChatMessage], tools: list[ChatTool] | None
    ) -> tuple[ChatBody, tuple[str, ...]]:
        model = self.model(body.model)
        known, think = self._gateway.info.template_variables, body.think
        support = self._gateway.info.tools
        variables: Json = {}
        if think is not None and support.thought.switch:
            variables[support.thought.switch] = think is not False
        if isinstance(think, str) and "reasoning_effort" in known:
            variables["reasoning_effort"] = think
        thinks = bool(support.thought.begin) or support.form.harmony
        says_nothing = not think or bool(variables) or thinks
        warnings = () if says_nothing else ("think has no effect on this model's chat template",)
        chat = ChatBody(
            messages=messages,
            model=model,
            tools=tools,
            response_format=_format(body.format),
            chat_template_kwargs=variables or None,
            logprobs=body.logprobs,
            top_logprobs=body.top_logprobs,
            **_sampling(body),
        )
        return chat, warnings

    async def understood(
        self, request: Request, read: RequestBody[OllamaChat] | RequestBody[OllamaGenerate]
    ) -> Asked:
        """Raises HttpError."""
        body, began = read.body, self._gateway.clock()
        asked = await read.aside(lambda: self._understood(body, read.warnings, began))
        is_chat = asked.is_chat
        request.state.names = _NAMES if is_chat else {**_NAMES, "prompt": "prompt"}
        prompt, _ = await fitted(self._gateway, asked.prompt)
        return dataclasses.replace(asked, prompt=prompt)

    def _understood(
        self, body: OllamaChat | OllamaGenerate, warnings: tuple[str, ...], began: float
    ) -> Asked:
        """With a prompt that may not fit yet. Raises HttpError."""
        gateway = self._gateway
        box, is_chat = Toolbox(), isinstance(body, OllamaChat)
        if isinstance(body, OllamaGenerate):
            _check(body)
        if isinstance(body, OllamaGenerate) and (body.raw or body.suffix):
            text = CompletionBody(
                prompt=body.prompt,
                model=self.model(body.model),
                suffix=body.suffix,
                response_format=_format(body.format),
                logprobs=(body.top_logprobs or 0) if body.logprobs else None,
                **_sampling(body),
            )
            made = completions.understood(gateway, text, warnings)
            (prompt,), head, told = made.prompts, made.head, made.warnings
        else:
            as_chat, more = self.chat(body) if isinstance(body, OllamaChat) else self.prompted(body)
            chat = chat_completions.understood(gateway, as_chat, (*warnings, *more))
            prompt, head, told, box = chat.prompt, chat.head, chat.warnings, chat.box
        most = body.options.num_predict if body.options is not None else None
        wanted = most if most is not None and most > 0 else None
        sampling = replace(prompt.sampling, max_tokens=wanted)
        prompt = replace(prompt, sampling=sampling)
        return Asked(prompt, box, head.model, is_chat, began, bool(body.logprobs), told)

    async def answer(
        self, request: Request, read: RequestBody[OllamaChat] | RequestBody[OllamaGenerate]
    ) -> Response:
        """Whole, or as lines, which is the default."""
        gateway, body = self._gateway, read.body
        if not (body.messages if isinstance(body, OllamaChat) else body.prompt or body.suffix):
            empty = _shown(isinstance(body, OllamaChat), "")
            loaded = {"done": True, "done_reason": "load"}
            return JSONResponse({**self._head(self.model(body.model)), **empty, **loaded})
        asked = await until_gone(request, self.understood(request, read))
        headers = warned(asked.warnings)
        if body.stream is not False:
            lines = self._lines(request, asked)
            return await LineStream.begin(request, lines, gateway.settings, headers)
        with running(gateway, request, [asked.prompt], False, None) as run:
            (done,) = await until_gone(request, run.dones())
        output = done.outputs[0]
        content, calls, thought = asked.box.read(output)
        told = _shown(asked.is_chat, content, thought, calls)
        if asked.wants_logprobs:
            told["logprobs"] = answers.chat_logprobs(output.logprobs).content
        whole = {**self._head(asked.model), **told, **self._end(asked, done)}
        return Response(msgspec.json.encode(whole), headers=headers, media_type="application/json")

    async def _lines(self, request: Request, asked: Asked) -> AsyncGenerator[bytes, None]:
        reader = asked.box.reader()
        with running(self._gateway, request, [asked.prompt], True, None) as run:
            async for piece in run.pieces():
                done = piece.done
                parts = (
                    reader.feed(piece.text, piece.tags)
                    if done is None
                    else reader.finish(done.outputs[0])
                )
                for told in _grown(asked, parts, piece.logprobs):
                    yield line({**self._head(asked.model), **told, "done": False})
                if done is not None:
                    end = {**_shown(asked.is_chat, ""), **self._end(asked, done)}
                    yield line({**self._head(asked.model), **end})

    def _head(self, model: str) -> Json:
        now = datetime.fromtimestamp(self._gateway.wall(), UTC)
        return {"model": model, "created_at": now.isoformat().replace("+00:00", "Z")}

    def _end(self, asked: Asked, done: wire.CallDone) -> Json:
        """Times in nanoseconds."""
        usage = done.usage
        return {
            "done": True,
            "done_reason": answers.finish_of(done.outputs[0]),
            "total_duration": int(1e9 * (self._gateway.clock() - asked.began)),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt,
            "prompt_eval_duration": int(1e6 * usage.prefill_ms),
            "eval_count": usage.generated,
            "eval_duration": int(1e6 * usage.decode_ms),
        }

    def card(self, name: str) -> Json:
        """Sizes are the runtime's own affair, and not known here."""
        info, adapter = self._gateway.info_of(name), self._gateway.names[name].adapter
        started = datetime.fromtimestamp(self._gateway.started, UTC).isoformat()
        return {
            "name": name,
            "model": name,
            "modified_at": started,
            "size": 0,
            "digest": info.adapters[adapter] if adapter else info.digest,
            "details": self._details(info),
        }

    def _details(self, info: wire.Welcome) -> Json:
        kind = info.fingerprint.weight_type
        family = {"format": "", "family": "lmprog", "families": ["lmprog"]}
        return {"parent_model": "", **family, "parameter_size": "", "quantization_level": kind}

    def shown(self, asked: str) -> Json:
        """What tools read before a first chat: the context and what the model can. Raises 404."""
        name, info = self.model(asked), self._gateway.info
        thinks = info.tools.form.harmony or bool(info.tools.thought.begin)
        able = {"completion": True, "tools": True, "insert": info.infill, "thinking": thinks}
        return {
            "modelfile": "",
            "parameters": f"num_ctx {info.context_len}",
            "template": "{{ .Prompt }}{{ .Suffix }}" if info.infill else "{{ .Prompt }}",
            "modified_at": self.card(name)["modified_at"],
            "details": self._details(info),
            "model_info": {
                "general.architecture": "lmprog",
                "general.basename": name,
                "lmprog.context_length": info.context_len,
                "lmprog.vocab_size": info.vocab_size,
            },
            "capabilities": [name for name, can in able.items() if can],
        }


def router(gateway: Gateway) -> GatewayRouter:
    made, ollama = GatewayRouter(gateway, "Ollama"), Ollama(gateway)
    generating: Mapping[str, Any] = {
        "dependencies": [made.guards.generating],
        "responses": described(streams=True, stream_media=LineStream.media_type),
    }
    user = [made.guards.user]

    @made.post("/api/chat", summary="Ollama's chats.", **generating)
    async def chat(request: Request, given: Given[OllamaChat]) -> Response:
        read = await given.read(gateway.settings, SILENT)
        return await ollama.answer(request, read)

    @made.post("/api/generate", summary="Ollama's texts.", **generating)
    async def generate(request: Request, given: Given[OllamaGenerate]) -> Response:
        read = await given.read(gateway.settings, SILENT)
        return await ollama.answer(request, read)

    @made.post(
        "/api/show", dependencies=user, summary="What a model can do.", responses=described()
    )
    async def show(given: Given[OllamaModel]) -> Response:
        body = (await given.read(gateway.settings, SILENT)).body
        return JSONResponse(ollama.shown(body.model or body.name))

    @made.get("/api/tags", dependencies=user, summary="The models and their adapters.")
    async def tags() -> Response:
        return JSONResponse({"models": [ollama.card(name) for name in gateway.names]})

    @made.get("/api/ps", dependencies=user, summary="The same: they are always loaded.")
    async def running_models() -> Response:
        loaded = {"expires_at": _FOREVER, "size_vram": 0}
        return JSONResponse(
            {
                "models": [
                    {**ollama.card(name), **loaded, "context_length": info.context_len}
                    for name in gateway.names
                    for info in [gateway.info_of(name)]
                ]
            }
        )

    @made.get(
        "/api/version",
        dependencies=[made.guards.local],
        summary="The version of Ollama whose requests are understood.",
    )
    async def spoken() -> Response:
        return JSONResponse({"version": SPOKEN, "server": f"lmprog {version()}"})

    return made


def _sampling(body: OllamaBody) -> Json:
    return {} if body.options is None else body.options.sampling("options.")


def _format(given: str | dict[str, Any] | None) -> ResponseFormat | None:
    """Raises HttpError for other texts than `json`."""
    if isinstance(given, dict):
        return ResponseFormat("json_schema", NamedSchema("answer", given))
    if given not in (None, "", "json"):
        raise refused("format must be 'json', or a schema.", "format", "invalid_value")
    return ResponseFormat("json_object") if given else None


def _check(body: OllamaGenerate) -> None:
    """Raises HttpError for what cannot be done."""
    if body.images:
        raise unsupported("images", "this server reads text only")
    if body.template:
        raise unsupported("template", "the model's own is used; raw=true takes a whole text")
    if body.context:
        raise unsupported("context", "send the conversation to /api/chat")


def _message(given: OllamaMessage, at: str) -> ChatMessage:
    if given.images:
        raise unsupported(f"{at}.images", "this server reads text only")
    calls = [
        CalledTool(CalledFunction(call.function.name, json.dumps(call.function.arguments)), call.id)
        for call in given.tool_calls or ()
    ]
    return ChatMessage(
        given.role,
        given.content or "",
        tool_calls=calls or None,
        tool_call_id=given.tool_call_id,
        reasoning_content=given.thinking or None,
    )


def _shown(
    is_chat: bool, content: str, thought: str = "", calls: Sequence[ParsedCall] = ()
) -> Json:
    """The part of an answer that has its text."""
    thinking = {"thinking": thought} if thought else {}
    if not is_chat:
        return {"response": content, **thinking}
    message: Json = {"role": "assistant", "content": content, **thinking}
    if calls:
        message["tool_calls"] = [_call(call, at) for at, call in enumerate(calls)]
    return {"message": message}


def _call(call: ParsedCall, at: int) -> Json:
    arguments = msgspec.json.decode(call.arguments)
    return {"id": call.id, "function": {"index": at, "name": call.name, "arguments": arguments}}


def _grown(
    asked: Asked, parts: Sequence[AnswerPart], logprobs: Sequence[wire.TokenLogprob]
) -> list[Json]:
    """What a stream tells of more text."""
    made = []
    for part in parts:
        match part:
            case ParsedCall():
                made.append(_shown(asked.is_chat, "", calls=[part]))
            case ThoughtText(text=text):
                made.append(_shown(asked.is_chat, "", text))
            case _:
                made.append(_shown(asked.is_chat, part))
    if asked.wants_logprobs and logprobs:
        last = made.pop() if made else _shown(asked.is_chat, "")
        made.append({**last, "logprobs": answers.chat_logprobs(logprobs).content})
    return made
