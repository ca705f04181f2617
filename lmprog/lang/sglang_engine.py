"""What SGLang's programs use besides its language: `Engine`, a runtime that is asked for texts, one
prompt or many, without a program; `global_config`, process-wide settings, as far as they apply; and
`build_regex_from_object`, a regular expression for the JSON of a schema, which is outlines-core's
as SGLang's is.

An engine's prompts are programs of one call here, so it is a backend as well. Of `global_config`
the default backend can be set. What else it has is fixed here: another value is an error.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from lmprog.backends import Backend
from lmprog.backends.client import flush
from lmprog.backends.connecting.default import given_backend, set_default_backend
from lmprog.backends.connecting.embedded import Runtime
from lmprog.errors import InvalidParameter, NotSupported, UnknownName, UnsupportedSchema
from lmprog.lang.branches.branch import Branch
from lmprog.lang.branches.gen import Gen
from lmprog.lang.branches.text_followers import meta_info
from lmprog.lang.decorator import function
from lmprog.lang.service_calls import get_server_info
from lmprog.lang.streaming.feed import Done, Text


def build_regex_from_object(
    object: str | type | Mapping[str, Any], whitespace_pattern: str | None = None
) -> str:
    """The regular expression of a JSON schema, as a text or an object, or of a type: for
    `gen(regex=...)`. Raises `UnsupportedSchema` for what outlines-core does not know.
    """
    try:
        library = importlib.import_module("outlines_core.json_schema")
    except ImportError:
        raise NotSupported(
            "build_regex_from_object needs the package outlines-core: pip install outlines-core; "
            "or give gen the type itself, or json_schema="
        ) from None
    try:
        made: str = library.build_regex_from_schema(_schema(object), whitespace_pattern)
    except (ValueError, TypeError) as error:
        raise UnsupportedSchema(f"outlines-core has no regex of this schema: {error}") from None
    return made


def _schema(given: str | type | Mapping[str, Any]) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, Mapping):
        return json.dumps(given)
    from lmprog.lang.ops.type_schemas import schema_of

    return json.dumps(schema_of(given))


_FIXED: dict[str, tuple[object, str]] = {
    "verbosity": (0, "programs print nothing"),
    "skip_special_tokens_in_output": (True, "give gen(skip_special_tokens=False)"),
    "spaces_between_special_tokens_in_out": (True, "tokens are joined as they are"),
    "enable_precache_with_tracing": (
        False,
        "a prefix is shared from the moment it is scheduled; nothing to do before",
    ),
    "enable_parallel_encoding": (
        False,
        "a join refers to what its branches gained; nothing is encoded again",
    ),
}


class GlobalConfig:
    """Attributes of SGLang's `global_config`."""

    @property
    def default_backend(self) -> Backend | None:
        """What `set_default_backend` was given; None: an embedded runtime, once one is needed."""
        return given_backend()

    @default_backend.setter
    def default_backend(self, backend: Backend | None) -> None:
        set_default_backend(backend)

    def __getattr__(self, name: str) -> Any:
        if name not in _FIXED:
            raise AttributeError(
                f"global_config has no {name!r}; it has default_backend, {', '.join(_FIXED)}"
            )
        return _FIXED[name][0]

    def __setattr__(self, name: str, value: object) -> None:
        if name == "default_backend":
            object.__setattr__(self, name, value)
        elif name not in _FIXED:
            message = f"global_config has no {name!r}; it has default_backend, {', '.join(_FIXED)}"
            raise UnknownName(message, name=name)
        elif value != _FIXED[name][0]:
            always, why = _FIXED[name]
            raise NotSupported(f"{name}={value!r} cannot be set, it is always {always!r}: {why}")


global_config = GlobalConfig()


Result: TypeAlias = dict[str, Any]
"""`text` and `meta_info`."""
Params: TypeAlias = Mapping[str, Any]

_RENAMED = {"min_new_tokens": "min_tokens", "sampling_seed": "seed"}
_FIXED_PARAMS = {"spaces_between_special_tokens": True, "no_stop_trim": False}
"""What this runtime does in any case, with the value that says so."""


