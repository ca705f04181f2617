"""Grammars for llguidance that would end or stop a process do so in a process of their own."""

from __future__ import annotations

import errno
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lmprog import wire
from lmprog.constraints.compiling import llguidance_engine as trial
from lmprog.constraints.compiling.compiler import compile_constraint
from lmprog.constraints.constraint import CompileLimits, Constraint
from lmprog.constraints.grammar.lark import read_lark
from lmprog.constraints.grammar.rules import (
    NeedsLlguidance,
    Part,
    RuleChoice,
    RuleRef,
    RuleSequence,
    nullable_rules,
    without_left_recursion,
)
from lmprog.constraints.vocabulary import Vocabulary
from lmprog.errors import GrammarError

pytest.importorskip("llguidance")


def chain(count: int) -> str:
    """Each rule leads to the next one."""
    rules = [f'r{i}::="x"r{i + 1}|"y"' for i in range(count)]
    return "\n".join(["root::=r0", *rules, f'r{count}::="z"'])


def loop(count: int) -> str:
    """Each rule begins with the next one, the last with the first."""
    rules = [f'r{i}::=r{(i + 1) % count}"x"|"y"' for i in range(count)]
    return "\n".join(["root::=r0", *rules])


def lark_chain(count: int) -> str:
    rules = [f'r{i}: "x" r{i + 1} | "y"' for i in range(count)]
    return "\n".join(["start: r0", *rules, f'r{count}: "z"'])


def empty_chain(count: int) -> str:
    rules = [f"r{i}::=r{i + 1}?" for i in range(count)]
    return "\n".join(["root::=r0", *rules, f'r{count}::="z"'])


def repeated_often(rules: str) -> str:
    """The same with a count that is left to llguidance."""
    return rules.replace('"z"', f'"z"{{{CompileLimits().max_repeat + 1}}}')


