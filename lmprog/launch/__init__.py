"""Runtimes as processes: start one, wait until it serves, end it; or connect to one that runs.

::

    with RuntimeProcess("nano") as runtime:   # a process of its own, ended with the block
        connection = runtime.connect()        # a ClientChannel; `.info` is the runtime's Welcome

    connection = connect("ipc:///path/of/socket")

The parent's side is `RuntimeProcess`, the child's side `parent_pipe.Parent`, a client's handle
`Connection`. Nothing here installs a signal handler. No process is left behind: the child ends when
its parent does, however that ended.
"""

from __future__ import annotations

from lmprog.launch.connection import Connection, checked_welcome, connect, greet
from lmprog.launch.runtime_process import RuntimeProcess, options_signature

__all__ = [
    "Connection",
    "RuntimeProcess",
    "checked_welcome",
    "connect",
    "greet",
    "options_signature",
]