class Engine(Runtime):
    """A runtime of its own, for `generate` and for programs; ended by `shutdown`, `close` or its
    `with`.
    """

    def generate(
        self,
        prompt: str | Sequence[str],
        sampling_params: Params | Sequence[Params] | None = None,
        *,
        stream: bool = False,
        **options: Any,
    ) -> Any:
        """The result of one prompt, or the list of those of many (each `n` times); with `stream` an
        iterator.

        `options` are the log-probability options of SGLang's programs (`return_logprob`,
        `top_logprobs_num`, ...).
        """
        jobs = _jobs(prompt, sampling_params, options)
        if stream:
            return self._pieces(*_only(jobs))
        runs = _ask.run_batch(
            [(text, params) for text, params in jobs], backend=self, on_error="raise"
        )
        results = [result for run in runs for result in run.value]
        return results[0] if isinstance(prompt, str) and len(results) == 1 else results

    async def async_generate(
        self,
        prompt: str | Sequence[str],
        sampling_params: Params | Sequence[Params] | None = None,
        *,
        stream: bool = False,
        **options: Any,
    ) -> Any:
        """The same for an event loop; with `stream` an asynchronous iterator."""
        jobs = _jobs(prompt, sampling_params, options)
        ready = _ask.using(backend=self)
        if stream:
            return self._pieces_async(*_only(jobs))
        runs = await asyncio.gather(*(ready.arun(text, params) for text, params in jobs))
        results = [result for run in runs for result in run.value]
        return results[0] if isinstance(prompt, str) and len(results) == 1 else results

    def _pieces(self, text: str, params: Params) -> Iterator[Result]:
        """The whole text so far, again and again; at last with its meta information."""
        said = ""
        for event in _ask.using(backend=self).stream(text, params):
            if isinstance(event, Text):
                said += event.delta
                yield {"text": said, "meta_info": {"finish_reason": None}}
            elif isinstance(event, Done):
                yield event.value[0]

    async def _pieces_async(self, text: str, params: Params) -> AsyncIterator[Result]:
        said = ""
        async for event in _ask.using(backend=self).stream(text, params):
            if isinstance(event, Text):
                said += event.delta
                yield {"text": said, "meta_info": {"finish_reason": None}}
            elif isinstance(event, Done):
                yield event.value[0]

    def flush_cache(self) -> None:
        """Makes the runtime forget everything that nothing under way stands on; blocks."""
        flush(self)

    def get_server_info(self) -> dict[str, Any]:
        """What the runtime is, and its figures; blocks."""
        return get_server_info(self)


@function
async def _ask(s: Branch, text: str, params: Params) -> list[Result]:
    """One prompt's results."""
    s.append(text)
    gen: Gen[str] = s.gen(**params)
    await gen
    meta = meta_info(gen)
    return [{"text": one, "meta_info": meta} for one in gen.texts]


def _jobs(
    prompt: str | Sequence[str], given: Params | Sequence[Params] | None, options: Params
) -> list[tuple[str, dict[str, Any]]]:
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    if not prompts or not all(isinstance(text, str) for text in prompts):
        raise NotSupported(
            "the Engine's prompts are texts, at least one; token ids can be sent to the HTTP server"
        )
    each = (
        [given or {}] * len(prompts) if given is None or isinstance(given, Mapping) else list(given)
    )
    if len(each) != len(prompts):
        message = (
            f"{len(each)} sampling_params for {len(prompts)} prompts; give one for "
            "all, or one for each"
        )
        raise InvalidParameter(
            message, name="sampling_params", value=len(each), allowed=f"1 or {len(prompts)}"
        )
    return [
        (text, _keywords({**params, **options})) for text, params in zip(prompts, each, strict=True)
    ]


def _keywords(params: Params) -> dict[str, Any]:
    """SGLang's sampling parameters as keywords of `gen`."""
    found: dict[str, Any] = {}
    for name, value in params.items():
        if name in _FIXED_PARAMS:
            if value is not None and value != _FIXED_PARAMS[name]:
                raise NotSupported(
                    f"{name}={value!r} is not supported: here it is always {_FIXED_PARAMS[name]!r}"
                )
        elif value is not None:
            found[_RENAMED.get(name, name)] = value
    return found


def _only(jobs: list[tuple[str, dict[str, Any]]]) -> tuple[str, dict[str, Any]]:
    if len(jobs) != 1:
        raise NotSupported(
            "one prompt can be streamed at a time; for many use async_generate for each"
        )
    return jobs[0]
