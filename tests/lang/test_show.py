"""Shown runs: every part of the text is there once, and is what the runtime's counts say that it
is.
"""

from __future__ import annotations

import io
import re
import time

import pytest

import lmprog
from lmprog.backends.client import RuntimeBackend
from lmprog.errors import ContextOverflow, TokenBudgetExceeded
from lmprog.lang.runs.work_view import ShownPart, parts_of
from lmprog.launch import greet
from lmprog.testing import Hold, Scripted
from tests.lang.small_runtime import Real


@lmprog.function
def program(s: lmprog.Branch, prefix: str) -> None:
    s.append(prefix)
    first = s.gen("first", max_tokens=5, ignore_eos=True)
    s.append(f" then {first} and ")
    s.gen("second", max_tokens=4, ignore_eos=True)
    s.append(" the end")


def test_what_an_earlier_run_computed_is_shown_as_cached(backend: RuntimeBackend) -> None:
    fresh, again, longer = (
        program.using(backend=backend, temperature=0).run(prefix)
        for prefix in ("a long prefix ", "a long prefix ", "a long prefix and more")
    )
    assert [part.kind for part in parts_of(fresh.branch.cursor)][:2] == ["computed", "generated"]
    assert [part.kind for part in parts_of(again.branch.cursor)][:2] == ["cached", "generated"]
    assert [part.kind for part in parts_of(longer.branch.cursor)][:2] == [
        "partly cached",
        "generated",
    ]
    assert parts_of(fresh.branch.cursor)[-1] == ShownPart("unused", " the end")


def test_the_parts_are_the_text(backend: RuntimeBackend) -> None:
    run = program.using(backend=backend).run("a long prefix ")
    assert "".join(part.text for part in parts_of(run.branch.cursor)) == run.text()


def test_counts_stand_beside_the_parts(backend: RuntimeBackend) -> None:
    run = program.using(backend=backend).run("abc")
    shown = io.StringIO()
    run.show(shown)
    assert "'abc': 0 of the 3 tokens up to here were cached" in shown.getvalue()
    assert re.search(r"first: 5 tokens generated, 0 of them forced, in \d+ ms", shown.getvalue())
    assert "\x1b[" not in shown.getvalue(), "no colors outside of a terminal"
    colored = io.StringIO()
    run.show(colored, color=True)
    assert "\x1b[34m" in colored.getvalue()


def test_forced_text_is_shaded_otherwise_than_generated_text(real: Real) -> None:
    """In a notebook and on a terminal, from the real runtime's own counts."""

    @lmprog.function
    def confined(s: lmprog.Branch) -> None:
        s.append("abc ")
        s.gen("all", regex="the same always", heal=False)
        s.append(" and ")
        s.gen("some", regex="[0-9] of all of them", heal=False)
        s.append(" and ")
        s.gen("none", max_tokens=4, ignore_eos=True)

    with RuntimeBackend(greet(real.channel.connect())) as backend:
        run = confined.using(backend=backend).run()
    kinds = {
        part.note.split(":")[0]: part.kind
        for part in run.transcript
        if "tokens generated" in part.note
    }
    assert kinds == {"all": "forced", "some": "partly forced", "none": "generated"}
    page = run._repr_html_()
    colors = {
        text: color
        for color, text in re.findall(
            r'<span style="background:(#\w+)" title="[^"]*">([^<]+)</span>', page
        )
    }
    forced = colors["the same always"]
    partly = next(color for text, color in colors.items() if text.endswith("of all of them"))
    assert len({forced, partly, colors["abc "]}) == 3
    assert f'background:{forced}">forced<' in page, "the legend says what the color means"


def test_notebooks_get_escaped_text_with_roles_and_selections() -> None:
    @lmprog.function
    def chat(s: lmprog.Branch) -> None:
        s.user("<b>hello</b>")
        with s.assistant():
            s.select("x < y", "no", name="kind")

    with Scripted(["x < y"]) as scripted:
        page = chat.using(backend=scripted).run()._repr_html_()
    assert "&lt;b&gt;hello&lt;/b&gt;" in page
    assert "<b>" not in page
    assert "[user] " in page
    assert 'title="kind: probability 0.900 among 2 options">x &lt; y<' in page
    assert page.count("<span") == page.count("</span>")
    assert page.count("<div") == page.count("</div>")


