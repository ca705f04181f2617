"""A folder of replies, each under the digest of what was asked. Several processes may share it.

A file is written whole or not at all, and is believed only where it names its own key and the
digest of its content fits: anything else is as good as absent. Knows nothing of branches.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import tempfile
from pathlib import Path

from lmprog import wire

FORMAT = "lmprog reply 1"


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

    def keep(self, key: str, reply: wire.CallDone | wire.Chosen) -> None:
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
