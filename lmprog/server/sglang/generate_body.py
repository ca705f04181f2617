"""The body of `/generate`: SGLang's fields, taken apart into one `GeneratePrompt` for each text,
and those into ops.

A list in a field means: one value for each prompt. Knows fields and the wire; knows no connections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from lmprog import wire
from lmprog.server.http.http_errors import refused
from lmprog.server.http.large_answers import asked_entries
from lmprog.server.http.limits import LIMITS, within
from lmprog.server.http.option_fields import SGLangOptions, sampling_of
from lmprog.server.openai.running_request import most_tokens
from lmprog.server.openai.shared_fields import JsonFields, laid_out, tags_of

T = TypeVar("T")

SILENT = ("log_metrics", "session_id", "stream_options", "empty_cache")
"""Fields of SGLang's clients that change nothing here, and need no warning."""
Rid = Annotated[str, Meta(min_length=1, max_length=128)]
Token = Annotated[int, within("prompt[]")]


class GenerateSampling(SGLangOptions, kw_only=True):
    """`max_new_tokens` 0 generates nothing: it computes the prompt, for the cache or its
    likelihood. `no_stop_trim`: a text ends with the stop text that ended it.
    """

    max_new_tokens: Annotated[int, within("max_tokens")] | None = 128
    regex: Annotated[str, within("regex")] | None = None
    json_schema: Annotated[str, within("schema")] | None = None
    ebnf: Annotated[str, within("grammar")] | None = None
    structural_tag: Annotated[str, within("schema")] | None = None
    whitespace: wire.Whitespace | None = None
    whitespace_pattern: Annotated[str, within("whitespace_pattern")] | None = None
    order: Literal["declared", "any"] | None = None
    strict: bool | None = None
    spaces_between_special_tokens: bool = True
    """Has no meaning here: tokens are joined as they are."""
    no_stop_trim: bool = False

    def constraint(self) -> wire.Constraint | None:
        """The one constraint that is given."""
        given = self.constraint_fields()
        if len(given) > 1:
            raise refused(f"{' and '.join(given)} are given; give one of them.", given[1])
        pattern = self.whitespace_pattern
        patterns = () if pattern is None else (("whitespace_pattern", pattern),)
        fields = JsonFields(self.whitespace, self.order, patterns, self.strict)
        return laid_out(self._plain(), fields)

    def _plain(self) -> wire.Constraint | None:
        if self.regex is not None:
            return wire.Regex(self.regex)
        if self.json_schema is not None:
            return wire.JsonSchema(self.json_schema)
        if self.structural_tag is not None:
            return tags_of(self.structural_tag, "structural_tag")
        return None if self.ebnf is None else wire.Grammar(self.ebnf)

    def constraint_fields(self) -> list[str]:
        """The given fields that constrain the text."""
        names = ("regex", "json_schema", "ebnf", "structural_tag")
        return [name for name in names if getattr(self, name) is not None]

    def sampling(
        self, logprobs: int | None, prompt_logprobs: int | None, start: int
    ) -> wire.SamplingParams:
        """As the wire says it; what is null has SGLang's default."""
        decided = {
            "max_tokens": self.max_new_tokens,
            "logprobs": logprobs,
            "prompt_logprobs": prompt_logprobs,
            "prompt_logprobs_start": max(0, start),
        }
        return sampling_of(self, "sglang", decided)


class GenerateRequest(msgspec.Struct, frozen=True):
    """The fields of `/generate` that mean something here."""

    text: str | Annotated[list[str], within("prompt")] | None = None
    input_ids: Annotated[list[Token | list[Token]], Meta(min_length=1)] | None = None
    sampling_params: GenerateSampling | list[GenerateSampling] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: Annotated[int, Meta(ge=-1)] | list[Annotated[int, Meta(ge=-1)]] | None = None
    top_logprobs_num: (
        Annotated[int, within("top_logprobs")] | list[Annotated[int, within("top_logprobs")]] | None
    ) = None
    return_text_in_logprobs: bool = False
    stream: bool = False
    rid: Rid | list[Rid] | None = None
    priority: Annotated[int, within("priority")] | None = None
    extra_key: Annotated[str, within("cache_salt")] | None = None
    model: Annotated[str, within("model")] | None = None