def test_a_failed_run_is_shown_as_far_as_it_came() -> None:
    @lmprog.function
    def failing(s: lmprog.Branch) -> None:
        s.append("abc")
        s.gen("a")
        s.append("def")
        s.gen("b")

    run = None
    with Scripted(["one", ContextOverflow("too long")]) as scripted:
        [run] = failing.run_batch([{}], backend=scripted)
    shown = io.StringIO()
    run.show(shown)
    assert shown.getvalue().startswith("abconedef<too long>\n")
    assert "ContextOverflow: too long" in shown.getvalue()
    assert "too long" in run._repr_html_()
    with pytest.raises(ContextOverflow):
        run.text()


def test_a_run_that_goes_on_is_not_waited_for_by_a_notebook() -> None:
    @lmprog.function
    def short(s: lmprog.Branch) -> None:
        s.append("x")
        s.gen("a")

    with Scripted([Hold()]) as scripted:
        run = short.run(backend=scripted, stream=True)  # type: ignore[call-arg]
        assert run._repr_html_() == "<i>still running</i>"
        while not scripted.runtime.held():
            time.sleep(0.001)
        scripted.release("one")
        run.sync()
        assert ">one<" in run._repr_html_()


@lmprog.function
def inner(s: lmprog.Branch) -> None:
    s.append("inner")
    s.gen(max_tokens=3, ignore_eos=True)


@lmprog.function
def forking(s: lmprog.Branch, width: int) -> None:
    s.append("Two ideas:")
    s.gen(max_tokens=5, ignore_eos=True)
    with s.fork(width) as branches:
        for branch in branches:
            branch.append("one")
            branch.gen(max_tokens=4, ignore_eos=True)
            with branch.fork(1) as [sub]:
                sub.gen(max_tokens=2, ignore_eos=True)
    inner.run()


def _lines(run: lmprog.Run[None]) -> list[str]:
    out = io.StringIO()
    run.show(out)
    return out.getvalue().splitlines()


def test_the_work_of_every_branch_and_of_runs_inside_is_shown(backend: RuntimeBackend) -> None:
    run = forking.using(backend=backend).run(2)
    *_, root, first, below, second, last, inside, whole = _lines(run)
    names = [line.split("  ")[1] for line in (root, first, below, second, last, inside)]
    assert names == [
        "root", "fork0[0]", "fork0[0].fork0[0]", "fork0[1]", "fork0[1].fork0[0]", "runs inside of it"
    ]  # fmt: skip
    found = [
        re.search(r"(\d+) generated", line) for line in (root, first, below, second, last, inside)
    ]
    assert [int(match[1]) for match in found if match] == [5, 4, 2, 4, 2, 3]
    in_all = [int(match) for line in (root, first, below, second, last, inside)
              for match in re.findall(r"(\d+) in all", line)]  # fmt: skip
    usage = run.usage
    assert sum(in_all) == usage.prompt + usage.generated
    assert f"{sum(in_all):,} in all" in whole
    assert "fork0[1].fork0[0]" in run._repr_html_()


def test_of_many_branches_the_last_share_a_line(backend: RuntimeBackend) -> None:
    lines = [line for line in _lines(forking.using(backend=backend).run(30)) if " calls: " in line]
    assert len(lines) == 1
    assert lines[0].startswith("  21 other branches")


def test_what_explain_tells_is_what_a_budget_counts(backend: RuntimeBackend) -> None:
    told = forking.using(backend=backend).explain(2)
    assert f"at most {told.total_tokens:,} tokens in all, as max_total_tokens" in str(told)
    run = forking.using(backend=backend, max_total_tokens=told.total_tokens).run(2)
    assert run.usage.prompt + run.usage.generated == told.total_tokens
    with pytest.raises(TokenBudgetExceeded):
        forking.using(backend=backend, max_total_tokens=told.total_tokens - 1).run(2)
