"""Every name of the operator spelling that runs programs, and of states and groups. One row, one
test.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, attr-defined"
from __future__ import annotations

import asyncio
from typing import Any

import pytest

import lmprog.sglang as sgl
from lmprog.errors import ModelError, ProgramError, UnknownName
from lmprog.testing import Scripted
from tests.lang.rows import BESIDES, SAMPLING, one, op_of

# --- run, run_batch, bind, trace, cache, nesting


@pytest.mark.parametrize(
    ("keyword", "value", "field", "sent"),
    [row for row in SAMPLING if row[0] != "max_tokens"] + BESIDES[1:],
)
def test_a_keyword_of_run_holds_for_every_gen(
    keyword: str, value: Any, field: str, sent: Any
) -> None:
    def program(s):
        s += "x" + sgl.gen("a") + sgl.gen("b")

    _, scripted = one(program, "y", "z", **{keyword: value})
    assert [getattr(op_of(scripted, index).sampling, field) for index in (0, 1)] == [sent] * 2


def test_run_max_new_tokens_is_the_limit_of_a_gen_without_one_and_1024_by_default() -> None:
    def program(s):
        s += "x" + sgl.gen("a") + sgl.gen("b", max_tokens=3)

    assert [
        op_of(one(program, "y", "z", max_new_tokens=50)[1], index).sampling.max_tokens
        for index in (0, 1)
    ] == [
        50,
        3,
    ]
    sampling = op_of(one(program, "y", "z")[1]).sampling
    assert (
        sampling.max_tokens,
        sampling.temperature,
        sampling.top_p,
        sampling.top_k,
        sampling.min_p,
    ) == ((1024, 1.0, 1.0, -1, 0.0))


def test_run_n_return_logprob_stream_and_use_thread() -> None:
    def program(s):
        s += "x" + sgl.gen("a")

    assert one(program, ["u", "v"], n=2)[0]["a"] == ["u", "v"]
    sampling = op_of(
        one(program, "y", return_logprob=True, top_logprobs_num=1, logprob_start_len=0)[1]
    ).sampling
    assert (sampling.logprobs, sampling.prompt_logprobs) == (1, 1)
    assert one(program, "y", use_thread=False)[0]["a"] == "y"
    with Scripted(["one two"]) as scripted:
        assert list(sgl.function(program).run(backend=scripted, stream=True).text_iter()) == [
            "x",
            "one",
            " two",
        ]


@pytest.mark.parametrize("generator", [False, True])
def test_run_batch_takes_dicts_and_tuples_in_order(generator: bool) -> None:
    @sgl.function
    def program(s, a, b="!"):
        s += a + b + sgl.gen("x")

    with Scripted(lambda prompt: prompt.upper()) as scripted:
        states = program.run_batch(
            [{"a": "u", "b": "?"}, ("v", "."), ("w",)],
            backend=scripted, num_threads=2, progress_bar=False, generator_style=generator, temperature=0,
        )  # fmt: skip
        assert isinstance(states, list) != generator
        assert [state["x"] for state in states] == ["U?", "V.", "W!"]
    assert {op_of(scripted, index).sampling.temperature for index in range(3)} == {0.0}


def test_bind_gives_arguments_and_trace_leaves_them_open() -> None:
    @sgl.function
    def program(s, style, topic):
        s += f"{style} {topic}" + sgl.gen("x", max_tokens=4)

    with Scripted(["y"]) as scripted:
        assert program.bind(style="dry").run(topic="tax", backend=scripted).text() == "dry taxy"
    assert "text 'dry ⟨topic⟩'" in str(program.bind(style="dry").trace())


def test_cache_computes_what_every_run_begins_with() -> None:
    @sgl.function
    def program(s, question):
        s += sgl.system("Be kind.") + "Examples follow. "
        s += f"Q: {question}" + sgl.gen("x")

    with Scripted(["-"]) as scripted:
        assert program.cache(backend=scripted).generated == 1
    assert scripted.prompts == ["<|system|>\nBe kind.\nExamples follow. Q: "]
    with Scripted([]) as scripted:  # nothing is known beforehand

        @sgl.function
        def unknown(s, question):
            s += question + sgl.gen("x")

        assert unknown.cache(backend=scripted).generated == 0


def test_a_program_called_with_a_state_goes_on_there() -> None:
    @sgl.function
    def inner(s, what):
        s += f"[{what}" + sgl.gen("y") + "]"
        return s["y"]

    def program(s):
        s += "a"
        assert inner(s, "b") == "c"
        s += "d"

    assert one(program, "c")[0].text() == "a[bc]d"


# --- state


def test_a_state_takes_text_ops_roles_and_lists_and_refuses_none() -> None:
    def program(s):
        s += "a"
        s += sgl.gen("b")
        s += sgl.select("c", ["u"])
        s += ["d", sgl.gen("e"), ["f"]]
        s += sgl.user("g" + sgl.gen("h"))
        with pytest.raises(ProgramError, match="None cannot be appended"):
            s += None

    state, _ = one(program, "B", "u", "E", "H")
    assert state.text().startswith("aBudEf")
    assert state.messages() == [{"role": "user", "content": "gH"}]


def test_variables_are_read_set_and_asked_for() -> None:
    def program(s):
        s += sgl.gen("a")
        s["b"] = "set"
        s.set_var("c", 3)
        assert (s["a"], s.get_var("a"), s["b"], s["c"]) == ("A", "A", "set", 3)
        assert "a" in s
        assert "zzz" not in s
        with pytest.raises(UnknownName, match="'zzz'"):
            s["zzz"]
        return s.get_meta_info("a")["finish_reason"]["type"]

    state, _ = one(program, "A")
    assert (state.ret_value, state["c"], "b" in state, state.get_var("b")) == (
        "stop",
        3,
        True,
        "set",
    )


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_a_states_role_is_a_call_and_a_context(role: str) -> None:
    def program(s):
        getattr(s, role)("one")
        with getattr(s, role)():
            s += "two" + sgl.gen("x")

    state, _ = one(program, "!")
    assert [turn["content"] for turn in state.messages()] == ["one", "two!"]


def test_var_scope_fork_copy_text_sync_and_error() -> None:
    def program(s):
        with s.var_scope("v"):
            s += "a" + sgl.gen("x")
        [only] = s.fork()
        only += "b"
        with s.copy() as other:
            other += "c" + sgl.gen("y")
            assert other.text() == "aXcY"
        s.sync()
        assert s.error() is None
        return s["v"]

    assert one(program, "X", "Y")[0].ret_value == "aX"

    def failing(s):
        s += sgl.gen("x")
        assert isinstance(s.error(), ModelError)

    one(
        failing, ModelError("not finite")
    )  # the program has looked at the error, so the run does not raise it


def test_text_iter_and_text_async_iter_of_all_and_of_one_variable() -> None:
    def program(s):
        s += "a" + sgl.gen("x") + "b"

    async def main(name: str | None, meta: bool) -> list[Any]:
        state = sgl.function(program).run(backend=scripted, stream=True)
        return [piece async for piece in state.text_async_iter(name, return_meta_data=meta)]

    with Scripted(["u v"] * 3) as scripted:
        assert asyncio.run(main(None, False)) == ["a", "u", " v", "b"]
        assert asyncio.run(main("x", False)) == ["u", " v"]
        assert asyncio.run(main("x", True))[-1][1]["completion_tokens"] == 2


# --- groups


def test_a_group_is_indexed_iterated_and_appended_to_in_four_ways() -> None:
    def program(s):
        forks = s.fork(2)
        forks += "a"
        forks += sgl.gen("x")
        forks += ["b", "c"]
        forks += lambda i: str(i)
        assert len(forks) == 2
        assert (
            [fork.text() for fork in forks]
            == [forks[0].text(), forks[1].text()]
            == ["aUb0", "aVc1"]
        )

    one(program, "U", "V")


@pytest.mark.parametrize(
    ("mode", "text"), [("gather_variable", "s"), ("concate_and_append", "saUaV")]
)
def test_a_join_gathers_variables_or_appends_what_was_gained(mode: str, text: str) -> None:
    def program(s):
        s += "s"
        forks = s.fork(2)
        forks += "a" + sgl.gen("x")
        forks.join(mode)
        if mode == "gather_variable":
            assert s["x"] == ["U", "V"]

    assert one(program, "U", "V")[0].text() == text
