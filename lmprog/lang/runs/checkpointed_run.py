"""A run and its progress: which file it is written to, what it goes on from, which run it is.

Knows settings and scopes; what is kept of calls is `begun_calls`' business.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmprog.errors import CheckpointMismatch, InvalidParameter, ProgramError
from lmprog.lang.branches.scope import Scope
from lmprog.lang.checkpoints.checkpoint_file import CheckpointFile, RunOrigin
from lmprog.lang.checkpoints.run_progress import Answer, RunProgress


def join(
    scope: Scope,
    outer: Scope | None,
    path: Path | None,
    answer: Answer | None,
    settings: Mapping[str, Any],
) -> None:
    """A run that has not begun gets the progress of its file, or of the run around it, and where
    none was given the seed that goes with that. `settings`: the run's, as JSON has them.
    """
    is_seeded = scope.sampling.given().get("seed") is not None
    if path is not None:
        scope.progress, scope.place = _opened(path, answer), ""
        known = scope.progress.known
        if known is not None and not is_seeded:
            scope.seed = known.origin.seed
    elif answer is not None:
        raise ProgramError("an answer needs the checkpoint whose question it answers")
    elif outer is not None:
        scope.place = outer.nested_place()
        if not is_seeded:
            scope.seed = _nested_seed(outer.seed, scope.place)
    if scope.progress.settings is None:
        scope.progress.settings = settings
    scope.resume()


def _opened(path: Path, answer: Answer | None) -> RunProgress:
    file = CheckpointFile(path)
    try:
        return RunProgress(file, answer)
    except BaseException:
        file.close()
        raise


def _nested_seed(seed: int, place: str) -> int:
    """Runs inside of a run have seeds of their own, the same each time."""
    digest = hashlib.blake2b(repr((seed, place)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


def begin(
    scope: Scope, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """The program begins. Raises `CheckpointMismatch` where its file is of another run."""
    if scope.place == "" and not scope.is_rehearsal:
        make = functools.partial(_origin, scope, function, args, kwargs)
        scope.progress.begin(make, scope.client.welcome)


def end(scope: Scope, error: BaseException) -> None:
    """The program ends with `error`; one inside of another may be gone on from."""
    if scope.place == "":
        scope.progress.ended_by(error)


def check(scope: Scope) -> None:
    """Raises where the program has gone on although it was to stop."""
    scope.progress.check()
    if isinstance(scope.ended, CheckpointMismatch):
        raise scope.ended


def _origin(
    scope: Scope, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> RunOrigin:
    """Raises `InvalidParameter` for arguments that JSON does not have."""
    plain: Any = getattr(function, "func", function)  # of a method: the instance is no argument
    bound = inspect.signature(function).bind(None, *args, **kwargs)
    arguments = {"args": list(bound.args[1:]), "kwargs": bound.kwargs}
    try:
        as_json = json.loads(json.dumps(arguments))
    except (TypeError, ValueError) as error:
        allowed = "arguments that JSON has: texts, numbers, lists, dicts with texts as keys"
        raise InvalidParameter(
            f"a run with a checkpoint needs {allowed}, so that they can be written ({error})",
            name="arguments",
            allowed=allowed,
        ) from None
    welcome = scope.client.welcome
    return RunOrigin(
        f"{plain.__module__}:{plain.__qualname__}",
        as_json,
        json.loads(json.dumps(scope.progress.settings or {})),
        welcome.model,
        welcome.vocab_size,
        scope.seed,
        dict(welcome.adapters),
        welcome.fingerprint.documents,
        {
            name: documents
            for name, backend in scope.backends.items()
            if (documents := backend.client.welcome.fingerprint.documents)
        },
    )
