"""What SGLang's frontend (0.5.23) does wrong, and must never happen here; numbered as in the list
of its defects.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import lmprog
from lmprog import wire
from lmprog.errors import InvalidParameter, ModelError, ProgramError, RuntimeGone, UnknownName
from lmprog.testing import Hold, Scripted, Scripting


def _within(seconds: float, action: Callable[[], object]) -> BaseException | None:
    """What `action` raised, if anything; fails when it has not ended in time."""
    caught: list[BaseException] = []

    def body() -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  (handed on)
            caught.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"
    return caught[0] if caught else None


def test_01_reading_a_failed_gen_raises_its_cause_and_not_key_error() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s += "x" + lmprog.gen("a")
        s["a"]

    with (
        Scripted([ModelError("not finite")]) as scripted,
        pytest.raises(ModelError, match="not finite"),
    ):
        program.using(backend=scripted).run()


def test_01_a_later_read_of_the_same_branch_raises_the_same_cause() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s += "x" + lmprog.gen("a") + lmprog.gen("b")
        for name in ("b", "a", "b"):
            with pytest.raises(ModelError, match="not finite"):
                s[name]
        with pytest.raises(ModelError, match="not finite"):
            s.text()

    with Scripted([ModelError("not finite")]) as scripted:
        program.using(backend=scripted).run()


def test_01_the_traceback_shows_the_line_of_the_program() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s.append("x")
        s.gen("a")  # the line

    with Scripted([ModelError("not finite")]) as scripted, pytest.raises(ModelError) as caught:
        program.using(backend=scripted).run()
    lines = [(str(entry.path), entry.lineno + 1) for entry in caught.traceback]
    assert (
        __file__,
        test_01_the_traceback_shows_the_line_of_the_program.__code__.co_firstlineno + 4,
    ) in lines


def test_02_a_run_with_a_failed_gen_raises_even_if_nobody_read_it() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s += "x" + lmprog.gen("a")

    with Scripted([ModelError("not finite")]) as scripted, pytest.raises(ModelError):
        program.using(backend=scripted).run()


@pytest.mark.parametrize("read", [lambda s: s["b"], lambda s: s.text()], ids=["variable", "text"])
def test_03_04_nothing_hangs_after_the_runtime_died(
    read: Callable[[lmprog.Branch], object],
) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s += "x" + lmprog.gen("a")
        scripted.runtime.die("killed")
        s += "y" + lmprog.gen("b")
        read(s)

    scripted = Scripted(lambda prompt: Hold())
    error = _within(5, lambda: program.using(backend=scripted).run())
    assert isinstance(error, RuntimeGone)
    scripted.close()


def test_05_a_second_join_gives_the_second_rounds_values() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> list[list[str]]:
        s += "x"
        rounds = []
        for _ in range(2):
            forks = s.fork(2)
            forks += lmprog.gen("v")
            forks.join()
            rounds.append(s["v"])
        return rounds

    with Scripted(["a", "b", "c", "d"]) as scripted:
        assert program.using(backend=scripted).run().value == [["a", "b"], ["c", "d"]]


def test_06_text_can_be_appended_to_a_group() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s += "x"
        forks = s.fork(2)
        forks += "y"
        forks += lmprog.gen("v")
        forks.join()

    with Scripted(["a", "b"]) as scripted:
        program.using(backend=scripted).run()
    assert scripted.prompts == ["xy", "xy"]


def test_07_the_users_stop_list_is_not_changed() -> None:
    @lmprog.function
    def program(s: lmprog.Branch, stop: list[str]) -> None:
        s += "x" + lmprog.gen("a", stop=stop)

    stops = ["\n"]
    with Scripted(["a", "b"]) as scripted:
        program.using(backend=scripted, stop=["END"]).run(stops)
        program.using(backend=scripted, stop=["END"]).run(stops)
    assert stops == ["\n"]
    assert all(
        isinstance(asked.op, wire.Generate) and asked.op.sampling.stop == ("\n",)
        for asked in scripted.asked
    )


def test_08_bind_keeps_the_programs_settings() -> None:
    @lmprog.function(num_api_spec_tokens=64)
    def program(s: lmprog.Branch, a: str, b: str) -> str:
        s.append(a + b)
        return s.gen().value

    bound = program.using(temperature=0).bind(b="2")
    assert bound.num_api_spec_tokens == 64
    with Scripted(["x"]) as scripted:
        bound.using(backend=scripted).run(a="1")
    assert scripted.prompts == ["12"]
    asked = scripted.asked[0].op
    assert isinstance(asked, wire.Generate)
    assert asked.sampling.temperature == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: lmprog.gen("x", choices=[]),
        lambda: lmprog.select("x", []),
        lambda: lmprog.select("x", [""]),
    ],
)
def test_09_no_choices_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidParameter, match="at least one text"):
        make()


def test_10_a_gen_of_numbers_is_a_number() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> object:
        s += "x" + lmprog.sglang.gen_int("n")
        assert int(s["n"]) == 42
        return s["n"]

    with Scripted(["42"]) as scripted:
        assert program.using(backend=scripted).run().value == 42


def test_12_a_nested_call_inherits_the_backend() -> None:
    @lmprog.function
    def inner(s: lmprog.Branch) -> str:
        s.append("inner")
        return s.gen().value

    @lmprog.function
    def outer(s: lmprog.Branch) -> str:
        return inner.run().value

    with Scripted(["one"]) as scripted:
        assert outer.run(backend=scripted).value == "one"  # type: ignore[call-arg]


def test_13_one_failing_program_does_not_lose_the_others() -> None:
    @lmprog.function
    def program(s: lmprog.Branch, x: int) -> None:
        s += f"{x}" + lmprog.gen("a")

    def script(prompt: str) -> Scripting:
        return ModelError("not finite") if prompt == "1" else f"got {prompt}"

    with Scripted(script) as scripted:
        states = program.run_batch([{"x": 0}, {"x": 1}, {"x": 2}], backend=scripted)
    assert [states[0]["a"], states[2]["a"]] == ["got 0", "got 2"]
    with pytest.raises(ModelError):
        states[1]["a"]


def test_14_a_stream_that_fails_midway_raises() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s += "x" + lmprog.gen("a") + lmprog.gen("b")

    with Scripted(["fine", ModelError("not finite")]) as scripted:
        state = program.run(backend=scripted, stream=True)  # type: ignore[call-arg]
        seen: list[str] = []
        with pytest.raises(ModelError):
            seen.extend(state.text_iter())
    assert seen == ["x", "fine"]


def test_15_unnamed_gens_share_no_key() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s += "x" + lmprog.gen() + lmprog.gen()
        assert None not in s.cursor.names
        with pytest.raises(UnknownName):
            s[None]  # type: ignore[index]

    with Scripted(["a", "b"]) as scripted:
        program.using(backend=scripted).run()


def test_16_all_n_results_can_be_read_and_the_branch_goes_on_from_the_first() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        drafts = s.gen("d", n=3)
        assert drafts.value == "a"
        assert drafts.values == ["a", "b", "c"]
        assert s["d"] == ["a", "b", "c"]
        return s.text()

    with Scripted([["a", "b", "c"]]) as scripted:
        assert program.using(backend=scripted).run().value == "a"


def test_17_a_child_reads_meta_information_of_variables_made_before_the_fork() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> object:
        s += "x" + lmprog.gen("a")
        [child] = s.fork()
        assert child["a"] == "one"
        return child.get_meta_info("a")["completion_tokens"]

    with Scripted(["one"]) as scripted:
        assert program.using(backend=scripted).run().value == 1


def test_18_an_empty_branch_can_be_forked() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> list[str]:
        forks = s.fork(2)
        forks += lmprog.gen("a")
        forks.join()
        return list(s["a"])

    with Scripted(["1", "2"]) as scripted:
        assert program.using(backend=scripted).run().value == ["1", "2"]


def test_19_what_children_gained_can_be_appended_to_the_parent() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s += "x"
        forks = s.fork(2)
        forks += lambda index: f"<{index}" + lmprog.gen("a")
        forks.join("concate_and_append")
        s += lmprog.gen("end")
        return s.text()

    with Scripted(["one>", "two>", "."]) as scripted:
        assert program.using(backend=scripted).run().value == "x<0one><1two>."
    assert scripted.prompts[-1] == "x<0one><1two>"


def test_21_a_hundred_coroutines_need_no_thread_each() -> None:
    @lmprog.function
    async def program(s: lmprog.Branch) -> int:
        async with s.fork(100) as branches:
            await branches.map(lambda b: b.gen())
            return threading.active_count()

    before = threading.active_count()
    with Scripted(lambda prompt: "y") as scripted:
        assert program.using(backend=scripted).run().value <= before + 2


def test_22_a_generated_string_may_contain_punctuation() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> str:
        s += "x" + lmprog.sglang.gen_string("a")
        return str(s["a"])

    with Scripted(['"It\'s 1e-3, (no?) \\"quote\\"."']) as scripted:
        assert program.using(backend=scripted).run().value.startswith('"It')


@pytest.mark.parametrize("text", ["1e-3", "0.001", "-2.5E+10", "7"])
def test_22_a_generated_float_may_have_an_exponent(text: str) -> None:
    """The rest of defect 22 is about APIs: see `tests/backends`."""

    @lmprog.function
    def program(s: lmprog.Branch) -> float:
        s.append("x")
        return s.gen(float).value

    with Scripted([text]) as scripted:
        assert program.using(backend=scripted).run().value == float(text)
        asked = scripted.asked[0].op
    assert isinstance(asked, wire.Generate)
    assert isinstance(asked.constraint, wire.JsonSchema)
    assert lmprog.constraint(schema=asked.constraint.schema).accepts(text)


def test_a_role_turn_cannot_be_appended_a_second_time() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> None:
        s += s.user("hi")

    with Scripted() as scripted, pytest.raises(ProgramError, match="Turn cannot be appended"):
        program.using(backend=scripted).run()


def test_21_a_hundred_plain_forks_need_no_thread_each() -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> int:
        s += "x"
        forks = s.fork(100)
        forks += "y" + lmprog.gen("a")
        forks.join()
        assert len(s["a"]) == 100
        return threading.active_count()

    before = threading.active_count()
    with Scripted(lambda prompt: "z") as scripted:
        assert program.using(backend=scripted).run().value <= before + 2
