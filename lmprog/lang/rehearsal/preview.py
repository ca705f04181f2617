"""A run's exact prompts before it runs: what `program.preview(...)` returns and prints."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass

from lmprog.lang.rehearsal.graph import Graph
from lmprog.lang.rehearsal.prompts import PromptReader, Prompts, RehearsedPrompt


@dataclass(frozen=True, slots=True)
class PromptPreview:
    """The prompt of one call. `text` contains a marker for each result; `num_tokens` excludes the
    results.
    """

    label: str
    branch: int
    text: str
    num_tokens: int
    """Tokens of the literal text, including those that the tokenizer adds at the beginning of a
    text.
    """
    results: tuple[str, ...]
    """The labels of the calls whose results it contains, in order."""
    is_exact: bool
    """False if the backend estimates tokens, or if literal text contains a result (by reference, or
    written by the program): the marker is counted instead.
    """


@dataclass(frozen=True, slots=True)
class Preview:
    """The prompts of a run. `print` shows each branch's text once, and the size of each call's
    prompt in tokens.
    """

    prompts: tuple[PromptPreview, ...]
    branches: dict[int, str]
    """The whole text of each branch at its end."""
    graph: Graph
    _gained: dict[
        int, tuple[str, int | None]
    ]  # what to print of a branch, and the branch that it continues

    def __getitem__(self, label: str) -> PromptPreview:
        """The prompt of the call with that label."""
        return next(prompt for prompt in self.prompts if prompt.label == label)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        return f'<pre style="white-space:pre-wrap">{html.escape(str(self))}</pre>'

    def _lines(self) -> Iterator[str]:
        for number, (text, parent) in self._gained.items():
            goes_on = "" if parent is None else f", goes on from branch {parent}"
            yield f"--- branch {number}{goes_on}"
            yield text
        yield "--- calls"
        width = max((len(prompt.label) for prompt in self.prompts), default=0)
        for prompt in self.prompts:
            about = "" if prompt.is_exact else "about "
            plus = f", and the results of {len(prompt.results)} calls" if prompt.results else ""
            yield (
                f"{prompt.label:<{width}}  branch {prompt.branch}  "
                f"{about}{prompt.num_tokens:,} tokens{plus}"
            )
        if self.prompts:
            yield (
                "(⟨...⟩ stands for a result; where the program decides on values, the "
                "placeholders' way is shown)"
            )


def preview_of(graph: Graph, reader: PromptReader) -> Preview:
    """Lets the runtime render the prompts and count their tokens; blocks."""
    written = reader.write(graph)
    counts = reader.count(literal for prompt in written.calls for literal in prompt.literals)
    prompts = tuple(
        PromptPreview(
            prompt.planned.label,
            prompt.branch,
            prompt.text,
            sum(counts[literal] for literal in prompt.literals),
            tuple(planned.label for planned in prompt.results),
            reader.knows_tokens and is_exact(prompt, graph),
        )
        for prompt in written.calls
    )
    return Preview(prompts, dict(written.texts), graph, _gained(graph, written))


def is_exact(prompt: RehearsedPrompt, graph: Graph) -> bool:
    """Whether all its literal text is known."""
    marks = [planned.mark for planned in graph.calls.values()]
    return not any(mark in text for text, _ in prompt.literals for mark in marks)


def _gained(graph: Graph, written: Prompts) -> dict[int, tuple[str, int | None]]:
    found: dict[int, tuple[str, int | None]] = {}
    for branch, number in graph.numbers.items():
        text = written.texts[number]
        if branch in graph.parents:
            text = "..." + text[len(written.inherited[number]) :]
        parent = graph.parents.get(branch)
        found[number] = (text, None if parent is None else graph.numbers[parent])
    return found
