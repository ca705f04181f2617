"""Context-free grammars: ours where they can be nets, llguidance's elsewhere; one interface, errors
of our own.
"""

from __future__ import annotations

import random
import re
import sys
import time

import pytest

from lmprog import wire
from lmprog.constraints.automaton import Automaton
from lmprog.constraints.compiling import llguidance_engine
from lmprog.constraints.compiling.compiler import compile_constraint, regular_net
from lmprog.constraints.constraint import CompileLimits
from lmprog.constraints.grammar.read import grammar_node
from lmprog.constraints.grammar.rules import NeedsLlguidance
from lmprog.constraints.inspect import accepts
from lmprog.constraints.net import NetBuilder
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import GrammarError, NotSupported
from tests.constraints.conftest import EOS
from tests.constraints.test_masks import finish

pytest.importorskip("llguidance")

NESTED = 'start: "a" start "b" | "c"'
GBNF = 'root ::= "a" root "b" | "c"'
THEIRS = 'start: "a" start "b" | "c" | other\nother: start "d" | other "d"'
"""The same, and rules that begin with each other: not ours."""

CALCULATOR = r"""
?start: sum
?sum: product | sum "+" product -> add | sum "-" product -> sub   // begins with itself
?product: atom | product "*" atom
?atom: NUMBER -> number | "-" atom -> neg | "(" sum ")"
NUMBER: DIGIT+ ("." DIGIT+)?
%import common.DIGIT
%import common.WS_INLINE
%ignore WS_INLINE
"""
ASSIGNMENTS = r"""
root ::= (ident "=" ws expr ";" ws)+  # one or more
expr ::= term ([-+*/] ws term)*
term ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]{0,7} ws
num ::= [0-9]+ ws
ws ::= [ \t\n]*
"""


@pytest.mark.parametrize(
    ("text", "engine"), [(NESTED, "lmprog"), (GBNF, "lmprog"), (THEIRS, "llguidance")]
)
def test_a_grammar_takes_its_texts(text: str, engine: str, small: Vocabulary) -> None:
    constraint = compile_constraint(wire.Grammar(text), small)
    assert constraint.engine == engine
    for good in (b"c", b"acb", b"aaaacbbbb"):
        state = constraint.advance_bytes(constraint.start, good)
        assert state is not None
        assert constraint.is_final(state)
        assert constraint.is_done(state) or engine == "llguidance"
    for bad in (b"b", b"acbb", b"ab"):
        assert constraint.advance_bytes(constraint.start, bad) is None
    half = constraint.advance_bytes(constraint.start, b"aac")
    assert half is not None
    assert not constraint.is_final(half)
    assert engine == "llguidance" or constraint.forced(half) == b"bb"


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        (
            CALCULATOR,
            ["1", "1+2*3", " ( 1.5 - -2 ) *7 ", "((((4))))"],
            ["", "1+", "1 2", "(1", "1.", "1..2"],
        ),
        (
            ASSIGNMENTS,
            ["a=1;", "abc = (x+ 2)*y ;\nb=c;"],
            ["", "a=1", "a==1;", "abcdefghi=1;", "a=();"],
        ),
        (
            'start: "x"~2..3 ["y"] /[a-c]+/i | "K"i',
            ["xxa", "xxxyABC", "k"],
            ["x", "xxxx", "xxy", "kk"],
        ),
        ('start: A | "-" A\nA: "0".."3" B?\nB: "b" | "c"', ["0", "3b", "-2c"], ["4", "0bb", "--1"]),
        (
            'root ::= "\\x41\\u00e9" . [^a-c\\]\\n] "z"{2}',
            ["Aé\nxzz"],
            ["Aé\nazz", "Aéx]zz", "Aéxxz"],
        ),
        ('root ::= a\n  | b\na ::= ("x"\n | "y")\nb ::= "z" b?', ["x", "y", "zzz"], ["", "xz"]),
    ],
)
def test_our_reader_means_what_is_written(
    text: str, good: list[str], bad: list[str], small: Vocabulary
) -> None:
    constraint = compile_constraint(wire.Grammar(text), small)
    assert constraint.engine == "lmprog"
    for one in good:
        assert accepts(constraint, one), one
    for one in bad:
        assert not accepts(constraint, one), one


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('start: "if" NAME | NAME "=" NAME\nNAME: /[a-z]+/', "greedy"),
        ("start: /a+/ /a/", "greedy"),
        ("start: /a*/", "empty"),
        ('root ::= a "x" | "y"\na ::= root "z"', "begins with itself"),
        ('root ::= b? root "x" | "y"\nb ::= "z"', "begins with itself"),
        ('start: "a"\n%declare B', "%declare"),
        ("start: A\nA: B\nB: A", "by itself"),
        ("start: A B\nA.2: /a/\nB: /ab+/", "greedy"),
        ("start: x{A}\nx{y, z}: y\nA: /a/", "2 arguments"),
        ("start: x{A}\nA: /a/", "no template"),
        ("start: NOTHING\n%import common.NOTHING", "import"),
        ('start: "a"\n\nb: "c" ->', "line 3"),
    ],
)
def test_what_our_reader_does_not_take_says_why(text: str, word: str) -> None:
    with pytest.raises(NeedsLlguidance, match=word):
        grammar_node(wire.Grammar(text), NetBuilder(), CompileLimits())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('root ::= "a" (\n  | "b"\n', "line 3, column 1: `)` is expected"),
        ("root ::= a\n\na ::= [z-b]  # b", "line 3, column 11: a range that ends"),
        ('root ::= "a" x\n', "line 1, column 14: there is no rule 'x', in 'root ::= \"a\" x'"),
        ('x ::= "a"\n', "line 2, column 1: there is no rule 'root'"),
        ('root ::= "a', "line 1, column 12: an unfinished literal"),
        ('root ::= "a"{3,2}', "line 1, column 18: a count"),
        ('root ::= "a" <[12]>', "line 1, column 14: references to tokens"),
        ('root ::= "a"\nb = "c"', "line 2, column 3: `::=` is expected"),
    ],
)
def test_what_is_wrong_in_gbnf_is_shown_in_the_users_line(
    text: str, message: str, small: Vocabulary
) -> None:
    with pytest.raises(GrammarError, match=re.escape(message)):
        compile_constraint(wire.Grammar(text), small)


