"""An `Api` on lmprog's own server, by `/v1/programs`: sends a branch with its turns and results.

So all features of the runtime are available: every constraint, selects by likelihood, generations
within turns.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec

from lmprog import wire
from lmprog.backends.blackbox.api import ApiAnswer, ApiRequest, JsonBody, TextListener, Transport
from lmprog.backends.blackbox.api_errors import ModelReplaced, failure
from lmprog.backends.blackbox.dialects import LMPROG
from lmprog.backends.blackbox.openai_body import sampling_fields, structured_outputs
from lmprog.backends.blackbox.retry_policy import RetryPolicy
from lmprog.backends.blackbox.transcript import Kind, PiecesPrompt, Prompt
from lmprog.backends.branch_text import BranchPiece, LeftBehind
from lmprog.errors import NotSupported, ProtocolError, RuntimeGone

_PATH = "/v1/programs"
Of = TypeVar("Of")


class ProgramsApi:
    """lmprog's own server. Owns its transport. Each call is a program of one branch, which says by
    which model the branch was begun.
    """

    kind: Kind = "pieces"
    can_prefill = True

    def __init__(
        self, model: str, context_len: int, transport: Transport, retry_policy: RetryPolicy
    ) -> None:
        self.model = model
        self.fingerprint = ""
        """Of the model that programs begin with from now on, where the server tells it."""
        self.named: JsonBody = {}
        """The model that requests name, where the server has several."""
        self.when_replaced: Callable[[], None] = lambda: None
        """The server has another model: called in a thread."""
        self.context_len = context_len
        self._transport = transport
        self._retry_policy = retry_policy

    async def generate(self, request: ApiRequest, on_text: TextListener | None) -> ApiAnswer:
        sampling = request.sampling
        gen: JsonBody = {"op": "gen", "branch": "b", "call": "c", "max_tokens": sampling.max_tokens}
        unprompted = msgspec.structs.replace(
            sampling, prompt_logprobs=None, prompt_logprobs_start=0, beams=None
        )
        gen.update(sampling_fields(unprompted, LMPROG))
        if request.heal and _ends_literal(request.prompt):
            gen["heal"] = True
        if sampling.beams is not None:
            gen.update(_beam_fields(sampling.beams))
        if sampling.logprobs is not None:
            gen["logprobs"] = sampling.logprobs
        if sampling.prompt_logprobs is not None:
            gen["prompt_logprobs"] = sampling.prompt_logprobs
        if request.constraint is not None:
            gen.update(structured_outputs(request.constraint))
            schema = request.constraint.as_schema()
            if schema is not None and not schema.strict:
                gen["strict"] = False
        body = _program(request.prompt, gen)
        result = await (self._post(body) if on_text is None else self._stream(body, on_text))
        return ApiAnswer(
            tuple(_output(output) for output in result["outputs"]),
            _usage(result["usage"]),
            tuple(result.get("constraint_left_out") or ()),
            _logprobs(result.get("prompt_logprobs"))[max(sampling.prompt_logprobs_start - 1, 0) :],
        )

    async def select(self, prompt: Prompt, op: wire.Select) -> wire.Chosen | None:
        asked: JsonBody = {
            "op": "select",
            "branch": "b",
            "call": "c",
            "choices": list(op.choices),
            "method": op.method,
        }
        asked.update({"temperature": op.temperature, "seed": op.seed})
        result = await self._post(_program(prompt, asked))
        options = tuple(
            wire.ScoredChoice(
                option["score"],
                option["probability"],
                tuple(option.get("logprobs") or ()),
                tuple(option.get("baseline") or ()),
                tuple((token, text) for token, text in option.get("tokens") or ()),
            )
            for option in result["options"]
        )
        return wire.Chosen(op.call, result["index"], options, _usage(result["usage"]))

    async def _post(self, body: JsonBody) -> Mapping[str, Any]:
        async def send() -> Mapping[str, Any]:
            answer = await self._transport.post(_PATH, body | self.named)
            return _checked(answer["results"]["c"])

        return await self._sent(send)

    async def _stream(self, body: JsonBody, on_text: TextListener) -> Mapping[str, Any]:
        asked = self.named | {"stream": True}
        stream = await self._sent(lambda: self._transport.open(_PATH, body | asked))
        async with contextlib.aclosing(cast("Any", stream)):
            pieces: AsyncIterator[Mapping[str, Any]] = self._retry_policy.pieces(stream)
            async for piece in pieces:
                if "type" in piece:
                    return _checked(piece, is_stream=True)
                if "index" in piece:
                    on_text(piece["index"], piece["text"], 1)
                elif "error" in piece:
                    raise RuntimeGone(f"the server broke off its answer: {piece['error']}")
        raise ProtocolError("the server's answer has no end")

    async def _sent(self, send: Callable[[], Awaitable[Of]]) -> Of:
        try:
            return await self._retry_policy.run(send)
        except ModelReplaced:
            await asyncio.to_thread(self.when_replaced)
            raise

    def enforces(self, constraint: wire.Constraint, prompt: Prompt) -> bool:
        return constraint.is_portable

    async def flush(self) -> None:
        await self._retry_policy.run(lambda: self._transport.post("/flush_cache", {}))

    async def close(self) -> None:
        await self._transport.close()


def _beam_fields(beams: wire.Beams) -> JsonBody:
    return {
        "use_beam_search": True,
        "beam_width": beams.width,
        "length_penalty": beams.length_penalty,
        "early_stopping": beams.early_stopping,
    }


def _program(prompt: Prompt, call: JsonBody) -> JsonBody:
    assert isinstance(prompt, PiecesPrompt)
    pieces = _pieces(prompt.pieces)
    ops: list[JsonBody] = [{"op": "open", "branch": "b"}]
    if pieces:
        ops.append({"op": "append", "branch": "b", "pieces": pieces})
    ops.append({name: value for name, value in call.items() if value is not None})
    return {"ops": ops, "fingerprint": prompt.fingerprint} if prompt.fingerprint else {"ops": ops}


def _ends_literal(prompt: Prompt) -> bool:
    """Whether the prompt ends in literal text. Only the program's own text is healed; results must
    not be, even those that are sent as text.
    """
    assert isinstance(prompt, PiecesPrompt)
    for piece in reversed(prompt.pieces):
        if not isinstance(piece, wire.TextPiece | LeftBehind):
            return False
        if piece.text:
            return isinstance(piece, wire.TextPiece) or not piece.own
    return False


def _pieces(branch: Sequence[BranchPiece]) -> list[str | JsonBody]:
    """The branch as pieces of a request. Results are sent as their token ids, so that the branch
    stands where it stood, and the server finds it in its cache.
    """
    pieces: list[str | JsonBody] = []
    for piece in branch:
        if isinstance(piece, wire.RoleBegin | wire.RoleEnd):
            key = "begin" if isinstance(piece, wire.RoleBegin) else "end"
            pieces.append({key: piece.role})
        elif isinstance(piece, wire.TextPiece):
            _add_text(pieces, piece)
        elif isinstance(piece, LeftBehind) and not piece.own:
            _add_text(pieces, piece.elsewhere())
        elif isinstance(piece, LeftBehind):
            for one in wire.own_pieces(piece.op, piece.reply, is_first=not pieces):
                if isinstance(one, wire.TextPiece):
                    _add_text(pieces, one)
                else:
                    pieces.append(_tokens(one))
    return pieces


def _add_text(pieces: list[str | JsonBody], piece: wire.TextPiece) -> None:
    if not piece.text:
        return
    if piece.quoted:
        pieces.append({"text": piece.text, "quoted": True})
    elif pieces and isinstance(pieces[-1], str):
        pieces[-1] += piece.text
    else:
        pieces.append(piece.text)


def _tokens(piece: wire.TokensPiece) -> JsonBody:
    found: JsonBody = {"tokens": list(piece.ids)}
    if piece.heals:
        found["heals"] = True
    if piece.rest:
        found["rest"] = piece.rest
    return found


def _checked(result: Mapping[str, Any], *, is_stream: bool = False) -> Mapping[str, Any]:
    """Raises the error that is in place of a value."""
    if result["type"] != "error":
        return result
    error = failure(result["error"].get("status") or 500, result, {})
    raise getattr(error, "error", error) if is_stream else error


def _output(output: Mapping[str, Any]) -> wire.Output:
    finish = output["finish_reason"]
    if finish not in ("stop", "length", "constraint"):
        raise NotSupported(
            f"the server ended a text for a reason that is not known here: {finish!r}"
        )
    healed = output.get("healed")
    return wire.Output(
        output["text"],
        tuple(output["tokens"]),
        finish,
        output["stopped_by"],
        _logprobs(output.get("logprobs")),
        tuple((begin, end) for begin, end in output.get("forced") or ()),
        seam=output.get("seam", ""),
        rest=output.get("rest", ""),
        score=output.get("score"),
        healed=None if healed is None else tuple(healed),
    )


def _logprobs(given: Sequence[Mapping[str, Any]] | None) -> tuple[wire.TokenLogprob, ...]:
    """The server leaves out the prompt's first token, which has none."""
    return tuple(
        wire.TokenLogprob(
            one["token"],
            one["text"],
            one["logprob"],
            tuple((top["token"], top["text"], top["logprob"]) for top in one["top"]),
        )
        for one in given or ()
    )


def _usage(usage: Mapping[str, Any]) -> wire.Usage:
    """Converts token counts; their field names carry a suffix."""
    names = wire.Usage.__struct_fields__
    return wire.Usage(**{name: usage.get(f"{name}_tokens", usage.get(name)) or 0 for name in names})
