"""Compiles and caches the constraints of calls, and finds forced tokens.

Joins two things that know nothing of each other: the automata of `lmprog.constraints`, and the
tokenizer. A worker compiles a constraint and makes its first mask;
from then on the constraint belongs to the loop's thread.
"""

from __future__ import annotations

import logging
import queue
import time
from array import array
from collections.abc import Hashable
from threading import Lock

from lmprog import wire
from lmprog.constraints.cache import ConstraintCache
from lmprog.constraints.compiler import compile_constraint
from lmprog.constraints.constraint import Constraint, State
from lmprog.constraints.forced import forced_tokens
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import GrammarError, LmprogError
from lmprog.runtime.programs.compile_pool import (
    CompilePool,
    PendingConstraint,
    Submit,
    TimeLimit,
    at_once,
    never_pause,
)
from lmprog.runtime.scheduling.stats import Histogram
from lmprog.runtime.text.tokenizer import Tokenizer

CONTEXT_TOKENS = 12
"""Tokens before a forced text with which it is tokenised, as it would be in its place."""
_MAX_FORCED_TEXTS = 64
"""Preceding texts per state for which forced tokens are kept."""
MAX_COMPILE_SECONDS = 2.0
COMPILE_BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 5.0)
"""Histogram bucket upper bounds, in seconds."""

log = logging.getLogger("lmprog")


def vocabulary_of(tokenizer: Tokenizer, num_logits: int | None = None) -> Vocabulary:
    """The vocabulary's index; cached on disk by content, so that only the first start pays for it.

    Tokens beyond `num_logits` are left out: a model without logits for them cannot sample them.
    """
    size = tokenizer.vocab_size if num_logits is None else min(num_logits, tokenizer.vocab_size)
    texts = [tokenizer.token_bytes(token) for token in range(size)]
    return Vocabulary.of(texts, [token for token in tokenizer.eos_ids if token < size])


class CallConstraints:
    """Compiles constraints for one tokenizer. The vocabulary's index is made with the first one.

    All methods belong to the loop's thread. Submitted jobs run on the worker's thread, or at once
    where there is no worker.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        num_logits: int | None = None,
        workers: CompilePool | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._num_logits = num_logits
        self._workers = workers
        self._submit: Submit = at_once if workers is None else workers.submit
        self._vocabulary: Vocabulary | None = None
        self._lock = Lock()
        self._cache = ConstraintCache()
        self._compiling: dict[wire.Constraint, PendingConstraint] = {}
        self._finished: queue.SimpleQueue[
            tuple[wire.Constraint, Constraint | LmprogError, float]
        ] = queue.SimpleQueue()
        self.seconds = Histogram(COMPILE_BOUNDS)
        """Processor time of each compile, failures included; cache hits are not counted."""

    @property
    def is_compiling(self) -> bool:
        return bool(self._compiling)

    def turn(self, busy: bool) -> None:
        """The loop's step is over: compiling goes on, for a moment where the loop is `busy`."""
        if self._workers is not None and self._compiling:
            self._workers.turn(busy)

    def begin(self, constraint: wire.Constraint, client: Hashable = None) -> PendingConstraint:
        """The cached constraint, else one that becomes known in a later `collect`. Clients take
        turns in compiling."""
        compiling = self._compiling.get(constraint)
        if compiling is not None:
            return compiling
        found = None if self._vocabulary is None else self._cache.peek(constraint, self._vocabulary)
        if found is not None:
            return PendingConstraint(found)
        compiling = self._compiling[constraint] = PendingConstraint()
        self._submit(lambda: self._finished.put((constraint, *self._timed(constraint))), client)
        return compiling

    def collect(self) -> list[PendingConstraint]:
        """Constraints that have become known since the last call and that branches wait for."""
        known = []
        while not self._finished.empty():
            spec, made, seconds = self._finished.get()
            self.seconds.see(seconds)
            compiling = self._compiling.pop(spec)
            if isinstance(made, LmprogError):
                compiling.error = made
            else:
                # Cached here and not by the worker, which may be paused while it holds the cache's
                # lock.
                compiling.constraint = self._cache.put(spec, self.vocabulary, made)
            if compiling.waiting:
                known.append(compiling)
        return known

    def compile(self, constraint: wire.Constraint) -> Constraint:
        """At once. Raises RequestRejected (`GrammarError`, `UnsupportedSchema`, ...), saying where
        and why.
        """
        return self._cache.get(constraint, self.vocabulary)

    def flush(self) -> None:
        """Drops the cached constraints."""
        self._cache.clear()

    def _timed(self, spec: wire.Constraint) -> tuple[Constraint | LmprogError, float]:
        began = time.thread_time()
        made = self._made(spec)
        return made, time.thread_time() - began

    def _made(self, spec: wire.Constraint) -> Constraint | LmprogError:
        """On a worker: compiles, and makes the first mask, which often takes longest."""
        try:
            vocabulary = self.vocabulary
            pause = never_pause if self._workers is None else self._workers.pause
            limit = TimeLimit(MAX_COMPILE_SECONDS, pause)
            made = compile_constraint(spec, vocabulary, check=limit)
            made.forced(made.start)
            made.mask(made.start, max(1, made.distance(made.start)))
            return made
        except LmprogError as error:
            return error
        except Exception as error:  # the worker's border: the call must fail
            log.exception("a constraint could not be compiled")
            return GrammarError(
                f"the constraint could not be compiled: {type(error).__name__}: {error}",
                position=None,
            )

    @property
    def vocabulary(self) -> Vocabulary:
        """With its lazy parts, made once by whichever thread needs it first."""
        if self._vocabulary is not None:  # without the lock: a paused worker may hold it
            return self._vocabulary
        with self._lock:
            if self._vocabulary is None:
                made = vocabulary_of(self._tokenizer, self._num_logits)
                first = compile_constraint(wire.Regex(r"\w?"), made)
                first.mask(first.start)  # loads kernel and index
                _ = made.ordered, made.longest, made.alphabet
                self._vocabulary = made
            return self._vocabulary

    def forcing(self, constraint: Constraint, state: State, tokens: array[int]) -> tuple[int, ...]:
        """Tokens that must come next after `tokens`, canonical whatever follows; see
        `constraints.forced`.
        """
        if not constraint.forced(state):
            return ()
        before = self._tokenizer.decode(tokens[-CONTEXT_TOKENS:], skip_special=False)
        if "\ufffd" in before:  # a character is cut: its tokens must be finished one by one
            return ()
        if state.forced_tokens is None:
            state.forced_tokens = {}
        known = state.forced_tokens  # so that they are freed with the constraint
        forced = known.get(before)
        if forced is None:
            if len(known) >= _MAX_FORCED_TEXTS:
                known.clear()
            forced = known[before] = forced_tokens(
                constraint, state, self.vocabulary, self._tokenizer.encode, before
            )
        return forced
