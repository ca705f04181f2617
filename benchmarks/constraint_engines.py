"""The engines that the constraint benchmarks compare, behind one small face: compile, mask,
advance, accept.

Peers are imported when asked for; one that is not installed is left out and named.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import mistral_common
import numpy as np

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.constraint import Constraint
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import RequestRejected
from lmprog.runtime.programs.call_constraints import MAX_COMPILE_SECONDS
from lmprog.runtime.programs.compile_pool import TimeLimit

TEKKEN = Path(mistral_common.__path__[0]) / "data" / "tekken_240911.json"
"""Of 131,072 tokens."""


class Refused(Exception):
    """The engine does not take this pattern or schema."""


class Walk(Protocol):
    """One guide through one compiled constraint."""

    def mask(self) -> None: ...

    def advance(self, token: int) -> bool:
        """False where the token is not allowed."""
        ...

    def accepts(self) -> bool: ...

    def restart(self) -> None:
        """Back to the start; what was cached stays."""
        ...


def takes(walk: Walk, tokens: Sequence[int]) -> bool:
    """Whether the tokens are allowed one after the other, and may end."""
    walk.restart()
    walk.mask()
    return all(walk.advance(token) for token in tokens) and walk.accepts()


class Engine(Protocol):
    name: str

    def compile(self, kind: str, source: str) -> Walk: ...


class OurWalk:
    def __init__(self, made: Any) -> None:
        self._mask, self._advance, self._final = made.mask, made.advance, made.is_final
        self._start = self._state = made.start

    def mask(self) -> None:
        self._mask(self._state)

    def advance(self, token: int) -> bool:
        try:
            self._state = self._advance(self._state, token)
        except ValueError:
            return False
        return True

    def accepts(self) -> bool:
        return bool(self._final(self._state))

    def restart(self) -> None:
        self._state = self._start


class Ours:
    """With `pause`, as the runtime's worker compiles: with its time limit and its pauses."""

    name = "lmprog"

    def __init__(
        self,
        vocabulary: Vocabulary,
        pause: Callable[[], None] | None = None,
        strict: bool = True,
    ) -> None:
        self._vocabulary, self._pause, self._strict = vocabulary, pause, strict
        self.num_lenient = 0
        """Schemas of which something was left out."""
        self.compile("regex", r"\w\d\s")  # opens kernel, index and this Python's character classes

    def compile(self, kind: str, source: str) -> Walk:
        try:
            made = self.made(kind, source)
        except RequestRejected as error:
            raise Refused(str(error)) from error
        self.num_lenient += bool(made.left_out)
        return OurWalk(made)

    def made(self, kind: str, source: str) -> Constraint:
        is_regex = kind == "regex"
        spec = wire.Regex(source) if is_regex else wire.JsonSchema(source, strict=self._strict)
        if self._pause is None:
            return compile_constraint(spec, self._vocabulary)
        limit = TimeLimit(MAX_COMPILE_SECONDS, self._pause)
        return compile_constraint(spec, self._vocabulary, check=limit)


class LlguidanceWalk:
    def __init__(self, matcher: Any, num_words: int) -> None:
        self._root, self._bits = matcher, np.zeros(num_words, np.uint32)
        self._at = matcher.deep_copy()

    def mask(self) -> None:
        self._at.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)

    def advance(self, token: int) -> bool:
        return bool(self._at.try_consume_tokens([token]) == 1)

    def accepts(self) -> bool:
        return bool(self._at.is_accepting())

    def restart(self) -> None:
        self._at = self._root.deep_copy()