CALC = """
    ?start: sum
          | NAME "=" sum    -> assign_var
    ?sum: product
        | sum "+" product   -> add
        | sum "-" product   -> sub
    ?product: atom
        | product "*" atom  -> mul
        | product "/" atom  -> div
    ?atom: NUMBER           -> number
         | "-" atom         -> neg
         | NAME             -> var
         | "(" sum ")"
    %import common.CNAME -> NAME
    %import common.NUMBER
    %import common.WS_INLINE
    %ignore WS_INLINE
"""
JSON = r"""
    ?start: value
    ?value: object
          | array
          | string
          | SIGNED_NUMBER      -> number
          | "true"             -> true
          | "false"            -> false
          | "null"             -> null
    array  : "[" [value ("," value)*] "]"
    object : "{" [pair ("," pair)*] "}"
    pair   : string ":" value
    string : ESCAPED_STRING
    %import common.ESCAPED_STRING
    %import common.SIGNED_NUMBER
    %import common.WS
    %ignore WS
"""
SEPARATED = """
start: "[" _separated{item, ","} "]" | pair{WORD, WORD}
_separated{x, sep}: x (sep x)*
pair{x, y}: "<" x "="
   _separated{y, "|"} ">"
item: NUMBER | "(" _separated{item, ";"} ")"
NUMBER.2: /[0-9]+/
WORD.1: /[a-z]+/
"""


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        (CALC, ["x = 1.5e3 * (y - .5)", "1+2", "-a1/2."], ["x = ", "1 2", "=1", "1..5", "1e"]),
        (
            JSON,
            ['{"a\\"b" : [1, -2.5e-3, true, {}], "": null}', "[]", ' "x" '],
            ['{"a": }', "[1,]", '"a', '"\n"', "tru", "01a"],
        ),
        (
            SEPARATED,
            ["[1,22,(3;(4;5))]", "[7]", "<ab=c|d>"],
            ["[]", "<ab=>", "[1,]", "[1;2]", "[(1,2)]"],
        ),
    ],
    ids=["calc", "json", "templates"],
)
def test_larks_own_examples_are_ours(
    text: str, good: list[str], bad: list[str], small: Vocabulary, rng: random.Random
) -> None:
    constraint = compile_constraint(wire.Grammar(text), small)
    assert constraint.engine == "lmprog"
    for one in good:
        assert accepts(constraint, one), one
    for one in bad:
        assert not accepts(constraint, one), one
    for budget in (constraint.distance(constraint.start), 40):
        finish(constraint, budget, rng, small)


