"""The way of one call through the package: which files its code is in, which values it passes.

`python -m benchmarks.walk [gen | select | json]` runs one program on a runtime in this process, with
the smallest random model, and lists the files of lmprog whose functions ran between the call and
its result, and the value classes (dataclasses and messages) that those functions were given. An
earlier revision is followed by running the same command there.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

import lmprog
from lmprog.backends.runtime_backend import RuntimeBackend
from lmprog.config import RuntimeConfig
from lmprog.launch import greet
from lmprog.runtime.assembly import assemble
from lmprog.transport import LocalRuntimeChannel

PACKAGE = Path(lmprog.__file__).parent
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


class Walk:
    """Counts calls by file, and the value classes among the arguments."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.values: dict[str, str] = {}

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        """A hook for `sys.setprofile`."""
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(str(PACKAGE)):
            return
        self.calls[str(Path(name).relative_to(PACKAGE))] += 1
        for value in list(frame.f_locals.values()):
            kind = type(value)
            is_value = dataclasses.is_dataclass(kind) or isinstance(value, msgspec.Struct)
            if is_value and kind.__module__.startswith("lmprog"):
                self.values[kind.__name__] = kind.__module__


@lmprog.function
def plain(s: lmprog.Branch) -> str:
    s += "The sky is"
    s += lmprog.gen("answer", max_tokens=3, temperature=0)
    return str(s["answer"])


@lmprog.function
def chosen(s: lmprog.Branch) -> str:
    s += "The sky is"
    s += lmprog.select("answer", ["red", "blue"])
    return str(s["answer"])


@lmprog.function
def confined(s: lmprog.Branch) -> str:
    s += "The sky is"
    s += lmprog.gen("answer", max_tokens=16, temperature=0, schema=SCHEMA)
    return str(s["answer"])


PROGRAMS = {"gen": plain, "select": chosen, "json": confined}


def walked(program: lmprog.Program[[], str]) -> Walk:
    """Runs the program twice, and follows the second run."""
    channel = LocalRuntimeChannel()
    config = RuntimeConfig(model="dummy:tiny", dtype="float32", threads=1, kv_memory_mb=32)
    loop, _ = assemble(config, channel)
    walk, following, ended = Walk(), threading.Event(), threading.Event()
    followed = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            if following.is_set():
                sys.setprofile(walk.profile)
                followed.set()
            loop.step()
        sys.setprofile(None)
        channel.close()

    thread = threading.Thread(target=serve)
    thread.start()
    with RuntimeBackend(greet(channel.connect())) as backend:
        using = program.using(backend=backend)
        using.run()
        following.set()
        followed.wait()  # the runtime's step that waits now is not seen
        walk.calls.clear()
        walk.values.clear()
        threading.setprofile(walk.profile)
        sys.setprofile(walk.profile)
        using.run()
        sys.setprofile(None)
        threading.setprofile(None)
        ended.set()
        thread.join()
    return walk


def main() -> None:
    walk = walked(PROGRAMS[sys.argv[1] if len(sys.argv) > 1 else "gen"])
    print(f"{len(walk.calls)} files, {sum(walk.calls.values()):,} calls")
    for file, count in walk.calls.most_common():
        print(f"{count:6} {file}")
    print(f"{len(walk.values)} value classes")
    for name, module in sorted(walk.values.items(), key=lambda item: item[1]):
        print(f"       {module}.{name}")


if __name__ == "__main__":
    main()
