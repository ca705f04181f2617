"""The file of a run: who ran what, and what is known of it, a line of JSON each. A checkpoint has
what the run goes on from; a saved run has its ops, too, and is done again without its program.

Every line has a digest of itself and of the lines before it. A file that grows while a run goes on
may end in the middle of a line, where its process died: that line counts as absent. Damage anywhere
else is an error. Replies are as the wire encodes them; nothing in the file is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

import msgspec

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
from lmprog.journal import as_line, op_of, reply_of, shown

try:
    import fcntl
except ImportError:  # on Windows nobody is kept from writing to the file of another run
    fcntl = None  # type: ignore[assignment]

FileKind: TypeAlias = Literal["checkpoint", "saved run"]
FORMATS: dict[FileKind, str] = {"checkpoint": "lmprog checkpoint 1", "saved run": "lmprog run 2"}


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

    def another_model(self, welcome: wire.Welcome) -> str | None:
        """In words, where `welcome` is of one; None where it is not."""
        same_name = Path(welcome.model).name == Path(self.model).name  # a folder may be elsewhere
        if same_name and welcome.vocab_size == self.vocab_size:
            return None
        return (
            f"was made with model {self.model!r} ({self.vocab_size:,} tokens), and this backend "
            f"has {welcome.model!r} ({welcome.vocab_size:,} tokens)"
        )

    def check_model(self, welcome: wire.Welcome) -> None:
        """Raises `CheckpointMismatch` where `welcome` is of another model."""
        another = self.another_model(welcome)
        if another is not None:
            raise CheckpointMismatch(f"the checkpoint {another}")
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
    """What something outside of the model gave, as JSON has it: a function, a tool, somebody who
    was asked.
    """

    key: str
    asks: str
    json: Any


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


@dataclass(frozen=True, slots=True)
class SavedOp:
    """One that made a branch or a call, in the order in which these can be sent again."""

    op: wire.Op


@dataclass(frozen=True, slots=True)
class SavedContest:
    """One that had a winner: the calls that took part, and whose result was taken."""

    rule: wire.ContestRule
    calls: tuple[int, ...]
    won: int


Kept: TypeAlias = KeptCall | KeptFailure | KeptRetry | KeptValue | KeptWinner | KeptQuestion
Line: TypeAlias = Kept | SavedOp | SavedContest
KINDS: dict[str, type[Line]] = {
    "call": KeptCall,
    "failed": KeptFailure,
    "again": KeptRetry,
    "value": KeptValue,
    "won": KeptWinner,
    "paused": KeptQuestion,
    "op": SavedOp,
    "contest": SavedContest,
}
"""By the word with which a line begins; what it says there is the first field, and others have
their names.
"""
WORDS = {kind: word for word, kind in KINDS.items()}


@dataclass(slots=True)
class RunCheckpoint:
    """What a file has."""

    origin: RunOrigin
    kept: list[Kept] = field(default_factory=list)
    ops: list[wire.Op] = field(default_factory=list)
    contests: list[SavedContest] = field(default_factory=list)
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
    def read(cls, path: Path, kind: FileKind = "checkpoint") -> RunCheckpoint:
        """Raises `FileNotFoundError`, `RequestRejected` for a file that is of no such kind or is
        damaged, `ProtocolError` for one of another version.
        """
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise FileNotFoundError(error.errno, f"there is no {kind}", str(path)) from None
        except OSError as error:
            raise RequestRejected(f"{str(path)!r} is no {kind}: {error}") from None
        return cls.of(content, str(path), kind)

    @classmethod
    def of(cls, content: bytes, name: str, kind: FileKind = "checkpoint") -> RunCheckpoint:
        if content.startswith(b'{\n "format": "lmprog run 1"'):  # one value in many lines
            _check_format({"format": "lmprog run 1", "protocol": "as then"}, name, kind)
        found: RunCheckpoint | None = None
        check, num_bytes = "", 0
        for number, line in enumerate(content.splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):
                break  # its writer died in the middle of it
            try:
                said = json.loads(line)
                check_said = said.pop("check")
                if found is None:
                    _check_format(said, name, kind)
                check = _digest(check, said)
                if check_said != check:
                    raise ValueError("its digest is another one")
                if found is None:
                    found = cls(msgspec.convert(said, RunOrigin))
                else:
                    found._add(_line_of(said))
            except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
                raise RequestRejected(
                    f"{name!r} is no {kind}, or it is damaged in line {number} ({error})"
                ) from None
            num_bytes += len(line)
        if found is None:
            raise RequestRejected(f"{name!r} is no {kind}: it has no whole line")
        found.num_bytes, found.check = num_bytes, check
        return found

    def _add(self, line: Line) -> None:
        if isinstance(line, SavedOp):
            self.ops.append(line.op)
        elif isinstance(line, SavedContest):
            self.contests.append(line)
        else:
            self.kept.append(line)


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

    def begin(self, origin: RunOrigin, kind: FileKind = "checkpoint") -> None:
        version = {"format": FORMATS[kind], "protocol": wire.PROTOCOL_VERSION}
        self._write({**version, **_fields(origin)})

    def add(self, line: Line) -> None:
        self._write(_said(line))

    def _write(self, said: dict[str, Any]) -> None:
        self._check = _digest(self._check, said)
        line = json.dumps({**said, "check": self._check}, ensure_ascii=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()  # to the system: it outlives this process, not a power cut

    def close(self) -> None:
        self._file.close()


def write(
    path: Path, origin: RunOrigin, lines: Iterable[Line], kind: FileKind = "checkpoint"
) -> None:
    """A whole file at once: all of it is there, or nothing."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    file = CheckpointFile(scratch)
    try:
        file.begin(origin, kind)
        for line in lines:
            file.add(line)
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


def _fields(one: RunOrigin | Line) -> dict[str, Any]:
    return {member.name: getattr(one, member.name) for member in fields(one)}


def _said(line: Line) -> dict[str, Any]:
    """As JSON has it."""
    said = {WORDS[type(line)]: None, **_fields(line)}
    if isinstance(line, KeptCall):
        said |= {"gave": shown(line.reply), "reply": as_line(line.reply)}
    elif isinstance(line, SavedOp):
        said["op"] = as_line(line.op)
    first = fields(line)[0].name
    said[WORDS[type(line)]] = said.pop(first)
    return said


def _line_of(said: dict[str, Any]) -> Line:
    """Raises what `RunCheckpoint.of` names."""
    word = next(iter(said))
    kind = KINDS[word]
    said[fields(kind)[0].name] = said.pop(word)
    if kind is KeptCall:
        said["reply"] = reply_of(said["reply"])
    elif kind is SavedOp:
        said["op"] = op_of(said["op"])
    return msgspec.convert(said, kind)


def _check_format(said: Mapping[str, Any], name: str, kind: FileKind) -> None:
    known, now = (said["format"], said["protocol"]), (FORMATS[kind], wire.PROTOCOL_VERSION)
    if known[0] in FORMATS.values() and known[0] != FORMATS[kind]:
        raise RequestRejected(
            f"{name!r} is no {kind}: `lmprog.resume` goes on with a checkpoint, which "
            "run.checkpoint(path) writes, and `lmprog.replay` does a saved run again, which "
            "run.save(path) writes"
        )
    if known != now:
        raise ProtocolError(
            f"{name!r} is of format {known[0]!r}, protocol {known[1]}; this version reads "
            f"{now[0]!r}, protocol {now[1]}: use it with the version of lmprog that wrote it, or "
            f"{'begin anew with' if kind == 'checkpoint' else 'save the run again in'} another file"
        )
