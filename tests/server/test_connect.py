"""`lmprog.connect("http://...")` on this very server: what a program gives on a runtime it gives
here, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

import lmprog
from lmprog.backends.blackbox.server_backend import RuntimeEndpoint
from lmprog.errors import GrammarError
from tests.server.conftest import Served


@pytest.fixture
def remote(server: Served) -> Iterator[RuntimeEndpoint]:
    with RuntimeEndpoint(server.url) as backend:
        assert backend.kind == "lmprog"
        yield backend


@lmprog.function
def clerk(s: lmprog.Branch, mail: str) -> tuple[str, dict[str, float], str, str]:
    s.system("You are a careful clerk.")
    s.user(mail)
    kind = s.select("invoice", "complaint", "other").value
    s.user("Sure?")
    sure = s.gen(Literal["yes", "no"])
    with s.assistant():
        s.append("The total is ")
        total = s.gen(regex=r"[0-9]+\.[0-9]{2}", max_tokens=12)
    return str(kind), kind.scores, sure.value, total.value


@lmprog.function
async def spread(s: lmprog.Branch) -> list[str]:
    s.append("One, two, three,")
    async with s.fork(3) as branches:
        branches += lambda i: f" {i}"
        return await branches.map(lambda b: b.gen(max_tokens=6))


def test_a_program_gives_the_same_on_the_server_and_on_its_runtime(
    server: Served, remote: RuntimeEndpoint
) -> None:
    with lmprog.connect(server.runtime) as runtime:
        for program in (clerk.bind(mail="Dear Sirs"), spread):
            results = [
                program.using(backend=backend, temperature=0).run().value
                for backend in (runtime, remote)
            ]
            if program is spread:
                assert results[0] == results[1]
            else:
                assert results[0][0] == results[1][0]
                assert results[0][1] == pytest.approx(results[1][1])
                assert results[0][2] == results[1][2]


def test_a_run_on_the_server_with_a_cache_asks_nobody_the_second_time(
    remote: RuntimeEndpoint, tmp_path: Path
) -> None:
    first, second = (
        clerk.using(backend=remote, temperature=0, cache=tmp_path).run("Dear Sirs")
        for _ in range(2)
    )
    assert first.value == second.value
    assert [first.num_from_cache, second.num_from_cache] == [0, 3]


@lmprog.function
def seams(s: lmprog.Branch) -> list[str]:
    """Literal text that ends inside of a word, and generated text that is never taken back."""
    s.append("Mia lives in Os")
    first = s.gen(max_tokens=3)
    second = s.gen(max_tokens=3)
    s.append(" The ba")
    return [first.value, second.value, s.gen(max_tokens=4).value]


def test_seams_are_healed_on_the_server_as_on_its_runtime(
    server: Served, remote: RuntimeEndpoint
) -> None:
    with lmprog.connect(server.runtime) as runtime:
        expected = seams.using(backend=runtime, temperature=0).run()
    found = seams.using(backend=remote, temperature=0).run()
    assert found.value == expected.value
    assert found.text() == expected.text()


@lmprog.function
async def wandering(s: lmprog.Branch) -> list[str]:
    """Unlikely tokens, which nobody would spell a text by; stops inside of tokens, seams, forks,
    choices, turns, and texts that end at once.
    """
    s.append("Mia lives in Os")
    texts = [
        await s.gen(max_tokens=7, stop=stop, temperature=2.0)
        for stop in ("e", "r", (), "an", ("a", "e", "i", "o", "u"), ())
    ]
    s.append(" The ba")
    texts.append(await s.select("ker", "nd", "r"))
    s.append("s of the to")
    texts.append(await s.gen(max_tokens=5, stop=list("aeiouwn "), temperature=2.0))
    async with s.fork(2) as branches:
        texts += await branches.map(lambda b: b.gen(max_tokens=6, temperature=2.0))
        branches.join("concate_and_append")
    texts.append(await s.gen(max_tokens=6, temperature=2.0))
    s.user("Sa")
    with s.assistant():
        s.append("The to")
        texts.append(await s.gen(max_tokens=4, stop=list("aeiouwn "), temperature=2.0))
        s.append("wn")
        texts.append(await s.gen(max_tokens=4, temperature=2.0))
    return texts


def test_what_was_generated_is_never_tokenised_again(
    server: Served, remote: RuntimeEndpoint
) -> None:
    num_cut = 0
    with lmprog.connect(server.runtime) as runtime:
        for seed in range(24):
            expected = wandering.using(backend=runtime, seed=seed, ignore_eos=True).run()
            found = wandering.using(backend=remote, seed=seed, ignore_eos=True).run()
            assert found.value == expected.value, seed
            tokens = [[gen.meta.tokens for gen in run.scope.gens] for run in (expected, found)]
            assert tokens[0] == tokens[1]
            num_cut += any(gen.value and not gen.meta.tokens for gen in expected.scope.gens)
    assert num_cut >= 6, "a stop inside of its first token leaves an answer without any"


def test_a_majority_is_found_by_the_runtime(remote: RuntimeEndpoint) -> None:
    @lmprog.function
    def program(s: lmprog.Branch) -> list[int]:
        s.append("A digit: ")
        return s.gen(int, n=5, keep="majority", max_tokens=4, on_incomplete="keep").values

    values = program.using(backend=remote, temperature=0.3, seed=1).run().value
    assert values.count(values[0]) == max(values.count(value) for value in values)


def test_the_server_says_what_its_model_is(remote: RuntimeEndpoint) -> None:
    said = remote.model_info
    assert (said["model_path"], said["is_generation"]) == ("nano", True)
    assert said["context_length"] == remote.client.welcome.context_len


def test_a_stream_an_error_and_a_flush(remote: RuntimeEndpoint) -> None:
    @lmprog.function
    def program(s: lmprog.Branch, pattern: str | None) -> str:
        s.append("One, two,")
        return s.gen("x", max_tokens=8, regex=pattern).value

    ready = program.using(backend=remote, temperature=0)
    events = list(ready.stream(None))
    assert isinstance(events[-1], lmprog.Done)
    assert (
        "".join(event.delta for event in events if isinstance(event, lmprog.Text))
        == events[-1].value
    )
    with pytest.raises(GrammarError):
        ready.run("(")
    lmprog.flush_cache(remote)
    assert lmprog.get_server_info(remote)["requests"] >= 2


def test_openais_client_on_the_same_server(server: Served) -> None:
    with lmprog.OpenAI("nano", base_url=server.url + "/v1", dialect="lmprog") as backend:
        kind, _, sure, total = clerk.using(backend=backend, temperature=0).run("Dear Sirs").value
    assert kind in ("invoice", "complaint", "other")
    assert sure in ("yes", "no")
    assert total[-3] == "."
