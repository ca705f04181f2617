"""The file of a checkpoint: who ran what, and all that is known of it, a line of JSON each.

Every line has a digest of itself and of the lines before it. A file that grows while a run goes on
may end in the middle of a line, where its process died: that line counts as absent. Damage anywhere
else is an error. Replies are as the wire encodes them; nothing in the file is ever executed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias

from lmprog import wire
from lmprog.errors import (
    CheckpointMismatch,
    Detail,
    LmprogError,
    ProgramError,
    ProtocolError,
    RequestRejected,
    from_wire,
)

try:
    import fcntl
except ImportError:  # on Windows nobody is kept from writing to the file of another run
    fcntl = None  # type: ignore[assignment]

FORMAT = "lmprog checkpoint 1"


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """Which run it is: the program's name, its arguments and settings as JSON has them."""

    program: str
    """`module:name` of its function."""
    arguments: Mapping[str, Any]
    """`args`, a list, and `kwargs`."""
    settings: Mapping[str, Any]
    model: str
    vocab_size: int
    seed: int
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Those that the backend had, with digests of their content."""
    documents: Mapping[str, str] = field(default_factory=dict)
    """What the backend told of its model; see `wire.Fingerprint.documents`."""
    others: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The same of the run's other backends, by their names."""

    def check_model(self, welcome: wire.Welcome) -> None:
        """Raises `CheckpointMismatch` where `welcome` is of another model."""
        same_name = Path(welcome.model).name == Path(self.model).name  # a folder may be elsewhere
        if not same_name or welcome.vocab_size != self.vocab_size:
            raise CheckpointMismatch(
                f"the checkpoint was made with model {self.model!r} ({self.vocab_size:,} tokens), "
                f"and this backend has {welcome.model!r} ({welcome.vocab_size:,} tokens)"
            )
        _check_documents(f"the model {self.model!r}", self.documents, welcome.fingerprint.documents)
        own = self.settings.get("lora")
        missing = own in self.adapters and own not in welcome.adapters
        for name, digest in self.adapters.items():
            if welcome.adapters.get(name, digest) != digest or (missing and name == own):
                there = "does not have it" if missing else "has another one of that name"
                raise CheckpointMismatch(
                    f"the checkpoint was made with the adapter {name!r}, and this backend {there}"
                )

    def check_others(self, now: RunOrigin) -> None:
        """Raises `CheckpointMismatch` where another backend of the run has another model now."""
        for name, documents in self.others.items():
            _check_documents(
                f"the model of the backend {name!r}", documents, now.others.get(name, {})
            )


