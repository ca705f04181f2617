"""Compiles and caches the constraints and stop patterns of calls, and finds forced tokens.

Joins two things that know nothing of each other: the automata of `lmprog.constraints`, and the
tokenizer. A worker compiles a constraint and makes its first mask;
from then on the constraint belongs to the loop's thread.
"""

from __future__ import annotations

import logging
import queue
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Any

from lmprog import wire
from lmprog.constraints.compiling.compiler import (
    ConstraintCache,
    compile_constraint,
    compile_otherwise,
)
from lmprog.constraints.constraint import (
    CompileTooLong,
    Constraint,
    State,
    forcible,
    with_late_masks,
)
from lmprog.constraints.forced import CONTEXT_TOKENS, forced_tokens, without_symbols
from lmprog.constraints.search import TextSearch
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import GrammarError, LmprogError, NotSupported
from lmprog.runtime.programs.compile_pool import (
    CompilePool,
    Job,
    MaskThread,
    Pending,
    Submit,
    TimeLimit,
    at_once,
    never_pause,
)
from lmprog.runtime.scheduling.sequence import name_of
from lmprog.runtime.scheduling.stats import Histogram
from lmprog.runtime.text.stream import stop_search
from lmprog.runtime.text.tokenizer import Tokenizer

_MAX_FORCED_TEXTS = 64
"""Preceding texts per state for which forced tokens are kept."""
MAX_COMPILE_SECONDS = 2.0
MAX_SEARCH_BYTES = 16 << 20
"""Of stop patterns that are kept; those of running calls come on top."""
COMPILE_BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 5.0)
"""Histogram bucket upper bounds, in seconds."""

log = logging.getLogger("lmprog")


def kept_bytes(vocab_size: int) -> int:
    """Of compiled constraints that are kept: as many masks of any vocabulary, whose bits they have
    (8,192 of 128 thousand tokens), and no less than what small ones take beside their masks.
    """
    return min(max(1024 * vocab_size, 32 << 20), 128 << 20)


def vocabulary_of(tokenizer: Tokenizer, num_logits: int | None = None) -> Vocabulary:
    """The vocabulary's index; cached on disk by content, so that only the first start pays for it.

    Tokens beyond `num_logits` are left out: a model without logits for them cannot sample them.
    """
    size = tokenizer.vocab_size if num_logits is None else min(num_logits, tokenizer.vocab_size)
    texts = [tokenizer.token_bytes(token) for token in range(size)]
    symbols = [token for token, text in enumerate(texts) if text and tokenizer.is_special(token)]
    eos = [token for token in tokenizer.eos_ids if token < size]
    return Vocabulary.of(texts, eos, symbols)


@dataclass(frozen=True, slots=True)
class _Key:
    """What is compiled, a constraint or a stop pattern, and for branches of which salt."""

    made_of: wire.Constraint | str
    salt: str


