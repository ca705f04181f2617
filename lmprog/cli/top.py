"""`lmprog top`: the current state of a server or a runtime in a terminal: rates, memory, requests
and programs (of a runtime: sequences), the top of the prefix tree.

Asks a server or a runtime for snapshots, and renders them with rich. All text shown is the
runtime's own; prompts are never shown.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lmprog import wire
from lmprog.errors import InvalidParameter, LmprogError, ProtocolError, RuntimeGone, from_wire
from lmprog.wire.snapshot_json import as_json, session_json

DEFAULT = "http://127.0.0.1:8000"
KEY_VARIABLE = "LMPROG_API_KEY"
BAR = 32  # characters
MOST_ROWS = 12
MOST_ENDED = 6
MOST_SESSIONS = 8
MOST_BLOCKS = 14
RATES = ("generated_tokens", "forced_tokens", "cached_tokens", "prefill_tokens")
STATES = {"decode": "dark_orange", "prefill": "cyan", "left": "dim", "cancelled": "dim"}
SHADES = ((10, "cyan"), (60, "dark_cyan"), (600, "grey58"))
"""Colors of a block by seconds since its last use."""


def run(given: argparse.Namespace) -> int:
    """Refreshes until it is interrupted, or prints one snapshot; or cancels a request."""
    where, key = given.where or DEFAULT, given.api_key or os.environ.get(KEY_VARIABLE)
    console = Console(highlight=False)
    if given.cancel is not None:
        cancel(where, key, given.cancel)
        console.print(f"Request {given.cancel} is cancelled.")
        return 0
    found = pictures(where, key)
    try:
        if given.once:
            console.print(drawn(next(found), None))
            return 0
        with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
            for before, now in itertools.pairwise(itertools.chain([None], found)):
                assert now is not None
                live.update(drawn(now, before), refresh=True)
    except KeyboardInterrupt:
        return 0
    finally:
        found.close() if hasattr(found, "close") else None
    return 0


def drawn(now: Picture, before: Picture | None) -> RenderableType:
    """Renders one snapshot; rates are the differences from the snapshot `before`."""
    return Group(
        _head(now),
        Text(),
        _figures(now, before),
        *_served(now, before),
        *_replicas(now),
        _memory(now["figures"]),
        Text(),
        *_work(now),
        *_sessions(now),
        Text(),
        _tree(now),
    )


def _head(now: Picture) -> Text:
    about = now["about"]
    context = f" · {about['context']:,} tokens of context" if about.get("context") else ""
    memory = f" · memory for {now['figures']['pages'] * now['figures']['page_size']:,.0f}"
    return Text.assemble(
        ("lmprog top", "bold"), f"  {about.get('model') or 'no model'}{context}{memory}"
    )


def _figures(now: Picture, before: Picture | None) -> Text:
    figures = now["figures"]
    seconds = now["clock"] - before["clock"] if before else 0.0
    hits = "–"
    rates = dict.fromkeys(RATES, "–")
    if before and seconds > 0:
        old = before["figures"]
        rates = {name: f"{max(0.0, figures[name] - old[name]) / seconds:,.0f}" for name in RATES}
    asked = figures["cached_tokens"] + figures["prefill_tokens"]
    if asked:
        hits = f"{figures['cached_tokens'] / asked:.0%}"
    running = len(now["running"]) + now["runningLeftOut"]
    waiting = len(now["waiting"]) + now["waitingLeftOut"]
    lines = (
        (
            (rates["generated_tokens"], "tokens/s"),
            (rates["forced_tokens"], "forced/s"),
            (rates["cached_tokens"], "cached/s"),
            (rates["prefill_tokens"], "computed/s"),
        ),
        (
            (hits, "cached"),
            (f"{running:,}", "running"),
            (f"{waiting:,}", "waiting"),
            (f"{figures['calls_done']:,.0f}", "calls done"),
        ),
    )
    return Text("\n").join(
        Text("   ").join(Text.assemble((value, "bold"), f" {words}") for value, words in parts)
        for parts in lines
    )


def _served(now: Picture, before: Picture | None) -> list[RenderableType]:
    """What clients of a server waited for since the last snapshot in which somebody did, what was
    refused, what is held for them; and the same of each key where they may be seen.
    """
    served = now.get("served")
    if served is None:
        return []
    old = before["served"] if before else {}

    def mean(name: str) -> str:
        counts, sums = f"{name}_count", f"{name}_seconds"
        times, took = served[counts] - old.get(counts, 0), served[sums] - old.get(sums, 0.0)
        if not times:  # nobody just now: since the server's start
            times, took = served[counts], served[sums]
        return f"{1e3 * took / times:,.0f} ms" if times else "–"

    parts = (
        (mean("first"), "to the first token"),
        (mean("queued"), "of it queued"),
        (mean("between"), "between tokens"),
        (f"{served['refused']:,.0f}", "refused"),
        (f"{served['failed']:,.0f}", "failed"),
        (f"{served['bytes_held'] / 2**20:,.1f} MiB", "held"),
    )
    line = Text("   ").join(Text.assemble((value, "bold"), f" {words}") for value, words in parts)
    keys = (now.get("requests") or {}).get("keys", [])
    if not keys:
        return [line]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    names = ("key", "open", "work", "waited", "most for", "while for", "held", "refused")
    for name in names:  # fits into 80 columns
        left = name in ("key", "most for", "while for")
        table.add_column(name, justify="left" if left else "right", no_wrap=left)
    for one in keys[:MOST_ROWS]:
        waited = sum(one["waited"].values())
        table.add_row(
            one["name"] or "no key",
            f"{one['results']:,}",
            _seconds(one["cost"]),
            _seconds(waited),
            _largest(one["waited"]),
            _largest({name or "others": value for name, value in one["waitedFor"].items()}),
            f"{one['held'] / 2**20:,.1f} MiB",
            f"{one['refused']:,}",
        )
    more = len(keys) - MOST_ROWS
    return [line, Text(), table, *([Text(f"and {more:,} more", "dim")] if more > 0 else []), Text()]


def _largest(parts: dict[str, float]) -> str:
    """The name of the largest part that is anything."""
    return max((name for name in parts if parts[name] > 0), key=parts.__getitem__, default="")


def _replicas(now: Picture) -> list[RenderableType]:
    """A table of the fleet's replicas; nothing where there is one runtime."""
    replicas = now.get("fleet", {}).get("replicas", [])
    if not replicas:
        return []
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    has_names = any(one.get("model") for one in replicas)
    names = ("replica", "programs", "running", "waiting", "free", "cached", "")
    for name in (*names[:1], *["model"] * has_names, *names[1:]):
        table.add_column(name, justify="left" if name in ("replica", "model", "") else "right")
    for one in replicas:
        state = "draining" if one["draining"] else "" if one["responsive"] else "does not answer"
        free = one["pagesFree"] / max(1, one["pages"])
        cached = one["cachedTokens"] / max(1, one["lookedUpTokens"])
        table.add_row(
            one["name"],
            *[one.get("model", "")] * has_names,
            f"{one['programs']:,}",
            f"{one['running']:,}",
            f"{one['waiting']:,}",
            f"{free:.0%}",
            f"{cached:.0%}",
            Text(state, "dark_orange"),
        )
    missing = now["fleet"]["size"] - len(replicas)
    more = [Text(f"{missing} not there", "dark_orange")] if missing else []
    return [Text(), table, *more, Text()]


