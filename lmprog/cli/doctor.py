"""`lmprog doctor`: what this machine offers to lmprog, one line each, with the fix if something is
missing; `lmprog doctor MODEL`: whether and how a model will run here.

Each check is a function that returns a `Finding`; none of them changes anything except the cache
folder.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmprog import native
from lmprog.config import RuntimeConfig
from lmprog.errors import InvalidParameter, NotSupported
from lmprog.linux import memory_available, memory_left, processor_flags, processors
from lmprog.runtime.quality import quality_report, text_of

_MODEL_FILES = ("config.json", "tokenizer.json")
_PROCESSOR_FLAGS = (
    *("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "amx_bf16"),
    *("asimd", "asimddp", "bf16"),
)
_LEAST_MEMORY_GB = 2.0
_FOR_ALL = "pip install 'lmprog[torch]'"
_FOR_GPUS = "pip install 'lmprog[cuda]'"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check. `fix` says what to do; empty if nothing is needed."""

    state: Literal["ok", "warn", "fail"]
    what: str
    fix: str = ""


def run(given: argparse.Namespace) -> int:
    """Exit code 1 if something required is missing, or the model or the GPU that is named cannot be
    used.
    """
    _check_together(given)
    if given.quality is not None:
        return compare_types(given)
    if given.model is not None:
        return check_model(given)
    return check_machine() if given.gpu is None else try_gpu(given.gpu)


def _check_together(given: argparse.Namespace) -> None:
    """Raises InvalidParameter for what would be passed over."""
    asked = {"MODEL": given.model, "--gpu": given.gpu, "--quality": given.quality}
    chosen = [name for name, value in asked.items() if value is not None]
    if len(chosen) > 1:
        raise InvalidParameter(f"{' and '.join(chosen)}: give one of them", name="doctor")
    of_model = ("quantize", "dtype", "context_len")
    stray = [name for name in of_model if getattr(given, name) is not None]
    if stray and given.model is None:
        option = f"--{stray[0].replace('_', '-')}"
        raise InvalidParameter(f"{option} is for a model: lmprog doctor MODEL", name=stray[0])


def check_machine() -> int:
    """Prints every finding. Exit code 1 if something required is missing."""
    failed = False
    for name, look in LOOKS.items():
        finding = look()
        failed = failed or finding.state == "fail"
        _print(name, finding)
    print("\nlmprog cannot run here yet." if failed else "\nlmprog can run here; try: lmprog demo")
    return int(failed)


def check_model(given: argparse.Namespace) -> int:
    """Prints whether and how the model will run here. Exit code 1 if it will not."""
    from lmprog.runtime.model_report import model_report

    asked = {"quantize": given.quantize, "dtype": given.dtype, "context_len": given.context_len}
    failed = False
    for finding in model_report(RuntimeConfig(model=given.model, **asked)):
        failed = failed or finding.state == "fail"
        _print(finding.name, Finding(finding.state, finding.what, finding.fix))
    print(f"\n{given.model} cannot run here." if failed else f"\n{given.model} can run here.")
    return int(failed)


def _print(name: str, finding: Finding) -> None:
    fix = f"\n      fix: {finding.fix}" if finding.fix else ""
    print(f"{finding.state:>4}  {name:<10}  {finding.what}{fix}", flush=True)


def try_gpu(device: str) -> int:
    """Exit code 1 if the kernels cannot run on `device`, or give wrong results there."""
    if not _has_torch():
        raise NotSupported(f"a GPU needs torch, which is not installed: {_FOR_GPUS}")
    from lmprog.runtime.engine.gpu_report import gpu_report

    failed = False
    for finding in gpu_report(device):
        failed = failed or finding.state == "fail"
        print(f"{finding.state:>4}  {finding.name:<10}  {finding.what}", flush=True)
    print(f"\n{device} cannot be used." if failed else f"\n{device} can be used.")
    return int(failed)


def compare_types(given: argparse.Namespace) -> int:
    """Prints what each type of weights costs on the user's text."""
    if given.text is None:
        raise InvalidParameter(
            "--quality needs a text to try the model on: --text FILE",
            name="text",
            value=None,
            allowed="a text file",
        )
    print(f"{'weights':>10}  {'perplexity':>10}  {'top-1 agreement':>15}  tokens", flush=True)
    for one in quality_report(given.quality, text_of(Path(given.text)), given.tokens):
        print(
            f"{one.weight_type:>10}  {one.perplexity:>10.4f}  {one.agreement:>15.2%}  "
            f"{one.num_tokens:>6,}",
            flush=True,
        )
    return 0


def python() -> Finding:
    what = f"{platform.python_version()} ({sys.executable})"
    return (
        Finding("ok", what)
        if sys.version_info >= (3, 11)
        else Finding("fail", what, "install Python 3.11 or newer")
    )


