"""A runtime in a process of its own, as seen by the process that started it.

Knows how a configuration becomes a running child with an address. Does not know what a runtime
does.
"""

from __future__ import annotations

import inspect
import logging
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.errors import InvalidParameter, RuntimeGone, UnknownName, hint
from lmprog.launch.child_process import Child, python
from lmprog.launch.connection import Connection, greet
from lmprog.launch.parent_pipe import config_to_json
from lmprog.transport import ZmqClientChannel, client_keys, keys_of_runtime
from lmprog.transport.address import check

log = logging.getLogger("lmprog")

STARTUP_TIMEOUT = 300.0
STOP_GRACE = 10.0
_QUIET_START = 1.0  # seconds of starting before anything is shown
_MODULE = "lmprog.runtime.main"


class RuntimeProcess:
    """Starts a runtime and waits until it serves; it ends with its block, with `close()`, or with
    this process.

    `model` is a model's name or folder, or a whole `RuntimeConfig`; `options` are fields of
    `RuntimeConfig` and `SchedulerConfig` (`RuntimeProcess("nano", threads=2, page_size=1)`).
    `address` is by default a socket in a new folder that only this user can enter; `keys` is a
    folder of keys (`lmprog fleet keys`), which an address beyond this machine needs. The child's
    log goes to a file that errors quote, or to our own stderr.

    Raises what the runtime reports (`ModelError`, `InvalidParameter`, ...), or `RuntimeGone` with
    the last lines of its log.
    """

    def __init__(
        self,
        model: str | RuntimeConfig = "nano",
        *,
        address: str | None = None,
        startup_timeout: float = STARTUP_TIMEOUT,
        log_to_stderr: bool = False,
        module: str = _MODULE,
        keys: str | None = None,
        **options: Any,
    ) -> None:
        self.config = configured(model, options)
        config = config_to_json(self.config)
        if address is not None:
            check(address, has_keys=keys is not None)
        folder = Path(tempfile.mkdtemp(prefix="lmprog-"))  # mode 0700
        command = [
            *python(module),
            "--config-json",
            config,
            "--address",
            address or f"ipc://{folder}/socket",
        ]
        if keys is not None:
            keys_of_runtime(Path(keys))  # an error is raised here, and not by the child
            command += ["--keys", keys]
        self._keys = keys
        self._child = Child(command, folder, keep_log=not log_to_stderr)
        self._finalizer = weakref.finalize(self, self._child.stop, STOP_GRACE)  # at exit, too
        try:
            self.facts = self._child.wait_ready(startup_timeout, _StageReporter())
        except BaseException:
            self._child.stop(0.0)
            raise
        self.address = str(self.facts["address"])

    def connect(self, client: str = "") -> Connection:
        """A new client of this runtime, with branches and calls of its own.

        It refers to the runtime, which is not collected before it.
        """
        if not self.alive:
            raise RuntimeGone(
                f"The runtime at {self.address} has ended. {self._child.describe_end()}".strip()
            )
        channel = ZmqClientChannel(
            self.address, keys=client_keys(self._keys), explain=self._describe_end
        )
        return greet(channel, client=client)

    @property
    def alive(self) -> bool:
        return self._child.exit_code is None

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 0 after an orderly end; minus the signal's number where a signal
        ended it.
        """
        return self._child.exit_code

    def wait(self, timeout: float | None = None) -> int | None:
        """Waits for the end: the exit code, or None after `timeout` seconds."""
        return self._child.wait(timeout)

    def busy_seconds(self) -> float | None:
        """What its process has computed so far, or waited for a processor to compute; None once it
        has ended.
        """
        return self._child.busy_seconds()

    def write_stacks(self) -> None:
        """Makes the runtime write the stacks of its threads to its log, to show where it hangs."""
        self._child.write_stacks()

    def log_tail(self) -> str:
        """The last lines of the runtime's log, to append to a message."""
        return self._child.last_lines()

    def close(self, grace: float = STOP_GRACE) -> None:
        """Ends the runtime in order, after `grace` seconds at once. Safe to repeat."""
        self._child.stop(grace)
        self._finalizer.detach()

    def _describe_end(self) -> str:
        return self._child.describe_end()

    def __enter__(self) -> RuntimeProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


class _StageReporter:
    """Writes the stages of a start to the log, those of a long one to the terminal."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, stage: str) -> None:
        line = f"lmprog: the runtime {stage}"
        if time.monotonic() - self._start > _QUIET_START and sys.stderr.isatty():
            sys.stderr.write(line + "\n")
        else:
            log.info(line)


def options_signature() -> inspect.Signature:
    """What `configured` takes, for `help` and notebooks."""
    kind = inspect.Parameter
    options = [one for one in fields(RuntimeConfig) if one.name not in ("model", "scheduler")]
    keywords = [
        kind(one.name, kind.KEYWORD_ONLY, default=one.default, annotation=one.type)
        for one in (*options, *fields(SchedulerConfig))
    ]
    model = kind("model", kind.POSITIONAL_OR_KEYWORD, default=None, annotation="str | None")
    return inspect.Signature([kind("self", kind.POSITIONAL_OR_KEYWORD), model, *keywords])


def replica_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of each of several runtimes on this machine: they share what they keep on disk."""
    shared = {"kv_store": "machine"} if options.get("kv_disk_mb") is not None else {}
    return {**shared, **options}


def configured(model: str | RuntimeConfig, options: dict[str, Any]) -> RuntimeConfig:
    """The configuration with `options`; `UnknownName` for a name that neither config has,
    `InvalidParameter` where no model is named.
    """
    config = model if isinstance(model, RuntimeConfig) else RuntimeConfig(model=model)
    if not str(config.model).strip():
        allowed = "the name of a model (nano, say), or its folder"
        raise InvalidParameter(
            f"model={config.model!r} names no model; give {allowed}",
            name="model",
            value=repr(config.model),
            allowed=allowed,
        )
    own = {field.name for field in fields(RuntimeConfig)} - {"model"}
    scheduling = {field.name for field in fields(SchedulerConfig)}
    for name in options:
        if name not in own | scheduling:
            said = f"unknown runtime option {name!r}{hint(name, {'model'} | own | scheduling)}"
            raise UnknownName(said, name=name)
    given = {name: value for name, value in options.items() if name in own}
    if isinstance(given.get("lora"), Mapping):
        given["lora"] = tuple(f"{name}={folder}" for name, folder in given["lora"].items())
    config = replace(config, **given)
    inner = {name: value for name, value in options.items() if name in scheduling}
    return replace(config, scheduler=replace(config.scheduler, **inner)) if inner else config
