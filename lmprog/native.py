"""Builds and opens the C++ kernels: plain C libraries, brought by a wheel or compiled at first use.

A library is a few translation units from `kernels/cpu`, each with its own instruction-set flags,
linked into one shared object. A wheel for this platform carries them (`prebuilt`), under a name
that hashes sources and flags: only the very sources beside it are taken for made. Otherwise they
are compiled into the user's cache folder, under a name that hashes the compiler too; so a second
start opens them at once, and a changed source rebuilds them. One process compiles, others wait for
it; it tells how far it is, and when it ends before its time, no compiler goes on. A unit whose
flags an old compiler does not know is compiled without them, which leaves its instruction set out
of the library (`left_out`). `library(name)` is None where there is neither (or with
`LMPROG_NATIVE=0`): a model then decodes on plain torch, and constraints are refused.

`LMPROG_NATIVE=build` compiles even where a wheel brought the library, for this machine's compiler.

This module knows compilers and files. It does not know what the kernels compute, nor their
signatures.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import importlib.util
import logging
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

log = logging.getLogger("lmprog")

_FLAGS = (
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
)
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AS_WRITTEN = (
    "-ffp-contract=off",
)  # no fused multiply-add where none is written: results must not depend on tiles
_NEON = ("-march=armv8.2-a+dotprod",)
_NEON_BF16 = ("-march=armv8.2-a+dotprod+bf16",)
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c")
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


Family = Literal["x86-64", "arm64"]
_FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("x86_64", "amd64"), "x86-64"),
    **dict.fromkeys(("aarch64", "arm64"), "arm64"),
}

Tell: TypeAlias = Callable[[str], None]
"""Is told what goes on where somebody waits for a compiler, as words behind "lmprog"."""
_REAPER = 'trap "" TERM; read -r _; kill -TERM 0; sleep 0.2; rm -rf "$1"; kill -KILL 0'
"""Waits until its standard input is closed, and be it by the death of the process that holds it;
then it ends the compilers of its process group and removes their folder. TERM first: they remove
their own files then."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One translation unit. `flags` choose its instruction set, and are left out on processors of
    another family than `family`, where the unit is then empty; `always` are not."""

    source: str
    flags: tuple[str, ...] = ()
    family: Family = "x86-64"
    always: tuple[str, ...] = ()


_AVX512_BYTES = (*_AVX512, "-mavx512vnni")
_ATTENTION = (
    Unit("attention.cpp"),
    Unit("attention_generic.cpp", always=_AS_WRITTEN),
    Unit("attention_avx2.cpp", _AVX2, always=_AS_WRITTEN),
    Unit("attention_avx2vnni.cpp", (*_AVX2, "-mavxvnni"), always=_AS_WRITTEN),
    Unit("attention_avx512.cpp", _AVX512, always=_AS_WRITTEN),
    Unit("attention_avx512vnni.cpp", _AVX512_BYTES, always=_AS_WRITTEN),
    Unit("attention_avx512bf16.cpp", (*_AVX512_BYTES, "-mavx512bf16"), always=_AS_WRITTEN),
    Unit("attention_neon.cpp", family="arm64", always=_AS_WRITTEN),
    Unit("attention_neondot.cpp", _NEON, "arm64", _AS_WRITTEN),
    Unit("attention_neonbf16.cpp", _NEON_BF16, "arm64", _AS_WRITTEN),
)

LIBRARIES: dict[str, tuple[Unit, ...]] = {
    "masks": (
        Unit("masks.cpp"),
        Unit("nets.cpp"),
        Unit("texts.cpp"),
        Unit("classes.cpp"),
        Unit("numbers.cpp"),
        Unit("schemas.cpp"),
    ),
    "runs": (Unit("runs.cpp"),),
    "attention": _ATTENTION,
    "engine": (
        *_ATTENTION,
        Unit("engine.cpp"),
        Unit("engine_step.cpp"),
        Unit("engine_products.cpp"),
        Unit("engine_mixture.cpp"),
        Unit("engine_prediction.cpp"),
        Unit("engine_adapters.cpp"),
        Unit("engine_recurrent.cpp"),
        Unit("sampling.cpp"),
        Unit("step_generic.cpp", always=_AS_WRITTEN),
        Unit("step_avx2.cpp", _AVX2, always=_AS_WRITTEN),
        Unit("step_avx2vnni.cpp", (*_AVX2, "-mavxvnni"), always=_AS_WRITTEN),
        Unit("step_avx512.cpp", _AVX512, always=_AS_WRITTEN),
        Unit("step_avx512vnni.cpp", _AVX512_BYTES, always=_AS_WRITTEN),
        Unit("step_avx512bf16.cpp", (*_AVX512_BYTES, "-mavx512bf16"), always=_AS_WRITTEN),
        Unit("step_neon.cpp", family="arm64", always=_AS_WRITTEN),
        Unit("step_neondot.cpp", _NEON, "arm64", _AS_WRITTEN),
        Unit("step_neonbf16.cpp", _NEON_BF16, "arm64", _AS_WRITTEN),
    ),
}


def may_await_threads(made_by: int) -> bool:
    """Whether a `__del__` may stop and await the threads of what process `made_by` made.

    At the interpreter's end daemon threads stand still for ever, with the locks that they hold; a
    forked child has none of its parent's threads. All of it goes with the process then.
    """
    return os.getpid() == made_by and not sys.is_finalizing()


def kernels_folder() -> Path:
    """`kernels/` inside an installed wheel, or beside the package in a checkout."""
    here = Path(__file__).parent
    shipped = here / "kernels"
    return shipped if shipped.is_dir() else here.parent / "kernels"


def cache_folder() -> Path:
    """Where compiled libraries and tokenizer indexes are kept; removing it only costs time. Where
    the usual place cannot be written, one below the system's folder for temporary files.
    """
    return _writable(usual_cache())


def usual_cache() -> Path:
    """Where the cache belongs, writable or not; what is large is kept nowhere else."""
    override = os.environ.get("LMPROG_CACHE")
    if override:
        return Path(override)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "lmprog"


@functools.cache
def _writable(wanted: Path) -> Path:
    there = wanted
    while not there.exists() and there != there.parent:
        there = there.parent
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return wanted
    own = Path(tempfile.gettempdir()) / f"lmprog-{os.getuid()}"
    try:
        own.mkdir(mode=0o700, exist_ok=True)
        found = own.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o77:
            own = Path(tempfile.mkdtemp(prefix="lmprog-"))  # libraries are opened: nobody else's
    except OSError:
        return wanted
    log.warning("%s cannot be written, %s is the cache; LMPROG_CACHE names another", wanted, own)
    return own


def prebuilt(name: str) -> Path | None:
    """The library that a wheel brought, or None: made of other sources, for another processor, or
    not there."""
    if os.environ.get("LMPROG_NATIVE") in ("0", "build"):
        return None
    brought = prebuilt_folder() / prebuilt_name(name)
    return brought if brought.is_file() else None


def prebuilt_folder() -> Path:
    return Path(__file__).parent / "prebuilt"


def prebuilt_name(name: str) -> str:
    """Its file in a wheel: any compiler may have made it, of these sources for this processor."""
    return f"{name}-{_digest('', LIBRARIES[name], kernels_folder())}.so"


def compiler() -> str | None:
    """The C++ compiler that will be used, or None."""
    if os.environ.get("LMPROG_NATIVE") == "0":
        return None
    wanted = os.environ.get("CXX")
    for name in [wanted] if wanted else ["c++", "g++", "clang++"]:
        path = shutil.which(name)
        if path:
            return path
    return None


def library(name: str) -> ctypes.CDLL | None:
    """The opened library, built first where needed; None (after one log line) where that is
    impossible.
    """
    return _library(name, os.environ.get("LMPROG_NATIVE"), os.environ.get("CXX"))


@functools.cache
def _library(name: str, *_environment: str | None) -> ctypes.CDLL | None:
    """Once for each setting of the variables that decide about compilers."""
    brought = prebuilt(name)
    if brought is not None:
        try:
            return ctypes.CDLL(str(brought))
        except OSError as error:
            log.warning("the wheel's `%s` does not open, it is compiled here: %s", name, error)
    found = compiler()
    if found is None:
        log.warning("no C++ compiler: `%s` runs on its plain twin, which is slower", name)
        return None
    try:
        return ctypes.CDLL(str(build(name, found)))
    except (subprocess.CalledProcessError, OSError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else error
        log.warning("building `%s` failed, its plain twin is used instead: %s", name, said)
        return None


def prepare(tell: Tell) -> None:
    """Compiles what a runtime needs, unless it is there. A failure is not told here: `library`
    does, which meets it again."""
    found = compiler()
    for name in ("masks", "engine"):
        if found is not None and prebuilt(name) is None:
            with contextlib.suppress(subprocess.CalledProcessError, OSError):
                build(name, found, tell)


def origin(name: str) -> Literal["wheel", "compiled"] | None:
    """Where the opened library is from; None where there is none."""
    opened = library(name)
    if opened is None:
        return None
    return "wheel" if Path(opened._name).parent == prebuilt_folder() else "compiled"


def buildable() -> list[str]:
    """The libraries whose sources are here."""
    folder = kernels_folder() / "cpu"
    return [
        name
        for name, units in LIBRARIES.items()
        if all((folder / unit.source).is_file() for unit in units)
    ]


def _to_stderr(words: str) -> None:
    sys.stderr.write(f"lmprog {words}\n")
    sys.stderr.flush()


def build(name: str, cxx: str, tell: Tell = _to_stderr) -> Path:
    """Compiles `name` unless the cache holds it already, and returns the shared object's path."""
    target, brought = _target(name, cxx), _target(name, cxx, usual_cache())
    for there in (brought, target):
        if there.exists():
            return there
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target.with_suffix(".lock"), tell):
        if not target.exists():  # who was alone before may have built it
            with _scratch(target.parent) as (scratch, group):
                built = scratch / "library.so"
                what = f"compiles its {name} kernels, once for this machine"

                def tell_files(done: int, of: int) -> None:
                    tell(f"{what}: {done} of {of} files")

                unknown = link(LIBRARIES[name], cxx, family(), built, group, tell_files)
                if unknown:  # before the library, which nobody builds again
                    left_out_file(target).write_text("\n".join(dict.fromkeys(unknown)), "utf-8")
                os.replace(built, target)  # atomic: whoever looks sees a whole file
    return target