def processor() -> Finding:
    what = f"{platform.machine()}, {processors()} cores"
    flags = processor_flags()
    if flags is None:
        return Finding("ok", what)
    has = [flag for flag in _PROCESSOR_FLAGS if flag in flags]
    what = f"{what}, {' '.join(has) or 'no vector extensions known here'}"
    if platform.machine() == "x86_64" and "avx2" not in flags:
        return Finding(
            "warn", what, "none: without AVX2 attention runs on plain C++, which is slower"
        )
    return Finding("ok", what)


def compiler() -> Finding:
    found = native.compiler()
    if found:
        return Finding("ok", found)
    if os.environ.get("LMPROG_NATIVE") == "0":
        return Finding(
            "warn",
            "switched off by LMPROG_NATIVE=0",
            "unset LMPROG_NATIVE to use the native kernels",
        )
    if all(native.prebuilt(name) for name in native.buildable()):
        return Finding("ok", "none, and none needed: the wheel brought the kernels")
    return Finding(
        "warn",
        "no C++ compiler: models run on plain torch, and there are no constraints",
        "sudo apt-get install g++, or set CXX",
    )


def kernels() -> Finding:
    names = native.buildable()
    if not names:
        return Finding("warn", f"no sources in {native.kernels_folder()}", "install lmprog again")
    missing = [name for name in names if native.library(name) is None]
    if missing:
        return Finding(
            "warn",
            f"not built: {', '.join(missing)}",
            "see the compiler above; plain torch is used instead",
        )
    from_wheel = [name for name in names if native.origin(name) == "wheel"]
    made = "from the wheel" if from_wheel == names else "built"
    unknown = dict.fromkeys(flag for name in names for flag in native.left_out(name))
    if unknown:
        return Finding(
            "warn",
            f"{made}: {', '.join(names)}; left out, because the compiler does not know them: "
            f"{', '.join(flag.removeprefix('-m') for flag in unknown)}",
            "a newer compiler (GCC 12, Clang 14) makes them, if this processor has them",
        )
    return Finding("ok", f"{made}: {', '.join(names)}")


def engine() -> Finding:
    """The engine that computes models of supported architectures."""
    library = native.library("engine")
    if library is None:
        if not _has_torch():
            what = "none: there is neither a C++ compiler nor torch"
            return Finding("fail", what, f"sudo apt-get install g++, or {_FOR_ALL}")
        what = "torch: the native engine needs a C++ compiler"
        return Finding("warn", what, "see the compiler above; torch is several times slower")
    library.lmprog_engine_best_path.restype = ctypes.c_char_p
    return Finding("ok", f"native, {library.lmprog_engine_best_path().decode()}")


def torch() -> Finding:
    if not _has_torch():
        what = f"not installed: only what the native engine does not compute needs it ({_FOR_ALL})"
        return Finding("ok", what)
    try:
        module = importlib.import_module("torch")
    except (ImportError, OSError) as error:
        return Finding("fail", f"torch cannot be imported: {error}", _FOR_ALL)
    cuda = bool(module.cuda.is_available())
    return Finding(
        "ok",
        f"{importlib.metadata.version('torch')}, "
        f"{'CUDA ' + str(module.version.cuda) if cuda else 'CPU'}",
    )


def gpu() -> Finding:
    if not _has_torch():
        return Finding("ok", f"none is used without torch ({_FOR_GPUS})")
    from lmprog.runtime.engine.gpu_report import gpu_line

    return Finding("ok", gpu_line())


def memory() -> Finding:
    free = _free_gb()
    if free is None:
        return Finding("ok", "not known on this system")
    what = f"{free:.1f} GB free"
    if free < _LEAST_MEMORY_GB:
        return Finding("warn", what, "close other programs, or start with a small --kv-memory-mb")
    return Finding("ok", what)


def model() -> Finding:
    folder = Path(native.__file__).parent / "nano"
    missing = [name for name in _MODEL_FILES if not (folder / name).is_file()]
    if not list(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        return Finding(
            "fail",
            f"nano: no {', '.join(missing)} in {folder}",
            "install lmprog again, or name a MODEL",
        )
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 1e6
    return Finding("ok", f"nano ({size:.1f} MB in {folder})")


def cache() -> Finding:
    folder = native.cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding(
            "warn",
            f"{folder} cannot be written: {error.strerror}",
            "set LMPROG_CACHE to a folder of yours",
        )
    return Finding("ok", str(folder))


LOOKS: dict[str, Callable[[], Finding]] = {
    "python": python,
    "processor": processor,
    "compiler": compiler,
    "kernels": kernels,
    "engine": engine,
    "torch": torch,
    "gpu": gpu,
    "memory": memory,
    "model": model,
    "cache": cache,
}


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _free_gb() -> float | None:
    """Memory that this process may still allocate: what the machine has, or less if a control group
    limits it.
    """
    told = [one for one in (memory_available(), memory_left()) if one is not None]
    return min(told) / 1e9 if told else None