def _memory(figures: dict[str, float]) -> Text:
    pages = max(1.0, figures["pages"])
    parts = (
        ("in use", "dark_orange", pages - figures["pages_free"] - figures["pages_evictable"]),
        ("held", "cyan", figures["pages_pinned"]),
        ("kept", "dark_cyan", figures["pages_evictable"] - figures["pages_pinned"]),
    )
    bar = Text("memory ")
    filled, reached = 0, 0.0
    for _, color, size in parts:
        reached += size
        until = max(filled + (size > 0), round(BAR * reached / pages))
        bar.append("█" * (until - filled), color)
        filled = until
    bar.append("·" * max(0, BAR - filled), "dim")
    for name, color, size in parts:
        bar.append("  ■ ", color)
        bar.append(f"{name} {size / pages:.1%}")
    return bar


def _work(now: Picture) -> list[RenderableType]:
    """Requests and programs where a server tells of them, sequences where a runtime does."""
    requests = now.get("requests")
    if requests is None:
        return [
            _sequences("running", now["running"], now["runningLeftOut"], "nothing runs"),
            Text(),
            _sequences("waiting", now["waiting"], now["waitingLeftOut"], "nobody waits"),
        ]
    parts = [_requests("under way", requests["open"], requests["openLeftOut"], MOST_ROWS)]
    if requests["ended"]:
        parts += [Text(), _requests("ended", requests["ended"], 0, MOST_ENDED)]
    return parts


