"""The options of a run, as keywords, and the settings that they make."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmprog.backends import Backend
from lmprog.backends.default import backend_at
from lmprog.errors import InvalidParameter
from lmprog.lang.checkpoints.run_progress import Answer
from lmprog.lang.ops.sampling import (
    Sampling,
    SamplingOptions,
    check_lora,
    is_sampling,
    sampling_of,
)
from lmprog.lang.runs.executor import RunSettings


class RunOptions(SamplingOptions, total=False):
    """What a run can be told besides the program's own arguments."""

    backend: Backend | str | None
    backends: Mapping[str, Backend | str]
    sampling: Sampling
    timeout: float | None
    max_total_tokens: int | None
    cache_salt: str
    lora: str | None
    heal: bool
    num_api_spec_tokens: int | None
    cache: str | Path | None
    checkpoint: str | Path | None
    answer: Any


def is_setting(name: str) -> bool:
    """Whether `name` is a setting of a run, and no argument of a program."""
    return is_sampling(name) or name in RunOptions.__annotations__


def with_options(settings: RunSettings, options: Mapping[str, Any]) -> RunSettings:
    """`settings` with `options` over them. Raises `InvalidParameter` for an unknown one."""
    rest = dict(options)
    for name in ("backend", "timeout", "max_total_tokens", "num_api_spec_tokens", "heal"):
        if name in rest:
            settings = replace(settings, **{name: rest.pop(name)})
    if isinstance(settings.backend, str):
        settings = replace(settings, backend=backend_at(settings.backend))
    if "backends" in rest:
        named = rest.pop("backends").items()
        others = {name: backend_at(one) if isinstance(one, str) else one for name, one in named}
        settings = replace(settings, backends={**settings.backends, **others})
    if "cache" in rest:
        settings = replace(settings, cache=_folder(rest.pop("cache")))
    if "checkpoint" in rest:
        settings = replace(settings, checkpoint=_file(rest.pop("checkpoint")))
    if "answer" in rest:
        settings = replace(settings, answer=_answer(rest.pop("answer")))
    if "cache_salt" in rest:
        settings = replace(settings, salt=rest.pop("cache_salt"))
    if "lora" in rest:
        settings = replace(settings, lora=check_lora(rest.pop("lora")))
    given = rest.pop("sampling", None) or Sampling()
    own = sampling_of(rest, RunOptions.__annotations__)
    return replace(settings, sampling=own.over(given).over(settings.sampling))


def _file(given: object) -> Path | None:
    """A file in a folder that is there."""
    if given is None:
        return None
    allowed = "the path of a file in a folder that is there"
    try:
        path = Path(given).expanduser().absolute()  # type: ignore[arg-type]
        if path.parent.is_dir() and not path.is_dir():
            return path
    except TypeError:
        pass
    raise InvalidParameter(
        f"checkpoint={given!r} is not allowed; give {allowed}",
        name="checkpoint",
        value=repr(given),
        allowed=allowed,
    )


def _answer(given: object) -> Answer:
    """As the program sees it, which is as JSON has it."""
    try:
        return Answer(json.loads(json.dumps(given)))
    except (TypeError, ValueError) as error:
        allowed = "a value that JSON has"
        raise InvalidParameter(
            f"answer={given!r} is not allowed; give {allowed} ({error})",
            name="answer",
            value=repr(given),
            allowed=allowed,
        ) from None


def _folder(given: object) -> Path | None:
    """A folder that can be written to, made if it is not there."""
    if given is None:
        return None
    allowed = "the path of a folder that can be written to"
    try:
        folder = Path(given).expanduser().absolute()  # type: ignore[arg-type]
        folder.mkdir(parents=True, exist_ok=True)
        problem = "" if os.access(folder, os.W_OK) else " (it cannot be written to)"
    except (TypeError, OSError) as error:
        problem = f" ({error})"
    if not problem:
        return folder
    raise InvalidParameter(
        f"cache={given!r} is not allowed; give {allowed}{problem}",
        name="cache",
        value=repr(given),
        allowed=allowed,
    )
