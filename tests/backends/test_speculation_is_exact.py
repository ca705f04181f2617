"""Random programs on random models give the same results with speculation as without it, and with
fewer requests.

The model is a function of the text before it, letter by letter, so that it goes on with its own
text as it would have gone on in one piece. The programs append what it would write next, or
something else.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import lmprog
from lmprog import wire
from lmprog.backends.blackbox.api import ApiAnswer, ApiRequest, TextListener
from lmprog.backends.blackbox.api_backend import ApiBackend
from lmprog.backends.blackbox.retry_policy import RetryPolicy
from lmprog.backends.blackbox.stop_strings import Certain, first_stop
from lmprog.backends.blackbox.transcript import ChatPrompt, Kind, Prompt, TextPrompt
from lmprog.errors import NotSupported, RequestRejected

ALPHABET = "aab.\n"
STOPS = ["\n", ".", "ab", "a.b"]


@dataclass
class LetterModel:
    """An `Api` in this process. Letters are its tokens; it may keep to itself how many there were,
    and where.
    """

    seed: int
    kind: Kind = "text"
    tells_usage: bool = True
    tells_tokens: bool = True
    model: str = "letters"
    can_prefill: bool = True
    context_len: int = 0
    num_requests: int = 0

    def next(self, text: str) -> str:
        """The next letter; empty where the model ends."""
        number = hashlib.blake2b(f"{self.seed} {text[-5:]}".encode(), digest_size=2).digest()
        return "" if number[0] % 16 == 0 else ALPHABET[number[1] % len(ALPHABET)]

    async def generate(self, request: ApiRequest, on_text: TextListener | None) -> ApiAnswer:
        self.num_requests += 1
        sampling = request.sampling
        if sampling.logprobs is not None and not self.tells_tokens:
            raise RequestRejected("no logprobs here")
        before = _written(request.prompt)
        said, finish, stopped_by = "", "length", None
        while len(said) < (sampling.max_tokens or 100):
            letter = self.next(before + said)
            said += letter
            ended = [stop for stop in sampling.stop if said.endswith(stop)]
            if ended:
                finish, stopped_by = "stop", max(ended, key=len)
                break
            if not letter:
                finish = "stop"
                break
        num_tokens = len(said)
        said = said.removesuffix(stopped_by or "")
        if on_text is not None:
            for letter in said:
                on_text(0, letter, 1)
        tokens = tuple(
            wire.TokenLogprob(-1, letter, -1.0) for letter in said if sampling.logprobs is not None
        )
        output = wire.Output(
            said, (), "length" if finish == "length" else "stop", stopped_by, tokens
        )
        return ApiAnswer(
            (output,),
            wire.Usage(prompt=len(before), generated=num_tokens if self.tells_usage else 0),
        )

    async def select(self, prompt: Prompt, op: wire.Select) -> wire.Chosen | None:
        return None

    def enforces(self, constraint: wire.Constraint, prompt: Prompt) -> bool:
        return False

    async def flush(self) -> None:
        raise NotSupported("nothing to forget")

    async def close(self) -> None:
        pass


def _written(prompt: Prompt) -> str:
    if isinstance(prompt, ChatPrompt):
        return "".join(f"<{turn.content}>" for turn in prompt.messages) + "|" + prompt.partial
    assert isinstance(prompt, TextPrompt)
    return prompt.text


# --- programs


@dataclass(frozen=True)
class Text:
    follows: int
    """So many letters of what the model would write next."""
    literal: str
    """And then these."""


@dataclass(frozen=True)
class Gen:
    stop: tuple[str, ...]
    max_tokens: int


@dataclass(frozen=True)
class Fork:
    plans: tuple[tuple[Text | Gen, ...], ...]


TEXTS = st.builds(Text, st.integers(0, 3), st.sampled_from(["", "", "", "a", "\n", ".", "ab"]))
GENS = st.builds(
    Gen, st.lists(st.sampled_from(STOPS), max_size=2, unique=True).map(tuple), st.integers(1, 20)
)
STEPS = st.one_of(TEXTS, GENS, GENS)
FORKS = st.builds(
    Fork, st.lists(st.lists(STEPS, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple)
)
PLANS = st.lists(st.one_of(STEPS, STEPS, FORKS), max_size=7)


def perform(
    s: lmprog.Branch, plan: list[Text | Gen | Fork] | tuple[Text | Gen, ...], model: LetterModel
) -> list[str]:
    """What all generations of a plan give."""
    found: list[str] = []
    for step in plan:
        if isinstance(step, Text):
            known = s.text() if model.kind == "text" else f"<q>|{s.messages()[-1]['content']}"
            begin = known
            for _ in range(step.follows):
                known += model.next(known)
            s.append(known[len(begin) :] + step.literal)
        elif isinstance(step, Gen):
            found.append(s.gen(stop=step.stop, max_tokens=step.max_tokens).value)
        else:
            with s.fork(len(step.plans)) as branches:
                for branch, inner in zip(branches, step.plans, strict=True):
                    found += perform(branch, inner, model)
    return found


@lmprog.function
def program(
    s: lmprog.Branch, plan: list[Text | Gen | Fork], model: LetterModel
) -> tuple[list[str], str]:
    if model.kind == "text":
        s.append("q")
        return perform(s, plan, model), s.text()
    s.user("q")
    with s.assistant():
        found = perform(s, plan, model)
    return found, s.text()


@pytest.mark.parametrize("kind", ["text", "chat"])
@settings(max_examples=150, deadline=None)
@given(
    plan=PLANS,
    seed=st.integers(0, 10**6),
    tokens=st.integers(1, 40),
    tells_usage=st.booleans(),
    tells=st.booleans(),
)
def test_results_are_the_same_and_requests_no_more(
    kind: Kind,
    plan: list[Text | Gen | Fork],
    seed: int,
    tokens: int,
    tells_usage: bool,
    tells: bool,
) -> None:
    results, requests = [], []
    for num_spec_tokens in (None, tokens):
        model = LetterModel(seed, kind, tells_usage, tells)
        with ApiBackend(model, RetryPolicy(), {}) as backend:
            ready = program.using(
                backend=backend, num_api_spec_tokens=num_spec_tokens, temperature=0
            )
            results.append(ready.run(plan, model).value)
            requests.append(model.num_requests)
    assert results[0] == results[1]
    if tells:
        assert requests[1] <= requests[0]


@settings(max_examples=200, deadline=None)
@given(plan=PLANS, seed=st.integers(0, 10**6), tokens=st.integers(1, 60), begin=st.integers(0, 4))
def test_a_chat_that_cannot_go_on_in_a_turn_gives_what_one_that_can_gives_or_refuses(
    plan: list[Text | Gen | Fork], seed: int, tokens: int, begin: int
) -> None:
    plan = [Text(begin, ""), *plan]
    able, unable = LetterModel(seed, "chat"), LetterModel(seed, "chat", can_prefill=False)
    with ApiBackend(able, RetryPolicy(), {}) as backend:
        expected = program.using(backend=backend, temperature=0).run(plan, able).value
    with ApiBackend(unable, RetryPolicy(), {}) as backend:
        ready = program.using(backend=backend, temperature=0, num_api_spec_tokens=tokens)
        try:
            found = ready.run(plan, unable).value
        except NotSupported:
            event("refused")  # the model had gone on in another way, or not far enough
        else:
            event("answered")
            assert found == expected


@settings(max_examples=60, deadline=None)
@given(plan=PLANS, seed=st.integers(0, 10**6), tokens=st.integers(1, 40))
def test_a_stream_tells_exactly_the_results(
    plan: list[Text | Gen | Fork], seed: int, tokens: int
) -> None:
    model = LetterModel(seed)
    with ApiBackend(model, RetryPolicy(), {}) as backend:
        events = list(
            program.using(backend=backend, num_api_spec_tokens=tokens).stream(plan, model)
        )
    last = events[-1]
    assert isinstance(last, lmprog.Done)
    told = "".join(event.delta for event in events if isinstance(event, lmprog.Text))
    assert sorted(told) == sorted("".join(last.value[0]))


@given(
    st.text("ab.\n", max_size=30),
    st.lists(st.sampled_from(STOPS), max_size=3),
    st.lists(st.integers(1, 4)),
)
def test_what_is_passed_on_is_the_text_before_the_first_stop(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    certain, told, rest = Certain(stops), "", text
    for size in [*sizes, len(text)]:
        told += certain.push(rest[:size])
        rest = rest[size:]
        stop = first_stop(text, stops)
        expected = text if stop is None else text[: stop.begin]
        assert expected.startswith(told), "nothing is told that does not count"
    assert told + certain.rest(len(expected)) == expected
