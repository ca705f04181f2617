"""Every name of the operator spelling: module level and `gen`. One row, one test."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, attr-defined"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import lmprog.sglang as sgl
from lmprog import wire
from lmprog.errors import InvalidParameter, NotSupported
from lmprog.testing import Scripted
from tests.lang.rows import BESIDES, SAMPLING, one, op_of

MODULE = (
    "function", "gen", "gen_int", "gen_string", "select", "system", "user", "assistant", "system_begin",
    "system_end", "user_begin", "user_end", "assistant_begin", "assistant_end", "separate_reasoning", "image",
    "video", "set_default_backend", "flush_cache", "get_server_info", "Runtime", "Engine", "RuntimeEndpoint",
    "OpenAI", "Anthropic", "LiteLLM", "token_length_normalized", "greedy_token_selection",
    "unconditional_likelihood_normalized", "global_config",
)  # fmt: skip


# --- module level


@pytest.mark.parametrize("name", MODULE)
def test_a_module_level_name_is_there(name: str) -> None:
    assert getattr(sgl, name) is not None
    assert name in sgl.__all__


@pytest.mark.parametrize(
    "make", [lambda: sgl.image("a.png"), lambda: sgl.video("a.mp4", 8)], ids=["image", "video"]
)
def test_images_and_videos_are_refused_clearly(make: Callable[[], object]) -> None:
    with pytest.raises(NotSupported, match="not supported by this model"):
        make()


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_a_role_expression_is_a_turn_and_so_are_its_begin_and_end(role: str) -> None:
    whole, begin, end = (getattr(sgl, f"{role}{part}") for part in ("", "_begin", "_end"))

    def program(s):
        s += whole("one")
        s += begin() + "two" + end()

    state, _ = one(program)
    assert state.messages() == [{"role": role, "content": "one"}, {"role": role, "content": "two"}]


def test_gen_int_and_gen_string() -> None:
    def program(s):
        s += sgl.gen_int("n", max_tokens=4) + sgl.gen_string("t", max_tokens=9)

    state, scripted = one(program, "7", '"a, b"')
    assert (state["n"], state["t"]) == (7, '"a, b"')
    assert (op_of(scripted).sampling.max_tokens, op_of(scripted, 1).sampling.max_tokens) == (4, 9)


def test_set_default_backend_flush_cache_and_get_server_info() -> None:
    def program(s):
        s += "x" + sgl.gen("a")

    with Scripted(["one"]) as scripted:
        sgl.set_default_backend(scripted)
        try:
            assert sgl.function(program).run()["a"] == "one"
            sgl.flush_cache()
            assert sgl.get_server_info()["model"] == "scripted"
        finally:
            sgl.set_default_backend(None)
    assert any(isinstance(op, wire.Flush) for frame in scripted.frames for op in frame)


@pytest.mark.parametrize(
    "method",
    [
        sgl.token_length_normalized,
        sgl.greedy_token_selection,
        sgl.unconditional_likelihood_normalized,
    ],
    ids=lambda method: method.name,
)
def test_a_choice_method_travels_by_its_name(method: Any) -> None:
    def program(s):
        s += sgl.gen("a", choices=["u", "v"], choices_method=method)
        s += sgl.select("b", ["u", "v"], choices_method=method)

    _, scripted = one(program, "u", "v")
    assert [getattr(asked.op, "method", None) for asked in scripted.asked] == [method.name] * 2


def test_a_select_may_draw_with_a_temperature() -> None:
    def program(s):
        s += sgl.select("a", ["u", "v"], temperature=0.5)

    _, scripted = one(program, "u")
    op = scripted.asked[0].op
    assert isinstance(op, wire.Select)
    assert (op.temperature, op.seed is not None) == (0.5, True)


# --- gen


@pytest.mark.parametrize(("keyword", "value", "field", "sent"), [*SAMPLING, *BESIDES])
def test_a_keyword_of_gen_reaches_the_runtime(
    keyword: str, value: Any, field: str, sent: Any
) -> None:
    def program(s):
        s += "x" + sgl.gen("a", **{keyword: value})

    _, scripted = one(program, "y")
    assert getattr(op_of(scripted).sampling, field) == sent


def test_gen_n_gives_all_results() -> None:
    def program(s):
        s += "x" + sgl.gen("a", n=2)

    state, scripted = one(program, ["u", "v"])
    assert op_of(scripted).sampling.n == 2
    assert state["a"] == ["u", "v"]
    assert state.text() == "xu"


def test_the_logprob_options_of_gen_go_together() -> None:
    def program(s):
        s += "x" + sgl.gen("a", return_logprob=True, top_logprobs_num=2, logprob_start_len=0)

    sampling = op_of(one(program, "y")[1]).sampling
    assert (sampling.logprobs, sampling.prompt_logprobs) == (2, 2)


@pytest.mark.parametrize(
    ("options", "constraint"),
    [
        ({"regex": "a+"}, wire.Regex("a+")),
        ({"json_schema": '{"const":"aa"}'}, wire.JsonSchema('{"const":"aa"}')),
        ({"ebnf": 'start: "a" "a"'}, wire.Grammar('start: "a" "a"')),
    ],
    ids=["regex", "json_schema", "ebnf"],
)
def test_a_constraint_of_gen_travels_as_it_is(
    options: dict[str, Any], constraint: wire.Constraint
) -> None:
    def program(s):
        s += "x" + sgl.gen("a", **options)

    answer = '"aa"' if "json_schema" in options else "aa"
    assert op_of(one(program, answer)[1]).constraint == constraint


@pytest.mark.parametrize(
    ("dtype", "answer", "value"),
    [
        (int, "3", 3),
        ("int", "3", 3),
        ("integer", "3", 3),
        (float, "1e-3", 0.001),
        ("float", "1e-3", 0.001),
        (bool, "true", True),
        ("bool", "true", True),
        (str, '"yes"', '"yes"'),
        ("str", '"yes"', '"yes"'),
        ("string", '"yes"', '"yes"'),
    ],
)
def test_gen_dtype_confines_and_converts(dtype: type | str, answer: str, value: object) -> None:
    def program(s):
        s += "x" + sgl.gen("a", dtype=dtype)

    state, scripted = one(program, answer)
    assert state["a"] == value
    assert op_of(scripted).constraint is not None


def test_gen_dtype_of_another_name_is_refused_and_a_regex_comes_before_a_quoted_string() -> None:
    with pytest.raises(InvalidParameter, match="dtype='complex' is not allowed"):
        sgl.gen("a", dtype="complex")
    assert sgl.gen("a", dtype=str, regex="x+").constraint == wire.Regex("x+")
    assert sgl.gen("a", dtype=str).constraint == sgl.gen_string("a").constraint


def test_gen_choices_scores_them_and_reads_like_a_string() -> None:
    def program(s):
        s += "x" + sgl.gen("a", choices=["u", "v"])

    state, scripted = one(program, "v")
    assert isinstance(scripted.asked[0].op, wire.Select)
    assert state["a"] == "v"
    assert len(state.get_meta_info("a")["normalized_prompt_logprobs"]) == 2


@pytest.mark.parametrize(("keyword", "value"), [("timeout", 9.0), ("priority", 5)])
def test_timeout_and_priority_of_gen_travel(keyword: str, value: Any) -> None:
    def program(s):
        s += "x" + sgl.gen("a", **{keyword: value})

    assert getattr(op_of(one(program, "y")[1]), keyword) == value


def test_a_cache_salt_divides_the_cache() -> None:
    def program(s):
        s += "x" + sgl.gen("a")

    _, scripted = one(program, "y", cache_salt="tenant")
    [opened] = [op for frame in scripted.frames for op in frame if isinstance(op, wire.Open)]
    assert opened.salt == "tenant"
