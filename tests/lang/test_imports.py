"""The client half is light: what importing it loads, and how long that takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lmprog
from lmprog import sglang

HEAVY = ("torch", "transformers", "tokenizers", "numpy", "safetensors", "jinja2")


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_importing_the_frontend_loads_nothing_heavy() -> None:
    loaded = _python(
        "import sys, lmprog, lmprog.testing, lmprog.lang.program, lmprog.backends.connecting.default; "
        "lmprog.function\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert loaded == "[]"


def test_no_module_of_the_client_half_loads_anything_heavy() -> None:
    code = (
        "import importlib, pkgutil, sys, lmprog.lang\n"
        "found = [module.name for module in pkgutil.walk_packages(lmprog.lang.__path__, "
        "'lmprog.lang.')]\n"
        "for name in found: importlib.import_module(name)\n"
        f"print(len(found) > 40, [name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert _python(code) == "True []"


def test_importing_lmprog_costs_little_beside_the_standard_library() -> None:
    """In time of the processor beside that of four modules in the same minute, since a busy machine
    makes both dear; with everything that `function` needs.
    """
    ours = "import time; import lmprog; lmprog.function; print(time.process_time())"
    theirs = (
        "import time; import asyncio, ssl, email.message, http.client; print(time.process_time())"
    )
    pairs = [(float(_python(ours)), float(_python(theirs))) for _ in range(4)]
    assert min(our for our, _ in pairs) < 6 * min(their for _, their in pairs)


def test_every_public_name_can_be_loaded() -> None:
    code = (
        "import lmprog\nfor name in lmprog.__all__: getattr(lmprog, "
        "name)\nprint(len(lmprog.__all__) > 30)"
    )
    assert _python(code) == "True"


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    code = "import lmprog\ntry: lmprog.nonsense\nexcept AttributeError as error: print(error)"
    assert "nonsense" in _python(code)


def test_every_name_of_sglangs_frontend_is_in_its_module() -> None:
    for name in sglang.__all__:
        assert getattr(sglang, name) is not None
    assert set(lmprog.__all__) < set(sglang.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        sglang.nonsense  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(set(sglang.__all__) - set(lmprog.__all__)))
def test_a_name_that_moved_is_still_found_and_says_where_it_is(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"lmprog\.sglang\.{name} "):
        found = getattr(lmprog, name)
    assert found is getattr(sglang, name)


def test_on_windows_the_import_says_to_use_wsl() -> None:
    code = "import sys; sys.platform = 'win32'; import lmprog"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "use it in WSL" in ended.stderr.splitlines()[-1]
