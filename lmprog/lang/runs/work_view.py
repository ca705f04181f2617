"""A run's text with what is known of each part: cached, computed, generated, forced; for terminals
and notebooks.

The runtime tells counts for each call, not places: how many tokens of the prompt were
cached (always its beginning), how many of the result were forced. So parts are shaded whole: the
text between two calls is cached, computed or partly cached, a result is generated, forced or partly
forced, and the exact counts stand beside. The figures of a select cover all its options together,
so the text right before one is never called cached.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TextIO, TypeAlias

from lmprog import wire
from lmprog.errors import LmprogError
from lmprog.lang.branches.branch import Branch
from lmprog.lang.branches.cursor import Cursor
from lmprog.lang.branches.gen import Gen
from lmprog.lang.branches.log import Item, plain_text
from lmprog.lang.branches.scope import total
from lmprog.lang.ops.expressions import RoleBeginExpr, RoleEndExpr
from lmprog.lang.streaming import branch_name

SpanKind: TypeAlias = Literal[
    "role", "cached", "partly cached", "computed", "generated", "partly forced", "forced",
    "selected", "failed",
    "unused",
]  # fmt: skip

COLORS: dict[SpanKind, tuple[str, str]] = {  # in HTML, and as an ANSI code
    "role": ("#888888", "2"),
    "cached": ("#d9ead3", "32"),
    "partly cached": ("#eef5d0", "33"),
    "computed": ("#f4f4f4", "0"),
    "generated": ("#cfe2ff", "34"),
    "partly forced": ("#e0d5f5", "35"),
    "forced": ("#ead1f0", "35;1"),
    "selected": ("#fff2cc", "36"),
    "failed": ("#f4cccc", "31"),
    "unused": ("#ffffff", "2"),
}


MOST_BRANCHES = 40
"""Of which each has a line."""


@dataclass(frozen=True, slots=True)
class ShownPart:
    """A stretch of the text. `note` has the counts; empty where there are none."""

    kind: SpanKind
    text: str
    note: str = ""


class EndedRun(Protocol):
    """What is shown of a run."""

    @property
    def branch(self) -> Branch: ...

    @property
    def usage(self) -> wire.Usage: ...

    @property
    def failure(self) -> BaseException | None: ...


def parts_of(cursor: Cursor) -> list[ShownPart]:
    """The branch's text in parts; all its calls are done."""
    return _parts(cursor.log, cursor.gens)


def branches_of(run: EndedRun) -> dict[str, list[ShownPart]]:
    """The text of every branch on which something was asked, by name; of a fork's branches what
    each said after it. The program's own comes first.
    """
    own = run.branch.cursor
    others: dict[str, list[Gen[Any]]] = {}
    for gen in run.branch.cursor.scope.all_gens():
        if gen.origin.path != own.path:
            others.setdefault(branch_name(gen.origin.path), []).append(gen)
    found = {branch_name(own.path): parts_of(own)}
    for name, gens in others.items():
        log = [item for gen in gens for item in gen.said]
        found[name] = _parts([*log, gens[-1]], gens)
    return found


def _parts(log: Iterable[Item], gens: Iterable[Gen[Any]]) -> list[ShownPart]:
    found: list[ShownPart] = []
    pending: list[
        ShownPart
    ] = []  # literal text since the last call, whose fate the next call tells
    own = set(gens)
    end = 0  # tokens up to and with the last result
    for item in log:
        if isinstance(item, Gen) and item in own:
            own.discard(item)  # where it stands again, it is text that refers to it
            usage = (item if item.thought is None else item.thought).usage
            found += _literal(pending, item, usage, end)
            found.append(_result(item))
            pending = []
            # of reasoning that was told apart, nothing stands in the text that the next call goes
            # on from
            if usage is not None:
                end = usage.prompt + (0 if _is_apart(item) else usage.generated)
        elif isinstance(item, RoleBeginExpr | RoleEndExpr):
            pending += (
                [ShownPart("role", f"[{item.role}] ")]
                if isinstance(item, RoleBeginExpr)
                else [ShownPart("role", "\n")]
            )
        else:
            failed = isinstance(item, Gen) and item.failure() is not None
            pending.append(ShownPart("unused", "" if failed else plain_text([item])))
    return [part for part in found + pending if part.text]


def _is_apart(gen: Gen[Any]) -> bool:
    try:
        return gen.meta.reasoning_tokens is not None
    except LmprogError:  # its call was done, and the run's budget with it
        return False


def _literal(
    pending: Iterable[ShownPart], gen: Gen[Any], usage: wire.Usage | None, end: int
) -> Iterator[ShownPart]:
    """The text between the last call and this one, all of one kind."""
    kind: SpanKind = "computed"
    note = ""
    if usage is None:
        kind = "unused"
    elif gen.is_select:
        kind = "partly cached" if usage.cached else "computed"
        note = f"{usage.prompt} tokens up to here; {usage.cached} of them cached"
    else:
        if (
            usage.cached >= usage.prompt - 1
        ):  # the last token is always computed, for what comes after it
            kind = "cached"
        elif usage.cached > end:
            kind = "partly cached"
        note = f"{usage.cached} of the {usage.prompt} tokens up to here were cached"
    for part in pending:
        yield part if part.kind == "role" else ShownPart(kind, part.text, note)


