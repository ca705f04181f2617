"""What the plain spelling promises and no other file tests; `test_every_row` says where the rest is
tested.
"""

from __future__ import annotations

import inspect
import io
from typing import Literal

import pydantic
import pytest

import lmprog
from lmprog import errors
from lmprog.backends.client import RuntimeBackend
from lmprog.errors import ContextOverflow
from lmprog.testing import Scripted


def test_a_program_keeps_its_signature_and_its_branch_may_have_any_name() -> None:
    @lmprog.function
    def program(writer: lmprog.Branch, mail: str, *, k: int = 3) -> str:
        """What it does."""
        writer.append(mail * k)
        return writer.gen().value

    assert (
        str(inspect.signature(program))
        == "(writer: 'lmprog.Branch', mail: 'str', *, k: 'int' = 3) -> 'str'"
    )
    assert (program.function.__name__, program.__doc__) == ("program", "What it does.")
    with Scripted(["x"]) as scripted:
        assert program.using(backend=scripted).run("a", k=2).value == "x"
    assert scripted.prompts == ["aa"]


class Invoice(pydantic.BaseModel):
    vendor: str
    total: float


@lmprog.function
async def triage(s: lmprog.Branch, mail: str, k: int = 3) -> Invoice | None:
    """The program that the language is described by."""
    s.system("You are a careful clerk.")
    s.user(mail)
    kind = await s.select("invoice", "complaint", "other")
    sure = await s.gen(Literal["yes", "no"])
    if kind != "invoice" or sure == "no":
        return None
    async with s.fork(k, temperature=0.8) as branches:
        drafts = await branches.map(lambda b: b.gen(Invoice, max_tokens=128))
    best = lmprog.vote(drafts, key=lambda d: d.total)
    s.assistant(best.model_dump_json())
    return best


def test_the_program_of_the_description_runs_as_it_stands() -> None:
    invoices = [
        f'{{"vendor": "{name}", "total": {total}}}'
        for name, total in (("A", 5), ("B", 7.5), ("C", 7.5))
    ]
    with Scripted(["invoice", "yes", *invoices]) as scripted:
        run = triage.using(backend=scripted).run("Dear Sirs")
    assert run.value == Invoice(vendor="B", total=7.5)
    assert run.messages()[-1] == {"role": "assistant", "content": '{"vendor":"B","total":7.5}'}
    with Scripted(
        lambda prompt: "complaint" if prompt.count("complaint") == 0 else "no"
    ) as scripted:
        results = triage.map(["one", "two"], concurrency=64, on_error="collect", backend=scripted)
    assert list(results) == [None, None]


def test_nothing_hidden_is_added_to_a_prompt() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("only this")
        s.gen()

    with Scripted(["x"]) as scripted:
        program.using(backend=scripted).run()
    assert scripted.prompts == ["only this"]


def test_map_keeps_the_order_collects_errors_and_shows_a_bar(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @lmprog.function
    async def program(s: lmprog.Branch, mail: str) -> str:
        s.append(mail)
        return await s.gen()

    with Scripted(
        lambda prompt: ContextOverflow("no") if prompt == "b" else prompt.upper()
    ) as scripted:
        found = program.map(
            ["a", "b", "c"], concurrency=2, progress=True, on_error="collect", backend=scripted
        )
    assert (found.values, list(found.errors)) == (["A", "C"], [1])
    assert (found[0], found[2]) == ("A", "C")
    with pytest.raises(ContextOverflow):
        found[1]
    assert "3/3" in capsys.readouterr().err


def test_a_value_has_its_meta_information_and_a_run_the_sum(backend: RuntimeBackend) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> lmprog.Gen[str]:
        s.append("abc")
        first = s.gen(max_tokens=4, ignore_eos=True, logprobs=1)
        s.gen(max_tokens=4, ignore_eos=True)
        return first

    run = program.using(backend=backend).run()
    meta = run.value.meta
    assert (len(meta.tokens), meta.finish, len(meta.logprobs)) == (4, "length", 4)
    work = meta.usage
    assert (work.prompt, work.generated, work.forced) == (3, 4, 0)
    assert work.computed > 0
    assert min(work.queued_ms, work.prefill_ms, work.decode_ms, work.cached) >= 0
    assert run.usage.generated == 8


def test_a_transcript_is_the_text_in_parts_with_what_is_known_of_each(
    backend: RuntimeBackend,
) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("abc")
        s.gen("x", max_tokens=3, ignore_eos=True)
        s.append(" the end")

    run = program.using(backend=backend).run()
    assert "".join(part.text for part in run.transcript) == run.text()
    assert [part.kind for part in run.transcript] == ["computed", "generated", "unused"]


def test_a_notebook_shows_hostile_names_texts_and_errors_as_text() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("<img src=x onerror=alert(1)>")
        s.gen('"><script>alert(1)</script>')
        s.select("<i>", name="'\"><svg onload=alert(2)>")
        s.append("x")
        s.gen("last")

    with Scripted(
        ["</span><b>&amp;", "<i>", ContextOverflow('<u title="x">too long</u>')]
    ) as scripted:
        [run] = program.run_batch([()], backend=scripted)
    page = run._repr_html_()
    tags = {tag.split()[0].strip("</>") for tag in _tags(page)}
    assert tags == {"div", "pre", "span"}
    for tag in _tags(page):
        assert tag.count('"') in (0, 2, 4), tag
        assert " on" not in tag.replace('title="', "").split('"')[-1]
    assert "&lt;img src=x" in page
    assert "&amp;amp;" in page
    shown = io.StringIO()
    run.show(shown)
    assert "</span><b>&amp;" in shown.getvalue(), "a terminal shows it as it is"


def _tags(page: str) -> list[str]:
    return [f"<{piece.split('>')[0]}>" for piece in page.split("<")[1:]]


@pytest.mark.parametrize(
    ("name", "above", "fields"),
    [
        ("RequestRejected", "LmprogError", ()),
        ("ContextOverflow", "RequestRejected", ("prompt", "limit")),
        ("GrammarError", "RequestRejected", ("position",)),
        ("UnsupportedSchema", "RequestRejected", ("keyword", "path")),
        ("Overloaded", "LmprogError", ("retry_after",)),
        ("RuntimeGone", "LmprogError", ()),
        ("RuntimeRestarted", "RuntimeGone", ("partial",)),
        ("Cancelled", "LmprogError", ()),
        ("DeadlineExceeded", "LmprogError", ()),
        ("ValidationFailed", "LmprogError", ("text",)),
    ],
)
def test_errors_are_one_tree_and_carry_their_numbers(
    name: str, above: str, fields: tuple[str, ...]
) -> None:
    kind = getattr(errors, name)
    assert kind.__bases__ == (getattr(errors, above),)
    error = kind("why", **dict.fromkeys(fields, 1))
    assert all(getattr(error, field) == 1 for field in fields)


def test_a_schema_and_a_grammar_confine_and_give_text() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> tuple[str, str, str]:
        return (
            s.gen(schema={"type": "null"}).value,
            s.gen(grammar='start: "a"').value,
            s.gen(choices=["u", "v"]).value,
        )

    with Scripted(["null", "a", "v"]) as scripted:
        assert program.using(backend=scripted).run().value == ("null", "a", "v")