class Llguidance:
    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary) -> None:
        from lmprog.constraints.compiling.llguidance_engine import _Tokenizer

        self._library = importlib.import_module("llguidance")
        wrapper = self._library.TokenizerWrapper(_Tokenizer(vocabulary))
        ends = list(vocabulary.eos_ids)
        made = self._library.LLTokenizer(wrapper, n_vocab=len(vocabulary), eos_token=ends)
        self._tokenizer, self._num_words = made, vocabulary.num_words

    def compile(self, kind: str, source: str) -> Walk:
        matcher = self._library.LLMatcher
        if kind == "regex":
            grammar = matcher.grammar_from_regex(source)
        else:
            fixed = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
            if not source.startswith("{"):
                source = f'{{"allOf": [{source}]}}'  # it takes options beside objects only
            grammar = matcher.grammar_from_json_schema(source, overrides=fixed)
        made = matcher(self._tokenizer, grammar, log_level=0)
        if made.is_error():
            raise Refused(made.get_error().splitlines()[0])
        return LlguidanceWalk(made, self._num_words)


class XgrammarWalk:
    def __init__(self, library: Any, compiled: Any, size: int) -> None:
        self._matcher = library.GrammarMatcher(compiled)
        self._bits = library.allocate_token_bitmask(1, size)

    def mask(self) -> None:
        self._matcher.fill_next_token_bitmask(self._bits)

    def advance(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def accepts(self) -> bool:
        with contextlib.suppress(AttributeError):
            return bool(self._matcher.is_completed())
        return bool(self._matcher.is_terminated())

    def restart(self) -> None:
        self._matcher.reset()


class Xgrammar:
    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        library = self._library = importlib.import_module("xgrammar")
        tokens, ends = [token or b"" for token in vocabulary.tokens], list(vocabulary.eos_ids)
        named: Any = {"stop_token_ids": ends, "vocab_size": len(tokens)}
        info = library.TokenizerInfo(tokens, library.VocabType.RAW, **named)
        self._compiler = library.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._size = len(tokens)

    def compile(self, kind: str, source: str) -> Walk:
        fixed: Any = {"any_whitespace": False, "separators": (", ", ": "), "strict_mode": False}
        try:
            if kind == "regex":
                compiled = self._compiler.compile_regex(source)
            else:
                compiled = self._compiler.compile_json_schema(source, **fixed)
        except (RuntimeError, ValueError, TypeError) as error:
            raise Refused(str(error).splitlines()[0]) from error
        return XgrammarWalk(self._library, compiled, self._size)


class OutlinesWalk:
    def __init__(self, library: Any, index: Any, size: int) -> None:
        self._library, self._index = library, index
        self._bits = np.zeros((size + 31) // 32, np.uint32)
        self.restart()

    def mask(self) -> None:
        self._guide.write_mask_into(self._bits.ctypes.data, self._bits.size, self._bits.itemsize)

    def advance(self, token: int) -> bool:
        if token not in self._guide.get_tokens():
            return False
        self._guide.advance(token)
        return True

    def accepts(self) -> bool:
        return bool(self._index.is_final_state(self._guide.get_state()))

    def restart(self) -> None:
        self._guide = self._library.Guide(self._index)


class OutlinesCore:
    name = "outlines-core"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._library = importlib.import_module("outlines_core")
        schemas = importlib.import_module("outlines_core.json_schema")
        self._to_regex = schemas.build_regex_from_schema
        by_bytes: dict[bytes, list[int]] = {}
        for i, token in enumerate(vocabulary.tokens):
            if token:
                by_bytes.setdefault(token, []).append(i)
        self._vocabulary = self._library.Vocabulary(vocabulary.eos_ids[0], by_bytes)
        self._size = len(vocabulary)

    def compile(self, kind: str, source: str) -> Walk:
        try:
            pattern = source if kind == "regex" else self._to_regex(source)
            index = self._library.Index(pattern, self._vocabulary)
            return OutlinesWalk(self._library, index, self._size)
        except (RuntimeError, ValueError, TypeError) as error:
            raise Refused(str(error).splitlines()[0]) from error


ENGINES: dict[str, Any] = {one.name: one for one in (Ours, Llguidance, Xgrammar, OutlinesCore)}
