"""The constraint room seen from calls: compiles what the wire asks for, and finds forced tokens.

Joins three things that know nothing of each other: the wire's specifications, the automata of
`fsm`, the tokenizer.

A constraint is compiled, and asked for its first mask, by a worker; from then on it belongs to the
loop's thread.
"""

from __future__ import annotations

import logging
import queue
import time
from array import array
from collections import OrderedDict
from threading import Lock

from lmprog import constraints, wire
from lmprog.constraints.cache import ConstraintCache
from lmprog.constraints.compiler import compile_constraint
from lmprog.constraints.constraint import Constraint
from lmprog.constraints.forced import forced_tokens
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import GrammarError, LmprogError
from lmprog.runtime.programs.compile_pool import (
    CompilePool,
    PendingConstraint,
    Submit,
    at_once,
    limited,
)
from lmprog.runtime.scheduling.stats import Histogram
from lmprog.runtime.text.tokenizer import Tokenizer

CONTEXT_TOKENS = 12
"""Tokens before a forced text that are looked at, so that it is tokenised as it would be in its
place.
"""
_KEPT_ANSWERS = 4096
MAX_COMPILE_SECONDS = 2.0
COMPILE_BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 5.0)
"""Upper ends of the classes of compiling times, in seconds."""

log = logging.getLogger("lmprog")


def vocabulary_of(tokenizer: Tokenizer, num_logits: int | None = None) -> Vocabulary:
    """The vocabulary's index; kept on disk by content, so that only the first start pays for it.

    Tokens beyond `num_logits` are left out: a model that has no logits for them cannot pick them.
    """
    size = tokenizer.vocab_size if num_logits is None else min(num_logits, tokenizer.vocab_size)
    texts = [tokenizer.token_bytes(token) for token in range(size)]
    return Vocabulary.of(texts, [token for token in tokenizer.eos_ids if token < size])


class CallConstraints:
    """Compiles constraints for one tokenizer. The vocabulary's index is made when the first
    constraint comes.

    All methods belong to the loop's thread; what is submitted runs on the worker's, at once where
    there is none.
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
        self._under_way: dict[constraints.Spec, PendingConstraint] = {}
        self._finished: queue.SimpleQueue[
            tuple[constraints.Spec, Constraint | LmprogError, float]
        ] = queue.SimpleQueue()
        self.seconds = Histogram(COMPILE_BOUNDS)
        """How long compiling took, those that failed too; what the cache had is not counted."""
        self._answers: OrderedDict[tuple[Constraint, int, str], tuple[int, ...]] = OrderedDict()

    @property
    def is_compiling(self) -> bool:
        return bool(self._under_way)

    def turn(self, busy: bool) -> None:
        """The loop's step is over: what is being compiled goes on, for a moment where the loop is
        `busy`.
        """
        if self._workers is not None and self._under_way:
            self._workers.turn(busy)

    def begin(self, asked: wire.Constraint) -> PendingConstraint:
        """The constraint, if it is there already, else one that `collect` will make known."""
        spec = spec_of(asked)
        compiling = self._under_way.get(spec)
        if compiling is not None:
            return compiling
        found = self._cache.peek(spec, self._vocabulary) if self._vocabulary is not None else None
        if found is not None:
            return PendingConstraint(found)
        compiling = self._under_way[spec] = PendingConstraint()
        self._submit(lambda: self._finished.put((spec, *self._timed(spec))))
        return compiling

    def collect(self) -> list[PendingConstraint]:
        """Those that have become known since the last call and that somebody waits for."""
        known = []
        while not self._finished.empty():
            spec, made, seconds = self._finished.get()
            self.seconds.see(seconds)
            compiling = self._under_way.pop(spec)
            if isinstance(made, LmprogError):
                compiling.error = made
            else:
                # Kept here and not by the worker, which may be made to stand still with the cache's
                # lock in its hand.
                compiling.constraint = self._cache.put(spec, self.vocabulary, made)
            if compiling.waiting:
                known.append(compiling)
        return known

    def compile(self, asked: wire.Constraint) -> Constraint:
        """At once. Raises RequestRejected (`GrammarError`, `UnsupportedSchema`, ...), saying where
        and why.
        """
        return self._cache.get(spec_of(asked), self.vocabulary)

    def _timed(self, spec: constraints.Spec) -> tuple[Constraint | LmprogError, float]:
        began = time.monotonic()
        made = self._made(spec)
        return made, time.monotonic() - began

    def _made(self, spec: constraints.Spec) -> Constraint | LmprogError:
        """On a worker: compiles, and does the first work of the new constraint, which is often its
        longest.
        """
        try:
            vocabulary = self.vocabulary
            with limited(MAX_COMPILE_SECONDS):
                made = compile_constraint(spec, vocabulary)
                made.forced(made.start)
                made.mask(made.start, max(1, made.distance(made.start)))
            return made
        except LmprogError as error:
            return error
        except Exception as error:  # the worker's border: whoever waits must hear of it
            log.exception("a constraint could not be compiled")
            return GrammarError(
                f"the constraint could not be compiled: {type(error).__name__}: {error}",
                position=None,
            )

    @property
    def vocabulary(self) -> Vocabulary:
        """With everything in it that takes long, made once, by whichever thread comes first."""
        if (
            self._vocabulary is not None
        ):  # without the lock: a worker may stand still while it holds it
            return self._vocabulary
        with self._lock:
            if self._vocabulary is None:
                made = vocabulary_of(self._tokenizer, self._num_logits)
                first = compile_constraint(constraints.RegexSpec(r"\w?"), made)
                first.mask(first.start)  # loads kernel and index
                _ = made.ordered, made.longest, made.alphabet
                self._vocabulary = made
            return self._vocabulary

    def forcing(self, constraint: Constraint, state: int, standing: array[int]) -> tuple[int, ...]:
        """Tokens that must come next, canonical whatever follows them; see `constraints.forced`."""
        if not constraint.forced(state):
            return ()
        before = self._tokenizer.decode(standing[-CONTEXT_TOKENS:], skip_special=False)
        if "\ufffd" in before:  # a character is cut: its tokens must be finished one by one
            return ()
        key = (constraint, state, before)
        answer = self._answers.get(key)
        if answer is None:
            answer = forced_tokens(
                constraint, state, self.vocabulary, self._tokenizer.encode, before
            )
            self._answers[key] = answer
            if len(self._answers) > _KEPT_ANSWERS:
                self._answers.popitem(last=False)
        return answer


def spec_of(asked: wire.Constraint) -> constraints.Spec:
    """What the wire asks for, as the compiler knows it."""
    match asked:
        case wire.Regex(pattern=pattern):
            return constraints.RegexSpec(pattern)
        case wire.JsonSchema(schema=schema, whitespace=whitespace, any_order=any_order):
            return constraints.JsonSchemaSpec(
                schema, whitespace, "any" if any_order else "declared"
            )
        case wire.Choices(texts=texts):
            return constraints.ChoicesSpec(texts)
        case wire.Grammar(text=text):
            return constraints.GrammarSpec(text)
