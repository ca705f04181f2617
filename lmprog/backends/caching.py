"""A backend that asks another one only what is not in a folder of replies yet.

Each call is asked by itself: on a branch that holds what stands before it, literal text and what
earlier calls left there. So a reply is a function of the call and the text before it, and that,
with the model, is what it is kept under. Branches are kept here; the other backend sees one for
each call that it is asked, and its own cache finds what they share. Contests are left to the
language, as on every backend that knows none.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import queue
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import msgspec

from lmprog import wire
from lmprog.backends import Backend, Remembers
from lmprog.backends.branch_machine import BranchCall, BranchMachine, BranchReply, TextBranch
from lmprog.backends.branch_text import BranchPiece, BranchText, LeftBehind
from lmprog.backends.client import Client, ClientCall
from lmprog.errors import LmprogError, NotSupported, RuntimeGone
from lmprog.journal import (
    Asking,
    Question,
    as_asked,
    as_line,
    deltas,
    joined,
    reply_of,
    temperature_of,
)

_log = logging.getLogger(__name__)


FORMAT = "lmprog reply 1"


@dataclass(frozen=True, slots=True)
class RunCache:
    """The folder of a run, and whether the run was given a seed."""

    folder: Path
    seeded: bool

    def over(self, backend: Backend, around: Backend | None = None) -> CachingBackend:
        """`backend` with this cache; that of the run `around` where it is the same."""
        plain = backend.inner if isinstance(backend, CachingBackend) else backend
        if (
            isinstance(around, CachingBackend)
            and around.inner is plain
            and around.folder == self.folder
        ):
            return around
        return CachingBackend(plain, self.folder, seeded=self.seeded)


@dataclass(frozen=True, slots=True)
class CachedText(BranchText):
    tools: wire.ToolOffer | None = None
    """What an earlier call of the branch could call; services want to be told again."""


CachedCall: TypeAlias = BranchCall[CachedText]


@dataclass(frozen=True, slots=True)
class AskedElsewhere:
    """A call that the other backend is asked, on a branch of its own, which has that number."""

    call: CachedCall
    text: CachedText
    """Before it."""
    key: str | None
    """Under which the reply is kept; None: it is not."""
    branch: int
    asked: ClientCall


class CachingBackend:
    """`inner` with the replies of `folder`, for one run and the runs within it.

    `seeded`: whether the run was given a seed. Without one, what a runtime samples at a temperature
    above 0 is not kept; what a service answers is, and the nth time that the same is asked gets the
    nth answer.
    """

    def __init__(self, inner: Backend, folder: Path, *, seeded: bool) -> None:
        self.inner = inner
        self.from_cache: set[int] = set()
        """The calls that were answered from the folder."""
        self.folder = folder
        self._kept = KeptReplies(folder)
        self._seeded = seeded
        self._asks = inner.client
        self.info = self._asks.welcome
        self._is_service = self.info.vocab_size == 0
        self._has_tokens = not self._is_service or getattr(inner, "branches_are_tokens", False)
        self._identity = identity(inner)
        self._adapters = inner.client.welcome.adapters
        self._times: Counter[str] = Counter()
        self._lock = threading.RLock()  # guards all below; never held while `inner` is called
        self._asked: dict[int, AskedElsewhere] = {}
        self._remembered: dict[int, wire.CallReply] = {}
        self._to_send: list[Callable[[], None]] = []
        self.replies: queue.SimpleQueue[wire.Reply] = queue.SimpleQueue()
        self._machine = BranchMachine(self, self.replies.put)
        self._client = _CachingClient(self)

    @property
    def client(self) -> Client:
        return self._client

    def close(self) -> None:
        """Ends what is still asked; the other backend stays open."""
        self._client.close()
        with self._lock:
            self._machine.take([wire.Close(number) for number in self._machine.branches])
        self._send()

    def remember(self, call: int, reply: wire.CallReply) -> None:
        """The call of that number was answered before the run stopped; see `Remembers`."""
        self._remembered[call] = reply

    def take(self, ops: Sequence[wire.Op]) -> None:
        """From the client."""
        with self._lock:
            self._machine.take(ops)
        self._send()

    # --- what the machine asks

    def begin(
        self, branch: TextBranch[CachedText], parent: TextBranch[CachedText] | None
    ) -> CachedText:
        return CachedText() if parent is None else parent.text

    def append(self, text: CachedText, pieces: Sequence[BranchPiece]) -> CachedText:
        told = [piece.elsewhere() if isinstance(piece, LeftBehind) else piece for piece in pieces]
        return text.plus(told)

    def answer(self, call: CachedCall) -> None:
        op, branch = call.op, call.branch
        key: str | None = None
        if not isinstance(op, wire.Read):
            known = self._remembered.pop(op.call, None)
            if known is not None:
                self._finish(call, known)
                return
            if isinstance(op, wire.Generate) and op.tools is not None:
                branch.text = replace(branch.text, tools=op.tools)
            key = self._key(branch, op)
            kept = None if key is None else self._kept.find(key, op)
            if kept is not None:
                self.from_cache.add(op.call)
                for delta in deltas(op, kept):
                    self.replies.put(delta)
                self._finish(call, kept)
                return
        client = self._asks
        number = client.number()
        asked = ClientCall(client.number(), lambda delta: self._hear(op.call, delta))
        elsewhere = AskedElsewhere(call, branch.text, key, number, asked)
        self._asked[op.call] = elsewhere
        asked.when_done(lambda: self._ended(elsewhere))
        self._to_send.append(lambda: _post(self.inner, elsewhere))

    def cancel(self, call: CachedCall) -> None:
        asked = self._asked[call.op.call].asked
        self._to_send.append(lambda: self._asks.post(wire.Cancel(asked.id)))

    def other(self, op: wire.Op) -> None:
        call = getattr(op, "call", None)
        if call and not isinstance(op, wire.Hello | wire.Contest | wire.SharePrefix):
            about = f"a run with a cache does not answer {type(op).__name__}"
            self._machine.fail(call, NotSupported(about))

    # --- answers

    def _key(self, branch: TextBranch[CachedText], op: Asking) -> str | None:
        """What the reply is kept under; None where it is a matter of chance."""
        is_chance = temperature_of(op) > 0 and not self._seeded
        if is_chance and not self._is_service:
            return None
        lora = self._adapters.get(branch.lora, branch.lora)
        pieces = _as_pieces(branch.text.pieces, has_tokens=self._has_tokens)
        question = Question(self._identity, branch.salt, pieces, branch.text.tools, lora)
        name = question.key(op, with_seed=not is_chance)
        nth = self._times[name] if is_chance else 0
        self._times[name] += 1
        return f"{name}-{nth}" if nth else name

    def _hear(self, call: int, delta: wire.Delta) -> None:
        self.replies.put(msgspec.structs.replace(delta, call=call))
        self._client.hand_out()

    def _ended(self, elsewhere: AskedElsewhere) -> None:
        """The other backend has answered, on whatever thread."""
        outcome = elsewhere.asked.wait(0)
        if self._asks.welcome.fingerprint != self.info.fingerprint:
            outcome = RuntimeGone("the model was replaced, and this run had begun with another")
        if elsewhere.key is not None and isinstance(outcome, wire.CallReply):
            try:
                self._kept.keep(elsewhere.key, outcome)
            except OSError as error:  # the answer is there: only the next run has to ask again
                _log.warning("an answer could not be kept in %s: %s", self.folder, error)
        with self._lock:
            self._asked.pop(elsewhere.call.op.call, None)
            self._to_send.append(lambda: self._asks.post(wire.Close(elsewhere.branch)))
            assert isinstance(outcome, BranchReply | LmprogError), "it answers what was asked"
            self._finish(elsewhere.call, outcome)
        self._send()
        self._client.hand_out()

    def _finish(self, call: CachedCall, outcome: BranchReply | LmprogError) -> None:
        if isinstance(outcome, LmprogError):
            self._machine.finish(call, outcome)
            return
        reply = msgspec.structs.replace(outcome, call=call.op.call)
        text = None
        if not isinstance(reply, wire.TextIs) and not isinstance(call.op, wire.Read):
            text = call.branch.text.with_result(call.op, reply)
        self._machine.finish(call, reply, text)

    def _send(self) -> None:
        """Sends what the other backend is to do."""
        with self._lock:
            todo, self._to_send = self._to_send, []
        if todo:
            with self._asks.together():
                for send in todo:
                    send()
            self._asks.flush()


def _as_pieces(text: Iterable[BranchPiece], *, has_tokens: bool) -> tuple[wire.Piece, ...]:
    """All of it in words of the wire; `has_tokens`: where branches are tokens."""

    def pieces() -> Iterator[wire.Piece]:
        for at, piece in enumerate(text):
            if not isinstance(piece, LeftBehind):
                yield piece
            elif has_tokens:
                yield from wire.own_pieces(piece.op, piece.reply, is_first=at == 0)
            else:
                yield wire.letters(wire.result_texts(piece.op, piece.reply)[0])

    return joined(pieces())


def _post(backend: Backend, elsewhere: AskedElsewhere) -> None:
    """Asks `backend`: builds the branch, and posts the call."""
    client, number, tools = backend.client, elsewhere.branch, elsewhere.text.tools
    branch = elsewhere.call.branch
    client.post(wire.Open(number, branch.salt, lora=branch.lora))
    if isinstance(backend, Remembers):
        _build(client, backend, elsewhere)
    elif pieces := _as_pieces(elsewhere.text.pieces, has_tokens=client.welcome.vocab_size > 0):
        client.post(wire.Append(number, pieces))
    op = msgspec.structs.replace(elsewhere.call.op, branch=number, call=elsewhere.asked.id)
    if isinstance(op, wire.Generate) and op.tools is None and tools is not None:
        op = msgspec.structs.replace(op, tools=msgspec.structs.replace(tools, choice="none"))
    client.begin(op, elsewhere.asked)


def _build(client: Client, service: Remembers, elsewhere: AskedElsewhere) -> None:
    """The branch on a service, with the calls on it, which are not asked again."""
    texts: list[wire.Piece] = []

    def append() -> None:
        if texts:
            client.post(wire.Append(elsewhere.branch, joined(texts)))
            texts.clear()

    for piece in elsewhere.text.pieces:
        if not isinstance(piece, LeftBehind):
            texts.append(piece)
            continue
        append()
        number = client.number()
        service.remember(number, piece.reply)
        client.begin(as_asked(piece.op, elsewhere.branch, number), ClientCall(number))
    append()


class _CachingChannel:
    """The way of a caching client to its backend; replies are handed out by the client."""

    def __init__(self, backend: CachingBackend) -> None:
        self.info = backend.info
        self._backend = backend

    def send(self, ops: Sequence[wire.Op]) -> None:
        self._backend.take(ops)

    def receive(self, timeout: float) -> list[wire.Reply]:
        return []

    def close(self) -> None:
        """There is nothing of its own to be closed."""


class _CachingClient(Client):
    """A client without a thread: whoever brings replies hands them out, one thread at a time."""

    def __init__(self, backend: CachingBackend) -> None:
        self._replies = backend.replies
        self._handing = threading.Lock()
        super().__init__(_CachingChannel(backend), reads=False)

    def flush(self) -> None:
        super().flush()
        self.hand_out()

    def hand_out(self) -> None:
        """Never waits for another thread that does it: that one looks again before it leaves."""
        while not self._replies.empty() and self._handing.acquire(blocking=False):
            try:
                while not self._replies.empty():
                    self._deliver(self._replies.get())
            finally:
                self._handing.release()


# --- the folder


def identity(backend: Backend) -> tuple[object, ...]:
    """Who answers: a runtime's model by its fingerprint. Of others, a model in a folder is also its
    files: another file is another model.
    """
    welcome = backend.client.welcome
    parts = welcome.fingerprint
    return (
        wire.PROTOCOL_VERSION,
        type(backend).__name__,
        getattr(backend, "identity", ()),
        welcome.model,
        welcome.vocab_size,
        welcome.context_len,
        tuple(parts.parts.items()) if parts.weights else _files(Path(welcome.model)),
    )


def _files(model: Path) -> tuple[object, ...]:
    """What is there under the name of a model, if anything; names, sizes and times."""
    found = (
        (path.name, path.stat().st_size, path.stat().st_mtime_ns)
        for path in (model.iterdir() if model.is_dir() else [model])
        if path.is_file()
    )
    return tuple(sorted(found))


class KeptReplies:
    """The replies in `folder`, which is made with the first one; several processes may share it. A
    file is written whole or not at all, and is believed only where it names its own key and the
    digest of its content fits: anything else is as good as absent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: str, op: Asking) -> wire.CallDone | wire.Chosen | None:
        """The reply under `key`, of the kind that `op` gets and for its call; None without one."""
        try:
            about = json.loads(self._path(key).read_text())
            if about["format"] != FORMAT or about["key"] != key:
                return None
            if about["digest"] != _digest(key, about["reply"]):
                return None
            reply = reply_of(about["reply"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None  # absent, torn, or not ours
        usage = wire.Usage()  # nobody works for it now
        if isinstance(op, wire.Select) and isinstance(reply, wire.Chosen):
            fits = 0 <= reply.index < len(op.choices) == len(reply.options)
            return wire.Chosen(op.call, reply.index, reply.options, usage) if fits else None
        if isinstance(op, wire.Generate) and isinstance(reply, wire.CallDone) and reply.outputs:
            return msgspec.structs.replace(reply, call=op.call, usage=usage)
        return None

    def keep(self, key: str, reply: wire.CallReply) -> None:
        """Raises `OSError` where the folder cannot be written."""
        line = as_line(reply)
        about = {"format": FORMAT, "key": key, "digest": _digest(key, line), "reply": line}
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".reply")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(about, file)
            os.replace(scratch, path)  # atomic: others see all of it or nothing
        except BaseException:
            Path(scratch).unlink(missing_ok=True)
            raise

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def _digest(key: str, line: str) -> str:
    return hashlib.blake2b(key.encode() + base64.b64decode(line), digest_size=16).hexdigest()