class Trials:
    """The processes that were begun."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.popen = subprocess.Popen

    def __call__(self, *args: Any, **options: Any) -> subprocess.Popen[bytes]:
        self.processes.append(self.popen(*args, **options))
        return self.processes[-1]


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trials]:
    made = Trials()
    own = SimpleNamespace(Popen=made, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(trial, "subprocess", own)
    yield made
    assert all(process.poll() is not None for process in made.processes), "none is left running"


def compiled(text: str, vocabulary: Vocabulary) -> Constraint:
    made = compile_constraint(wire.Grammar(text), vocabulary)
    made.mask(made.start)
    return made


@pytest.mark.parametrize("text", [loop(3500), lark_chain(3500)], ids=["loop", "chain"])
def test_a_grammar_deeper_than_a_thread_s_stack_is_served(
    text: str, small: Vocabulary, trials: Trials
) -> None:
    made = compiled(text, small)
    assert made.engine == "llguidance"
    assert made.advance_bytes(made.start, b"y") is not None
    assert len(trials.processes) == 1


@pytest.mark.parametrize("text", [chain(3930), empty_chain(3500)], ids=["chain", "empty"])
def test_rules_that_lead_to_each_other_are_read_here_however_far(
    text: str, small: Vocabulary, trials: Trials
) -> None:
    made = compiled(text, small)
    assert made.engine != "llguidance"
    end = made.advance_bytes(made.start, b"x" * 3930 + b"z" if "x" in text else b"z")
    assert end is not None
    assert made.is_final(end)
    assert trials.processes == []


@pytest.mark.parametrize(
    "text", [repeated_often(chain(3930)), repeated_often(empty_chain(3500))], ids=["chain", "empty"]
)
def test_a_grammar_that_takes_too_long_ends_its_trial_and_nothing_else(
    text: str, small: Vocabulary, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_SECONDS", 1)
    with pytest.raises(GrammarError, match="more than 1 s of processor time"):
        compiled(text, small)
    (process,) = trials.processes
    assert process.poll() not in (None, 0)


def test_a_grammar_that_overflows_the_stack_ends_its_trial_and_nothing_else(
    small: Vocabulary, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_STACK", 1 << 20)
    with pytest.raises(GrammarError, match="1 MB of stack"):
        compiled(lark_chain(3500), small)
    assert len(trials.processes) == 1


def test_a_grammar_that_takes_too_much_memory_ends_its_trial_and_nothing_else(
    small: Vocabulary, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_MEMORY", 120 << 20)
    with pytest.raises(GrammarError, match="the grammar is refused"):
        compiled(lark_chain(20_000), small)
    assert len(trials.processes) == 1


def test_a_trial_that_hangs_is_killed(
    small: Vocabulary, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_WATCHDOG_SECONDS", 0.0)
    with pytest.raises(GrammarError, match="needed more"):
        compiled(loop(1000), small)


def test_a_trial_that_nobody_waits_for_is_killed(small: Vocabulary, trials: Trials) -> None:
    def check() -> None:
        if trials.processes:
            raise GrammarError("nobody waits", position=None)

    with pytest.raises(GrammarError, match="nobody waits"):
        compile_constraint(wire.Grammar(loop(1000)), small, check=check)
    assert trials.processes[0].poll() not in (None, 0)


@pytest.mark.parametrize("lacking", ["process", "file", "thread"])
def test_a_grammar_is_refused_where_the_system_has_no_room_to_try_it(
    lacking: str, small: Vocabulary, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> Any:
        if lacking == "thread":
            raise RuntimeError("can't start new thread")
        raise BlockingIOError(errno.EAGAIN, "no more are left")

    place, name = {
        "process": (trials, "popen"),
        "file": (tempfile, "TemporaryFile"),
        "thread": (threading.Thread, "start"),
    }[lacking]
    monkeypatch.setattr(place, name, refuse)
    text = loop(20) + "\n" + "\n".join(f'unused{i}::="x"' for i in range(200))
    with pytest.raises(GrammarError, match=r"the grammar is refused: .* the system did not give"):
        compiled(text, small)
    monkeypatch.undo()
    assert compiled(text, small).engine == "llguidance"


def test_a_wrong_grammar_is_refused_with_what_llguidance_says_of_it(
    small: Vocabulary, trials: Trials
) -> None:
    text = lark_chain(200) + "\nother: %nothing"
    with pytest.raises(GrammarError, match=r"the grammar is refused: .*reader does not take it"):
        compiled(text, small)


def test_a_small_grammar_begins_no_process(small: Vocabulary, trials: Trials) -> None:
    text = loop(100)
    assert len(text) <= trial.MAX_UNTRIED
    assert compiled(text, small).engine == "llguidance"
    assert trials.processes == []


def test_a_tried_grammar_allows_what_the_same_small_one_allows(
    small: Vocabulary, trials: Trials
) -> None:
    padded = loop(20) + "\n" + "\n".join(f'unused{i}::="x"' for i in range(200))
    one, other = compiled(loop(20), small), compiled(padded, small)
    assert len(trials.processes) == 1
    left, right = one.start, other.start
    for letter in b"yxxx":
        assert (one.mask(left).bits == other.mask(right).bits).all()
        left_after = one.advance_bytes(left, bytes([letter]))
        right_after = other.advance_bytes(right, bytes([letter]))
        assert left_after is not None
        assert right_after is not None
        left, right = left_after, right_after


def rules_of(begins: dict[str, list[str]]) -> dict[str, Part]:
    return {
        name: RuleChoice(tuple(RuleSequence((RuleRef(one),)) for one in others))
        for name, others in begins.items()
    }


def test_rules_that_begin_with_themselves_are_found_however_long_the_way() -> None:
    count = 20_000
    line = {f"r{i}": [f"r{i + 1}"] for i in range(count)} | {f"r{count}": []}
    calls = [0]

    def check() -> None:
        calls[0] += 1

    without_left_recursion(rules_of(line), check)
    assert nullable_rules(rules_of(line), check) == frozenset()
    assert calls[0] < 10 * count, "in linear time"
    for start, looped in ((0, "'r0'"), (count // 2, f"'r{count // 2}'")):
        with pytest.raises(NeedsLlguidance, match=looped):
            without_left_recursion(rules_of(line | {f"r{count}": [f"r{start}"]}), check)


def test_empty_rules_are_found_in_linear_time_in_any_order() -> None:
    count = 5000
    calls = [0]

    def check() -> None:
        calls[0] += 1

    line = {f"r{i}": RuleRef(f"r{i + 1}") for i in range(count)} | {f"r{count}": RuleSequence(())}
    for rules in (line, dict(reversed(line.items()))):
        assert len(nullable_rules(rules, check)) == count + 1
    assert calls[0] < 10 * count


def test_a_compile_s_time_includes_the_reading_of_rules(small: Vocabulary) -> None:
    begin = time.thread_time()

    def check() -> None:
        if time.thread_time() - begin > 0.3:
            raise GrammarError("enough", position=None)

    text = "\n".join(reversed(lark_chain(3000).split("\n")))
    try:
        compile_constraint(wire.Grammar(text), small, check=check)
    except GrammarError as error:
        assert "enough" in error.message  # noqa: PT017
    assert time.thread_time() - begin < 10


@pytest.mark.parametrize("body", ["R{0} R{0}", "R{0} | R{0} R{0}", "(R{0} R{0})+"])
def test_terminals_that_double_are_not_written_out(body: str) -> None:
    rules = [f"R{i}: {body.format(i + 1)}" for i in range(26)]
    text = "\n".join(["start: R0", *rules, 'R26: "k"'])
    with pytest.raises(NeedsLlguidance, match="when written out"):
        read_lark(text, CompileLimits())