class SearchCache:
    """Compiled stop patterns, the least recently used first out; bounded by their bytes."""

    def __init__(self, max_bytes: int = MAX_SEARCH_BYTES) -> None:
        self._max_bytes = max_bytes
        self._held: OrderedDict[tuple[str, str], TextSearch] = OrderedDict()
        self._owners: dict[tuple[str, str], str] = {}
        """Who had them compiled."""
        self.num_bytes = 0

    def find(self, pattern: str, salt: str = "") -> TextSearch | None:
        """One that was put there for the same salt."""
        found = self._held.get((salt, pattern))
        if found is not None:
            self._held.move_to_end((salt, pattern))
        return found

    def put(self, search: TextSearch, salt: str = "", owner: str = "") -> None:
        if (salt, search.pattern) not in self._held:
            self._held[salt, search.pattern] = search
            self._owners[salt, search.pattern] = owner
            self.num_bytes += search.num_bytes
        while self.num_bytes > self._max_bytes:
            oldest, dropped = self._held.popitem(last=False)
            self.num_bytes -= dropped.num_bytes
            del self._owners[oldest]

    def bytes_by_owner(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for key, owner in self._owners.items():
            found[owner] = found.get(owner, 0) + self._held[key].num_bytes
        return found

    def clear(self) -> None:
        self._held.clear()
        self._owners.clear()
        self.num_bytes = 0


class CallConstraints:
    """Compiles constraints for one tokenizer. The vocabulary's index is made with the first one.

    All methods belong to the loop's thread. Submitted jobs run on a worker's thread, or at once
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
        self.masks = MaskThread()
        """For those that take long; used where constraints are compiled by workers."""
        self._vocabulary: Vocabulary | None = None
        self._lock = Lock()
        self._cache = ConstraintCache(kept_bytes(tokenizer.vocab_size))
        self._searches = SearchCache()
        self.under_way: dict[_Key, Pending[Any]] = {}
        """What is being compiled."""
        self._finished: queue.SimpleQueue[
            tuple[_Key, Hashable, Pending[Any], Constraint | TextSearch | LmprogError, float]
        ] = queue.SimpleQueue()
        self.seconds = Histogram(COMPILE_BOUNDS)
        """Processor time of each compile, failures included; cache hits are not counted."""

    def turn(self, busy: bool) -> None:
        """The loop's step is over: compiling goes on, for a moment where the loop is `busy`."""
        if self._workers is not None:
            self._workers.turn(busy)
            self.masks.turn()

    def begin(
        self, constraint: wire.Constraint, owner: Hashable = None, salt: str = ""
    ) -> Pending[Constraint]:
        """The constraint that is cached or being compiled for branches of that salt, else one that
        becomes known in a later `collect`. Owners take turns in compiling, and pay for it."""
        known = self._vocabulary
        found = None if known is None else self._cache.peek(constraint, known, salt)
        key = _Key(constraint, salt)
        return self._begin(key, found, owner, lambda limit: self._made(constraint, limit))

    def begin_stop(
        self, pattern: str, owner: Hashable = None, salt: str = ""
    ) -> Pending[TextSearch]:
        """The same for a stop regex."""
        found, key = self._searches.find(pattern, salt), _Key(pattern, salt)
        return self._begin(key, found, owner, lambda check: stop_search(pattern, check))

    def _begin(
        self,
        key: _Key,
        found: Any,
        owner: Hashable,
        make: Callable[[TimeLimit], Constraint | TextSearch],
    ) -> Pending[Any]:
        compiling = self.under_way.get(key)
        if compiling is None or compiling.is_abandoned:
            if found is not None:
                return Pending(found)
            compiling = self.under_way[key] = Pending()
            job = self._job(key, owner, compiling, make)
            self._submit(job, owner)
        compiling.num_callers += 1
        return compiling

    def collect(self, pay: Callable[[Hashable, float], object] | None = None) -> list[Pending[Any]]:
        """What has become known since the last call and branches wait for. `pay` is told how many
        seconds of the processor each owner's took.
        """
        known = []
        while not self._finished.empty():
            key, owner, compiling, made, seconds = self._finished.get()
            self.seconds.see(seconds)
            if pay is not None:
                pay(owner, seconds)
            if self.under_way.get(key) is compiling:
                del self.under_way[key]
            if isinstance(made, LmprogError):
                compiling.error = made
            elif isinstance(made, TextSearch):
                self._searches.put(made, key.salt, name_of(owner))
                compiling.made = made
            else:
                # Cached here and not by the worker, which may be paused while it holds the cache's
                # lock.
                assert not isinstance(key.made_of, str), "only constraints are made else"
                whose = name_of(owner)
                made = self._cache.put(key.made_of, self.vocabulary, made, key.salt, whose)
                late = None if self._workers is None else with_late_masks(made)
                if late is not None:
                    late.work = self.masks
                compiling.made = made
            if compiling.waiting:
                known.append(compiling)
        return known

    def compile(self, constraint: wire.Constraint) -> Constraint:
        """At once. Raises RequestRejected (`GrammarError`, `UnsupportedSchema`, ...), saying where
        and why.
        """
        return self._cache.get(constraint, self.vocabulary)

    def bytes_held(self) -> dict[str, dict[str, int]]:
        """What is cached, by kind and by the name of who had it compiled."""
        return {
            "constraints": self._cache.bytes_by_owner(),
            "stops": self._searches.bytes_by_owner(),
        }

    def flush(self) -> None:
        """Drops the cached constraints."""
        self._cache.clear()
        self._searches.clear()

    def _job(
        self,
        key: _Key,
        owner: Hashable,
        compiling: Pending[Any],
        make: Callable[[TimeLimit], Constraint | TextSearch],
    ) -> Job:
        """On a worker: compiles, unless nobody waits for it any more."""
        pause = never_pause if self._workers is None else self._workers.pause

        def job() -> None:
            began = time.thread_time()
            made: Constraint | TextSearch | LmprogError
            try:
                limit = TimeLimit(MAX_COMPILE_SECONDS, pause, compiling)
                limit()
                made = make(limit)
            except LmprogError as error:
                made = error.without_frames()  # this one has `made`
            except Exception as error:  # the worker's border: the call must fail
                log.exception("a constraint could not be compiled")
                made = GrammarError(
                    f"the constraint could not be compiled: {type(error).__name__}: {error}",
                    position=None,
                )
            self._finished.put((key, owner, compiling, made, time.thread_time() - began))

        return job

    def _made(self, spec: wire.Constraint, limit: TimeLimit) -> Constraint:
        """Compiled, and with its first mask, which often takes longest. What is compiled in place
        of a constraint that takes too long has as much time again.
        """
        try:
            made = compile_constraint(spec, self.vocabulary, check=limit)
        except CompileTooLong as error:
            limit.begin()
            made = compile_otherwise(spec, error, self.vocabulary, check=limit)
        if made.forced(made.start) and (at_once := forcible(made)) is not None:
            at_once.doubts(made.start)
        made.mask(made.start, max(1, made.distance(made.start)))
        return made

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
            found = forced_tokens(
                constraint, state, self.vocabulary, self._tokenizer.encode, before
            )
            forced = known[before] = without_symbols(constraint, state, found, self.vocabulary)
        return forced


def begin_constraint(
    constraints: CallConstraints | None, op: wire.Generate, owner: Hashable, salt: str
) -> Pending[Constraint] | None:
    """Has the op's constraint compiled for a branch of that salt; None where it has none. Owners
    take turns. A runtime without `constraints` refuses it.
    """
    if op.constraint is None:
        return None
    if constraints is None:
        return Pending(error=NotSupported("this runtime has no constraints."))
    return constraints.begin(op.constraint, owner, salt)


def begin_stops(
    constraints: CallConstraints | None, op: wire.Generate, owner: Hashable, salt: str
) -> tuple[Pending[TextSearch], ...]:
    """Has the op's stop patterns compiled."""
    if constraints is None:
        return tuple(_compiled_at_once(pattern) for pattern in op.sampling.stop_regex)
    return tuple(constraints.begin_stop(one, owner, salt) for one in op.sampling.stop_regex)


def _compiled_at_once(pattern: str) -> Pending[TextSearch]:
    try:
        return Pending(stop_search(pattern))
    except LmprogError as error:
        return Pending(error=error)
