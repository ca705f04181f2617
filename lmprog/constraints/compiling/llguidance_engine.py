"""The only module that uses llguidance: grammars not supported here, behind the same interface.

A state is a token and the previous state. Its matcher is cached while in use, and rebuilt from the
nearest cached ancestor after eviction. So a fork of a guide copies a reference, and unreferenced
states are freed. llguidance does not report the distance to acceptance: `distance` is only 0 or
1, and a budget does not narrow the mask, so a text may be cut off by the token limit. llguidance is
an optional dependency, imported on first use.

llguidance's compiler recurses as deep as a grammar's rules lead to each other, and its time grows
faster than the grammar: a stranger's grammar could end the runtime or keep it busy for minutes. So
one that is not small is tried first in a process that has nothing else to do
(`trial_process.py`), with limits that the system holds. What was compiled there within the
limits is then compiled in this process, on a stack that is larger than the trial's.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from lmprog.constraints.constraint import (
    NARROW,
    Check,
    CompileLimits,
    MaskRow,
    State,
    bit_row,
    never_stop,
)
from lmprog.constraints.grammar.read import is_gbnf
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import GrammarError, NotSupported

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_UNTRIED = 2000
"""Characters of a grammar that is compiled without a trial. Of 49 shapes of so many characters
(chains, nesting, alternatives, recursion, empty rules, long literals, counts, doubling rules and
terminals) each took less than 1 MB of stack and less than a second."""
_SECONDS = 2
"""Of processor time; the start of the process, a tenth of a second, is a part of it."""
_MEMORY = 1 << 30
"""Of address space, stacks and libraries included."""
_STACK, _STEP_STACK = 64 << 20, 2 << 20
"""For compiling, and for steps: the loop's thread has 8 MB."""
_OWN_STACK = 96 << 20
"""In this process."""
_WATCHDOG_SECONDS = 60.0
"""Of the clock: a machine may be busy with other things."""
_POLL_SECONDS = 0.005

LEXER_FUEL = 200_000
"""A step beyond it is an error of its own generation, after a tenth of a second at most."""

_Result = TypeVar("_Result")


def tried(text: str, kind: str, check: Check) -> str:
    """llguidance's form of a grammar, which it could compile within the limits. Raises GrammarError
    where it could not, or where the system has no process for that, and what `check` raises, which
    ends the trial.
    """
    if not sys.executable:
        raise NotSupported("a grammar is tried in a Python of its own, which is not to be found.")
    job = {
        "text": text,
        "format": kind,
        "seconds": _SECONDS,
        "memory": _MEMORY,
        "stack": _STACK,
        "step_stack": _STEP_STACK,
        "lexer_fuel": LEXER_FUEL,
    }
    try:
        with tempfile.TemporaryFile("w+") as asked, tempfile.TemporaryFile("w+") as answer:
            json.dump(job, asked)
            asked.seek(0)
            code, said = _ended(asked, answer, check)
            answer.seek(0)
            written = answer.read()
    except OSError as error:  # no memory, processes, files or room on the disk are left
        raise GrammarError(
            f"it has more than {MAX_UNTRIED:,} characters, so that it is tried in a process of its "
            f"own first, which the system did not give: {error}",
            position=None,
        ) from error
    if code != 0 or not written:
        raise GrammarError(_why(code, said), position=None)
    found: dict[str, str] = json.loads(written)
    if found["error"]:
        raise GrammarError(found["error"].partition("\n")[0], position=None)
    return found["grammar"]


