"""What somebody who looks may know of the requests and programs of others, and may do to them.

One row for each request under way and for the last ones that ended. Whoever has the administrator's
right sees all of them and may cancel them; a key sees and cancels its own. Texts are for the key
that asked, and for the administrator where the server shows texts. Programs that reach the runtime
by other ways than HTTP, and requests that are not the viewer's to see, are rows of counts.

Knows records, exchanges and snapshots; knows no streams.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from lmprog import wire
from lmprog.errors import Cancelled
from lmprog.server.gateway.gateway import Gateway
from lmprog.server.http.http_errors import HttpError, Problem, refused
from lmprog.server.link.exchange import Exchange, RequestRecord
from lmprog.server.observability.meters import part_of
from lmprog.wire.snapshot_json import session_json

MOST_OPEN = 100
MOST_ENDED = 40
MOST_TEXTS = 64
"""Calls of one request whose texts are shown."""
TEXT_TOKENS = 512
"""Of each of them."""
_PHASES = ("decode", "prefill", "waiting")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks. `caller` is a digest of the key, "" where there is none."""

    is_admin: bool
    caller: str
    shows_text: bool
    """The server shows texts to the administrator."""
    account: str = ""
    """On which its work is; "" where there are no keys."""

    def may_see(self, record: RequestRecord) -> bool:
        return self.is_admin or self._is_own(record)

    def may_read(self, record: RequestRecord) -> bool:
        return self._is_own(record) or (self.is_admin and self.shows_text)

    def _is_own(self, record: RequestRecord) -> bool:
        return bool(self.caller) and self.caller == record.origin.caller


