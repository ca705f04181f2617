"""Runtimes as processes: start one, wait until it serves, end it; or reach one that runs already.

::

    with Runtime("nano") as runtime:          # a process of its own, ended with the block
        # a ClientChannel whose `.info` is the runtime's Welcome
        connection = runtime.connect()

    connection = connect("ipc:///path/of/socket")

The parent's side is `RuntimeProcess`, the child's side `child.Parent`, a client's handle
`Connection`. Nothing here installs a signal handler, and no process stays behind: the child ends
when its parent does, however that ended.
"""

from __future__ import annotations

from lmprog.launch.connection import Connection, connect, greet
from lmprog.launch.runtime_process import RuntimeProcess

__all__ = ["Connection", "RuntimeProcess", "connect", "greet"]
