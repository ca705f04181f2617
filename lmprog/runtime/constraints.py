"""The constraint room seen from calls: compiles what the wire asks for, and finds forced tokens.

Joins three things that know nothing of each other: the wire's specifications, the automata of `fsm`, the tokenizer.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict

from lmprog import wire
from lmprog.runtime import fsm
from lmprog.runtime.fsm.cache import ConstraintCache
from lmprog.runtime.fsm.constraint import Constraint
from lmprog.runtime.fsm.forced import forced_tokens
from lmprog.runtime.fsm.vocabulary import Vocabulary
from lmprog.runtime.tokenizer import Tokenizer

CONTEXT_TOKENS = 12
"""Tokens before a forced text that are looked at, so that it is tokenised as it would be in its place."""
_KEPT_ANSWERS = 4096


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """The vocabulary's index; kept on disk by content, so that only the first start pays for it."""
    texts = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    return Vocabulary.of(texts, tokenizer.eos_ids)


class Constraints:
    """Compiles constraints for one tokenizer. The vocabulary's index is made when the first constraint comes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary: Vocabulary | None = None
        self._cache = ConstraintCache()
        self._answers: OrderedDict[tuple[Constraint, int, str], tuple[int, ...]] = OrderedDict()

    def compile(self, asked: wire.Constraint) -> Constraint:
        """Raises RequestRejected (`GrammarError`, `UnsupportedSchema`, ...), saying where and why."""
        return self._cache.get(_spec(asked), self.vocabulary)

    @property
    def vocabulary(self) -> Vocabulary:
        if self._vocabulary is None:
            self._vocabulary = vocabulary_of(self._tokenizer)
        return self._vocabulary

    def forcing(self, constraint: Constraint, state: int, standing: array[int]) -> tuple[int, ...]:
        """Tokens that must come next, canonical whatever follows them; see `fsm.forced`."""
        if not constraint.forced(state):
            return ()
        before = self._tokenizer.decode(standing[-CONTEXT_TOKENS:], skip_special=False)
        if "\ufffd" in before:  # a character is cut: its tokens must be finished one by one
            return ()
        key = (constraint, state, before)
        answer = self._answers.get(key)
        if answer is None:
            answer = forced_tokens(constraint, state, self.vocabulary, self._tokenizer.encode, before)
            self._answers[key] = answer
            if len(self._answers) > _KEPT_ANSWERS:
                self._answers.popitem(last=False)
        return answer


def _spec(asked: wire.Constraint) -> fsm.Spec:
    match asked:
        case wire.Regex(pattern=pattern):
            return fsm.Regex(pattern)
        case wire.JsonSchema(schema=schema, whitespace=whitespace, any_order=any_order):
            return fsm.JsonSchema(schema, whitespace, "any" if any_order else "declared")
        case wire.Choices(texts=texts):
            return fsm.Choices(texts)
        case wire.Grammar(text=text):
            return fsm.Grammar(text)
