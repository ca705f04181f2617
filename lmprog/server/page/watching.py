"""What the page shows of the runtime: snapshots for all viewers, and a closer look at its tree.

One request serves all viewers, none is sent without any. A slow viewer skips snapshots and delays
nobody: each waits for the newest. A snapshot that shows nothing new is not sent, apart from a few
that update the ages. A part of the tree, all text of one block, and blocks with a text in them are
one question each, asked when somebody clicks; texts are for the administrator, where the server
shows them. Knows the wire's `Snapshot`; draws nothing.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lmprog import wire
from lmprog.errors import LmprogError
from lmprog.server.gateway.gateway import Gateway, version
from lmprog.server.http.http_errors import HttpError, Problem, refused
from lmprog.server.http.sse import event
from lmprog.server.observability.runtime_metrics import HISTORY_NAMES
from lmprog.server.operations.operator_routes import fleet_json
from lmprog.server.page.requests_view import RequestsView, Viewer
from lmprog.wire.snapshot_json import as_json

PERIOD = 0.25
"""Seconds between two questions to the runtime while somebody watches."""
STILL = 8
"""Periods after which a picture is sent though nothing has changed."""
COSTS = 8
"""Of so many questions one is what accounts have cost."""
ANSWER_SECONDS = 10.0
"""Within which the runtime answers, or is away."""
AWAY = 1.0
"""Seconds between two looks while the runtime is not there."""
MOST_NODES = 400
BLOCK_TOKENS = 4096
"""Of the text of one block."""
SEARCHED_TOKENS = 256
"""Of the text of each block, where many are searched."""
AROUND = 40
"""Characters shown before and after a text that was found."""
MOST_SEARCHED = 200
"""Characters of what is searched for."""


class Watcher:
    """All viewers of one gateway. Belongs to the event loop's thread."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._viewers = 0
        self._asking: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._number = 0
        self._frame = b""
        self._frame_with_text = b""
        self._view = RequestsView(gateway)
        self._seen: wire.Snapshot | None = None
        """The newest snapshot; None while there is none to speak of."""
        self._requests: dict[Viewer, bytes] = {}
        """Of the newest snapshot, by who looks."""

    async def frames(self, viewer: Viewer) -> AsyncGenerator[bytes, None]:
        """Events for one viewer, until it leaves or the server drains; with what it may see."""
        may_read = viewer.is_admin and viewer.shows_text
        yield event(self._about(may_read), "about")
        yield event(
            {"names": HISTORY_NAMES, "rows": self._gateway.meters.history.rows()}, "history"
        )
        self._viewers += 1
        try:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask_on())
            seen = 0
            while not self._gateway.draining:
                if seen == self._number or not self._frame:
                    await self._changed.wait()
                    continue
                seen = self._number
                frame = self._frame_with_text if may_read else self._frame
                yield self._requests_for(viewer) + frame
        finally:
            self._viewers -= 1
            if not self._viewers and self._asking is not None:
                self._asking.cancel()
                self._asking = None
                self._frame = self._frame_with_text = b""
                self._seen = None

    def _requests_for(self, viewer: Viewer) -> bytes:
        """The requests that it may see, as an event; made once for viewers with equal rights."""
        if self._seen is None:
            return b""
        if viewer not in self._requests:
            self._requests[viewer] = event(self._view.rows(self._seen, viewer), "requests")
        return self._requests[viewer]

    def _about(self, may_read: bool) -> dict[str, Any]:
        info = self._gateway.link.info
        return {
            "version": version(),
            "model": ", ".join(self._gateway.model_names) if info else None,
            "context": info.context_len if info else None,
            "pageSize": info.page_size if info else None,
            "numPages": info.num_pages if info else None,
            "showsText": may_read,
            "started": self._gateway.started,
        }

    async def _ask_on(self) -> None:
        """Asks the runtime until nobody watches any more."""
        last: tuple[Any, ...] = ()
        still = 0
        for turn in itertools.count():
            began = asyncio.get_running_loop().time()
            period = PERIOD
            try:
                if turn % COSTS == 0:
                    await self._gateway.see_figures(ANSWER_SECONDS)
                    if turn:
                        await asyncio.sleep(PERIOD)
                        continue
                seen = await self._ask()
            except (LmprogError, TimeoutError) as error:
                last, period = (), AWAY
                self._seen = None
                self._show(event({"message": str(error) or "The runtime does not answer."}, "away"))
            else:
                served = self._served()
                self._gateway.meters.history.see({**self._figures(seen), **served})
                records = self._gateway.link.records
                now = (*_what_changes(seen), records.num_begun, records.num_ended, *served.values())
                still = 0 if now != last else still + 1
                last = now
                if still % STILL == 0:
                    more = {"served": served, **self._of_fleet(seen)}
                    self._seen = seen
                    self._show(
                        event({**as_json(seen), **more}, "snapshot"),
                        event({**as_json(seen, with_text=True), **more}, "snapshot"),
                    )
            if self._gateway.draining:
                self._wake()
            await asyncio.sleep(max(0.0, began + period - asyncio.get_running_loop().time()))

    async def _ask(self) -> wire.Snapshot:
        with_text = self._gateway.settings.ui_show_text
        reply = await self._gateway.link.ask(lambda call: wire.Inspect(call, MOST_NODES, with_text))
        assert isinstance(reply, wire.Snapshot)
        return reply

    def _served(self) -> dict[str, float]:
        """What the gateway itself counts."""
        return {**self._gateway.meters.seen(), "bytes_held": self._gateway.memory.held}

    def _of_fleet(self, seen: wire.Snapshot) -> dict[str, Any]:
        """Where there are several replicas: all of them, and their figures as those of one runtime
        on one clock. The tree and the sequences of the picture are those of one replica.
        """
        fleet = self._gateway.fleet
        if fleet is None:
            return {}
        pid = seen.figures.get("pid")
        shown = [one.name for one in fleet.replicas() if one.figures.get("pid") == pid]
        figures = self._figures(seen)
        return {
            "clock": self._gateway.clock(),
            "figures": {name: value for name, value in figures.items() if name != "pid"},
            "fleet": {**fleet_json(fleet), "shown": shown[0] if shown else None},
        }

    def _figures(self, seen: wire.Snapshot) -> Mapping[str, float]:
        fleet = self._gateway.fleet
        return seen.figures if fleet is None else fleet.figures() or seen.figures

    def _show(self, frame: bytes, with_text: bytes | None = None) -> None:
        self._frame, self._frame_with_text = frame, with_text or frame
        self._number += 1
        self._requests.clear()
        self._wake()

    def _wake(self) -> None:
        """Everybody who waits looks again; who comes later waits for the next time."""
        self._changed.set()
        self._changed = asyncio.Event()


def _what_changes(seen: wire.Snapshot) -> tuple[Any, ...]:
    """Equal for two pictures that differ in nothing but ages."""
    figures = seen.figures
    names = (
        "steps",
        "calls",
        "calls_done",
        "calls_failed",
        "branches",
        "open_branches",
        "pages_free",
        "tree_nodes",
    )
    return (len(seen.running), len(seen.waiting), *(figures.get(name) for name in names))


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
