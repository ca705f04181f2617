"""Building the C++ libraries: what becomes of a unit whose flags the compiler does not know.

The compiler here is a script in front of the machine's own that refuses a flag as GCC or as Clang
does; the sources are two lines each.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lmprog import native

REAL = native.compiler()
pytestmark = pytest.mark.skipif(
    REAL is None or platform.machine() != "x86_64", reason="needs a C++ compiler for x86-64"
)

GCC = "unrecognized command-line option '{flag}'; did you mean '{flag}x'?"
CLANG = "unknown argument: '{flag}'"
SHOWN = 'extern "C" __attribute__((visibility("default"))) '
PLAIN = f"{SHOWN} int plain() {{ return 7; }}\n"
VARIANT = f"""
#ifdef __AVX2__
{SHOWN} int variant() {{ return 1; }}
#else
{SHOWN} int variant() {{ return 0; }}
#endif
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of kernels with a library of two units, and an empty cache."""
    sources = tmp_path / "kernels" / "cpu"
    sources.mkdir(parents=True)
    (sources / "plain.cpp").write_text(PLAIN, "utf-8")
    (sources / "variant.cpp").write_text(VARIANT, "utf-8")
    units = (native.Unit("plain.cpp"), native.Unit("variant.cpp", ("-mavx2",)))
    monkeypatch.setattr(native, "LIBRARIES", {"two": units})
    monkeypatch.setattr(native, "kernels_folder", lambda: tmp_path / "kernels")
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path / "cache"))
    return tmp_path


def refusing(folder: Path, says: str, flag: str = "-mavx2") -> str:
    """The compiler, but for `flag`."""
    script = folder / "cxx"
    message = says.format(flag=flag).replace("'", "'\"'\"'")
    script.write_text(
        "#!/bin/sh\n"
        f'for one in "$@"; do [ "$one" = "{flag}" ] && {{ echo \'{message}\' >&2; exit 1; }}; done\n'
        f'exec {REAL} "$@"\n',
        "utf-8",
    )
    script.chmod(0o755)
    return str(script)


def built(cxx: str, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL | None:
    monkeypatch.setenv("CXX", cxx)
    monkeypatch.delenv("LMPROG_NATIVE", raising=False)
    native._library.cache_clear()
    return native.library("two")


@pytest.mark.parametrize("says", [GCC, CLANG])
def test_only_the_path_whose_flag_is_unknown_is_left_out(
    says: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = built(refusing(folder, says), monkeypatch)
    assert library is not None
    assert (library.plain(), library.variant()) == (7, 0)
    assert native.left_out("two") == ("-mavx2",)


def test_what_was_left_out_is_known_from_the_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cxx = refusing(folder, GCC)
    built(cxx, monkeypatch)
    monkeypatch.setattr(native, "link", lambda *_: pytest.fail("compiled again"))
    assert built(cxx, monkeypatch) is not None
    assert native.left_out("two") == ("-mavx2",)


def test_nothing_is_left_out_where_all_flags_are_known(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert built(refusing(folder, GCC, "-mnever"), monkeypatch) is not None
    assert native.left_out("two") == ()


def test_an_error_in_a_source_is_no_unknown_flag(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "kernels" / "cpu" / "variant.cpp").write_text("int f() { return g(); }\n", "utf-8")
    with pytest.raises(subprocess.CalledProcessError):
        native.build("two", REAL or "")
    assert built(REAL or "", monkeypatch) is None
    assert native.left_out("two") == ()


BUILD = """
import pathlib, sys
from lmprog import native
native.LIBRARIES = {"two": (native.Unit("plain.cpp"), native.Unit("variant.cpp"))}
native.kernels_folder = lambda: pathlib.Path(sys.argv[1])
native.build("two", sys.argv[2])
"""


def slow(folder: Path) -> str:
    """A compiler that tells of each process, and compiles when a file `go` is there."""
    script = folder / "slow"
    script.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *--version*) exec {REAL} --version;; esac\n'
        f"echo $$ >> {folder}/compilers\n"
        f"while [ ! -e {folder}/go ]; do sleep 0.05; done\n"
        f'exec {REAL} "$@"\n',
        "utf-8",
    )
    script.chmod(0o755)
    return str(script)


def building(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILD, str(folder / "kernels"), slow(folder)]
    root = Path(native.__file__).parents[1]
    return subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True)


def compilers(folder: Path) -> list[int]:
    told = folder / "compilers"
    return [int(line) for line in told.read_text().split()] if told.exists() else []


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_build_tells_how_many_files_are_done(folder: Path) -> None:
    told: list[str] = []
    native.build("two", REAL or "", told.append)
    assert told[0] == "compiles its two kernels, once for this machine: 0 of 2 files"
    native.build("two", REAL or "", told.append)
    assert len([words for words in told if " 0 of " in words]) == 1


def test_a_cache_that_cannot_be_written_gives_what_it_has_and_the_rest_is_kept_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary, full = folder / "tmp", folder / "full"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    assert REAL is not None
    monkeypatch.setenv("LMPROG_CACHE", str(full))
    brought = native.build("two", REAL)
    assert brought.is_relative_to(full)
    shut, writable = {full, folder / "empty"}, os.access
    (folder / "empty").mkdir()
    monkeypatch.setattr(os, "access", lambda at, mode: at not in shut and writable(at, mode))
    native._writable.cache_clear()
    assert native.build("two", REAL) == brought
    monkeypatch.setenv("LMPROG_CACHE", str(folder / "empty" / "below"))
    own = native.cache_folder()
    assert own.parent == temporary
    assert own.stat().st_mode & 0o77 == 0
    assert native.build("two", REAL).is_relative_to(own)
    own.chmod(0o755)  # as somebody else may have made it: libraries are opened from there
    native._writable.cache_clear()
    assert native.cache_folder() not in (own, folder / "empty" / "below")


def test_a_second_process_waits_for_the_first_and_compiles_nothing(folder: Path) -> None:
    with building(folder) as first:
        while not compilers(folder):
            time.sleep(0.02)
        with building(folder) as second:
            assert second.stderr is not None
            assert "waits for another process" in second.stderr.readline()
            (folder / "go").touch()
            assert (first.wait(), second.wait()) == (0, 0)
    assert len(compilers(folder)) == 3  # two files and the library
    assert {path.suffix for path in (folder / "cache" / "native").iterdir()} == {".so", ".lock"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_build_that_is_ended_leaves_no_compiler_and_no_folder(
    number: signal.Signals, folder: Path
) -> None:
    with building(folder) as ended:
        while not compilers(folder):
            time.sleep(0.02)
        os.kill(ended.pid, number)
        ended.wait()
    kept = folder / "cache" / "native"
    while any(map(alive, compilers(folder))) or any(path.is_dir() for path in kept.iterdir()):
        time.sleep(0.05)
    assert [path.suffix for path in kept.iterdir()] == [".lock"]
    assert compilers(folder)
