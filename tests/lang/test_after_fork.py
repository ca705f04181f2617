"""A process that was forked in the middle of the parent's calls: locks that nobody is there to
release hang nothing, calls fail at once, and a backend of its own works.
"""

from __future__ import annotations

import subprocess
import sys

FORKING = """
import os, threading
import lmprog
from lmprog import wire
from lmprog.backends.connecting import default
from lmprog.errors import RuntimeGone
from lmprog.testing import Scripted

@lmprog.function
def ask(s):
    s += "question:"
    return s.gen(max_tokens=4).value

parents = Scripted(["from the parent", "again"])
lmprog.set_default_backend(parents)
client = parents.client
assert ask.run().value == "from the parent"
held, release = threading.Event(), threading.Event()

def hold():
    with client._state, client._sending, default._default._lock, pending.future._condition:
        held.set()
        release.wait()

pending = client._calls[10_000] = lmprog.backends.client.ClientCall(10_000)
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    try:
        ask.run()
    except RuntimeGone as error:
        print("call:", error, flush=True)
    print("pending:", type(pending.wait(5)).__name__, flush=True)
    parents.close()
    lmprog.set_default_backend(Scripted(["from the child"]))
    print(ask.run().value, flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
release.set()
thread.join()
del client._calls[10_000]
print(ask.run().value, "status", status, flush=True)
"""


def test_a_forked_process_fails_at_once_and_works_with_a_backend_of_its_own() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKING]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    call, pending, own, parent = ended.stdout.splitlines()
    assert "from which this process was forked" in call
    assert "spawn" in call
    assert (pending, own) == ("pending: RuntimeGone", "from the child")
    assert parent == "again status 0", "the parent goes on"
