"""Building the C++ libraries: what becomes of a unit whose flags the compiler does not know.

The compiler here is a script in front of the machine's own that refuses a flag as GCC or as Clang
does; the sources are two lines each.
"""

from __future__ import annotations

import ctypes
import platform
import subprocess
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
    monkeypatch.setattr(native, "_compile", lambda *_: pytest.fail("compiled again"))
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
