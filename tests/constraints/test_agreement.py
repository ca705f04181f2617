"""Other people's engine, llguidance, on random patterns, schemas and grammars; a rule says where
the two disagree.
"""

from __future__ import annotations

import json
import os
import random
import re
import unicodedata
from collections.abc import Iterator
from decimal import Decimal, localcontext

import jsonschema
import pytest

from lmprog import wire
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.compiling.llguidance_engine import _Tokenizer
from lmprog.constraints.constraint import CompileLimits, Constraint, never_stop
from lmprog.constraints.grammar.read import read_gbnf
from lmprog.constraints.grammar.rules import (
    Part,
    RuleChoice,
    RuleRef,
    RuleRounds,
    RuleSequence,
    RuleTerminal,
    reachable,
)
from lmprog.constraints.inspect import accepts, byte_vocabulary, example
from lmprog.constraints.text_set import matches
from lmprog.errors import GrammarError, RequestRejected, UnsatisfiableConstraint
from tests.constraints.random_grammars import mutated, random_grammar
from tests.constraints.random_patterns import random_pattern, random_text
from tests.constraints.test_random_schemas import random_schema

llguidance = pytest.importorskip("llguidance")

SEED = int(os.environ.get("LMPROG_AGREEMENT_SEED", "20261121"))
"""Fixed unless it is asked for: a difference between two engines that has no name yet is no failure
of this change.
"""
PATTERN_PAIRS, SCHEMA_PAIRS, GRAMMAR_PAIRS, NAIVE_PAIRS = 8_000, 5_000, 7_500, 1_000
SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """The same for each test of this file at every run; `LMPROG_AGREEMENT_SEED` tries others."""
    print(f"seed {SEED}")
    return random.Random(f"{SEED}:{request.node.name}")


class Theirs:
    """What llguidance makes of a specification."""

    _vocabulary = byte_vocabulary()
    _tokenizer = llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(_Tokenizer(_vocabulary)),
        n_vocab=len(_vocabulary),
        eos_token=list(_vocabulary.eos_ids),
    )

    def __init__(self, spec: wire.Constraint) -> None:
        """Raises ValueError where it refuses."""
        matcher = llguidance.LLMatcher
        if isinstance(spec, wire.Regex):
            grammar = matcher.grammar_from_regex(spec.pattern)
        elif isinstance(spec, wire.JsonSchema):
            grammar = matcher.grammar_from_json_schema(spec.schema, overrides=SPACING)
        else:
            assert isinstance(spec, wire.Grammar)
            grammar = llguidance.grammar_from("gbnf" if "::=" in spec.text else "lark", spec.text)
        self._root = matcher(self._tokenizer, grammar, log_level=0)
        if self._root.is_error():
            raise ValueError(self._root.get_error())

    def accepts(self, text: str) -> bool:
        matcher = self._root.deep_copy()
        tokens = [1 + byte for byte in text.encode()]
        taken = matcher.try_consume_tokens(tokens) if tokens else 0
        return bool(taken == len(tokens) and matcher.is_accepting())


def ours(spec: wire.Constraint) -> Constraint | None:
    """None where nothing at all matches, or we refuse."""
    try:
        return compile_constraint(spec, byte_vocabulary())
    except RequestRejected:
        return None


def both(spec: wire.Constraint) -> tuple[Constraint, Theirs] | None:
    made = ours(spec)
    if made is None or made.engine != "lmprog":
        return None
    try:
        return made, Theirs(spec)
    except ValueError:
        return None


def texts(made: Constraint, rng: random.Random, count: int) -> Iterator[str]:
    """Texts that match, and others near them."""
    for _ in range(count):
        try:
            text = example(made, byte_vocabulary(), rng.randrange(1 << 30))
        except GrammarError:  # a deep recursion outgrew its limits
            return
        yield text
        yield mutated(rng, text)


def is_classed_otherwise(char: str) -> bool:
    r"""Where Python's `\s \w \d` differ from Unicode's rules for regular expressions, which
    llguidance follows: four separators are blanks; marks, letter-like numbers and joiners are no
    letters; newer Unicode has more letters.
    """
    category = unicodedata.category(char)
    return (
        char in "\x1c\x1d\x1e\x1f"
        or category[0] == "M"
        or category in ("Nl", "No", "Pc", "So", "Cf", "Cn")
    )


@pytest.mark.timeout(300)
def test_patterns_mean_the_same_but_for_characters_that_unicode_classes_otherwise(
    rng: random.Random,
) -> None:
    pairs = disagreements = 0
    while pairs < PATTERN_PAIRS:
        pattern = random_pattern(rng)
        found = both(wire.Regex(pattern))
        if found is None:  # it has no `{,2}`
            continue
        made, theirs = found
        for text in [*texts(made, rng, 8), *(random_text(rng) for _ in range(8))]:
            pairs += 1
            here = accepts(made, text)
            assert here == (re.fullmatch(pattern, text) is not None), (pattern, text)
            if here != theirs.accepts(text):
                disagreements += 1
                assert re.search(r"\\[swdW]", pattern), (pattern, text)
                assert any(map(is_classed_otherwise, text)), (pattern, text)
    print(f"{pairs} pairs, {disagreements} disagreements")


