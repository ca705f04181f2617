"""A program that starts the real runtime, generates without end on 16 branches, and waits to be
killed.
"""

from __future__ import annotations

import time

import lmprog


@lmprog.function
def endless(s: lmprog.Branch) -> None:
    s += "Once"
    for branch in s.fork(16):
        branch += lmprog.gen("tale", max_tokens=3000, ignore_eos=True)


if __name__ == "__main__":
    runtime = lmprog.Runtime("nano")
    print(runtime.process.pid, flush=True)
    stream = endless.using(backend=runtime).run(stream=True)
    time.sleep(60)
