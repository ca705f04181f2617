"""`lmprog.resume`: a run that stopped goes on, from its file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from lmprog.errors import ProgramError
from lmprog.lang.checkpoints.checkpoint_file import RunCheckpoint
from lmprog.lang.ops.type_values import read_arguments
from lmprog.lang.program import Program
from lmprog.lang.runs.results import Run


def resume(
    path: str | Path, program: Program[..., Any] | None = None, /, **options: Any
) -> Run[Any]:
    """Goes on with the run of a checkpoint, and blocks. `options` are those of `using`; `answer` is
    what the program is told that has paused. The run goes on being written to the file.

    The program is run again with the same arguments and settings, and what it has asked before is
    answered from the file. It is found by its name, where its module is imported, unless `program`
    is given. Raises `CheckpointMismatch` where it does not do again what it had done.
    """
    made, args, kwargs = _again(Path(path), program, options)
    return made.run(*args, **kwargs)


async def aresume(
    path: str | Path, program: Program[..., Any] | None = None, /, **options: Any
) -> Run[Any]:
    """The same without blocking the event loop."""
    made, args, kwargs = _again(Path(path), program, options)
    return await made.arun(*args, **kwargs)


def _again(
    path: Path, program: Program[..., Any] | None, options: dict[str, Any]
) -> tuple[Program[..., Any], list[Any], dict[str, Any]]:
    origin = RunCheckpoint.read(path).origin
    found = _program(origin.program) if program is None else program
    unbound: Program[..., Any] = type(found)(found.function, settings=found.settings)
    made = unbound.using(**{**origin.settings, "checkpoint": path, **options})
    return made, *read_arguments(found.function, origin.arguments)


def _program(name: str) -> Program[..., Any]:
    """By its name, among what is imported: a file cannot make us run what was not there."""
    module, _, path = name.partition(":")
    found: object = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Program):
        return found
    raise ProgramError(
        f"the checkpoint is of the program {name!r}, which is not there; import its module first, "
        "or give it: lmprog.resume(path, program)"
    )
