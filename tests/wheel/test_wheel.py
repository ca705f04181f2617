"""A wheel brings compiled kernels for its platform, and needs no compiler where it is installed."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmprog import native

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
pytestmark = pytest.mark.skipif(native.compiler() is None, reason="needs a C++ compiler")


def run(*command: str | Path, folder: Path = ROOT, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's files: what an installation puts on the path."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_it_is_for_this_platform_and_every_python(wheel: Path) -> None:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")


@pytest.mark.parametrize("image", ["cpu", "cuda"])
def test_an_image_builds_the_same_wheel_from_what_it_copies(
    image: str, wheel: Path, tmp_path: Path
) -> None:
    """In a folder with nothing else: no image is built here, where no base image is at hand."""
    source, made = tmp_path / "source", tmp_path / "wheels"
    source.mkdir()
    first = (ROOT / "deploy" / f"{image}.Dockerfile").read_text().split("\nFROM ")[1]
    for line in re.findall(r"^COPY (.*)", first, re.MULTILINE):
        *names, target = line.split()
        for name in names:
            place = source / target / ("" if (ROOT / name).is_dir() else name)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, place)
    run("-m", "hatchling", "build", "-t", "wheel", "-d", made, folder=source)
    (built,) = made.iterdir()
    with zipfile.ZipFile(built) as one, zipfile.ZipFile(wheel) as other:
        assert {name: one.read(name) for name in one.namelist()} == {
            name: other.read(name) for name in other.namelist()
        }


def test_its_kernels_answer_without_a_compiler(installed: Path, tmp_path: Path) -> None:
    said = run(HERE / "answers.py", PYTHONPATH=str(installed), LMPROG_CACHE=str(tmp_path))
    assert said.startswith(str(installed))
    assert not (tmp_path / "native").exists()


def test_the_license_travels_with_the_wheel_and_the_source(wheel: Path, tmp_path: Path) -> None:
    run("-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path)
    (source,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as archive, tarfile.open(source) as sources:
        assert [name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
        assert [name for name in sources.getnames() if name.count("/") == 1 and "LICENSE" in name]


@pytest.fixture
def brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout with a library "one" as a wheel would have brought it; gives the source."""
    source = tmp_path / "kernels" / "cpu" / "one.cpp"
    source.parent.mkdir(parents=True)
    source.write_text('extern "C" __attribute__((visibility("default"))) int one() { return 1; }\n')
    monkeypatch.setattr(native, "LIBRARIES", {"one": (native.Unit("one.cpp"),)})
    monkeypatch.setattr(native, "kernels_folder", lambda: tmp_path / "kernels")
    monkeypatch.setattr(native, "prebuilt_folder", lambda: tmp_path / "prebuilt")
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LMPROG_NATIVE", raising=False)
    shipped = tmp_path / "prebuilt" / native.prebuilt_name("one")
    shipped.parent.mkdir()
    native.build("one", native.compiler() or "").replace(shipped)
    native._library.cache_clear()
    yield source
    native._library.cache_clear()


def one() -> int:
    library = native.library("one")
    assert library is not None
    return ctypes.CFUNCTYPE(ctypes.c_int)(("one", library))()


def test_a_library_of_the_same_sources_is_used(brought: Path) -> None:
    assert (one(), native.origin("one")) == (1, "wheel")


def test_a_library_of_other_sources_is_not_used(brought: Path) -> None:
    brought.write_text(brought.read_text("utf-8").replace("1", "2"))
    assert (one(), native.origin("one")) == (2, "compiled")


def test_a_library_that_does_not_open_is_compiled(brought: Path) -> None:
    file = native.prebuilt("one")
    assert file is not None
    file.write_bytes(b"not for this machine")
    assert (one(), native.origin("one")) == (1, "compiled")


def test_compiling_can_be_asked_for(brought: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMPROG_NATIVE", "build")
    assert (one(), native.origin("one")) == (1, "compiled")


def test_nothing_is_opened_where_native_code_is_switched_off(
    brought: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMPROG_NATIVE", "0")
    assert (native.library("one"), native.origin("one")) == (None, None)
