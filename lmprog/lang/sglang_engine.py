"""`Engine`: SGLang's name for a runtime that is asked for texts, one prompt or many, without a
program.

Its prompts are programs of one call here, so it is a backend as well. Knows SGLang's spellings.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from lmprog.backends.connecting.embedded import Runtime
from lmprog.backends.runtime_backend import flush
from lmprog.errors import InvalidParameter, NotSupported
from lmprog.lang.branches.branch import Branch
from lmprog.lang.branches.gen import Gen
from lmprog.lang.branches.text_followers import meta_info
from lmprog.lang.decorator import function
from lmprog.lang.service_calls import get_server_info
from lmprog.lang.streaming.feed import Done, Text

Result: TypeAlias = dict[str, Any]
"""`text` and `meta_info`."""
Params: TypeAlias = Mapping[str, Any]

_RENAMED = {"min_new_tokens": "min_tokens", "sampling_seed": "seed"}
_FIXED = {"spaces_between_special_tokens": True, "no_stop_trim": False}
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
        if name in _FIXED:
            if value is not None and value != _FIXED[name]:
                raise NotSupported(
                    f"{name}={value!r} is not supported: here it is always {_FIXED[name]!r}"
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