@pytest.mark.timeout(300)
def test_schemas_mean_the_same_but_for_spellings_that_only_we_take(rng: random.Random) -> None:
    """Valid texts of ours that they refuse: DEL as it is, letters as escapes, bounded numbers with
    a fraction of zeros, minus zero. They take nothing valid that we refuse, and we take nothing
    invalid."""
    pairs = disagreements = 0
    while pairs < SCHEMA_PAIRS:
        text = json.dumps(random_schema(rng, 2))
        found = both(wire.JsonSchema(text)) if text.startswith("{") else None
        if found is None:
            continue
        made, theirs = found
        judge = jsonschema.Draft202012Validator(json.loads(text, parse_float=Decimal))
        for instance in texts(made, rng, 6):
            pairs += 1
            here = accepts(made, instance)
            if here == theirs.accepts(instance):
                continue
            disagreements += 1
            with localcontext(prec=1000):
                valid = judge.is_valid(json.loads(instance, parse_float=Decimal))
            assert valid == here, (text, instance)
            if here:
                bounded = any(
                    word in text
                    for word in ("multipleOf", "maximum", "minimum", "Maximum", "Minimum")
                )
                spelled = (
                    "\x7f" in instance
                    or "\\" in instance
                    or (bounded and ("." in instance or "-0" in instance))
                )
                assert spelled, (text, instance)
    print(f"{pairs} pairs, {disagreements} disagreements")


@pytest.mark.timeout(300)
def test_grammars_mean_the_same_but_where_their_lexer_is_greedy(rng: random.Random) -> None:
    """GBNF has no lexer, but they read it with one: there we take more. The same grammar as Lark is
    not ours then, or they take the text where it is written as Lark."""
    pairs = disagreements = 0
    while pairs < GRAMMAR_PAIRS:
        gbnf, lark = random_grammar(rng)
        for text in (gbnf, lark):
            found = both(wire.Grammar(text))
            if found is None:
                continue
            made, theirs = found
            for one in [
                *texts(made, rng, 6),
                *("".join(rng.choices("abc()é", k=rng.randint(0, 5))) for _ in range(4)),
            ]:
                pairs += 1
                here = accepts(made, one)
                if here != theirs.accepts(one):
                    disagreements += 1
                    assert here, (text, one)
                    assert text == gbnf, (text, one)
                    other = ours(wire.Grammar(lark))
                    ambiguous = other is None or other.engine == "llguidance"
                    assert ambiguous or Theirs(wire.Grammar(lark)).accepts(one), (text, one)
    print(f"{pairs} pairs, {disagreements} disagreements")


class Naive:
    """A recogniser that looks for every way to cut a text, for rules as they are written, left
    recursion included.
    """

    def __init__(self, rules: dict[str, Part], text: str) -> None:
        self._text = text
        self._ends: dict[tuple[str, int], frozenset[int]] = {
            (name, begin): frozenset() for name in rules for begin in range(len(text) + 1)
        }
        changed = True
        while changed:
            changed = False
            for (name, begin), known in self._ends.items():
                now = self._of(rules[name], begin)
                if now != known:
                    self._ends[name, begin] = now
                    changed = True

    def accepts(self) -> bool:
        return len(self._text) in self._ends["root", 0]

    def _of(self, part: Part, begin: int) -> frozenset[int]:
        if isinstance(part, RuleTerminal):
            ends = range(begin, len(self._text) + 1)
            return frozenset(end for end in ends if matches(part.expression, self._text[begin:end]))
        if isinstance(part, RuleRef):
            return self._ends[part.rule, begin]
        if isinstance(part, RuleChoice):
            return frozenset(end for item in part.items for end in self._of(item, begin))
        at = frozenset([begin])
        if isinstance(part, RuleSequence):
            for item in part.items:
                at = self._from_each(item, at)
            return at
        assert isinstance(part, RuleRounds)
        found: frozenset[int] = at if part.low == 0 else frozenset()
        for number in range(1, len(self._text) + 2 + part.low):
            at = self._from_each(part.item, at)
            found |= (
                at
                if number >= part.low and (part.high is None or number <= part.high)
                else frozenset()
            )
        return found

    def _from_each(self, part: Part, begins: frozenset[int]) -> frozenset[int]:
        return frozenset(end for begin in begins for end in self._of(part, begin))


@pytest.mark.timeout(300)
def test_a_gbnf_grammar_takes_what_some_way_of_cutting_allows(rng: random.Random) -> None:
    pairs = 0
    while pairs < NAIVE_PAIRS:
        gbnf, _ = random_grammar(rng)
        try:
            made = compile_constraint(wire.Grammar(gbnf), byte_vocabulary())
        except UnsatisfiableConstraint:
            continue
        if made.engine != "lmprog":
            continue
        rules = reachable(read_gbnf(gbnf, CompileLimits()), "root", never_stop)
        for text in [
            *texts(made, rng, 3),
            *("".join(rng.choices("abc()é", k=rng.randint(0, 5))) for _ in range(3)),
        ]:
            if len(text) <= 12:
                pairs += 1
                assert accepts(made, text) == Naive(rules, text).accepts(), (gbnf, text)
