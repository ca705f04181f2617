"""Upper bounds of a run's cost before it runs: what `program.explain(...)` returns and prints.

Every call is assumed to give the longest results that its settings allow, and all prompts to stay
in the runtime's cache; a prefix shared with an earlier call is counted once. Cached prefixes of
other runs are not considered. Token counts are exact if a runtime counts them and all literal text
of the prompt is known; else they are marked "about".
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lmprog import wire
from lmprog.lang.rehearsal.graph import Graph
from lmprog.lang.rehearsal.op_graph import Planned
from lmprog.lang.rehearsal.preview import is_exact
from lmprog.lang.rehearsal.prompts import Atom, PromptReader, RehearsedPrompt
from lmprog.wire.default_limits import MOST


@dataclass(frozen=True, slots=True)
class CallCost:
    """Upper bounds for one call, in tokens."""

    label: str
    kind: str
    branch: int
    prompt: int
    """Literal text, and the longest possible results before the call."""
    shared: int
    """Tokens of the prompt that an earlier call of the run has computed."""
    shared_with: str | None
    """The label of the call with the longest shared prefix."""
    own: int
    """Maximum number of generated tokens (of all `n`), or for a select the tokens of all options.
    """
    longest: int
    """Length of one sequence: the prompt and one result."""
    is_exact: bool = True
    """False if the backend has no tokenizer, or if literal text contains a result, whose marker is
    counted instead.
    """


@dataclass(frozen=True, slots=True)
class Explanation:
    """Upper bounds for all calls of a run, and the sizes of the runtime that it would run on."""

    name: str
    calls: tuple[CallCost, ...]
    num_branches: int
    num_forks: int
    page_size: int
    num_pages: int
    context_len: int
    knows_tokens: bool = True
    """Whether the backend counts with the model's tokenizer."""

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all calls; what a runtime without prefix sharing would compute."""
        return sum(call.prompt for call in self.calls)

    @property
    def shared_tokens(self) -> int:
        return sum(call.shared for call in self.calls)

    @property
    def worst_tokens(self) -> int:
        """Maximum number of tokens that the run computes, including generated ones."""
        return self.prompt_tokens - self.shared_tokens + sum(call.own for call in self.calls)

    @property
    def total_tokens(self) -> int:
        """Maximum of what `max_total_tokens` counts: prompts and results of all calls, shared ones
        included.
        """
        return self.prompt_tokens + sum(call.own for call in self.calls)

    @property
    def worst_pages(self) -> int:
        """Maximum number of KV cache pages, with everything kept and one partial page for each
        call.
        """
        return sum(
            -(-(call.prompt - call.shared + call.own) // self.page_size) + 1 for call in self.calls
        )

    @property
    def is_exact(self) -> bool:
        """Whether the literal texts were counted by the model's tokenizer; results count with their
        limits.
        """
        return all(call.is_exact for call in self.calls)

    @property
    def refused(self) -> tuple[CallCost, ...]:
        """Calls that may exceed the context length; the runtime rejects them if they do."""
        return tuple(call for call in self.calls if 0 < self.context_len < call.longest)

    def _repr_html_(self) -> str:
        """For notebooks: what `print` shows."""
        return f'<pre style="white-space:pre-wrap">{html.escape(str(self))}</pre>'

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield (
            f"{self.name}: {len(self.calls)} calls on {self.num_branches} branches, "
            f"{self.num_forks} forks"
        )
        width = max((len(call.label) for call in self.calls), default=0)
        for call in self.calls:
            shared = (
                f", {call.shared:,} of them shared with {call.shared_with}"
                if call.shared_with
                else ""
            )
            own = "options" if call.kind == "select" else "generated"
            about = "" if call.is_exact else "about "
            prompt = f"prompt {about}{call.prompt:,}{shared}"
            yield f"  {call.label:<{width}}  branch {call.branch}  {prompt}; {own} {call.own:,}"
        about = "" if self.is_exact else "about "
        shared = f"{self.shared_tokens:,} of them shared within the run"
        yield f"{about}at most {self.prompt_tokens:,} tokens of prompts, {shared}"
        yield f"{about}at most {self.total_tokens:,} tokens in all, as max_total_tokens counts them"
        fits = (
            ""
            if self.worst_pages <= self.num_pages
            else ", more than there are: some would be computed again"
        )
        pages = f"{self.worst_pages:,} of {self.num_pages:,} pages of {self.page_size}"
        where = f", in {pages}{fits}" if self.num_pages else ""  # an API does not report its memory
        yield f"{about}at most {self.worst_tokens:,} tokens computed{where}"
        for call in self.refused:
            yield (
                f"{call.label} can need {call.longest:,} tokens, and the context is "
                f"{self.context_len:,}"
            )
        if not self.knows_tokens:
            yield "(this backend has no tokenizer: all counts are approximate)"
        elif not self.is_exact:
            yield "(about: a result stands in literal text, and its mark was counted)"


def explain_of(graph: Graph, reader: PromptReader, welcome: wire.Welcome) -> Explanation:
    """Lets the runtime render the prompts and count their tokens; blocks."""
    prompts = reader.write(graph).calls
    partners = [_partner(prompts[:index], prompt) for index, prompt in enumerate(prompts)]
    texts = [literal for prompt in prompts for literal in prompt.literals]
    texts += [
        (text, index == 0)
        for _, common in partners
        for index, text in enumerate(common)
        if isinstance(text, str)
    ]
    selects = [call.op for call in graph.calls.values() if isinstance(call.op, wire.Select)]
    texts += [(choice, False) for op in selects for choice in op.choices]
    counts = reader.count(texts)

    sizes = _Sizes(counts, welcome.context_len)
    costs = [
        replace(
            sizes.cost(prompt, *partner), is_exact=reader.knows_tokens and is_exact(prompt, graph)
        )
        for prompt, partner in zip(prompts, partners, strict=True)
    ]
    forks = sum(isinstance(op, wire.Fork) for op in graph.ops)
    runtime = (welcome.page_size, welcome.num_pages, welcome.context_len)
    return Explanation(
        graph.name, tuple(costs), len(graph.steps), forks, *runtime, reader.knows_tokens
    )


class _Sizes:
    """Lengths in tokens, from the counts of the literal texts."""

    def __init__(self, counts: Mapping[tuple[str, bool], int], context_len: int) -> None:
        self._counts = counts
        self._context_len = context_len or MOST  # few services tell theirs

    def options(self, op: wire.Select) -> list[int]:
        return [self._counts[choice, False] for choice in op.choices]

    def most(self, planned: Planned) -> int:
        """Maximum length of one result."""
        op = planned.op
        return (
            max(self.options(op))
            if isinstance(op, wire.Select)
            else self._context_len
            if op.sampling.max_tokens is None
            else op.sampling.max_tokens
        )

    def length(self, atoms: Sequence[Atom]) -> int:
        sizes = (
            self._counts[atom, index == 0] if isinstance(atom, str) else self.most(atom)
            for index, atom in enumerate(atoms)
        )
        return sum(sizes)

    def cost(
        self, prompt: RehearsedPrompt, partner: RehearsedPrompt | None, common: Sequence[Atom]
    ) -> CallCost:
        """The cost of a call; `common` is the prefix that `prompt` shares with the call of
        `partner`.
        """
        op, size, most = prompt.planned.op, self.length(prompt.atoms), self.most(prompt.planned)
        shared = min(self.length(common), size)
        return CallCost(
            label=prompt.planned.label,
            kind="select" if isinstance(op, wire.Select) else "gen",
            branch=prompt.branch,
            prompt=size,
            shared=shared,
            shared_with=partner.planned.label if partner is not None and shared else None,
            own=sum(self.options(op))
            if isinstance(op, wire.Select)
            else op.sampling.num_sequences * most,
            longest=size + most,
        )


def _partner(
    earlier: Sequence[RehearsedPrompt], prompt: RehearsedPrompt
) -> tuple[RehearsedPrompt | None, tuple[Atom, ...]]:
    """The earlier call whose prompt and result share the longest prefix with `prompt`, and that
    prefix.
    """
    best: tuple[RehearsedPrompt | None, tuple[Atom, ...]] = (None, ())
    length = 0
    for other in earlier:
        common = _common((*other.atoms, other.planned), prompt.atoms)
        size = sum(len(atom) if isinstance(atom, str) else 1 for atom in common)
        if size > length:
            best, length = (other, common), size
    return best


def _common(ours: Sequence[Atom], theirs: Sequence[Atom]) -> tuple[Atom, ...]:
    found: list[Atom] = []
    for a, b in zip(ours, theirs, strict=False):
        if a == b:
            found.append(a)
            continue
        if isinstance(a, str) and isinstance(b, str) and (same := _same_start(a, b)):
            found.append(same)
        break
    return tuple(found)


def _same_start(a: str, b: str) -> str:
    length = next(
        (index for index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y),
        min(len(a), len(b)),
    )
    return a[:length]
