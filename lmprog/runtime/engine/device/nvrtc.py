"""Compiles the kernels for a GPU by NVRTC: no nvcc and no CUDA headers on the user's machine.

Cubins are kept in the cache folder under a hash of sources, options and compiler, so that the
second start compiles nothing. Knows sources and architectures; loads and runs nothing.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

from lmprog.errors import NotSupported
from lmprog.native import cache_folder, kernels_folder
from lmprog.runtime.engine.device.driver import KernelsKey

ARCHITECTURES = ("80", "86", "89", "90a", "100a", "120")
"""What the kernels are compiled for in tests; a later GPU is compiled for by its own number."""


def architecture_of(major: int, minor: int) -> str:
    """The name of a compute capability, with all that this very GPU can do: "90a" for 9.0."""
    name = f"{major}{minor}"
    return f"{name}a" if f"{name}a" in ARCHITECTURES else name


def compiled(key: KernelsKey, architecture: str) -> bytes:
    """The cubin of a module. Raises NotSupported, with what the compiler said."""
    nvrtc = _nvrtc()
    options = _options(key, architecture)
    sources = _sources()
    major, minor = _checked(nvrtc, nvrtc.nvrtcVersion())
    digest = hashlib.sha256(f"{major}.{minor}|{key.source}|{options}".encode())
    for name, text in sorted(sources.items()):
        digest.update(f"{name}\0{text}\0".encode())
    target = cache_folder() / "cubin" / f"{key.name}-{digest.hexdigest()[:24]}"
    if target.exists():
        return target.read_bytes()
    cubin, _ = _compile(nvrtc, sources, key.source, options)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as scratch:
        scratch.write(cubin)
    os.replace(scratch.name, target)  # atomic: two processes may compile at once
    return cubin


def account(key: KernelsKey, architecture: str) -> str:
    """What NVRTC says of a module's registers, stack and spills; nothing is kept."""
    options = (*_options(key, architecture), "--ptxas-options=-v")
    return _compile(_nvrtc(), _sources(), key.source, options)[1]


def _options(key: KernelsKey, architecture: str) -> tuple[str, ...]:
    return (f"-arch=sm_{architecture}", "-std=c++17", "-default-device", *key.defines)


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise NotSupported(
            f"cuda.bindings is not installed ({error}): pip install 'lmprog[cuda]'"
        ) from error
    return nvrtc


def _sources() -> dict[str, str]:
    folder: Path = kernels_folder() / "cuda"
    names = [path for path in folder.iterdir() if path.suffix in (".cu", ".cuh")]
    return {path.name: path.read_text("utf-8") for path in names}


def _checked(nvrtc: Any, result: tuple[Any, ...]) -> Any:
    """What a call gave besides its status."""
    status, *rest = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise NotSupported(f"NVRTC failed: {status.name}")
    return rest[0] if len(rest) == 1 else rest


def _compile(
    nvrtc: Any, sources: dict[str, str], main: str, options: tuple[str, ...]
) -> tuple[bytes, str]:
    """The cubin, and what the compiler said."""
    headers = {name: text for name, text in sources.items() if name != main}
    program = _checked(
        nvrtc,
        nvrtc.nvrtcCreateProgram(
            sources[main].encode(),
            main.encode(),
            len(headers),
            [text.encode() for text in headers.values()],
            [name.encode() for name in headers],
        ),
    )
    try:
        given = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(given), given)
        log = b" " * _checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program))
        _checked(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
        said = log.decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise NotSupported(f"the kernels cannot be compiled: {said}")
        cubin: bytes = b" " * _checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program))
        _checked(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin))
        return cubin, said
    finally:
        nvrtc.nvrtcDestroyProgram(program)
