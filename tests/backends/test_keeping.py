"""From which of several results a branch goes on, where an API gives them all at once."""

from __future__ import annotations

import pytest

import lmprog
from lmprog import wire
from lmprog.backends.blackbox.api import ApiAnswer, ApiRequest, TextListener
from lmprog.backends.blackbox.api_backend import ApiBackend
from lmprog.backends.blackbox.retry_policy import RetryPolicy
from lmprog.errors import NotSupported
from tests.backends.test_speculation_is_exact import LetterModel


class Three(LetterModel):
    """Gives b, a, a; the second is the likeliest. Tells log-probabilities where it `tells`."""

    def __init__(self, *, tells: bool) -> None:
        super().__init__(0)
        self.tells = tells

    async def generate(self, request: ApiRequest, on_text: TextListener | None) -> ApiAnswer:
        assert on_text is None or request.sampling.n == 1
        outputs = []
        for text, logprob in (("b", -2.0), ("a", -0.5), ("a", -1.0))[: request.sampling.n]:
            told = self.tells and request.sampling.logprobs is not None
            outputs.append(
                wire.Output(
                    text, (), "stop", None, (wire.TokenLogprob(-1, text, logprob),) if told else ()
                )
            )
        return ApiAnswer(tuple(outputs), wire.Usage())


@lmprog.function
def program(s: lmprog.Branch, keep: wire.Keep) -> tuple[list[str], str, int]:
    s.append("x")
    made = s.gen(n=3, keep=keep)
    return made.values, s.text(), len(made.metas[0].logprobs)


@pytest.mark.parametrize(
    ("keep", "values"),
    [
        ("first", ["b", "a", "a"]),
        ("fastest", ["b", "a", "a"]),
        ("majority", ["a", "b", "a"]),
        ("best", ["a", "b", "a"]),
    ],
)
def test_the_branch_goes_on_from_the_result_that_is_kept(
    keep: wire.Keep, values: list[str]
) -> None:
    with ApiBackend(Three(tells=True), RetryPolicy(), {}) as backend:
        run = program.using(backend=backend)
        assert run.run(keep).value == (values, f"x{values[0]}", 0)
        if keep != "first":
            told = [event.delta for event in run.stream(keep) if isinstance(event, lmprog.Text)]
            assert told == [values[0]]  # told when it is known which one it is


def test_keeping_the_best_needs_log_probabilities() -> None:
    with (
        ApiBackend(Three(tells=False), RetryPolicy(), {}) as backend,
        pytest.raises(NotSupported, match="no log-probabilities"),
    ):
        program.using(backend=backend).run("best")