@contextlib.contextmanager
def _alone(lock: Path, tell: Tell) -> Iterator[None]:
    """Waits until no other process, or thread, is within. The end of a process lets go of it."""
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("waits for another process, which compiles its kernels")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _scratch(parent: Path) -> Iterator[tuple[Path, int]]:
    """A folder, and a process group for compilers that write into it. Both are gone afterwards,
    also when this process is killed."""
    folder = tempfile.mkdtemp(dir=parent)
    with subprocess.Popen(
        ["/bin/sh", "-c", _REAPER, "sh", folder], stdin=subprocess.PIPE, process_group=0
    ) as reaper:  # leaving it closes its input
        yield Path(folder), reaper.pid


def link(
    units: Sequence[Unit],
    cxx: str,
    family: Family | None,
    built: Path,
    group: int | None = None,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> list[str]:
    """Compiles the units for processors of `family` into the shared object `built`, and returns the
    flags that the compiler did not know. Object files stay beside it. `tell` is told at the
    beginning and after each quarter how many files are done. One compiler more runs than there are
    processors, since the oldest is waited for, and may be the slowest."""
    root = kernels_folder()
    objects = [built.with_name(f"{index}.o") for index in range(len(units))]
    unknown: list[str] = []
    running: deque[Callable[[], list[str]]] = deque()
    tell(0, len(units))
    for begun, (unit, out) in enumerate(zip(units, objects, strict=True)):
        if len(running) > (os.cpu_count() or 1):
            unknown += running.popleft()()
            done = begun - len(running)
            if done * 4 // len(units) > (done - 1) * 4 // len(units):
                tell(done, len(units))
        flags = unit.flags if unit.family == family else ()
        running.append(_Compiling(cxx, root, unit, flags, out, group).finish)
    for finish in running:
        unknown += finish()
    _finish(_start([cxx, "-shared", "-pthread", "-o", str(built), *map(str, objects)], group))
    return unknown


def family() -> Family | None:
    """Of this machine's processor; None: only the generic path is for it."""
    return _FAMILIES.get(platform.machine().lower())


def left_out(name: str) -> tuple[str, ...]:
    """Flags of instruction sets that `name` lacks because its compiler did not know them; () where
    it is not built."""
    found = library(name)
    if found is None:
        return ()
    file = left_out_file(Path(found._name))
    return tuple(file.read_text("utf-8").split()) if file.is_file() else ()


def left_out_file(built: Path) -> Path:
    """Where the flags are named that the compiler of `built` did not know; absent without any."""
    return built.with_suffix(".left-out")


def _target(name: str, cxx: str, cache: Path | None = None) -> Path:
    version = subprocess.run([cxx, "--version"], capture_output=True, text=True, check=True).stdout
    digest = _digest(version, LIBRARIES[name], kernels_folder())
    return (cache or cache_folder()) / "native" / f"{name}-{digest}.so"


def _sources(units: Sequence[Unit], root: Path) -> list[Path]:
    """The units' files and all headers of ours that they include, directly or not, in a fixed
    order.
    """
    found: dict[Path, None] = {}
    waiting = [root / "cpu" / unit.source for unit in units]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found[path] = None
        for name in _INCLUDE.findall(path.read_text("utf-8")):
            waiting += [root / "cpu" / name, root / "include" / name]
    return sorted(found)


def _digest(version: str, units: Sequence[Unit], root: Path) -> str:
    seen = hashlib.sha256(f"{version}|{_FLAGS}|{units}|{platform.machine()}".encode())
    for path in _sources(units, root):
        seen.update(path.read_bytes())
    return seen.hexdigest()[:20]


class _Compiling:
    """A unit on its way through the compiler. Where that does not know its flags, it is compiled
    without them, which makes it empty."""

    def __init__(
        self,
        cxx: str,
        root: Path,
        unit: Unit,
        flags: Sequence[str],
        out: Path,
        group: int | None,
    ) -> None:
        self._flags, self._always, self._group = flags, unit.always, group
        where = ["-I", str(root / "include"), "-pthread", "-c", str(root / "cpu" / unit.source)]
        self._command = [cxx, *_FLAGS, *where, "-o", str(out)]
        self._job = self._start([*flags, *unit.always])

    def _start(self, flags: Sequence[str]) -> subprocess.Popen[str]:
        return _start([*self._command, *flags], self._group)

    def finish(self) -> list[str]:
        """Waits for it, and returns the flags that the compiler did not know."""
        try:
            _finish(self._job)
        except subprocess.CalledProcessError as error:
            unknown = [flag for flag in self._flags if _is_unknown(flag, error.stderr)]
            if not unknown:
                raise
            log.warning("the compiler does not know %s: this path is left out", ", ".join(unknown))
            _finish(self._start(self._always))
            return unknown
        return []


def _is_unknown(flag: str, errors: str) -> bool:
    """Whether a compiler's errors say that it does not know `flag`, or its value, as GCC or as
    Clang says it."""
    option, _, value = flag.partition("=")
    refused = r"(unrecognized|unknown|unsupported|invalid)[^\n]*"
    whole = rf"{refused}(option|argument)[^\n]*{re.escape(flag)}(?![\w-])"
    of_value = rf"{refused}{re.escape(value)}[^\n]*{re.escape(option)}|{refused}{re.escape(flag)}"
    said = f"{whole}|{of_value}" if value else whole
    return re.search(said, errors) is not None


def _start(command: list[str], group: int | None) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, process_group=group)


def _finish(job: subprocess.Popen[str]) -> None:
    out, err = job.communicate()
    if job.returncode:
        raise subprocess.CalledProcessError(job.returncode, job.args, out, err)


_SAID = {
    "wheel": "from the wheel",
    "compiled": "built",
    None: "not built",
}


def main() -> None:
    """Builds everything that is used here (`python -m lmprog.native`), so that no first use has to
    wait for it: attention by itself is for the engine on torch.
    """
    has_torch = importlib.util.find_spec("torch") is not None
    for name in buildable():
        is_used = has_torch or name != "attention"
        said = _SAID[origin(name)] if is_used else "for torch, which is not installed"
        sys.stdout.write(f"native {name}: {said}\n")


if __name__ == "__main__":
    main()