COMMON = {
    "DIGIT": ("7", "a"), "HEXDIGIT": ("f", "g"), "INT": ("12", "-1"), "SIGNED_INT": ("+12", "1.0"),
    "DECIMAL": ("1.", "."), "_EXP": ("e-5", "e"), "FLOAT": ("1e5", "1"), "SIGNED_FLOAT": ("-.5", "-5"),
    "NUMBER": ("3.25E+2", "-1"), "SIGNED_NUMBER": ("-3", "--3"), "LCASE_LETTER": ("a", "A"),
    "ESCAPED_STRING": (r'"a\"\\"', r'"a\"'), "UCASE_LETTER": ("A", "a"), "LETTER": ("z", "1"),
    "WORD": ("ab", "a b"), "CNAME": ("_a1", "1a"), "WS_INLINE": (" \t", "\n"), "WS": ("\r\n", "a"),
    "CR": ("\r", "\n"), "LF": ("\n", "\r"), "NEWLINE": ("\r\n\n", "\r"), "SH_COMMENT": ("# a", "# a\n"),
    "CPP_COMMENT": ("//", "/"), "C_COMMENT": ("/* a\n**/", "/* */ */"), "SQL_COMMENT": ("-- a", "- a"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMON)
def test_every_common_terminal_of_lark_can_be_imported(name: str, small: Vocabulary) -> None:
    text = f'start: "<" T ">"\n%import common.{name} -> T'
    constraint = compile_constraint(wire.Grammar(text), small)
    good, bad = COMMON[name]
    if constraint.engine == "lmprog":
        assert accepts(constraint, f"<{good}>")
        assert not accepts(constraint, f"<{bad}>")
    else:
        assert name.endswith("COMMENT"), "a comment to the end of the line swallows what follows"


@pytest.mark.parametrize("text", [NESTED, GBNF, CALCULATOR, ASSIGNMENTS, SEPARATED])
def test_a_grammar_of_ours_always_closes(text: str, small: Vocabulary, rng: random.Random) -> None:
    constraint = compile_constraint(wire.Grammar(text), small)
    shortest = constraint.distance(constraint.start)
    for budget in (shortest, shortest + 1, shortest + 30):
        for _ in range(20):
            finish(constraint, budget, rng, small)


def test_masks_agree_with_advances_and_forks_are_independent(small: Vocabulary) -> None:
    constraint = compile_constraint(wire.Grammar(THEIRS), small)
    state = constraint.advance_bytes(constraint.start, b"a")
    assert state is not None
    row = constraint.mask(state)
    for token in range(len(small)):
        if row.allows(token):
            assert token == EOS or constraint.advance(state, token)
        else:
            with pytest.raises(ValueError, match="not allowed"):
                constraint.advance(state, token)
    left, right = constraint.advance(state, 1 + ord("a")), constraint.advance(state, 1 + ord("c"))
    assert constraint.mask(left).allows(1 + ord("c"))
    assert not constraint.mask(right).allows(1 + ord("c"))


def test_end_of_sequence_is_allowed_exactly_in_accepting_states(small: Vocabulary) -> None:
    constraint = compile_constraint(wire.Grammar('start: "a" ("b" "c")*'), small)
    state = constraint.start
    for letter, final in [(b"a", True), (b"b", False), (b"c", True)]:
        after = constraint.advance_bytes(state, letter)
        assert after is not None
        state = after
        assert constraint.mask(state).allows(EOS) == constraint.is_final(state) == final


def test_a_forgotten_matcher_is_made_again(
    small: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llguidance_engine, "_MAX_MATCHERS", 2)
    constraint = compile_constraint(wire.Grammar(THEIRS), small)
    states = [constraint.start]
    for _ in range(12):
        states.append(constraint.advance(states[-1], 1 + ord("a")))
    middle = constraint.advance_bytes(states[3], b"c")
    assert middle is not None
    assert constraint.advance_bytes(middle, b"bbb") is not None
    assert constraint.advance_bytes(middle, b"bbbb") is None


@pytest.mark.parametrize("text", ["start: x", "root ::= (", "", "start: ("])
def test_a_bad_grammar_is_refused(text: str, small: Vocabulary) -> None:
    with pytest.raises(GrammarError):
        compile_constraint(wire.Grammar(text), small)


def test_without_llguidance_the_refusal_says_what_to_install(
    small: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(NotSupported, match="install"):
        compile_constraint(wire.Grammar(THEIRS), small)
    assert compile_constraint(wire.Grammar(NESTED), small).engine == "lmprog"


@pytest.mark.parametrize(
    "text", ['root ::= "a" root root | "a" root* "b"? | "a"', 'root ::= ("a" root)* root* "c"']
)
def test_a_grammar_that_reads_a_text_in_too_many_ways_is_not_ours(
    text: str, small: Vocabulary
) -> None:
    assert compile_constraint(wire.Grammar(text), small).engine == "llguidance"


def test_an_ambiguous_net_is_refused_soon_and_not_walked_for_ever(small: Vocabulary) -> None:
    text = 'root ::= "a" root root | "a" root* "b"? | "a"'
    engine = Automaton(regular_net(wire.Grammar(text), small), small, CompileLimits())
    begin = time.process_time()
    with pytest.raises(GrammarError, match="too much of its constraint"):
        engine.run(engine.start, b"a" * 200)
    assert time.process_time() - begin < 20
