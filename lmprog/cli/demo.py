"""`lmprog demo` (and `make demo`): four small programs on the shipped model, and what each of them
shared.

Everything shown is done while one looks: the sources are those of `lmprog.cli.demo`, the
texts are the model's, the figures are the runtime's own counters before and after. Knows how to
print; what a program is, it only uses.
"""

from __future__ import annotations

import argparse
import inspect
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

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


WIDEST = 100  # columns; wider terminals keep a margin

WAYS = (
    (
        "examples/hello.py, examples/fork_tips.py, examples/extract_json.py",
        "three files to read first",
    ),
    ("docs/language.md", "the whole language"),
    (
        "lmprog run examples/hello.py::hello",
        "runs one program of a file; --arg NAME=VALUE, --model FOLDER",
    ),
    ("lmprog serve", "a runtime for other processes; lmprog.connect(address) reaches it"),
    ("lmprog doctor", "what this machine has, and what would make it faster"),
    ("lmprog sim", "the scheduler and the tree against a simulated model, every step checked"),
)


# --- printing


def run(given: argparse.Namespace) -> int:
    """Runs the demo on a runtime of its own; returns the exit code."""
    console = Console(highlight=False)
    console.width = min(console.width, WIDEST)
    start = time.perf_counter()
    with lmprog.Runtime("nano") as backend:
        _introduce(console, backend, time.perf_counter() - start)
        works = [
            _show(console, backend, number, part) for number, part in enumerate(PARTS, start=1)
        ]
    _sum_up(console, works)
    _go_on(console)
    return 0


def _introduce(console: Console, backend: Backend, seconds: float) -> None:
    info = lmprog.get_server_info(backend)
    console.print(Rule("[bold]lmprog: programs that call a language model[/bold]"))
    console.print()
    _flow(
        console,
        Text.from_markup(
            f"A runtime has started in {seconds:.1f} s, with the model [bold]nano[/bold] "
            f"({info['vocab_size']:,} "
            f"tokens, {info['context_len']:,} of context), which comes with lmprog. It is "
            "tiny and was trained on a "
            "small invented world: it knows the forms used below and little else, and it "
            "makes mistakes. Nothing is "
            "staged: the answers are what it says now, the figures are the runtime's "
            "counters. The same programs run "
            "on any Llama, Mistral or Qwen checkpoint.\n"
        ),
    )


def _show(console: Console, backend: Backend, number: int, part: DemoPart) -> Work:
    result, work = measured(backend, part)
    console.print(Rule(f"[bold]{number}. {part.title}[/bold]", align="left"))
    _flow(console, Text(f"{part.idea}\n"))
    _flow(console, _source(part), indent=2)
    for line in part.lines(result):
        _flow(console, Text(line, style="green"), indent=2)
    console.print()
    _flow(console, Text(_told(work), style="cyan"), indent=2)
    console.print()
    return work


def _flow(console: Console, text: Text, indent: int = 0) -> None:
    """Prints within the width, without blanks at the ends of lines."""
    for line in text.wrap(console, console.width - indent):
        line.rstrip()
        console.print(Text(" " * indent if line.plain else "") + line)


def _source(part: DemoPart) -> Text:
    returned = inspect.signature(part.program.function).return_annotation
    shape = inspect.getsource(Person) + "\n" if returned == Person.__name__ else ""
    text = f"{shape}{inspect.getsource(part.program.function)}\n{part.call}\n"
    return Syntax("", "python", theme="ansi_dark").highlight(text)


def _told(work: Work) -> str:
    forced = f", {work.forced} of them forced" if work.forced else ""
    written = f"{work.generated} tokens generated{forced}. " if work.generated else ""
    passes = f"{work.passes} forward passes" if work.passes > 1 else "one forward pass"
    return (
        f"{work.needed} tokens were needed: {work.found} found in the tree, {work.computed} "
        f"computed, in {passes}. "
        f"{written}{1e3 * work.seconds:.0f} ms."
    )


def _sum_up(console: Console, works: Sequence[Work]) -> None:
    table = Table(
        title="What was shared and computed, in tokens", title_style="bold", title_justify="left"
    )
    table.add_column("program")
    for name in ("prompt", "in tree", "computed", "forced", "passes", "ms"):
        table.add_column(name, justify="right")
    for part, work in zip(PARTS, works, strict=True):
        table.add_row(part.program.function.__name__, *_figures(work))
    table.add_section()
    sums = [sum(column) for column in zip(*(_numbers(work) for work in works), strict=True)]
    table.add_row("all", *(f"{number:,.0f}" for number in sums))
    console.print(Rule())
    console.print(table)
    found, needed = sum(work.found for work in works), sum(work.needed for work in works)
    console.print()
    _flow(
        console,
        Text.from_markup(
            "[bold]prompt[/bold]: of all calls, as written. [bold]in tree[/bold]: found "
            "there, so not computed: "
            f"{found / needed:.0%} of what was needed. [bold]computed[/bold]: went through "
            "the model, prompts and "
            "answers. [bold]forced[/bold]: known without sampling. [bold]passes[/bold]: of "
            "the model, each for all "
            "that were due together. The first pass after a start is slower than the others.\n"
        ),
    )


def _numbers(work: Work) -> tuple[float, ...]:
    return (work.prompt, work.found, work.computed, work.forced, work.passes, 1e3 * work.seconds)


def _figures(work: Work) -> list[str]:
    return [f"{number:,.0f}" for number in _numbers(work)]


def _command() -> str:
    """How this command is called here: `make demo` runs it from a virtual environment that is on
    nobody's path.
    """
    called = sys.argv[0]
    return called if Path(called).name == "lmprog" and shutil.which("lmprog") is None else "lmprog"


def _go_on(console: Console) -> None:
    console.print(Rule("[bold]How to go on[/bold]", align="left"))
    for what, why in WAYS:
        _flow(console, Text(what.replace("lmprog ", f"{_command()} ", 1), style="bold"))
        _flow(console, Text(why), indent=4)