def _sessions(now: Picture) -> list[RenderableType]:
    """Sessions and programs that pause, as far as they are expected back; nothing without any."""
    known = now.get("requests") or now
    rows, left_out = known.get("sessions", []), known.get("sessionsLeftOut", 0)
    if not rows:
        return []
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("sessions", "key", "program", "for", "expected", "tokens", "pages"):
        table.add_column(name, justify="left" if name in ("sessions", "key", "pages") else "right")
    for row in rows[:MOST_SESSIONS]:
        expected = row["expected"]
        table.add_row(
            Text(f"in {row['tool']}" if row["tool"] else row["state"]),
            row["key"],
            str(row["program"]),
            _seconds(row["waited"]),
            f"in {_seconds(expected)}" if expected >= 0 else f"{_seconds(-expected)} late",
            f"{row['tokens']:,}",
            Text(row["pages"], "dark_orange" if row["pages"] == "evicted" else ""),
        )
    more = max(0, len(rows) - MOST_SESSIONS) + left_out
    return [Text(), table, *([Text(f"and {more:,} more", "dim")] if more else [])]


def _requests(title: str, rows: list[dict[str, Any]], left_out: int, most: int) -> RenderableType:
    """Their numbers are those that `--cancel` takes; programs that came by the wire have none."""
    if not rows:
        return Text(f"{title}: nothing", "dim")
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    names = (title, "route", "key", "branches", "prompt", "cached", "output", "number", "time")
    for name in names:  # fits into 80 columns
        left = name in (title, "route", "key")
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    for row in rows[:most]:
        color = STATES.get(row["state"], "red" if "ago" in row and row["state"] != "done" else "")
        table.add_row(
            Text(row["state"], color),
            row["route"] if row["number"] else f"{row['route']}, program {row['program']}",
            row["key"],
            f"{row['branches']:,}",
            f"{row['prompt']:,}",
            f"{min(row['cached'], row['prompt']):,}",
            f"{row['generated']:,}",
            str(row["number"] or ""),
            _seconds(row["seconds"]),
        )
    more = max(0, len(rows) - most) + left_out
    return Group(table, Text(f"and {more:,} more", "dim")) if more else table


def _sequences(
    title: str, sequences: list[dict[str, Any]], left_out: int, nothing: str
) -> RenderableType:
    if not sequences:
        return Text(f"{title}: {nothing}", "dim")
    table = Table(box=None, padding=(0, 2, 0, 0), title=None, header_style="dim", pad_edge=False)
    for name in (title, "phase", "prompt", "cached", "generated", "steps", "age"):
        table.add_column(name, justify="left" if name in (title, "phase") else "right")
    for sequence in sequences[:MOST_ROWS]:
        most = f" / {sequence['maxTokens']:,}" if sequence["maxTokens"] else ""
        table.add_row(
            f"{sequence['kind']} {sequence['program']}.{sequence['call']}",
            Text(sequence["phase"], "dark_orange" if sequence["phase"] == "decode" else "cyan"),
            f"{sequence['prompt']:,}",
            f"{min(sequence['cached'], sequence['prompt']):,}",
            f"{sequence['generated']:,}{most}",
            f"{sequence['passes']:,}",
            _seconds(sequence["age"]),
        )
    more = len(sequences) - MOST_ROWS + left_out
    return Group(table, Text(f"and {more:,} more", "dim")) if more > 0 else table


def _tree(now: Picture) -> RenderableType:
    nodes = now["nodes"]
    if not nodes:
        return Text("tree: nothing is kept yet", "dim")
    figures = now["figures"]
    lines = [
        Text(
            f"tree: {figures['tree_nodes']:,.0f} nodes, {figures['pages_cached']:,.0f} pages", "dim"
        )
    ]
    widest = max(node[3] for node in nodes)
    blocks = list(itertools.islice(_trunk(nodes), MOST_BLOCKS))
    for index, depth in blocks:
        _, _, _, tokens, _, age, locks, pins, *_ = nodes[index]
        color = (
            "dark_orange"
            if locks
            else next((color for border, color in SHADES if age < border), "grey35")
        )
        line = Text("  " * min(depth, 8))
        line.append("█" * max(1, round(24 * tokens / widest)), color)
        line.append(f" {tokens:,} token{'s' * (tokens != 1)}")
        state = f"{locks} on it" if locks else f"used {_seconds(age)} ago"
        line.append(f"  {state}{', held' if pins else ''}", "dim")
        lines.append(line)
    left = int(figures["tree_nodes"]) - len(blocks)
    if left > 0:
        lines.append(Text(f"and {left:,} more", "dim"))
    return Group(*lines)


def _trunk(nodes: list[list[Any]]) -> Iterator[tuple[int, int]]:
    """(index, depth) of nodes, each below its parent, subtrees with more tokens first."""
    weight = [node[3] for node in nodes]
    below: dict[int, list[int]] = {}
    for index in reversed(range(len(nodes))):
        parent = nodes[index][1]
        below.setdefault(parent, []).append(index)
        if parent >= 0:
            weight[parent] += weight[index]
    todo = [(index, 0) for index in sorted(below.get(-1, ()), key=weight.__getitem__)]
    while todo:
        index, depth = todo.pop()
        yield index, depth
        todo += [
            (child, depth + 1) for child in sorted(below.get(index, ()), key=weight.__getitem__)
        ]


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


