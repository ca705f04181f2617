"""A program in a process that was forked after its parent ran one: it raises at once, and runs once
the child has connected for itself.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FORKING = """
import os
import lmprog
from lmprog.errors import RuntimeGone

@lmprog.function
def hello(s):
    s += "Hello" + lmprog.gen("a", max_tokens=3, temperature=0)
    return s["a"]

with lmprog.Runtime("nano", threads=1) as runtime:
    before = hello.run(backend=runtime).value
    child = os.fork()
    if not child:
        try:
            hello.run(backend=runtime)
        except RuntimeGone as error:
            print("raised", "forked" in str(error), flush=True)
        with lmprog.connect(runtime.address) as own:
            print("own", hello.run(backend=own).value == before, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print("parent", hello.run(backend=runtime).value == before, flush=True)
"""


def test_a_program_in_a_forked_child_raises_at_once_or_runs_on_a_connection_of_its_own() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKING]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=250, cwd=ROOT, check=False
    )
    assert ended.stdout.splitlines() == ["raised True", "own True", "parent True"], ended.stderr
