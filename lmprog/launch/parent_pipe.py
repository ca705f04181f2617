"""The child's side of a launch: what a runtime process tells its parent, and how it notices the
parent's end.

A child gets two inherited pipes. Into the first it writes JSON lines: any number of `{"stage":
"loads the weights"}`, then one `{"ready": true, "address": ...}` or `{"error": {"code", "message",
"details"}}`. The second is never written by anybody: its end of file is the parent's death.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import threading
import time
from collections.abc import Callable, Mapping

import msgspec

from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter, LmprogError

ORPHAN_GRACE = 1.0
"""Seconds that an orphan has for an orderly end before it is ended at once; the promise is 2 s in
all.
"""
FOLDER_VARIABLE = "LMPROG_LAUNCH_FOLDER"
"""Names the folder that the parent made for this child and would have removed."""
_ORPHANED = 75  # exit status of an orphan that did not end in time


class Parent:
    """The parent as its child sees it; takes over both descriptors."""

    def __init__(self, ready_fd: int, parent_fd: int) -> None:
        self._ready_fd = ready_fd
        self._parent_fd = parent_fd
        self._pid = os.getppid()

    def stage(self, doing: str) -> None:
        """Says what the start is busy with, as words that follow "the runtime" (`loads the
        weights`).
        """
        self._write({"stage": doing})

    def ready(self, address: str, facts: Mapping[str, object]) -> None:
        """The runtime serves at `address`; `facts` (plain JSON) are for the user. The last word to
        the parent.
        """
        self._write({"ready": True, "address": address, **facts})
        os.close(self._ready_fd)

    def failed(self, error: LmprogError) -> None:
        """The runtime cannot start; the parent raises this error as its own. The last word to the
        parent.
        """
        self._write(
            {"error": {"code": error.code, "message": error.message, "details": error.details()}}
        )
        os.close(self._ready_fd)

    def watch(self, stop: Callable[[], None]) -> None:
        """From now on `stop` is called, in a thread, when the parent is gone; the process ends soon
        after, anyway.
        """
        threading.Thread(
            target=self._watch, args=(stop,), name="lmprog-parent", daemon=True
        ).start()

    def _watch(self, stop: Callable[[], None]) -> None:
        """The parent's number is looked at too: a process that it forked may hold the pipe open
        after its death.
        """
        poller = select.poll()
        poller.register(self._parent_fd, select.POLLIN)
        while not poller.poll(500) and os.getppid() == self._pid:
            pass
        folder = os.environ.get(FOLDER_VARIABLE)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)  # nobody is left who would
        stop()
        time.sleep(ORPHAN_GRACE)
        os._exit(_ORPHANED)

    def _write(self, said: Mapping[str, object]) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody listens any more: `watch` will notice
            os.write(self._ready_fd, json.dumps(said).encode() + b"\n")


def config_from_json(text: str) -> RuntimeConfig:
    """The configuration that the parent wrote; raises `InvalidParameter` for a field of the wrong
    type or name.
    """
    try:
        return msgspec.json.decode(text, type=RuntimeConfig)
    except msgspec.ValidationError as error:
        raise InvalidParameter(
            f"The runtime's configuration is wrong: {error}.", name="config"
        ) from None


def config_to_json(config: RuntimeConfig) -> str:
    """For `config_from_json` of another process; checks on this side already what that one will
    check.
    """
    text = msgspec.json.encode(config).decode()
    config_from_json(text)
    return text