@dataclass(frozen=True, slots=True)
class GeneratePrompt:
    """One text (or its tokens) of a request, with what is asked of it."""

    rid: str
    piece: wire.TextPiece | wire.TokensPiece
    params: GenerateSampling
    logprobs: int | None
    """How many of the likeliest tokens at each position; None: no log-probabilities at all."""
    start: int
    """Position of the first prompt token whose log-probability is wanted; -1: of none."""
    texts: bool
    """Whether log-probabilities come with the text of their tokens."""

    @property
    def results(self) -> int:
        return self.params.n or 1

    def entries(self, context: int) -> int:
        """Log-probabilities that its results may have, at most; each has those of the prompt."""
        if self.logprobs is None:
            return 0
        sampling = self._sampling()
        tokens = min(context, most_tokens(self.piece))
        return asked_entries(sampling, tokens, context, self.results)

    def _sampling(self) -> wire.SamplingParams:
        prompt_logprobs = None if self.start < 0 else self.logprobs
        return self.params.sampling(self.logprobs, prompt_logprobs, self.start)

    def gen(
        self, branch: int, call: int, stream: bool, priority: int, timeout: float | None
    ) -> wire.Generate:
        return wire.Generate(
            branch, call, self._sampling(), self.params.constraint(), stream, priority, timeout
        )


def prompts_of(
    body: GenerateRequest, make_rid: Callable[[], str]
) -> tuple[list[GeneratePrompt], bool]:
    """All prompts, and whether the answer is a list. Raises HttpError for fields that do not go
    together.
    """
    pieces, is_batch = _pieces(body)
    count = len(pieces)
    rids = body.rid if isinstance(body.rid, list) else None
    if rids is not None and len(rids) != count:
        raise _uneven("rid", len(rids), count)
    made = []
    for at, piece in enumerate(pieces):
        params = _each(body.sampling_params, at, count, "sampling_params") or GenerateSampling()
        wants = bool(_each(body.return_logprob, at, count, "return_logprob"))
        start = _each(body.logprob_start_len, at, count, "logprob_start_len")
        if start is None:  # who generates nothing can only mean the prompt
            start = 0 if params.max_new_tokens == 0 else -1
        rid = (
            rids[at]
            if rids is not None
            else _rid(body.rid if isinstance(body.rid, str) else None, at, is_batch)
        )
        made.append(
            GeneratePrompt(
                rid or make_rid(),
                piece,
                params,
                (_each(body.top_logprobs_num, at, count, "top_logprobs_num") or 0)
                if wants
                else None,
                start if wants else -1,
                body.return_text_in_logprobs,
            )
        )
    return made, is_batch


def names_of(body: GenerateRequest, prompts: list[GeneratePrompt]) -> dict[str, str]:
    """The request's names for what the runtime may complain of."""
    given = [name for prompt in prompts for name in prompt.params.constraint_fields()]
    names = {"prompt": "input_ids" if body.text is None else "text", "max_tokens": "max_new_tokens"}
    return {**names, "constraint": given[0]} if given else names


def _pieces(body: GenerateRequest) -> tuple[list[wire.TextPiece | wire.TokensPiece], bool]:
    if (body.text is None) == (body.input_ids is None):
        raise refused(
            "Give one of text and input_ids.", "text" if body.text is None else "input_ids"
        )
    if isinstance(body.text, str):
        return [wire.TextPiece(body.text)], False
    if body.text is not None:
        return [wire.TextPiece(text) for text in body.text], True
    rows = [ids for ids in body.input_ids or () if isinstance(ids, list)]
    single = [token for token in body.input_ids or () if isinstance(token, int)]
    if rows and single:
        raise refused(
            "input_ids is an array of token ids, or an array of such arrays; not both.", "input_ids"
        )
    if single:
        return [wire.TokensPiece(tuple(single))], False
    most = int(LIMITS["prompt"].maximum)
    if len(rows) > most:
        raise refused(f"input_ids has {len(rows):,} prompts; it may have {most:,}.", "input_ids")
    empty = next((at for at, row in enumerate(rows) if not row), None)
    if empty is not None:
        raise refused(f"input_ids[{empty}] is empty; a prompt has at least one token.", "input_ids")
    return [wire.TokensPiece(tuple(row)) for row in rows], True


def _each(value: T | list[T] | None, at: int, count: int, name: str) -> T | None:
    """The value for prompt `at`: the same for all, or its own of a list."""
    if not isinstance(value, list):
        return value
    if len(value) != count:
        raise _uneven(name, len(value), count)
    return value[at]


def _rid(given: str | None, at: int, is_batch: bool) -> str | None:
    """A name for a batch names each of its prompts."""
    return f"{given}_{at}" if given is not None and is_batch else given


def _uneven(name: str, has: int, count: int) -> Exception:
    return refused(
        f"{name} has {has:,} values and there are {count:,} prompts; give one for each.", name
    )
