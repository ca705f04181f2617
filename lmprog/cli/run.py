"""`lmprog run FILE.py::FUNCTION`: runs one program of a file and prints its result and its usage.

Knows how to find a program in a file and how to parse arguments; the frontend runs it.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import shlex
import sys
import typing
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from lmprog import wire
from lmprog.backends.blackbox.server_backend import RuntimeEndpoint
from lmprog.backends.client import RuntimeBackend
from lmprog.backends.connecting.embedded import Runtime, connect
from lmprog.errors import InvalidParameter, Paused, UnknownName
from lmprog.evaluation.rows import as_json
from lmprog.lang.ops import threads
from lmprog.lang.ops.sampling import Sampling
from lmprog.lang.program import Program
from lmprog.lang.resuming import resume

PAUSED = 3
"""The exit code of a program that waits for an answer."""


def run(given: argparse.Namespace) -> int:
    program = find(given.program)
    said = {name: getattr(given, name) for name in ("temperature", "seed")}
    said = {name: value for name, value in said.items() if value is not None}
    file: Path | None = given.checkpoint
    if given.answer is not None and (file is None or not file.exists()):
        raise InvalidParameter(
            "--answer needs --checkpoint with the file of the run that has asked.", name="answer"
        )
    goes_on = file is not None and file.exists()
    if goes_on and (given.arg or said):
        raise InvalidParameter(
            f"{str(file)!r} has the run's arguments and sampling: leave out --arg, --temperature "
            "and --seed, or name another file.",
            name="checkpoint",
        )
    arguments = {} if goes_on else _arguments(program, given.arg)
    with backend_for(given) as backend:
        try:
            if file is not None and goes_on:
                answer = {} if given.answer is None else {"answer": _json_or_text(given.answer)}
                done = resume(file, program, backend=backend, **answer)
            else:
                made = program.using(backend=backend, sampling=Sampling(**said), checkpoint=file)
                done = made.run(**arguments)
        except Paused as paused:
            return _paused(paused, given)
        print(done.text())
        value = done.value
        if value is not None:
            print(f"\nresult: {value}")
        print(f"\n{_work(done.usage)}", file=sys.stderr)
    return 0


def _paused(paused: Paused, given: argparse.Namespace) -> int:
    """Says what is asked, and how it is answered."""
    print(f"the program asks: {paused.question}")
    file = "FILE" if given.checkpoint is None else shlex.quote(str(given.checkpoint))
    told = f"lmprog run {shlex.quote(given.program)} --checkpoint {file}"
    if given.checkpoint is None:
        print(f"\nNothing was kept. To answer it, run it again by: {told}", file=sys.stderr)
    else:
        print(f"\nIt goes on by: {told} --answer TEXT", file=sys.stderr)
    return PAUSED


def backend_for(
    given: argparse.Namespace, default: str = "nano"
) -> RuntimeBackend | RuntimeEndpoint:
    """What runs already at `--address`, of a server the model that is named, or a runtime of its
    own.
    """
    if given.address:
        return connect(given.address, model=given.model)
    return Runtime(default if given.model is None else given.model)


def find(where: str) -> Program[Any, Any]:
    file, separator, name = where.rpartition("::")
    if not separator or not name:
        raise InvalidParameter(
            f"{where!r} names no program; write FILE.py::FUNCTION.", name="program", value=where
        )
    module = load(Path(file))
    programs = [key for key, value in vars(module).items() if isinstance(value, Program)]
    if name not in programs:
        there = (
            f"there are {', '.join(programs)}"
            if programs
            else "it has none; decorate one with @lmprog.function"
        )
        raise UnknownName(f"{file} has no program {name!r}; {there}.", name=name)
    found: Program[Any, Any] = getattr(module, name)
    return found


def load(file: Path) -> ModuleType:
    """Imports the user's file as a module; its exceptions are shown with their tracebacks."""
    if not file.is_file():
        raise UnknownName(f"There is no file {str(file)!r}.", name=str(file))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise UnknownName(f"{str(file)!r} is not a Python file.", name=str(file))
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # dataclasses and others look up their module
    sys.path.insert(0, str(file.parent.resolve()))
    spec.loader.exec_module(module)
    return module


