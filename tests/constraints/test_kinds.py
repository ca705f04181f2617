"""Kinds of constraints are closed: who asks for their classes, and what a new kind has of itself."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, cast, get_args

import pytest

import lmprog
from lmprog import wire
from lmprog.backends.blackbox.call_answers import can_be_checked, fits
from lmprog.backends.blackbox.openai_body import sglang_constraint, structured_outputs
from lmprog.backends.blackbox.response_schema import OPENAI_SUBSET, format_of
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.inspect import accepts, byte_vocabulary
from lmprog.errors import InvalidParameter
from lmprog.lang.rehearsal.rehearsing import placeholder
from lmprog.wire.constraints import ConstraintKind
from lmprog.wire.default_limits import GENERAL, default_tokens
from tests.house import HOUSE, House, dotted, parsed

KINDS = get_args(wire.Constraint)
ASKERS = {
    "lmprog/tool_calls/structural_tags.py",
    "lmprog/constraints/compiling/compiler.py",
}
"""The reader of structural tags, and the compiler's table. A new kind is its message, a file that makes
its node, a name in `lmprog.wire`, a line of that table, a keyword of the client and a field over
HTTP; nothing else knows kinds by their class.
"""


def askers(house: House) -> dict[str, list[int]]:
    """The files that ask for the class of a kind, with the lines: `isinstance`, a `case`, a
    comparison of `type(...)`, and a table by class.
    """
    found: dict[str, list[int]] = {}
    names = {kind.__name__ for kind in KINDS}
    for path in house.paths:
        text = path.read_text()
        if not any(name in text for name in names):
            continue
        tree = parsed(path)
        imported = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lmprog.wire")
            for alias in node.names
            if alias.name in names
        }
        known = imported | {f"wire.{name}" for name in names}
        lines = [
            getattr(node, "lineno", 0)
            for node in ast.walk(tree)
            for asked in _asked(node)
            if any(dotted(part) in known for part in ast.walk(asked) if isinstance(part, ast.expr))
        ]
        if lines:
            found[path.relative_to(house.root).as_posix()] = lines
    return found


def _asked(node: ast.AST) -> list[ast.AST]:
    """The parts of a node that name the classes that it asks for."""
    if isinstance(node, ast.Call) and dotted(node.func) in ("isinstance", "issubclass"):
        return [*node.args[1:2]]
    if isinstance(node, ast.MatchClass):
        return [node.cls]
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        asks = any(isinstance(one, ast.Call) and dotted(one.func) == "type" for one in sides)
        return [*sides] if asks else []
    if isinstance(node, ast.Dict):
        return [key for key in node.keys if key is not None and not isinstance(key, ast.Call)]
    return []


def test_only_the_named_files_ask_for_the_class_of_a_kind() -> None:
    assert set(askers(HOUSE)) == ASKERS


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(x, wire.Regex | wire.Choices)",
        "match x:\n    case wire.Grammar(text):\n        pass",
        "type(x) is wire.JsonSchema",
        "table = {wire.Regex: 1}",
        "from lmprog.wire.constraints import AnyOf as One\nassert isinstance(x, (int, One))",
    ],
)
def test_a_planted_question_is_found(line: str, tmp_path: Path) -> None:
    folder = tmp_path / "lmprog"
    folder.mkdir()
    (folder / "a.py").write_text(f"{line}\n")
    (folder / "b.py").write_text("found = wire.Regex('a')\n")
    assert set(askers(House(tmp_path))) == {"lmprog/a.py"}


VIEWS: list[tuple[wire.Constraint, str]] = [
    (wire.Regex("a+"), "pattern"),
    (wire.JsonSchema("{}"), "schema"),
    (wire.Choices(("a.", "b")), "choices pattern"),
    (wire.Grammar('start: "a"'), "grammar"),
    (wire.InOrder((wire.Regex("a"),)), ""),
    (wire.AnyOf((wire.Regex("a"),)), ""),
    (wire.Repeated(wire.Regex("a"), 0, 1), ""),
    (wire.FreeText(("a",)), ""),
    (wire.Continued(wire.Regex("ab"), "a"), ""),
    (wire.PlainStrings("{}", "."), ""),
    (wire.Preferred(wire.Regex("a"), wire.Regex("b")), ""),
]


_WHOLE = (wire.Grammar, wire.Preferred, wire.Continued)


def test_every_kind_says_what_others_may_take_it_as() -> None:
    assert {type(one) for one, _ in VIEWS} == set(KINDS)
    for constraint, said in VIEWS:
        views = {name: getattr(constraint, f"as_{name}")() for name in _NAMES}
        assert [name for name, view in views.items() if view is not None] == said.split()
        assert constraint.is_portable == bool(said)
        assert constraint.is_whole == isinstance(constraint, _WHOLE)


_NAMES = ("choices", "pattern", "schema", "grammar")


def test_choices_are_the_same_as_a_pattern() -> None:
    choices = wire.Choices(("a.", "b|c"))
    made = compile_constraint(wire.Regex(choices.as_pattern()), byte_vocabulary())
    assert [accepts(made, text) for text in ("a.", "b|c", "ab", "b")] == [True, True, False, False]
    assert choices.without("a.") == wire.Choices(("b|c",))
    assert wire.Choices(("a",)).without("a") == wire.Choices(("a",))
    assert choices.without(None) == choices


class Digits(ConstraintKind, frozen=True):
    """A kind that no file of the package knows."""

    count: int

    def as_pattern(self) -> str:
        return f"[0-9]{{{self.count}}}"


class Unknown(ConstraintKind, frozen=True):
    """One that is nothing that others know."""


def test_a_new_kind_is_known_to_others_as_far_as_it_says_what_it_is() -> None:
    digits, unknown = cast("wire.Constraint", Digits(3)), cast("wire.Constraint", Unknown())
    assert structured_outputs(digits) == {"structured_outputs": {"regex": "[0-9]{3}"}}
    assert sglang_constraint(digits) == {"regex": "[0-9]{3}"}
    assert format_of(digits, OPENAI_SUBSET) is None
    assert can_be_checked(digits)
    assert [fits(digits, text) for text in ("123", "12")] == [True, False]
    assert placeholder(digits, "mark") == "100"
    assert default_tokens(digits) == GENERAL
    assert not unknown.is_portable
    assert not can_be_checked(unknown)
    assert placeholder(unknown, "mark") == "mark"


@pytest.mark.parametrize(
    "options",
    [{"regex": re.compile("a")}, {"grammar": 5}, {"schema": int}, {"structural_tag": {"type": 1}}],
)
def test_gen_and_constraint_refuse_a_mistaken_keyword_alike(options: dict[str, Any]) -> None:
    for ask in (lmprog.gen, lmprog.constraint):
        with pytest.raises(InvalidParameter, match=next(iter(options))):
            ask(**options)