def _result(gen: Gen[Any]) -> ShownPart:
    failure = gen.failure()
    if failure is not None:
        return ShownPart("failed", f"<{failure.message}>")
    usage, text = gen.usage or wire.Usage(), gen.call.wait(0)
    name = f"{gen.name}: " if gen.name else ""
    if isinstance(text, wire.Chosen):
        chosen = text.options[text.index].probability
        return ShownPart(
            "selected",
            plain_text([gen]),
            f"{name}probability {chosen:.3f} among {len(text.options)} options",
        )
    kind: SpanKind = (
        "forced"
        if usage.forced >= usage.generated > 0
        else "partly forced"
        if usage.forced
        else "generated"
    )
    note = (
        f"{name}{usage.generated} tokens generated, {usage.forced} of them forced, in "
        f"{usage.decode_ms:.0f} ms"
    )
    if gen.meta.reasoning_tokens is not None:
        of_them = "of them were" if gen.thought is None else "more were"
        note += f"; {gen.meta.reasoning_tokens} {of_them} reasoning, which is not shown"
    return ShownPart(kind, plain_text([gen]), note)


def costs(run: EndedRun) -> Iterator[str]:
    """A line for each branch that has asked for something, where there are several, and for the
    runs inside of the run.
    """
    by_branch: dict[str, list[wire.Usage]] = {}
    for gen in run.branch.cursor.scope.all_gens():
        by_branch.setdefault(branch_name(gen.origin.path), []).append(gen.usage or wire.Usage())
    rows = [(name, len(usages), total(usages)) for name, usages in by_branch.items()]
    own, rest = total(usage for _, _, usage in rows), rows[MOST_BRANCHES:]
    rows = rows[:MOST_BRANCHES]
    if rest:
        num_calls = sum(calls for _, calls, _ in rest)
        name = f"{len(rest):,} other branches"
        rows.append((name, num_calls, total(usage for _, _, usage in rest)))
    inner = wire.Usage(
        **{
            name: getattr(run.usage, name) - getattr(own, name)
            for name in ("prompt", "cached", "generated", "forced", "computed")
        }
    )
    if inner.prompt or inner.generated:
        rows.append(("runs inside of it", 0, inner))
    if len(rows) < 2:
        return
    width = max(len(name) for name, _, _ in rows)
    for name, num_calls, usage in rows:
        calls = f"{num_calls:,} call{'s' if num_calls != 1 else ''}: " if num_calls else ""
        yield f"  {name:<{width}}  {calls}{work(usage)}"


def work(usage: wire.Usage) -> str:
    """One line, in tokens; in all as `max_total_tokens` counts them."""
    drafted = f"; {usage.drafted:,} drafted, {usage.accepted:,} of them right"
    return (
        f"{usage.prompt:,} prompt tokens, {usage.cached:,} of them cached; "
        f"{usage.generated:,} generated, "
        f"{usage.forced:,} of them forced: {usage.prompt + usage.generated:,} in all; "
        f"{usage.computed:,} computed"
        f"{drafted if usage.drafted else ''}"
    )


def to_html(run: EndedRun) -> str:
    """For notebooks."""
    branches = branches_of(run)
    shown = [part for parts in branches.values() for part in parts]
    spans = "".join(
        (f"<div><b>{html.escape(name)}</b></div>" if nth else "")
        + "".join(_span(part.kind, part.text, part.note) for part in parts)
        for nth, (name, parts) in enumerate(branches.items())
    )
    legend = " ".join(
        _span(kind, kind, "") for kind in COLORS if any(part.kind == kind for part in shown)
    )
    failure = run.failure
    why = (
        ""
        if failure is None
        else f"<div>{html.escape(f'{type(failure).__name__}: {failure}')}</div>"
    )
    table = html.escape("\n".join(costs(run)))
    return (
        f'<div style="font-family:monospace;white-space:pre-wrap;color:#222">{spans}</div>{why}'
        f'<pre style="font-size:smaller">{table}</pre>'
        f'<div style="font-size:smaller">{legend} · {html.escape(work(run.usage))}</div>'
    )


def _span(kind: SpanKind, text: str, note: str) -> str:
    style = f"color:{COLORS[kind][0]}" if kind == "role" else f"background:{COLORS[kind][0]}"
    title = f' title="{html.escape(note)}"' if note else ""
    return f'<span style="{style}"{title}>{html.escape(text)}</span>'


def to_terminal(run: EndedRun, file: TextIO | None = None, *, color: bool | None = None) -> None:
    """Prints the text, colored where `file` is a terminal (or as `color` says), a legend, and each
    call's counts.
    """
    out = sys.stdout if file is None else file
    colored = out.isatty() if color is None else color
    branches = branches_of(run)
    shown = [part for parts in branches.values() for part in parts]

    def paint(kind: SpanKind, text: str) -> str:
        return f"\x1b[{COLORS[kind][1]}m{text}\x1b[0m" if colored else text

    for nth, (name, parts) in enumerate(branches.items()):
        if nth:
            print(f"--- {name}", file=out)
        print("".join(paint(part.kind, part.text) for part in parts), file=out)
    if colored:
        print(
            *(paint(kind, kind) for kind in COLORS if any(part.kind == kind for part in shown)),
            sep=" · ",
            file=out,
        )
    for part in shown:
        if part.note:
            text = part.text if len(part.text) <= 40 else part.text[:37] + "..."
            print(f"  {part.kind:<13}  {text!r}: {part.note}", file=out)
    for line in costs(run):
        print(line, file=out)
    print(work(run.usage), file=out)
    if run.failure is not None:
        print(f"{type(run.failure).__name__}: {run.failure}", file=out)