def _ended(asked: IO[str], answer: IO[str], check: Check) -> tuple[int, str]:
    """Runs the process to its end: its exit code, and the last line that it said of an error."""
    script = Path(__file__).with_name("trial_process.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    deadline = time.monotonic() + _WATCHDOG_SECONDS
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", str(script)],
            stdin=asked,
            stdout=answer,
            stderr=errors,
            env=environment,
        )
        try:
            while True:
                try:
                    code = process.wait(_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    check()
                    if time.monotonic() > deadline:
                        process.kill()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        errors.seek(0)
        lines = errors.read().strip().splitlines()
    return code, lines[-1] if lines else ""


def _why(code: int, said: str) -> str:
    if code > 0:
        return f"llguidance could not read it: {said[:300]}"
    return (
        f"llguidance needed more than {_SECONDS} s of processor time, {_MEMORY >> 20} MB of memory "
        f"or {_STACK >> 20} MB of stack to compile it; use fewer rules, or rules that lead less far"
    )


def on_large_stack(work: Callable[[], _Result]) -> _Result:
    """The result of `work`, in a thread with the stack that a tried grammar may need. Raises
    GrammarError where the system has none."""
    with ThreadPoolExecutor(1, "grammar") as executor:
        with _STACK_SIZE:  # it is that of all threads that begin meanwhile
            before = threading.stack_size(_OWN_STACK)
            try:
                running = executor.submit(work)  # which begins the thread
            except RuntimeError as error:
                raise GrammarError(
                    f"it is compiled in a thread with a stack of {_OWN_STACK >> 20} MB, which the "
                    f"system did not give: {error}",
                    position=None,
                ) from error
            finally:
                threading.stack_size(before)
        return running.result()


_STACK_SIZE = threading.Lock()


_MAX_MATCHERS = 256


class _Node(State):
    """A state with the path to it."""

    __slots__ = ("before", "token")

    def __init__(self, number: int, before: _Node | None, token: int) -> None:
        super().__init__(number)
        self.before = before
        self.token = token


class LlguidanceConstraint:
    engine = "llguidance"
    left_out: tuple[str, ...] = ()

    def __init__(
        self,
        text: str,
        vocabulary: Vocabulary,
        limits: CompileLimits,
        why: str = "",
        check: Check = never_stop,
    ) -> None:
        """`why` says, for people, why llguidance is used. Raises GrammarError if it rejects the
        grammar too, NotSupported if it is not installed.
        """
        self._vocabulary = vocabulary
        self._ours = bit_row(
            [i for i, token in enumerate(vocabulary.tokens) if token], vocabulary.num_words
        )
        self._eos = bit_row(vocabulary.eos_ids, vocabulary.num_words)
        self._root = _matcher(text, vocabulary, why, check)
        self._start = _Node(0, None, -1)
        self._numbers = itertools.count(1)
        self._following: WeakValueDictionary[tuple[int, int], _Node] = WeakValueDictionary()
        """The states that somebody holds, by the number of the one before and the token."""
        self._matchers: OrderedDict[_Node, LLMatcher] = OrderedDict()
        self._with_mask: OrderedDict[State, None] = OrderedDict()
        self._max_masks = max(16, limits.max_mask_bytes // (4 * vocabulary.num_words + 256))

    @property
    def start(self) -> State:
        return self._start

    def _at(self, state: State) -> LLMatcher:
        """The matcher of a state; callers may read or copy it, never advance it."""
        assert isinstance(state, _Node), "states come from the constraint that they are given to"
        at, missing = state, list[_Node]()
        while at.before is not None and at not in self._matchers:
            missing.append(at)
            at = at.before
        matcher = self._root if at.before is None else self._matchers[at]
        for later in reversed(missing):
            matcher = matcher.deep_copy()
            taken = matcher.consume_token(later.token)
            if not taken:  # the mask allowed it: a limit of llguidance itself
                why = matcher.get_error().partition("\n")[0]
                raise GrammarError(f"the grammar is given up by llguidance: {why}", position=None)
            self._matchers[later] = matcher
            if len(self._matchers) > _MAX_MATCHERS:
                self._matchers.popitem(last=False)
        return matcher

    def mask(self, state: State, budget: int | None = None) -> MaskRow:
        found = state.row
        if found is None:
            matcher = self._at(state)
            words = np.frombuffer(matcher.compute_bitmask(), np.uint32)[
                : self._vocabulary.num_words
            ]
            bits = words & self._ours
            if matcher.is_accepting():
                bits |= self._eos
            bits.flags.writeable = False
            count = int(np.bitwise_count(bits).sum())
            found = MaskRow(bits, None, count)
            if count <= NARROW:
                found.ids = found.tokens
            state.row = found
            self._with_mask[state] = None
            if len(self._with_mask) > self._max_masks:
                self._with_mask.popitem(last=False)[0].row = None
        return found

    def advance(self, state: State, token: int) -> _Node:
        assert isinstance(state, _Node), "states come from the constraint that they are given to"
        key = (state.number, token)
        found = self._following.get(key)
        if found is None:
            if (
                self._vocabulary.bytes_of(token) is None
                or self._at(state).validate_tokens([token]) != 1
            ):
                raise ValueError(f"token {token} is not allowed in state {state.number}")
            found = self._following[key] = _Node(next(self._numbers), state, token)
        return found

    def advance_bytes(self, state: State, text: bytes) -> State | None:
        for token in self._vocabulary.greedy(text):
            try:
                state = self.advance(state, token)
            except ValueError:
                return None
        return state

    def forced(self, state: State) -> bytes:
        forced: bytes = self._at(state).compute_ff_bytes()
        return forced

    def is_final(self, state: State) -> bool:
        return bool(self._at(state).is_accepting())

    def is_done(self, state: State) -> bool:
        row = self.mask(state)
        return self.is_final(state) and row.count == len(self._vocabulary.eos_ids)

    def distance(self, state: State) -> int:
        """0 in accepting states, else 1, which is only a lower bound."""
        return 0 if self.is_final(state) else 1


class _Tokenizer:
    """The tokenizer interface that llguidance requires."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_ids[0] if vocabulary.eos_ids else 0
        # Special tokens need distinct bytes that no text contains.
        self.tokens = [token or b"\xff<%d>" % i for i, token in enumerate(vocabulary.tokens)]
        self.special_token_ids = [i for i, token in enumerate(vocabulary.tokens) if not token]
        self._greedy = vocabulary.greedy

    def __call__(self, text: str | bytes) -> list[int]:
        return self._greedy(text if isinstance(text, bytes) else text.encode())


_tokenizers: weakref.WeakKeyDictionary[Vocabulary, LLTokenizer] = weakref.WeakKeyDictionary()


def _matcher(text: str, vocabulary: Vocabulary, why: str, check: Check) -> LLMatcher:
    try:
        import llguidance
    except ImportError as error:
        raise NotSupported(
            f"this grammar needs llguidance ({why}): install lmprog[grammar]"
        ) from error
    tokenizer = _tokenizers.get(vocabulary)
    if tokenizer is None:
        wrapper = llguidance.TokenizerWrapper(_Tokenizer(vocabulary))
        tokenizer = llguidance.LLTokenizer(
            wrapper, n_vocab=len(vocabulary), eos_token=list(vocabulary.eos_ids)
        )
        _tokenizers[vocabulary] = tokenizer
    limits = llguidance.LLParserLimits(initial_lexer_fuel=LEXER_FUEL)
    kind: Literal["gbnf", "lark"] = "gbnf" if is_gbnf(text) else "lark"
    try:
        if len(text) <= MAX_UNTRIED:
            grammar = llguidance.grammar_from(kind, text)
            matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        else:
            grammar = tried(text, kind, check)
            matcher = on_large_stack(
                lambda: llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
            )
        if matcher.is_error():
            raise GrammarError(matcher.get_error().partition("\n")[0], position=None)
    except (ValueError, GrammarError) as error:
        raise GrammarError(
            f"the grammar is refused: {error}; lmprog's own reader does not take it: {why}",
            position=None,
        ) from error
    return matcher
