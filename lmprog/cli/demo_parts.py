"""The programs that `lmprog demo` shows, how each is run, and how its usage is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import lmprog
from lmprog import wire
from lmprog.backends import Backend

# --- the programs

REVIEWS = (
    "The concert was boring. I want my money back.",
    "What a lovely hotel! I enjoyed every minute.",
    "The movie was terrible.",
    "I loved it.",
)

SHOWN = """Review: I think the movie is excellent. I loved it.
Sentiment: positive

Review: The room was dirty. I will not come back.
Sentiment: negative

Review: It was a boring book.
Sentiment: negative

Review: The coffee was really good.
Sentiment: positive

"""


@lmprog.function
async def classify(s: lmprog.Branch, review: str) -> lmprog.Selected:
    s.append(SHOWN)  # the same in every run: computed once
    s.append(f"Review: {review}\nSentiment:")
    return await s.select(" positive", " negative")


PASSAGE = (
    "Mia is 31 years old. Mia lives in Oslo. Ben is a baker. Mia has a dog. Ben likes "
    "the color green.\n"
)
QUESTIONS = ("How old is Mia?", "What is Ben's job?", "Where does Mia live?")


@lmprog.function
async def ask_all(s: lmprog.Branch) -> list[str]:
    s.append(PASSAGE)
    async with s.fork(len(QUESTIONS)) as branches:  # three cursors
        branches += [f"Q: {question}\nA:" for question in QUESTIONS]
        return await branches.map(lambda b: b.gen(stop="\n", max_tokens=16))


@dataclass
class Person:
    name: str
    age: int
    town: str
    animal: str


@lmprog.function
async def extract(s: lmprog.Branch) -> Person:
    s.append("Text: Mia is 31 years old. Mia lives in Oslo. Mia has a dog.\n")
    s.append("Extract name, age, town, animal as JSON.\nJSON: ")
    return await s.gen(Person, max_tokens=64)


@lmprog.function
def three_tips(s: lmprog.Branch) -> list[str]:
    s.append("Give a tip for saving money.\nTip:")
    tip = s.gen(n=3, temperature=0.8, stop="\n", max_tokens=24)
    return tip.values


# --- running one and measuring its usage


class DemoResult(Protocol):
    """The interface common to the results of one run and of many."""

    @property
    def usage(self) -> wire.Usage: ...


@dataclass(frozen=True, slots=True)
class DemoPart:
    """One program of the demo: its source and `call` are shown, `run` makes that call, `lines`
    describe the result.
    """

    title: str
    idea: str
    program: lmprog.Program[..., Any]
    call: str
    run: Callable[[Backend], DemoResult]
    lines: Callable[[Any], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Work:
    """Increments of the runtime's counters. `found` + `computed` is what a runtime without prefix
    sharing would compute.
    """

    prompt: int
    found: int
    computed: int
    generated: int
    forced: int
    passes: int
    seconds: float

    @property
    def needed(self) -> int:
        return self.found + self.computed


def measured(backend: Backend, part: DemoPart) -> tuple[DemoResult, Work]:
    """Runs the program; its result and its usage."""
    before = lmprog.get_server_info(backend)
    start = time.perf_counter()
    result = part.run(backend)
    seconds = time.perf_counter() - start
    after = lmprog.get_server_info(backend)
    gained = {
        name: int(after[name] - before[name])
        for name in ("cached_tokens", "computed_tokens", "steps")
    }
    return result, Work(
        result.usage.prompt,
        gained["cached_tokens"],
        gained["computed_tokens"],
        result.usage.generated,
        result.usage.forced,
        gained["steps"],
        seconds,
    )


def _classified(results: lmprog.Results[lmprog.Selected]) -> list[str]:
    lines = []
    for review, label in zip(REVIEWS, results, strict=True):
        odds = ", ".join(
            f"{option.strip()} {chance:.0%}" for option, chance in label.probabilities.items()
        )
        lines.append(f"{review}\n  ->{label}  ({odds})")
    return lines


def _answered(run: lmprog.Run[list[str]]) -> list[str]:
    answers = zip(QUESTIONS, run.value, strict=True)
    return [PASSAGE.strip(), *(f"{question}\n  ->{answer}" for question, answer in answers)]


def _extracted(run: lmprog.Run[Person]) -> list[str]:
    usage = run.usage
    share = usage.forced / max(1, usage.generated)
    return [
        repr(run.value),
        f"{usage.forced} of its {usage.generated} tokens ({share:.0%}) were forced: the type "
        "left no choice.",
    ]


def _tipped(run: lmprog.Run[list[str]]) -> list[str]:
    return [f"{number}.{tip}" for number, tip in enumerate(run.value, start=1)]


PARTS = (
    DemoPart(
        "select: one label for each of four messages",
        "All options are scored in one step. The examples in the prompt are computed once, "
        "by whoever comes first.",
        classify,
        "results = classify.map(REVIEWS)",
        lambda backend: classify.map(REVIEWS, backend=backend),
        _classified,
    ),
    DemoPart(
        "fork: three questions about one passage",
        "A branch is a cursor in the tree of what was computed. All branches go through the "
        "model together.",
        ask_all,
        "run = ask_all.using(temperature=0).run()",
        lambda backend: ask_all.using(backend=backend, temperature=0).run(),
        _answered,
    ),
    DemoPart(
        "gen(T): an object of a Python type",
        "The type is compiled to an automaton. Where it leaves one way on (braces, keys, "
        "quotes), nothing is asked.",
        extract,
        "run = extract.using(temperature=0).run()",
        lambda backend: extract.using(backend=backend, temperature=0).run(),
        _extracted,
    ),
    DemoPart(
        "n=3: three samples of one prompt",
        "Samples are forks, too: they share the prompt from the step that computes it. The "
        "seed makes them replay.",
        three_tips,
        "run = three_tips.using(seed=7).run()",
        lambda backend: three_tips.using(backend=backend, seed=7).run(),
        _tipped,
    ),
)
