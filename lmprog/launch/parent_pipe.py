"""The child's side of a launch: reports to the parent, and notices the parent's end.

A child gets two inherited pipes. Into the first it writes JSON lines: any number of `{"stage":
"loads the weights"}`, then one `{"ready": true, "address": ...}` or `{"error": {"code", "message",
"details"}}`. Nothing is ever written into the second: its end of file is the parent's end.
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
"""Seconds for an orderly end after the parent's, before the process exits at once."""
FOLDER_VARIABLE = "LMPROG_LAUNCH_FOLDER"
"""The folder that the parent made for this child and would have removed."""
_ORPHANED = 75  # exit status of a process that outlived its parent too long


class Parent:
    """The parent as seen by its child; owns both descriptors."""

    def __init__(self, ready_fd: int, parent_fd: int) -> None:
        self._ready_fd = ready_fd
        self._parent_fd = parent_fd
        self._pid = os.getppid()

    def stage(self, stage: str) -> None:
        """Reports a stage of the start, as words that follow "the runtime" (`loads the
        weights`).
        """
        self._write({"stage": stage})

    def ready(self, address: str, facts: Mapping[str, object]) -> None:
        """The last report: the runtime serves at `address`; `facts` (plain JSON) are for the
        user.
        """
        self._write({"ready": True, "address": address, **facts})
        os.close(self._ready_fd)

    def failed(self, error: LmprogError) -> None:
        """The last report: the runtime cannot start; the parent raises this error as its own."""
        self._write(
            {"error": {"code": error.code, "message": error.message, "details": error.details()}}
        )
        os.close(self._ready_fd)

    def watch(self, stop: Callable[[], None]) -> None:
        """Has `stop` called, in a thread, when the parent is gone; soon after the process exits."""
        threading.Thread(
            target=self._watch, args=(stop,), name="lmprog-parent", daemon=True
        ).start()

    def _watch(self, stop: Callable[[], None]) -> None:
        """The parent's id is checked too: a process that it forked may hold the pipe open."""
        poller = select.poll()
        poller.register(self._parent_fd, select.POLLIN)
        while not poller.poll(500) and os.getppid() == self._pid:
            pass
        folder = os.environ.get(FOLDER_VARIABLE)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)  # the parent would have
        stop()
        time.sleep(ORPHAN_GRACE)
        os._exit(_ORPHANED)

    def _write(self, report: Mapping[str, object]) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent is gone, as `watch` will notice
            os.write(self._ready_fd, json.dumps(report).encode() + b"\n")


def config_from_json(text: str) -> RuntimeConfig:
    """The parent's configuration. Raises `InvalidParameter` for a field of wrong type or name."""
    try:
        return msgspec.json.decode(text, type=RuntimeConfig)
    except msgspec.ValidationError as error:
        raise InvalidParameter(
            f"The runtime's configuration is wrong: {error}.", name="config"
        ) from None


def config_to_json(config: RuntimeConfig) -> str:
    """For `config_from_json` in the child. Raises as that would."""
    text = msgspec.json.encode(config).decode()
    config_from_json(text)
    return text
