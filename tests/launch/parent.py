"""A program that starts a scripted runtime, says its process number, and waits to be killed (or
ends by itself).
"""

from __future__ import annotations

import sys
import time

from lmprog.launch import RuntimeProcess

if __name__ == "__main__":
    script, ending = sys.argv[1:]
    runtime = RuntimeProcess(script, module="scripted_child")
    print(runtime.pid, flush=True)
    print(runtime.address.removeprefix("ipc://"), flush=True)
    if ending == "waits":
        time.sleep(60)
    if ending == "raises":
        raise KeyError("a program's own mistake")
