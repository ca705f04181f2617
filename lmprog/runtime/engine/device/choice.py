"""Which device a runtime computes on: names, and what this machine has for them.

Knows no model. torch is imported only where there is a driver, so that a machine without a GPU does
not wait for it.
"""

from __future__ import annotations

import ctypes
import re

from lmprog.errors import InvalidParameter, NotSupported
from lmprog.runtime.engine.machine.resources import has_torch

ALLOWED = "auto, cpu, cuda, cuda:<number>, emulated"


def chosen_device(name: str) -> str:
    """One of "cpu", "emulated" and "cuda:<number>". "auto" is a GPU where one can be used, else the
    processor. Raises InvalidParameter for other names, NotSupported where a GPU that was asked for
    cannot be used.
    """
    match = re.fullmatch(r"cuda(?::(\d{1,3}))?", name)
    if name not in ("auto", "cpu", "emulated") and match is None:
        raise InvalidParameter(
            f"there is no device {name!r}; there are {ALLOWED}",
            name="device",
            value=name,
            allowed=ALLOWED,
        )
    if name == "auto":
        return "cpu" if why_no_gpu(0) else "cuda:0"
    if match is None:
        return name
    number = int(match[1] or 0)
    reason = why_no_gpu(number)
    if reason:
        raise NotSupported(f"device {name!r} cannot be used: {reason}")
    return f"cuda:{number}"


def why_no_gpu(number: int) -> str | None:
    """Why GPU `number` cannot be used, in one line; None where it can."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver on this machine"
    if not has_torch():
        return "torch is not installed: pip install 'lmprog[cuda]'"
    from lmprog.runtime.engine.device.cuda_driver import why_not

    return why_not(number)
