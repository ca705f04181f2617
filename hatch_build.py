"""Puts the compiled kernels into a wheel.

The wheel holds every instruction set (the kernels choose while running), so one wheel serves all
processors of a platform; ctypes opens them, so it serves every Python too: its tag is
`py3-none-PLATFORM`. Where the build has no C++ compiler the wheel is pure Python and the kernels
are compiled on the user's machine, as in a checkout. An editable installation is a checkout.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles what `lmprog/native.py` lists, with the cache that it uses."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        native = _native(Path(self.root))
        found = native.compiler()
        if found is None:
            self.app.display_warning("no C++ compiler: the wheel has no compiled kernels")
            return
        folder = Path(self.root) / "build" / "prebuilt"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in native.LIBRARIES:
            built = native.build(name, found)
            shipped = folder / native.prebuilt_name(name)
            shutil.copyfile(built, shipped)
            shipped.chmod(0o755)
            if native.left_out_file(built).is_file():
                shutil.copyfile(native.left_out_file(built), native.left_out_file(shipped))
        build_data["force_include"][str(folder)] = "lmprog/prebuilt"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"


def _platform() -> str:
    """As a wheel's tag spells it; on a Mac as `MACOSX_DEPLOYMENT_TARGET` says."""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _native(root: Path) -> ModuleType:
    """`lmprog/native.py` by itself: what the package needs is not installed where it is built."""
    spec = importlib.util.spec_from_file_location("lmprog_native", root / "lmprog" / "native.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(root / "lmprog" / "native.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