PERIOD = 0.5
"""Seconds between two requests over the wire; a server pushes by itself."""
MOST_NODES = 200
_TIMEOUT = 30.0

Picture = dict[str, Any]
"""A snapshot as `wire.shown` gives it; under `about` its source, `model` and `context`, and under
`requests` those that a server knows; a runtime knows none.
"""


def pictures(where: str, key: str | None) -> Iterator[Picture]:
    """Snapshots of the runtime or server at `where`. Raises `RuntimeGone` if it cannot be reached,
    `InvalidParameter` for an invalid address or key.
    """
    if where.startswith(("http://", "https://")):
        return _over_http(where, key)
    if where.startswith(("ipc://", "tcp://")):
        return _over_wire(where)
    raise InvalidParameter(
        f"{where!r} is neither a URL nor an address; write http://HOST:PORT, ipc://PATH or "
        "tcp://HOST:PORT.",
        name="where",
        value=where,
    )


def _over_wire(address: str) -> Iterator[Picture]:
    from lmprog.launch import connect  # sockets, which `--help` does not need

    with connect(address, client="top") as connection:
        info = connection.info
        about = {"model": info.model, "context": info.context_len}
        call = 0
        while True:
            call += 1
            connection.send([wire.Inspect(call, MOST_NODES, with_text=False)])
            yield {"about": about, **picture_of(_answer(connection.receive, call))}
            time.sleep(PERIOD)


def picture_of(seen: wire.Snapshot) -> Picture:
    """Who reaches the runtime itself may see all sessions."""
    sessions = [{**session_json(one), "key": one.account} for one in seen.sessions]
    return {**as_json(seen), "sessions": sessions, "sessionsLeftOut": seen.sessions_left_out}


def _answer(receive: Any, call: int) -> wire.Snapshot:
    deadline = time.monotonic() + _TIMEOUT
    while time.monotonic() < deadline:
        for reply in receive(deadline - time.monotonic()):
            if isinstance(reply, wire.Snapshot) and reply.call == call:
                return reply
            if isinstance(reply, wire.Failed):
                raise from_wire(reply.code, reply.message, reply.details)
    raise RuntimeGone(f"The runtime did not answer within {_TIMEOUT:g} seconds.")


def cancel(where: str, key: str | None, number: int) -> None:
    """Ends the request of that number. Raises like `pictures`, `ProtocolError` where there is no
    such request, or it is another key's.
    """
    if not where.startswith(("http://", "https://")):
        raise InvalidParameter(
            "Requests are cancelled at a server, http://HOST:PORT; a runtime has none.",
            name="where",
            value=where,
        )
    with _answer_of(where, key, f"/ui/requests/{number}/cancel", "POST") as response:
        response.read()


def _over_http(url: str, key: str | None) -> Iterator[Picture]:
    with _answer_of(url, key, "/ui/events") as response:
        yield from _events(response)
        raise RuntimeGone(f"The server at {url} ended the stream.")


@contextmanager
def _answer_of(
    url: str, key: str | None, path: str, method: str = "GET"
) -> Iterator[http.client.HTTPResponse]:
    parts = urlsplit(url)
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = make(parts.hostname or "", parts.port, timeout=_TIMEOUT)
    except (ValueError, http.client.InvalidURL) as error:
        raise InvalidParameter(f"{url!r} is no URL: {error}.", name="where", value=url) from None
    try:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        connection.request(method, f"{parts.path.rstrip('/')}{path}", headers=headers)
        response = connection.getresponse()
        if response.status != 200:
            raise _refused(url, response.status, response.read(65_536))
        yield response
    except (OSError, http.client.HTTPException) as error:
        raise RuntimeGone(f"No lmprog server answers at {url}: {error}.") from None
    finally:
        connection.close()


def _events(response: http.client.HTTPResponse) -> Iterator[Picture]:
    about: dict[str, Any] = {}
    requests: dict[str, Any] | None = None
    name = ""
    for line in response:
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data" and name == "about":
            about = json.loads(value)
        elif field == "data" and name == "requests":
            requests = json.loads(value)
        elif field == "data" and name == "snapshot":
            yield {"about": about, "requests": requests, **json.loads(value)}
        elif field == "data" and name == "away":
            raise RuntimeGone(str(json.loads(value)["message"]))


def _refused(url: str, status: int, body: bytes) -> LmprogError:
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"{url} answered {status}; is it an lmprog server?"
    if status == 401:
        return InvalidParameter(f"{message} Give --api-key, or set LMPROG_API_KEY.", name="api_key")
    return ProtocolError(message)