class RequestsView:
    """The requests of one gateway. Belongs to the event loop's thread."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def rows(self, seen: wire.Snapshot, viewer: Viewer) -> dict[str, Any]:
        """All that `viewer` may see, as the page and `lmprog top` show it."""
        link, now = self._gateway.link, self._gateway.clock()
        sequences = (*seen.running, *seen.waiting)
        by_call: dict[int, list[wire.SequenceSeen]] = defaultdict(list)
        for one in sequences:
            if one.is_own:
                by_call[one.call].append(one)
        visible = [one for one in link.open_exchanges() if viewer.may_see(one.record)]
        rows = []
        for exchange in visible[:MOST_OPEN]:
            of_it = [one for call in exchange.open_calls for one in by_call.pop(call, ())]
            rows.append(self._open_row(exchange, of_it, viewer, now))
        hidden = {call for one in visible[MOST_OPEN:] for call in one.open_calls}
        others = [one for one in sequences if not one.is_own]
        others += [one for call, of_it in by_call.items() if call not in hidden for one in of_it]
        ended = (one for one in link.records.ended() if viewer.may_see(one))
        return {
            "open": rows + _program_rows(others),
            "openLeftOut": len(visible[MOST_OPEN:]),
            "ended": [_ended_row(one, viewer, now) for one in islice(ended, MOST_ENDED)],
            "sessions": [_session_row(one, viewer) for one in seen.sessions],
            "sessionsLeftOut": seen.sessions_left_out,
            "keys": self._key_rows() if viewer.is_admin else [],
        }

    def _key_rows(self) -> list[Row]:
        """What each key has open, holds, has used, has waited for, and was refused; the same of
        other accounts of the runtime, and of the addresses for which something is held, as far as
        it is known.
        """
        metrics, keys = self._gateway.key_metrics, {one.name: one for one in self._gateway.accounts}
        held = metrics.held()
        others = dict.fromkeys(name for name in (*metrics.costs, *held) if name not in keys)
        rows = []
        for name in islice((*keys, *others), MOST_OPEN):
            key, figures = keys.get(name), metrics.costs.get(name, {})
            kinds = {kind: count for kind, count in held.get(name, {}).items() if count}
            row = {
                "name": name,
                "isKey": key is not None,
                "results": key.open_results if key else 0,
                "held": sum(kinds.values()),
                "heldBy": kinds,
                "prompt": key.prompt_tokens if key else 0,
                "generated": key.generated_tokens if key else 0,
                "refused": key.refused if key else 0,
                "cost": figures.get("cost_seconds", 0.0),
                "waited": part_of(figures, "waited_seconds_"),
                "waitedFor": part_of(figures, "waited_for_"),
            }
            if key is not None or row["held"] or row["cost"]:
                rows.append(row)
        return rows

    def cancel(self, number: int, viewer: Viewer) -> None:
        """Ends the request: its memory is freed, its client gets an error. Raises HttpError."""
        message = "The request was cancelled from outside, on the server's page or by its operator."
        # 410: after 409 and 5xx clients send a request again by themselves.
        problem = Problem(410, message, code=Cancelled.code, type="request_cancelled")
        self._find(number, viewer).cancel(HttpError(problem))

    async def texts(self, number: int, viewer: Viewer) -> dict[str, Any]:
        """What the running calls of a request have written so far; of one that has ended the
        beginnings of its answers, where they are kept. Raises HttpError.
        """
        ended = (one for one in self._gateway.link.records.ended() if one.number == number)
        found = [one for one in ended if viewer.may_see(one)]
        if found:
            answers = [text for one in found if viewer.may_read(one) for text in one.texts]
            return {"ended": True, "sequences": [], "answers": answers}
        exchange = self._find(number, viewer)
        if not viewer.may_read(exchange.record):
            raise HttpError(
                Problem(
                    403,
                    "Texts of others are shown with --ui-show-text, to the administrator only.",
                    code="texts_hidden",
                )
            )
        calls = tuple(sorted(exchange.open_calls))[:MOST_TEXTS]
        if not calls:
            return {"ended": False, "sequences": []}
        seen = await self._gateway.link.ask(
            lambda call: wire.Inspect(call, 0, text_tokens=TEXT_TOKENS, texts_of=calls)
        )
        assert isinstance(seen, wire.Snapshot)
        wanted = set(calls)
        return {
            "ended": False,
            "sequences": [
                {**_progress([one]), "branch": one.branch, "call": one.call, "index": one.index,
                 "kind": one.kind, "text": one.text, "promptChars": one.prompt_chars}
                for one in (*seen.running, *seen.waiting)
                if one.is_own and one.call in wanted
            ],
        }  # fmt: skip

    def _find(self, number: int, viewer: Viewer) -> Exchange:
        for exchange in self._gateway.link.open_exchanges():
            if exchange.record.number == number and viewer.may_see(exchange.record):
                return exchange
        raise refused(
            f"No request {number} is under way, or it is another key's.", "number", "not_found", 404
        )

    def _open_row(
        self, exchange: Exchange, sequences: Sequence[wire.SequenceSeen], viewer: Viewer, now: float
    ) -> Row:
        row = _row(exchange.record, viewer, now)
        live = _progress(sequences)
        for name in ("prompt", "cached", "generated", "forced"):
            row[name] += live[name]
        if not sequences:  # of several replicas one is looked at
            live["state"] = "queued" if self._gateway.fleet is None else "running"
        return {
            **row,
            "state": live["state"],
            "maxTokens": live["maxTokens"],
            "live": sorted(exchange.open_calls)[:MOST_TEXTS],
            "mayCancel": True,
        }


def _row(record: RequestRecord, viewer: Viewer, now: float) -> Row:
    origin = record.origin
    end = now if record.ended is None else record.ended
    return {
        "number": record.number,
        "requestId": origin.request_id,
        "route": origin.route,
        "key": origin.key,
        "seconds": round(end - record.began, 2),
        "ago": round(now - end, 1),
        "branches": record.branches,
        "calls": record.calls,
        "done": record.done,
        "prompt": record.prompt,
        "cached": record.cached,
        "generated": record.generated,
        "forced": record.forced,
        "mayRead": viewer.may_read(record),
    }


def _ended_row(record: RequestRecord, viewer: Viewer, now: float) -> Row:
    return {
        **_row(record, viewer, now),
        "state": record.state,
        "computed": record.computed,
        "finishes": record.finishes,
        "queued": round(record.queued_ms / 1e3, 4),
        "prefill": round(record.prefill_ms / 1e3, 4),
        "decode": round(record.decode_ms / 1e3, 4),
        "texts": len(record.texts),
    }


def _session_row(seen: wire.SessionSeen, viewer: Viewer) -> Row:
    """One that is not the viewer's: counts alone."""
    is_own = bool(viewer.account) and seen.account == viewer.account
    if is_own or viewer.is_admin:
        key = seen.account or ("" if seen.is_own else "wire")
        may_read = is_own or viewer.shows_text
    else:
        key, may_read = "another key" if seen.account or seen.is_own else "wire", False
    row = {**session_json(seen), "key": key}
    return row if may_read else {**row, "tool": ""}


def _program_rows(sequences: Iterable[wire.SequenceSeen]) -> list[Row]:
    """Programs of which only the runtime knows, or which are not the viewer's: counts alone."""
    programs: dict[tuple[bool, int], list[wire.SequenceSeen]] = defaultdict(list)
    for one in sequences:
        programs[one.is_own, one.program].append(one)
    return [
        {
            "number": 0,
            "program": program,
            "route": "another key" if is_own else "wire",
            "key": "",
            "seconds": round(max(one.age for one in of_it), 2),
            "branches": len({one.branch for one in of_it}),
            "calls": len({one.call for one in of_it}),
            "done": 0,
            **_progress(of_it),
            "live": sorted({one.call for one in of_it}),
            "own": is_own,
            "mayRead": False,
            "mayCancel": False,
        }
        for (is_own, program), of_it in islice(sorted(programs.items()), MOST_OPEN)
    ]


def _progress(sequences: Sequence[wire.SequenceSeen]) -> Row:
    """Their sums; what the sequences of one call share is counted once."""
    calls = {one.call: one for one in sequences}.values()
    phases = {one.phase for one in sequences}
    return {
        "state": next((phase for phase in _PHASES if phase in phases), "queued"),
        "prompt": sum(one.prompt for one in calls),
        "cached": sum(min(one.cached, one.prompt) for one in calls),
        "generated": sum(one.generated for one in sequences),
        "forced": sum(one.forced for one in sequences),
        "maxTokens": sum(one.max_tokens for one in sequences),
    }