class ServedFolder:
    """The programs of all files of a folder, for `lmprog serve --programs`. Where the folder has
    `NAME.json`, which `program.tune(...)` has saved, it fills the slots of that program.
    """

    def __init__(self, folder: Path) -> None:
        """Raises `UnknownName` and `InvalidParameter` where there is none, or two of one name."""
        if not folder.is_dir():
            raise UnknownName(f"There is no folder {str(folder)!r}.", name=str(folder))
        self._programs: dict[str, Program[Any, Any]] = {}
        for file in sorted(folder.glob("*.py")):
            for name, one in vars(load(file)).items():
                if not isinstance(one, Program) or one.function.__module__ != file.stem:
                    continue
                if name in self._programs:
                    raise InvalidParameter(f"Two files of {str(folder)!r} have a program {name!r}.")
                tuned = folder / f"{name}.json"
                self._programs[name] = one.using(tuned=tuned) if tuned.is_file() else one
        if not self._programs:
            raise UnknownName(f"No file of {str(folder)!r} has a program.", name=str(folder))
        self.parameters = {
            name: list(inspect.signature(one.function).parameters)[1:]
            for name, one in self._programs.items()
        }
        self._backends: dict[tuple[str, str | None], RuntimeEndpoint] = {}

    async def run(
        self, name: str, arguments: Mapping[str, Any], url: str, key: str | None
    ) -> tuple[Any, wire.Usage]:
        """Raises what the program raises, and `InvalidParameter` for wrong arguments."""
        program = self._programs[name]
        try:
            inspect.signature(program.function).bind(None, **arguments)
        except TypeError as error:
            takes = ", ".join(self.parameters[name])
            message = f"The program {name!r} takes ({takes}): {error}."
            raise InvalidParameter(message, name="arguments") from None
        backend = self._backends.get((url, key))
        if backend is None:
            made = await threads.call("lmprog-start", partial(RuntimeEndpoint, url, key))
            backend = self._backends.setdefault((url, key), made)
            if backend is not made:  # of two first requests at a time
                await threads.call("lmprog-stop", made.close)
        done = await program.using(backend=backend).arun(**arguments)
        return as_json(done.value), done.usage


def _arguments(program: Program[Any, Any], given: list[str]) -> dict[str, Any]:
    """NAME=VALUE pairs; a value is parsed as JSON if it is valid JSON and the parameter is not
    declared as text.
    """
    parameters = dict(list(inspect.signature(program.function).parameters.items())[1:])
    hints = _hints(program)
    found: dict[str, Any] = {}
    for pair in given:
        name, separator, text = pair.partition("=")
        if not separator:
            raise InvalidParameter(f"--arg {pair!r} is not NAME=VALUE.", name="arg", value=pair)
        if name not in parameters:
            raise UnknownName(
                f"The program has no argument {name!r}; it takes {', '.join(parameters)}.",
                name=name,
            )
        found[name] = (
            text if parameters[name].annotation in (str, "str") else _fitting(name, text, hints)
        )
    missing = [
        name for name, parameter in parameters.items() if parameter.default is parameter.empty
    ]
    missing = [name for name in missing if name not in found and name not in program.bound]
    if missing:
        raise InvalidParameter(f"The program needs --arg {missing[0]}=...", name=missing[0])
    return found


def _hints(program: Program[Any, Any]) -> dict[str, Any]:
    """The declared types; none if they cannot be resolved here."""
    try:
        return typing.get_type_hints(program.function)
    except (NameError, TypeError, AttributeError):
        return {}


def _fitting(name: str, text: str, hints: dict[str, Any]) -> Any:
    """The value converted to its parameter's type. Raises InvalidParameter for one of another
    type.
    """
    value = _json_or_text(text)
    kind = hints.get(name, Any)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        shown = text if len(text) <= 60 else text[:60] + "..."
        said = str(error).replace("`", "")
        raise InvalidParameter(
            f"--arg {name}={shown}: {said[:1].lower()}{said[1:]}.", name=name, value=shown
        ) from None
    except TypeError:  # not a plain data type: left to the program
        return value


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _work(usage: wire.Usage) -> str:
    parts = [
        f"{usage.prompt} prompt tokens, {usage.cached} of them cached",
        f"{usage.generated} generated",
    ]
    if usage.forced:
        parts.append(f"{usage.forced} of them forced")
    if usage.drafted:
        parts.append(f"{usage.drafted} drafted, {usage.accepted} of them right")
    return f"{'; '.join(parts)}; {usage.computed} computed"
