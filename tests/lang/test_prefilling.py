"""`gen(max_tokens=0)`: a prompt is computed and nothing is written, on a runtime and on services;
and the triples of a select.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from threading import Event

import pydantic
import pytest

import lmprog
from lmprog.backends.client import RuntimeBackend
from lmprog.errors import IncompleteValue, NotSupported, ProgramError, UnsupportedSchema
from tests.backends.programs import FACTS, on
from tests.backends.scripted_api import ScriptedApi
from tests.lang.small_runtime import Small


@lmprog.function
def warmed(s: lmprog.Branch, logprobs: int | None = None) -> lmprog.Gen[str]:
    s += "The capital of France is"
    return s.gen("x", max_tokens=0, logprobs=logprobs)


def test_nothing_is_written_and_the_likeliest_next_tokens_are_told(backend: RuntimeBackend) -> None:
    run = warmed.using(backend=backend).run(3)
    assert run.text() == "The capital of France is"
    info = run.get_meta_info("x")
    assert (info["completion_tokens"], info["finish_reason"]["type"]) == (0, "length")
    told = info["next_token_logprobs"]
    assert [len(row) for row in told] == [3, 3, 3]
    assert sorted(told, reverse=True) == told

    @lmprog.function
    def likeliest(s: lmprog.Branch) -> str:
        s += "The capital of France is"
        return s.gen(max_tokens=1, temperature=0, ignore_eos=True).value

    assert likeliest.using(backend=backend).run().value in [text for _, _, text in told[:2]]


def test_a_service_is_asked_for_one_token_which_is_not_kept() -> None:
    with ScriptedApi(FACTS) as api, on(api) as backend:
        run = warmed.using(backend=backend).run()
        assert (run["x"], run.text()) == ("", "The capital of France is")
        [request] = api.requests
        assert request["max_tokens"] == 1
        assert "stop" not in request


def test_a_typed_value_has_no_room_in_no_tokens(backend: RuntimeBackend) -> None:
    @lmprog.function
    def counted(s: lmprog.Branch) -> int:
        s += "How many?"
        return s.gen(int, max_tokens=0).value

    with pytest.raises((IncompleteValue, lmprog.LmprogError)):
        counted.using(backend=backend).run()


def test_a_selects_log_probabilities_are_triples(backend: RuntimeBackend) -> None:
    @lmprog.function
    def chosen(s: lmprog.Branch) -> str:
        s += "Is it so?"
        s += lmprog.select("x", ["yes", "no"])
        return str(s["x"])

    run = chosen.using(backend=backend).run()
    rows = run.get_meta_info("x")["input_token_logprobs"]
    assert ["".join(text for _, _, text in row) for row in rows] == ["yes", "no"]
    assert all(logprob < 0 and isinstance(token, int) for row in rows for logprob, token, _ in row)


class Wizard(pydantic.BaseModel):
    name: str
    age: int


def test_a_regex_is_built_of_a_type_a_schema_and_its_text() -> None:
    pattern = lmprog.sglang.build_regex_from_object(Wizard)
    assert re.fullmatch(pattern, '{"name": "Merlin", "age": 7}')
    assert not re.fullmatch(pattern, '{"name": "Merlin"}')
    schema = Wizard.model_json_schema()
    assert lmprog.sglang.build_regex_from_object(schema) == pattern
    spaced = lmprog.sglang.build_regex_from_object(
        '{"type": "array", "items": {"const": 1}}', r"[\n ]*"
    )
    assert re.fullmatch(spaced, "[\n1, 1]")
    with pytest.raises(UnsupportedSchema):
        lmprog.sglang.build_regex_from_object({"not": {}})


def test_without_outlines_core_the_way_without_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "outlines_core.json_schema", None)
    with pytest.raises(NotSupported, match="give gen the type itself"):
        lmprog.sglang.build_regex_from_object(Wizard)


def test_the_pattern_is_one_that_gen_takes() -> None:
    made = lmprog.constraint(regex=lmprog.sglang.build_regex_from_object(Wizard))
    assert made.accepts('{"name": "Merlin", "age": 7}')


def test_an_iterator_of_texts_is_computed_while_it_goes_on(
    backend: RuntimeBackend, small: Small
) -> None:
    """The second part comes when the first one has been computed; the text is that of both."""
    computed = Event()
    parts = [f"The answer of the tool has begun here, {'and it goes on ' * 4}", "to its end."]
    small.scheduler.hooks.committed.append(lambda *_: computed.set())

    @lmprog.function
    def reading(s: lmprog.Branch, is_early: bool) -> lmprog.Gen[str]:
        def arriving() -> Iterator[str]:
            yield parts[0]
            assert computed.wait(60.0)
            yield parts[1]

        s.append(arriving() if is_early else "".join(parts))
        return s.gen("x", max_tokens=5, temperature=0)

    early = reading.using(backend=backend).run(True)
    late = reading.using(backend=backend).run(False)
    assert early.text() == late.text()
    assert early.text().startswith("".join(parts))


def test_an_iterator_gives_texts_only(backend: RuntimeBackend) -> None:
    @lmprog.function
    def wrong(s: lmprog.Branch) -> None:
        s.append(iter([1]))

    with pytest.raises(ProgramError, match="an iterator of texts gave int"):
        wrong.using(backend=backend).run()