def _check_documents(whose: str, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    others = [name for name, part in before.items() if now.get(name, part) != part]
    if others:
        raise CheckpointMismatch(
            f"the checkpoint was made with another model of that name: {whose} has another "
            f"{', '.join(others)} now; a run goes on with the models that it began with, so give "
            "it a file of its own"
        )


@dataclass(frozen=True, slots=True)
class KeptCall:
    """A call that was answered."""

    key: str
    """Which call of which branch of which run it is."""
    asks: str
    """A digest of what it asks, and of what its branch said since its call before."""
    label: str
    reply: wire.CallReply
    thought_tokens: int | None = None
    """How many tokens its reasoning had, where that is known."""


@dataclass(frozen=True, slots=True)
class KeptFailure:
    """A call that failed, and whose error the program was told."""

    key: str
    asks: str
    """As of a call that was answered; "" where a result before it was still open."""
    label: str
    code: str
    message: str
    details: Mapping[str, Detail]

    def error(self) -> LmprogError:
        return from_wire(self.code, self.message, self.details)


@dataclass(frozen=True, slots=True)
class KeptRetry:
    """The failure of that call has ended the run: it is asked again."""

    key: str


@dataclass(frozen=True, slots=True)
class KeptValue:
    """What something outside of the model gave: a function, a tool, somebody who was asked."""

    key: str
    asks: str
    value: Any
    """As JSON has it."""


@dataclass(frozen=True, slots=True)
class KeptWinner:
    """A contest of calls or of branches that is decided."""

    key: str
    place: int
    lost: tuple[str, ...]
    """The keys of calls, or the beginnings of keys, that were cancelled for that."""


@dataclass(frozen=True, slots=True)
class KeptQuestion:
    """What somebody was asked, so that the run stopped."""

    key: str
    question: str


Kept: TypeAlias = KeptCall | KeptFailure | KeptRetry | KeptValue | KeptWinner | KeptQuestion


@dataclass(slots=True)
class RunCheckpoint:
    """What a file has."""

    origin: RunOrigin
    kept: list[Kept] = field(default_factory=list)
    num_bytes: int = 0
    """Of the file, as far as it is whole."""
    check: str = ""
    """The digest of its last whole line."""

    @property
    def question(self) -> KeptQuestion | None:
        """What the run waits for; None where it waits for no answer."""
        answered = {one.key for one in self.kept if isinstance(one, KeptValue)}
        asked = (one for one in self.kept if isinstance(one, KeptQuestion))
        return next((one for one in asked if one.key not in answered), None)

    @classmethod
    def read(cls, path: Path) -> RunCheckpoint:
        """Raises `FileNotFoundError`, `RequestRejected` for a file that is no checkpoint or is
        damaged, `ProtocolError` for one of another version.
        """
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise FileNotFoundError(error.errno, "there is no checkpoint", str(path)) from None
        except OSError as error:
            raise RequestRejected(f"the checkpoint {str(path)!r} cannot be read: {error}") from None
        return cls.of(content, str(path))

    @classmethod
    def of(cls, content: bytes, name: str) -> RunCheckpoint:
        found: RunCheckpoint | None = None
        check, num_bytes = "", 0
        for number, line in enumerate(content.splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):
                break  # its writer died in the middle of it
            try:
                said = json.loads(line)
                check_said = said.pop("check")
                if found is None:
                    origin = _origin(said, name)
                check = _digest(check, said)
                if check_said != check:
                    raise ValueError("its digest is another one")
                if found is None:
                    found = cls(origin)
                else:
                    found.kept.append(_kept(said))
            except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
                raise RequestRejected(
                    f"{name!r} is no checkpoint, or it is damaged in line {number} ({error})"
                ) from None
            num_bytes += len(line)
        if found is None:
            raise RequestRejected(f"{name!r} is no checkpoint: it has no whole line")
        found.num_bytes, found.check = num_bytes, check
        return found


class CheckpointFile:
    """A file that is written to, a line at a time. It belongs to one run at a time."""

    def __init__(self, path: Path) -> None:
        """Raises `ProgramError` where another run writes to it."""
        self.path = path
        self._file: IO[bytes] = open(path, "ab+")  # noqa: SIM115  (closed by `close`)
        try:
            if fcntl is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ProgramError(
                f"another run writes to the checkpoint {str(path)!r}; each run needs its own file"
            ) from None
        self._check = ""

    def known(self) -> RunCheckpoint | None:
        """What it has already; None for a new file. A line that is not whole is cut off."""
        self._file.seek(0)
        content = self._file.read()
        if b"\n" not in content:
            self._file.truncate(0)
            return None
        found = RunCheckpoint.of(content, str(self.path))
        self._file.truncate(found.num_bytes)
        self._check = found.check
        return found

    def begin(self, origin: RunOrigin) -> None:
        self._write(_origin_line(origin))

    def add(self, kept: Kept) -> None:
        self._write(_line(kept))

    def _write(self, said: dict[str, Any]) -> None:
        self._check = _digest(self._check, said)
        line = json.dumps({**said, "check": self._check}, ensure_ascii=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()  # to the system: it outlives this process, not a power cut

    def close(self) -> None:
        self._file.close()


def write(path: Path, origin: RunOrigin, kept: Iterable[Kept]) -> None:
    """A whole checkpoint at once: all of it is there, or nothing."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    file = CheckpointFile(scratch)
    try:
        file.begin(origin)
        for one in kept:
            file.add(one)
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    finally:
        file.close()


# --- lines


def _digest(before: str, said: Mapping[str, Any]) -> str:
    text = before + json.dumps(said, ensure_ascii=False, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _origin_line(origin: RunOrigin) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "protocol": wire.PROTOCOL_VERSION,
        "program": origin.program,
        "arguments": origin.arguments,
        "settings": origin.settings,
        "model": origin.model,
        "vocab_size": origin.vocab_size,
        "seed": origin.seed,
        "adapters": dict(origin.adapters),
        "documents": dict(origin.documents),
        "others": {name: dict(told) for name, told in origin.others.items()},
    }


def _origin(said: Mapping[str, Any], name: str) -> RunOrigin:
    known = said["format"], said["protocol"]
    if known != (FORMAT, wire.PROTOCOL_VERSION):
        raise ProtocolError(
            f"{name!r} is of format {known[0]!r}, protocol {known[1]}; this version reads "
            f"{FORMAT!r}, protocol {wire.PROTOCOL_VERSION}: go on with the version of lmprog that "
            "wrote it, or begin anew with another file"
        )
    return RunOrigin(
        str(said["program"]),
        dict(said["arguments"]),
        dict(said["settings"]),
        str(said["model"]),
        int(said["vocab_size"]),
        int(said["seed"]),
        _texts(said.get("adapters", {})),
        _texts(said.get("documents", {})),
        {str(name): _texts(told) for name, told in said.get("others", {}).items()},
    )


def _texts(said: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(digest) for name, digest in said.items()}


def _line(kept: Kept) -> dict[str, Any]:
    if isinstance(kept, KeptCall):
        return {
            "call": kept.key,
            "label": kept.label,
            "asks": kept.asks,
            "gave": _shown(kept.reply),  # for people: it is read from `reply`
            "thought_tokens": kept.thought_tokens,
            "reply": base64.b64encode(wire.encode((kept.reply,))).decode(),
        }
    if isinstance(kept, KeptFailure):
        return {
            "failed": kept.key,
            "label": kept.label,
            "asks": kept.asks,
            "code": kept.code,
            "message": kept.message,
            "details": dict(kept.details),
        }
    if isinstance(kept, KeptRetry):
        return {"again": kept.key}
    if isinstance(kept, KeptValue):
        return {"value": kept.key, "asks": kept.asks, "json": kept.value}
    if isinstance(kept, KeptWinner):
        return {"won": kept.key, "place": kept.place, "lost": list(kept.lost)}
    return {"paused": kept.key, "question": kept.question}


def _kept(said: Mapping[str, Any]) -> Kept:
    if "call" in said:
        (reply,) = wire.decode_replies(base64.b64decode(said["reply"], validate=True))
        if not isinstance(reply, wire.CallReply):
            raise ValueError(f"{type(reply).__name__} is no result")
        thought = said["thought_tokens"]
        return KeptCall(said["call"], said["asks"], said["label"], reply, thought)
    if "failed" in said:
        why = said["code"], said["message"], dict(said["details"])
        return KeptFailure(said["failed"], said["asks"], said["label"], *why)
    if "again" in said:
        return KeptRetry(said["again"])
    if "value" in said:
        return KeptValue(said["value"], said["asks"], said["json"])
    if "won" in said:
        return KeptWinner(said["won"], int(said["place"]), tuple(said["lost"]))
    return KeptQuestion(said["paused"], said["question"])


def _shown(reply: wire.CallReply) -> Any:
    if isinstance(reply, wire.CallDone):
        return [output.text for output in reply.outputs]
    return {"option": reply.index}
