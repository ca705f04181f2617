"""Compiles a specification for a vocabulary into a constraint.

Compilation uses no model and waits for no other thread, so it can run on any thread; the result is
then owned by one thread (see `Constraint`). This module alone decides which engine serves a
specification.

What was compiled is cached by specification and vocabulary: least recently used first out, bounded
by an estimate of bytes, in memory only. Compilation happens outside of the cache's lock, so two
threads may compile the same specification once each; the first result is kept.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from lmprog import wire
from lmprog.constraints import charset
from lmprog.constraints.automaton import DEAD, Automaton, MemoryFull
from lmprog.constraints.compiling.llguidance_engine import LlguidanceConstraint
from lmprog.constraints.constraint import (
    Check,
    CompileLimits,
    CompileTooLong,
    Constraint,
    never_stop,
)
from lmprog.constraints.expression import (
    ANYTHING,
    Chars,
    Expression,
    Repeat,
    alt,
    has_looks,
    seq,
    somewhere,
    whole,
)
from lmprog.constraints.expression import text as expression_of
from lmprog.constraints.finish import finish
from lmprog.constraints.grammar.read import grammar_node
from lmprog.constraints.grammar.rules import NeedsLlguidance
from lmprog.constraints.lower import Lowering
from lmprog.constraints.net import REPEAT, Net, NetBuilder, Node
from lmprog.constraints.pattern import with_looks
from lmprog.constraints.regular import ContinuedConstraint, RegularConstraint
from lmprog.constraints.schema.entry import plain_strings_node, schema_node, why_nothing_fits
from lmprog.constraints.schema.strings import without_looks
from lmprog.constraints.text_set import TextSet, lower_text_set
from lmprog.constraints.unique_items import UniqueItemsConstraint
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import (
    GrammarError,
    LmprogError,
    UnsatisfiableConstraint,
    UnsupportedSchema,
)

DEFAULT_LIMITS = CompileLimits()
_PROBE_LIMITS = CompileLimits(max_positions=300_000)
_PROBE_TEXTS, _PROBE_BYTES = 8, 48
_PROBE_TOKENS, _PROBE_SOON, _PROBE_WAYS = 48, 6, 4
_MANY_ROUNDS, _SOME_ROUNDS = 16, 4
"""From so many on, those of a repetition are looked at, and texts that are in so many at once, if
they are soon in some."""
_MANY_CHOICES = 32
"""Choices from which common beginnings are looked for."""
_DEEPEST = 30
"""Beginnings within beginnings; the net nests as deeply."""
_TEXTS_PER_CHECK = 512


def compile_constraint(
    spec: wire.Constraint,
    vocabulary: Vocabulary,
    limits: CompileLimits = DEFAULT_LIMITS,
    check: Check = never_stop,
) -> Constraint:
    """Raises GrammarError, UnsupportedSchema or UnsatisfiableConstraint with the reason and the
    place, and whatever `check` raises, which is called about every ten microseconds.
    """
    if isinstance(spec, wire.Preferred):
        try:
            return compile_constraint(spec.wanted, vocabulary, limits, check)
        except CompileTooLong:
            raise
        except (GrammarError, UnsupportedSchema, UnsatisfiableConstraint) as error:
            return compile_otherwise(spec, error, vocabulary, limits, check)
    if isinstance(spec, wire.Continued):
        whole_text = compile_constraint(spec.whole, vocabulary, limits, check)
        begun = whole_text.advance_bytes(whole_text.start, spec.begun.encode())
        return whole_text if begun is None else ContinuedConstraint(whole_text, begun)
    vocabulary.prepare()
    grammar = spec.as_grammar()
    builder = NetBuilder(limits, check)
    try:
        net = regular_net(spec, vocabulary, limits, builder)
        if _has_grammar(spec):
            _refuse_where_ambiguous(net, vocabulary, check)
    except NeedsLlguidance as why:
        if grammar is None:
            raise GrammarError(
                f"this grammar cannot be a part of another constraint: {why}", position=None
            ) from why
        return LlguidanceConstraint(grammar, vocabulary, limits, str(why), check)
    engine = Automaton(net, vocabulary, limits)
    if isinstance(spec, wire.Regex):
        _refuse_where_counts_overlap(engine, net, vocabulary, check)
    made = RegularConstraint(engine, vocabulary, limits, tuple(builder.left_out))
    if not builder.unique_arrays:
        return made
    arrays = {int(net.args[leaf, 0]): one for leaf, one in builder.unique_arrays.items()}
    return UniqueItemsConstraint(made, arrays, vocabulary)


def compile_otherwise(
    spec: wire.Constraint,
    error: LmprogError,
    vocabulary: Vocabulary,
    limits: CompileLimits = DEFAULT_LIMITS,
    check: Check = never_stop,
) -> Constraint:
    """What `spec` has in place of what failed with `error`. Raises that where there is nothing."""
    if not isinstance(spec, wire.Preferred):
        raise error
    made = compile_constraint(spec.otherwise, vocabulary, limits, check)
    made.left_out = (str(error), *made.left_out)
    return made


def _refuse_where_ambiguous(net: Net, vocabulary: Vocabulary, check: Check) -> None:
    """Raises NeedsLlguidance if random texts show that the grammar is too ambiguous for this
    automaton.
    """
    rng = random.Random(0)
    try:
        probe = Automaton(net, vocabulary, _PROBE_LIMITS)
        for number in range(_PROBE_TEXTS):  # always the first branch, the last, then random
            state = probe.start
            for _ in range(_PROBE_BYTES):
                check()
                following = list(
                    dict.fromkeys(after for after in probe.row(state) if after != DEAD)
                )
                if not following:
                    break
                state = (
                    following[0]
                    if number == 0
                    else following[-1]
                    if number == 1
                    else rng.choice(following)
                )
    except GrammarError as error:
        raise NeedsLlguidance("the grammar is too ambiguous") from error


def _refuse_where_counts_overlap(
    engine: Automaton, net: Net, vocabulary: Vocabulary, check: Check
) -> None:
    """Raises GrammarError where tokens, each the worst of some random ones, lead into so many
    rounds of a repetition at once that a mask takes too long: better before the first token than in
    the midst of a text.
    """
    rounds = net.args[net.kind == REPEAT, 1:]
    if not rounds.size or rounds.max() < _MANY_ROUNDS:
        return
    rng = random.Random(0)
    state = engine.start
    try:
        for number in range(_PROBE_TOKENS):
            check()
            if number == _PROBE_SOON and engine.num_positions(state) < _SOME_ROUNDS:
                return
            texts = rng.choices(vocabulary.tokens, k=_PROBE_WAYS)
            ways = {engine.run(state, text) for text in texts if text} - {DEAD}
            state = max(sorted(ways), key=engine.num_positions, default=state)
        if engine.num_positions(state) >= _MANY_ROUNDS:
            engine.raw_mask(state)
    except MemoryFull:
        return
    except GrammarError as error:
        raise GrammarError(
            "a text may be in very many rounds of this constraint's repetitions at once, which "
            "makes it too large; use smaller counts, or none behind a part that may begin anywhere",
            position=None,
        ) from error


def regular_net(
    spec: wire.Constraint,
    vocabulary: Vocabulary,
    limits: CompileLimits = DEFAULT_LIMITS,
    builder: NetBuilder | None = None,
) -> Net:
    """Raises what `compile_constraint` raises, and NeedsLlguidance for a grammar."""
    builder = builder or NetBuilder(limits, never_stop)
    try:
        root = root_node(spec, builder, limits)
    except RecursionError as error:
        raise GrammarError("the constraint nests too deeply", position=None) from error
    try:
        return finish(builder, root, vocabulary.alphabet)
    except UnsatisfiableConstraint as error:
        if builder.left_out:
            raise next(iter(builder.left_out.values())) from error
        schema = spec.as_schema()
        if schema is None:
            raise
        raise UnsatisfiableConstraint(why_nothing_fits(schema, limits, builder.check)) from error


def root_node(spec: wire.Constraint, builder: NetBuilder, limits: CompileLimits) -> Node:
    return _NODES[type(spec)](spec, builder, limits)


def _part(spec: wire.Constraint, builder: NetBuilder, limits: CompileLimits) -> Node:
    """Of a constraint that others are made of. Raises GrammarError for one that cannot be."""
    if isinstance(spec, wire.Preferred | wire.Continued):
        kind = type(spec).__name__
        raise GrammarError(f"{kind} is a whole constraint and no part of one", position=None)
    return root_node(spec, builder, limits)


def _has_grammar(spec: wire.Constraint) -> bool:
    match spec:
        case wire.Grammar():
            return True
        case wire.InOrder(parts=parts) | wire.AnyOf(options=parts):
            return any(map(_has_grammar, parts))
        case wire.Repeated(item=item):
            return _has_grammar(item)
    return False


def _regex_node(spec: wire.Regex, builder: NetBuilder, limits: CompileLimits) -> Node:
    pattern = spec.pattern
    rest, looks = pattern, list[tuple[bool, str]]()
    if pattern.startswith(("(?=", "(?!")) and "$" not in pattern:  # which `re` has before a break
        rest, looks = without_looks(f"^{pattern}")
    check = builder.check
    expression = with_looks(whole, rest if looks else pattern, limits, check=check)
    lowering = Lowering(builder, json_string=False)
    if not looks and not has_looks(expression):
        return lowering.lower(expression)
    seen: dict[bool, list[Expression]] = {True: [expression], False: []}
    for is_wanted, look in looks:
        seen[is_wanted].append(with_looks(somewhere, look, limits, check=check))
    return lower_text_set(TextSet(tuple(seen[True]), tuple(seen[False])), builder, lowering)


def _choices_node(spec: wire.Choices, builder: NetBuilder, _: CompileLimits) -> Node:
    texts = spec.texts
    if not texts:
        raise UnsatisfiableConstraint(
            "there are no choices, so nothing at all would match; give at least one"
        )
    for text in texts:
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            raise GrammarError(
                f"the choice {text!r} has half of a surrogate pair, which no text can have",
                position=None,
            )
    if len(texts) <= _MANY_CHOICES:
        return builder.alt(builder.text(text.encode()) for text in texts)
    return _sharing_beginnings(list(dict.fromkeys(texts)), builder, _DEEPEST)


def _sharing_beginnings(texts: Sequence[str], builder: NetBuilder, depth: int) -> Node:
    """Not by sorting: a single call that sorts a hundred thousand texts cannot be paused."""
    if len(texts) <= _MANY_CHOICES or not depth:
        return builder.alt(builder.text(text.encode()) for text in texts)
    by_letter: dict[str, list[str]] = {}
    for number, text in enumerate(texts):
        if number % _TEXTS_PER_CHECK == 0:
            builder.check()
        by_letter.setdefault(text[:1], []).append(text)
    ways = []
    for alike in by_letter.values():
        first = last = alike[0]
        pieces = [
            alike[at : at + _TEXTS_PER_CHECK] for at in range(0, len(alike), _TEXTS_PER_CHECK)
        ]
        for piece in pieces:
            builder.check()
            first, last = min(first, *piece), max(last, *piece)
        shared, rest = _shared_beginning(first, last), list[str]()
        for piece in pieces:
            builder.check()
            rest += [text[len(shared) :] for text in piece]
        common = builder.text(shared.encode())
        ways.append(builder.seq([common, _sharing_beginnings(rest, builder, depth - 1)]))
    return builder.alt(ways)


def _shared_beginning(first: str, last: str) -> str:
    """What two texts have in common, and all texts between them in order."""
    for place, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return first[:place]
    return first


_MORE = Repeat(Chars(charset.ALL), 1, None)


def _free_text_node(spec: wire.FreeText, net: NetBuilder, _: CompileLimits) -> Node:
    """Raises GrammarError if the texts to watch for are too many."""
    texts = Lowering(net, json_string=False)
    if spec.end is None:
        if not spec.avoided:
            return texts.lower(ANYTHING)
        return lower_text_set(TextSet(outside=(_somewhere(spec.avoided, ANYTHING),)), net, texts)
    ending = seq([ANYTHING, _literal(spec.end)])
    # What is avoided may end where the text ends: it is then the beginning of what follows.
    earlier = _somewhere((*spec.avoided, spec.end), _MORE)
    return lower_text_set(TextSet((ending,), (earlier,)), net, texts)


def _somewhere(watched: tuple[str, ...], then: Expression) -> Expression:
    return seq([ANYTHING, alt(map(_literal, watched)), then])


def _literal(text: str) -> Expression:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise GrammarError(
            f"{text!r} has half of a surrogate pair, which no text can have", position=None
        )
    return expression_of(text)


def _in_order_node(spec: wire.InOrder, builder: NetBuilder, limits: CompileLimits) -> Node:
    return builder.seq([_part(one, builder, limits) for one in spec.parts])


def _any_of_node(spec: wire.AnyOf, builder: NetBuilder, limits: CompileLimits) -> Node:
    return builder.alt([_part(one, builder, limits) for one in spec.options])


def _repeated_node(spec: wire.Repeated, builder: NetBuilder, limits: CompileLimits) -> Node:
    return builder.repeat(_part(spec.item, builder, limits), spec.low, spec.high)


_NODES: dict[type[wire.Constraint], Callable[[Any, NetBuilder, CompileLimits], Node]] = {
    wire.Regex: _regex_node,
    wire.JsonSchema: schema_node,
    wire.Choices: _choices_node,
    wire.Grammar: grammar_node,
    wire.FreeText: _free_text_node,
    wire.PlainStrings: plain_strings_node,
    wire.InOrder: _in_order_node,
    wire.AnyOf: _any_of_node,
    wire.Repeated: _repeated_node,
}
"""How each kind becomes a node of a net."""


_Key = tuple[wire.Constraint, str, CompileLimits, str]
_OURS = RegularConstraint, UniqueItemsConstraint
_OTHER_ENGINE_BYTES = 1 << 20
_ENTRY_BYTES = 10 << 10
"""Of an entry beside its automaton and its masks: the specification, and the objects around it."""


class ConstraintCache:
    """Of different salts nothing is found, so that nobody can measure what others use."""

    def __init__(self, max_bytes: int = 128 << 20, limits: CompileLimits = DEFAULT_LIMITS) -> None:
        self._max_bytes = max_bytes
        self._limits = limits
        self._held: OrderedDict[_Key, Constraint] = OrderedDict()
        self._sizes: dict[_Key, int] = {}
        """When they were last measured."""
        self._owners: dict[_Key, str] = {}
        """Who had them compiled."""
        self._total = 0
        self._used: set[_Key] = set()
        """Those that may have grown since."""
        self._lock = Lock()

    def get(self, spec: wire.Constraint, vocabulary: Vocabulary) -> Constraint:
        """The constraint, compiled if needed. Raises what `compile_constraint` raises; errors are
        not cached.
        """
        found = self.peek(spec, vocabulary)
        return found or self.put(
            spec, vocabulary, compile_constraint(spec, vocabulary, self._limits)
        )

    def put(
        self,
        spec: wire.Constraint,
        vocabulary: Vocabulary,
        made: Constraint,
        salt: str = "",
        owner: str = "",
    ) -> Constraint:
        """Caches `made` unless there is an entry already; returns the cached one."""
        key = (spec, vocabulary.digest, self._limits, salt)
        with self._lock:
            made = self._held.setdefault(key, made)
            self._owners.setdefault(key, owner)
            self._held.move_to_end(key)
            for used in (*self._used, key):
                self._measure(used)
            self._used = {key}
            while len(self._held) > 1 and self._total > self._max_bytes:
                oldest, _ = self._held.popitem(last=False)
                self._total -= self._sizes.pop(oldest)
                self._used.discard(oldest)
                del self._owners[oldest]
        return made

    def _measure(self, key: _Key) -> None:
        """Constraints grow while they are used: those that were used are measured again, and not
        all, of which there may be thousands.
        """
        size = _size_of(self._held[key])
        self._total += size - self._sizes.get(key, 0)
        self._sizes[key] = size

    def peek(
        self, spec: wire.Constraint, vocabulary: Vocabulary, salt: str = ""
    ) -> Constraint | None:
        """The constraint if it is cached, else None."""
        key = (spec, vocabulary.digest, self._limits, salt)
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
                self._used.add(key)
            return found

    def clear(self) -> None:
        """Removes all entries; constraints in use live on until their calls end."""
        with self._lock:
            self._held.clear()
            self._sizes.clear()
            self._owners.clear()
            self._used.clear()
            self._total = 0

    @property
    def num_bytes(self) -> int:
        """An estimate of all, measured now."""
        with self._lock:
            return sum(map(_size_of, self._held.values()))

    def bytes_by_owner(self) -> dict[str, int]:
        """As they were last measured."""
        found: dict[str, int] = {}
        with self._lock:
            for key, owner in self._owners.items():
                found[owner] = found.get(owner, 0) + self._sizes[key]
        return found

    def __len__(self) -> int:
        return len(self._held)


def _size_of(held: Constraint) -> int:
    own = held.num_bytes if isinstance(held, _OURS) else _OTHER_ENGINE_BYTES
    return own + _ENTRY_BYTES
