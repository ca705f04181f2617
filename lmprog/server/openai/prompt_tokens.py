"""The tokens of prompts, where a request wants to see them, or only the last of them.

Knows single calls of the wire; knows no formats.
"""

from __future__ import annotations

from collections.abc import Sequence

from lmprog import wire
from lmprog.errors import ProtocolError
from lmprog.server.gateway import Gateway


async def tokens_of(
    gateway: Gateway, prompts: Sequence[str | tuple[int, ...]], most: int | None
) -> list[tuple[int, ...]]:
    """Every prompt as its tokens; of more than `most` the last ones. Raises what the runtime says
    of one.
    """
    rows = {place: one for place, one in enumerate(prompts) if not isinstance(one, str)}
    texts = {place: one for place, one in enumerate(prompts) if isinstance(one, str)}
    with gateway.link.exchange() as exchange:
        calls = {exchange.call(): place for place in texts}
        exchange.send(*(wire.Encode(call, texts[place]) for call, place in calls.items()))
        while len(rows) < len(prompts):
            reply = await exchange.next()
            if not isinstance(reply, wire.TokensAre):
                raise ProtocolError("asked for tokens, the runtime answered something else")
            rows[calls[reply.call]] = reply.tokens
    return [rows[place] if most is None else rows[place][-most:] for place in range(len(prompts))]
