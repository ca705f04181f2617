"""One word, one idea: what the words of the package's folders, modules and type aliases stand for.

`WORDS` says of each word what it means and where modules may be named by it. The lists of what is
known to break a rule may only become shorter.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.house import HOUSE, parsed


@dataclass(frozen=True, slots=True)
class Word:
    """An idea, and the modules (each with all below it) that may be named by its word."""

    idea: str
    homes: str

    def is_at_home(self, module: str) -> bool:
        return any(
            module == home or module.startswith(f"{home}.")
            for home in (f"lmprog.{name}" for name in self.homes.split())
        )


WORDS = {
    "call": Word(
        "a generation, a selection or another question of a program, from its op to its last reply",
        "lang.branches lang.service_calls backends runtime.programs",
    ),
    "tool_call": Word(
        "a model's wish that a function runs, and how a model writes it",
        "tool_calls wire.tool_calls lang.ops.tool_calls runtime.text.tool_call_derivation "
        "backends.blackbox.tool_call_fields",
    ),
    "checkpoint": Word(
        "the file of a run, from which the run goes on", "lang.checkpoints lang.branches"
    ),
    "trace": Word(
        "when the runs and calls of programs began and ended, for whoever reads it later",
        "lang.streaming.trace_events lang.runs.trace_file cli.trace",
    ),
    "span": Word("a part of a request with a beginning and an end, for OpenTelemetry", "server"),
    "native": Word(
        "compiled code, and what calls it",
        "native runtime.engine",
    ),
    "dialect": Word("how one HTTP API names and shapes what all have", "server backends.blackbox"),
    "page": Word("a fixed number of tokens' keys and values in memory or on disk", "runtime radix"),
    "step": Word("one pass of the engine over a batch", "runtime"),
    "reply": Word("a message of the runtime to a client", "wire backends simulation"),
    "replay": Word("a recorded run, done again", "lang.runs.run_replay cli.replay"),
    "rehearsal": Word("a program run without a model, for what it would do", "lang.rehearsal"),
    "fleet": Word(
        "several runtimes that look like one",
        "fleet cli.fleet server.supervision backends.connecting",
    ),
    "launch": Word("how a runtime's process begins and ends", "launch"),
    "radix": Word("the tree of cached prefixes", "radix"),
    "tier": Word("memory behind the engine's own, for pages", "runtime.tier"),
    "rank": Word(
        "one of the processes that share a model", "runtime.ranks runtime.engine.sharded launch"
    ),
    "adapter": Word("a low-rank change of a model's weights", "runtime.engine"),
    "draft": Word("tokens that are guessed and then checked", "runtime"),
}
"""A plural, a participle or an `-ing` counts as the word: `native`, `tracing`, `checkpointed`."""

MISNAMED = {
    "lmprog.runtime.documents.checkpoint_documents": "checkpoint",  # a model's folder
    "lmprog.runtime.engine.model.checkpoint": "checkpoint",
    "lmprog.runtime.engine.model.checkpoint_digests": "checkpoint",
    "lmprog.server.page": "page",
}
"""Modules that are named by a word of another idea, with the word."""
MOST_MISNAMED = 4

TWICE: set[str] = set()
"""Names of type aliases that two modules define."""
MOST_TWICE = 0


def _stem(part: str) -> str:
    """The word of the table that `part` is a form of, or `part`."""
    for end, instead in (("ies", "y"), ("s", ""), ("ed", ""), ("ing", ""), ("ing", "e"), ("d", "")):
        if part.endswith(end) and part.removesuffix(end) + instead in WORDS:
            return part.removesuffix(end) + instead
    return part


def words_in(name: str) -> Iterator[str]:
    """The words of the table in a module's last name: a longer one hides those within it."""
    stems = [_stem(part) for part in name.split("_")]
    at = 0
    while at < len(stems):
        pair = "_".join(stems[at : at + 2])
        if pair in WORDS:
            yield pair
            at += 2
            continue
        if stems[at] in WORDS:
            yield stems[at]
        at += 1


def misnamed(modules: set[str]) -> set[tuple[str, str]]:
    """Modules whose own name has a word of the table that is not at home there."""
    return {
        (module, word)
        for module in modules
        for word in words_in(module.rpartition(".")[2])
        if not WORDS[word].is_at_home(module)
    }


def aliases_of(tree: ast.Module) -> Iterator[str]:
    """The public type aliases that a module defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            is_alias = ast.unparse(node.annotation).rpartition(".")[2] == "TypeAlias"
            if is_alias and not node.target.id.startswith("_"):
                yield node.target.id


def defined_twice(trees: dict[str, ast.Module]) -> set[str]:
    places: dict[str, set[str]] = defaultdict(set)
    for module, tree in trees.items():
        for name in aliases_of(tree):
            places[name].add(module)
    return {name for name, modules in places.items() if len(modules) > 1}


def test_no_module_is_named_by_a_word_of_another_idea() -> None:
    assert misnamed(HOUSE.modules) - set(MISNAMED.items()) == set()
    assert len(MISNAMED) <= MOST_MISNAMED, "the list may only become shorter"


def test_a_type_alias_is_defined_in_one_module() -> None:
    trees = {
        HOUSE.module_of(path): parsed(path)
        for path in HOUSE.paths
        if "TypeAlias" in path.read_text()
    }
    assert defined_twice(trees) - TWICE == set()
    assert len(TWICE) <= MOST_TWICE, "the list may only become shorter"


def test_every_home_of_a_word_exists() -> None:
    homes = {home for word in WORDS.values() for home in word.homes.split()}
    assert {home for home in homes if f"lmprog.{home}" not in HOUSE.modules} == set()


@pytest.mark.parametrize(
    ("module", "found"),
    [
        ("lmprog.calls", ["call"]),
        ("lmprog.tool_calls", []),
        ("lmprog.server.tool_calls", ["tool_call"]),
        ("lmprog.cli.checkpointed", ["checkpoint"]),
        ("lmprog.server.observability.tracing", ["trace"]),
        ("lmprog.server.native_replies", ["native", "reply"]),
        ("lmprog.runtime.native_masks", ["native"]),
        ("lmprog.runtime.engine.native", []),
    ],
)
def test_a_word_in_the_wrong_place_is_found(module: str, found: list[str]) -> None:
    assert sorted(word for _, word in misnamed({module})) == found


def test_an_alias_that_is_defined_twice_is_found() -> None:
    one = ast.parse("Kind: TypeAlias = str\n_Own: TypeAlias = str\nOther: TypeAlias = int\n")
    two = ast.parse("Kind: typing.TypeAlias = int\n_Own: TypeAlias = int\nOther: int = 3\n")
    assert defined_twice({"one": one, "two": two}) == {"Kind"}
