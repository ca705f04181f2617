"""Looking closer at the tree: a part of it, all text of one block, blocks with a text in them.

Each is one question to the runtime, asked when somebody clicks. Texts are for the administrator,
where the server shows them. Knows the wire's `Snapshot`; draws nothing.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lmprog import wire
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.http.http_errors import HttpError, Problem, refused
from lmprog.wire.snapshot_json import as_json

MOST_NODES = 400
BLOCK_TOKENS = 4096
"""Of the text of one block."""
SEARCHED_TOKENS = 256
"""Of the text of each block, where many are searched."""
AROUND = 40
"""Characters shown before and after a text that was found."""
MOST_SEARCHED = 200
"""Characters of what is searched for."""


class Search(msgspec.Struct, frozen=True):
    """Sent as a body: addresses are logged by proxies."""

    text: Annotated[str, Meta(min_length=1, max_length=MOST_SEARCHED)]


class Blocks:
    """The tree of one gateway's runtime, or of its busiest one."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def part(self, number: int, may_read: bool) -> dict[str, Any]:
        """The block and the largest ones below it, as a picture. Raises 404 where it is gone."""
        seen = await self._ask(wire.Inspect(0, MOST_NODES, may_read, number))
        return as_json(self._found(seen, number), with_text=may_read)

    async def block(self, number: int, may_read: bool) -> dict[str, Any]:
        """The block alone, with all its text where the viewer may read it. Raises 404."""
        seen = await self._ask(wire.Inspect(0, 1, may_read, number, BLOCK_TOKENS))
        (node,) = self._found(seen, number).nodes
        return {
            "number": number,
            "begin": node.begin,
            "tokens": node.num_tokens,
            "text": node.text if may_read else None,
        }

    async def search(self, wanted: str, may_read: bool) -> dict[str, Any]:
        """The largest blocks whose text, with what stands before it, has `wanted` in it."""
        if not may_read:
            raise HttpError(
                Problem(403, "Texts are shown with --ui-show-text, to the administrator only.",
                        code="texts_hidden")
            )  # fmt: skip
        seen = await self._ask(
            wire.Inspect(0, MOST_NODES, with_text=True, text_tokens=SEARCHED_TOKENS)
        )
        found = _search(seen.nodes, wanted)
        return {"found": found, "searched": len(seen.nodes), "leftOut": seen.nodes_left_out}

    async def _ask(self, op: wire.Inspect) -> wire.Snapshot:
        seen = await self._gateway.link.ask(
            lambda call: wire.Inspect(
                call, op.max_nodes, op.with_text, op.below, op.text_tokens, op.texts_of
            )
        )
        assert isinstance(seen, wire.Snapshot)
        return seen

    def _found(self, seen: wire.Snapshot, number: int) -> wire.Snapshot:
        if not seen.nodes:
            raise refused(f"The block {number} is no longer in the tree.", "number", "gone", 404)
        return seen


def _search(nodes: tuple[wire.NodeSeen, ...], wanted: str) -> list[dict[str, Any]]:
    """Where `wanted` ends in a block; it may begin in what stands before. Case plays no part."""
    low, found, before = wanted.casefold(), [], list[str]()
    for node in nodes:  # parents come first
        above = before[node.parent] if node.parent >= 0 else ""
        whole = above + node.text
        at = whole.casefold().find(low, max(0, len(above) - len(wanted) + 1))
        if at >= 0:
            end = at + len(wanted)
            found.append(
                {
                    "number": node.number,
                    "before": whole[max(0, at - AROUND) : at],
                    "match": whole[at:end],
                    "after": whole[end : end + AROUND],
                }
            )
        before.append(whole[-(MOST_SEARCHED + AROUND) :])
    return found
