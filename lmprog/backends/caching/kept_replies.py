"""Replies that are kept: what a call asks, as the key of its reply, and the folder of replies, each
under its key. Several processes may share one.

A file is written whole or not at all, and is believed only where it names its own key and the
digest of its content fits: anything else is as good as absent. Knows ops and replies, no branches;
it asks nobody.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from lmprog import wire
from lmprog.backends import Backend

FORMAT = "lmprog reply 1"


@dataclass(frozen=True, slots=True)
class Question:
    """All that stands before a call: who is asked, for whom, and the text."""

    identity: tuple[object, ...]
    salt: str
    pieces: tuple[wire.Piece, ...]
    tools: wire.ToolOffer | None
    lora: str = ""
    """The adapter that computes it: the digest of its content, where that is known."""

    def key(self, op: wire.Generate | wire.Select, *, with_seed: bool) -> str:
        """The digest of this and of what `op` says of the reply: not its numbers, its deadline, its
        priority. At temperature 0 no seed matters.
        """
        with_seed = with_seed and temperature_of(op) > 0
        plain: Any = msgspec.structs.replace(op, branch=0, call=0, priority=0, timeout=None)
        if isinstance(op, wire.Generate):
            sampling = op.sampling
            if not with_seed:
                sampling = msgspec.structs.replace(sampling, seed=None)
            plain = msgspec.structs.replace(plain, stream=False, sampling=sampling)
        elif not with_seed:
            plain = msgspec.structs.replace(plain, seed=None)
        opened = wire.Open(0, self.salt, lora=self.lora)
        ops = wire.encode((opened, wire.Append(0, joined(self.pieces)), plain))
        tools = msgspec.msgpack.encode(self.tools)
        said = msgspec.msgpack.encode((repr(self.identity), ops, tools))
        return hashlib.blake2b(said, digest_size=20).hexdigest()


def temperature_of(op: wire.Generate | wire.Select) -> float:
    return op.temperature if isinstance(op, wire.Select) else op.sampling.temperature


def joined(pieces: Iterable[wire.Piece]) -> tuple[wire.Piece, ...]:
    """The same with neighbouring texts as one: where appends began is no part of a question."""
    found: list[wire.Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if (
            isinstance(piece, wire.TextPiece)
            and isinstance(last, wire.TextPiece)
            and last.quoted == piece.quoted
            and not (last.calls or piece.calls)
        ):
            found[-1] = wire.TextPiece(last.text + piece.text, piece.quoted)
        elif not isinstance(piece, wire.TextPiece) or piece.text or piece.calls:
            found.append(piece)
    return tuple(found)


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
    """The replies in `folder`, which is made with the first one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: str, op: wire.Generate | wire.Select) -> wire.CallDone | wire.Chosen | None:
        """The reply under `key`, of the kind that `op` gets and for its call; None without one."""
        try:
            about = json.loads(self._path(key).read_text())
            if about["format"] != FORMAT or about["key"] != key:
                return None
            frame = base64.b64decode(about["reply"], validate=True)
            if about["digest"] != _digest(key, frame):
                return None
            (reply,) = wire.decode_replies(frame)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, binascii.Error):
            return None  # absent, torn, or not ours; `MalformedFrame` is a ValueError
        usage = wire.Usage()  # nobody works for it now
        if isinstance(op, wire.Select) and isinstance(reply, wire.Chosen):
            fits = 0 <= reply.index < len(op.choices) == len(reply.options)
            return wire.Chosen(op.call, reply.index, reply.options, usage) if fits else None
        if isinstance(op, wire.Generate) and isinstance(reply, wire.CallDone) and reply.outputs:
            return wire.CallDone(
                op.call,
                reply.outputs,
                usage,
                reply.prompt_logprobs,
                reply.next_logprobs,
                reply.left_out,
            )
        return None

    def keep(self, key: str, reply: wire.CallReply) -> None:
        """Raises `OSError` where the folder cannot be written."""
        frame = wire.encode((reply,))
        about = {
            "format": FORMAT,
            "key": key,
            "digest": _digest(key, frame),
            "reply": base64.b64encode(frame).decode(),
        }
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


def _digest(key: str, frame: bytes) -> str:
    return hashlib.blake2b(key.encode() + frame, digest_size=16).hexdigest()


def deltas(op: wire.Generate | wire.Select, reply: object) -> Iterator[wire.Delta]:
    """A kept reply as a stream: each text at once."""
    if isinstance(op, wire.Generate) and op.stream and isinstance(reply, wire.CallDone):
        outputs = reply.outputs if op.keep == "first" else reply.outputs[:1]
        for index, output in enumerate(outputs):
            if output.text:
                num_tokens = len(output.tokens)
                told = (output.text, num_tokens, output.logprobs, output.tags)
                yield wire.Delta(op.call, index, *told)
