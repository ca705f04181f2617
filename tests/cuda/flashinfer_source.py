"""What FlashInfer's own source says: the signatures of its wrappers, read without importing it.

`python -m tests.cuda.flashinfer_source` writes the record of the installed package, which the tests
compare with our calls; where the package is installed, the record is compared with it.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parent / "flashinfer_signatures.json"
WRAPPER = "BatchPrefillWithPagedKVCacheWrapper"
FILES = {WRAPPER: "prefill.py"}
METHODS = ("__init__", "plan", "run")


def installed() -> Path | None:
    """The folder of the package; None where it is not installed."""
    spec = importlib.util.find_spec("flashinfer")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


Signatures = dict[str, dict[str, list[str]]]


def signatures(folder: Path, wrapper: str) -> Signatures:
    """Of each method of the wrapper: its parameters, those without a default, and the keyword-only
    ones.
    """
    tree = ast.parse((folder / FILES[wrapper]).read_text(encoding="utf-8"))
    found: Signatures = {}
    whole = next(
        node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == wrapper
    )
    for node in whole.body:
        if isinstance(node, ast.FunctionDef) and node.name in METHODS:
            names = [one.arg for one in node.args.args][1:]
            required = names[: len(names) - len(node.args.defaults)]
            keywords = [one.arg for one in node.args.kwonlyargs]
            found[node.name] = {"names": names, "required": required, "keywords": keywords}
    return found


def record() -> dict[str, Any]:
    return dict(json.loads(RECORD.read_text(encoding="utf-8")))


def main() -> None:
    folder = installed()
    if folder is None:
        raise SystemExit("flashinfer is not installed")
    version = importlib.metadata.version("flashinfer-python")
    wrappers = {name: signatures(folder, name) for name in FILES}
    made = {"version": version, "wrappers": wrappers}
    RECORD.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
