"""The tokens of prompts, where a request wants to see them, or only the last of them.

Knows single calls of the wire; knows no formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from lmprog import wire
from lmprog.errors import ProtocolError
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.http.limits import within
from lmprog.server.openai.running_request import RequestPrompt
from lmprog.server.openai.shared_fields import GenerationFields


class PromptFields(GenerationFields, kw_only=True):
    """What chats and completions have alike: with `truncate_prompt_tokens` only the last tokens of
    a longer prompt stay, and with `return_token_ids` an answer has the tokens of prompt and result.
    """

    truncate_prompt_tokens: Annotated[int, within("truncate_prompt_tokens")] | None = None
    return_token_ids: bool | None = None

    @property
    def needs_tokens(self) -> bool:
        """Whether the prompt has to be known as tokens before it is run."""
        return self.truncate_prompt_tokens is not None or bool(self.return_token_ids)


async def as_tokens(
    gateway: Gateway, prompts: Sequence[RequestPrompt], most: int | None
) -> tuple[RequestPrompt, ...]:
    """The same prompts as their tokens; of more than `most` the last ones. Raises what the runtime
    says of one.
    """
    rows: dict[int, tuple[int, ...]] = {}
    with gateway.link.exchange() as exchange:
        calls: dict[int, int] = {}
        for place, prompt in enumerate(prompts):
            branch, call = exchange.branch(), exchange.call()
            calls[call] = place
            read = wire.Read(branch, call, with_tokens=True)
            exchange.send(wire.Open(branch), wire.Append(branch, prompt.pieces), read)
        while len(rows) < len(prompts):
            reply = await exchange.next()
            if not isinstance(reply, wire.TextIs):
                raise ProtocolError("asked for tokens, the runtime answered something else")
            rows[calls[reply.call]] = reply.tokens if most is None else reply.tokens[-most:]
    return tuple(
        replace(prompt, pieces=(wire.TokensPiece(rows[place]),))
        for place, prompt in enumerate(prompts)
    )


def ids_of(prompt: RequestPrompt) -> tuple[int, ...]:
    """The tokens of a prompt that `as_tokens` has made."""
    (piece,) = prompt.pieces
    assert isinstance(piece, wire.TokensPiece)
    return piece.ids
