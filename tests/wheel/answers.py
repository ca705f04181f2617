"""Run where a wheel is installed: its kernels answer, without a compiler in reach."""

from __future__ import annotations

import os
import sys

os.environ["PATH"] = os.path.dirname(sys.executable)
os.environ.pop("CXX", None)
os.environ.pop("LMPROG_NATIVE", None)

import lmprog
from lmprog import native


@lmprog.function
def hello(s: lmprog.State) -> str:
    s += "Q: Is a dog an animal?\nA:"
    s += lmprog.gen("answer", regex=" (yes|no)")
    return str(s["answer"])


def main() -> None:
    assert native.compiler() is None, native.compiler()
    for name in native.LIBRARIES:
        assert native.origin(name) == "wheel", (name, native.origin(name))
    with lmprog.Runtime("nano", engine="native") as runtime:
        said = hello.run(backend=runtime).value
    assert said in (" yes", " no"), said
    print(lmprog.__file__, said)


if __name__ == "__main__":
    main()
