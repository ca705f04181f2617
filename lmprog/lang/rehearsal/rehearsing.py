"""Everything a program offers before it runs: its trace, its prompts, its cost, and its beginning
computed in advance. The entry point of this package, imported on first use.

The program runs with placeholders: a backend that answers at once, and records every op and call.
Knows what the frontend posts; it does not know how the runtime renders roles or counts tokens.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmprog import wire
from lmprog.backends.client import Client, running_loop
from lmprog.backends.textual import TextAnswer, TextRuntime
from lmprog.errors import LmprogError, ProgramError
from lmprog.lang.branches.branch import Branch
from lmprog.lang.branches.gen import Gen
from lmprog.lang.branches.scope import RunSettings, Scope
from lmprog.lang.ops import threads
from lmprog.lang.ops.expressions import RoleBeginExpr, RoleEndExpr, gen_op
from lmprog.lang.rehearsal.cost import Explanation, explain_of
from lmprog.lang.rehearsal.graph import Graph
from lmprog.lang.rehearsal.op_graph import Planned
from lmprog.lang.rehearsal.preview import Preview, preview_of
from lmprog.lang.rehearsal.prompts import PromptReader
from lmprog.lang.runs.executor import Job, backend_of, blocking, in_thread, open_run

MAX_CALLS = 10_000


def preview(job: Job, settings: RunSettings) -> Preview:
    """See `Program.preview`."""
    client = backend_of(settings).client
    return preview_of(
        rehearse(job, settings, client.welcome.tools).graph, PromptReader(client, settings.salt)
    )


def explain(job: Job, settings: RunSettings) -> Explanation:
    """See `Program.explain`."""
    client = backend_of(settings).client
    graph = rehearse(job, settings, client.welcome.tools).graph
    return explain_of(graph, PromptReader(client, settings.salt), client.welcome)


def trace(job: Job, settings: RunSettings) -> Graph:
    """See `Program.trace`."""
    return rehearse(job, settings).graph


UNKNOWN = "⟨"  # first character of the marker of an omitted argument or of a result


def beginning(graph: Graph) -> Iterator[str | RoleBeginExpr | RoleEndExpr]:
    """The texts and roles of the first branch up to the first thing that differs between runs."""
    for step in graph.steps[graph.roots[0]] if graph.roots else ():
        if not isinstance(step, wire.Append):
            return
        for piece in step.pieces:
            if isinstance(piece, wire.RoleBegin):
                yield RoleBeginExpr(piece.role)
            elif isinstance(piece, wire.RoleEnd):
                yield RoleEndExpr(piece.role)
            elif isinstance(piece, wire.TextPiece):
                known, mark, _ = piece.text.partition(UNKNOWN)
                yield known
                if mark:
                    return
            else:
                return


def compute_ahead(graph: Graph, settings: RunSettings) -> wire.Usage:
    """See `Program.cache`. The runtime computes the beginning and generates one token after it;
    blocks. Does nothing where the beginning has no text.
    """
    contents = [content for content in beginning(graph) if content != ""]

    def program(s: Branch) -> None:
        if any(isinstance(content, str) for content in contents):
            s.append(*contents)
            s.append(gen_op(None, 1, {"temperature": 0.0, "ignore_eos": True}))

    run = open_run(replace(settings, cache=None))  # a kept answer would compute nothing
    blocking(Job(program, (), {}), run)
    run.value  # noqa: B018  (raises)
    return run.usage


class _Sending:
    """The channel to a text runtime, without its replies: the client takes them itself."""

    def __init__(self, runtime: TextRuntime) -> None:
        self.info = runtime.info
        self._runtime = runtime
        self._closed = threading.Event()

    def send(self, ops: Sequence[wire.Op]) -> None:
        self._runtime.send(ops)

    def receive(self, timeout: float) -> list[wire.Reply]:
        self._closed.wait(timeout)
        return []

    def close(self) -> None:
        self._closed.set()


class _PromptClient(Client):
    """A client that handles its replies as soon as it has sent, so that rehearsals are
    deterministic.
    """

    def __init__(self, runtime: TextRuntime) -> None:
        self._runtime = runtime
        super().__init__(_Sending(runtime))

    def flush(self) -> None:
        super().flush()
        while replies := self._runtime.receive(0):
            for reply in replies:
                self._deliver(reply)


class _Placeholders:
    """The backend of a rehearsal."""

    def __init__(self, tools: wire.ToolSupport) -> None:
        self.planned: dict[int, Planned] = {}
        self.scope: Scope | None = None
        self._lock = threading.Lock()
        self._labels: dict[str, int] = {}
        self.runtime = TextRuntime(self, "rehearsal", tools)
        self._client = _PromptClient(self.runtime)

    @property
    def client(self) -> Client:
        return self._client

    def close(self) -> None:
        self._client.close()

    def answer(
        self, prompt: str, op: wire.Generate | wire.Select
    ) -> TextAnswer | LmprogError | None:
        with self._lock:
            if len(self.planned) == MAX_CALLS:
                return ProgramError(
                    f"with placeholders for values this program makes more than {MAX_CALLS:,} calls"
                )
            gen = self._result_of(op.call)
            name, site = (None, None) if gen is None else (gen.name, gen.site)
            planned = Planned(self._label(name, op), op, site)
            self.planned[op.call] = planned
        if isinstance(op, wire.Select):
            return TextAnswer(scores=(0.0, *(-1.0 for _ in op.choices[1:])))
        example = None if gen is None else gen.example
        text = placeholder(op.constraint, planned.mark) if example is None else example
        return TextAnswer(texts=(text,) * op.sampling.n)

    def _label(self, name: str | None, op: wire.Generate | wire.Select) -> str:
        """The call's name, made unique; its kind and number if it has none."""
        if name is None:
            kind = "select" if isinstance(op, wire.Select) else "gen"
            return f"{kind} {len(self.planned) + 1}"
        self._labels[name] = nth = self._labels.get(name, 0) + 1
        return name if nth == 1 else f"{name} ({nth})"

    def _result_of(self, call: int) -> Gen[Any] | None:
        for scope in _with_nested(self.scope):
            found: Gen[Any] | None = next(
                (gen for gen in reversed(scope.gens) if gen.call.id == call), None
            )
            if found is not None:
                return found
        return None


def _with_nested(scope: Scope | None) -> Iterator[Scope]:
    if scope is not None:
        yield scope
        for nested in list(scope.nested):
            yield from _with_nested(nested)


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """The result of a rehearsal, and what the program returned for the placeholders."""

    graph: Graph
    value: object


def rehearse(
    job: Job,
    settings: RunSettings,
    tools: wire.ToolSupport = wire.ToolSupport(),  # noqa: B008  (immutable)
) -> Rehearsed:
    """Runs the program once with placeholders; blocks. Raises what the program raises. `tools` is
    how the model calls tools, which a prompt that describes tools says.
    """
    double = _Placeholders(tools)
    try:
        run = open_run(
            replace(settings, backend=double, timeout=None, max_total_tokens=None),
            is_rehearsal=True,
        )
        double.scope = run.scope
        if running_loop() is None:
            blocking(job, run)
        else:  # also within another program: a rehearsal never waits
            threads.wait([in_thread(job, run)])
        failure = run.failure
        if failure is not None:
            failure.add_note(
                "raised in a rehearsal, where generations are placeholders and choices their "
                "first option"
            )
            raise failure
        ops = tuple(op for frame in double.runtime.frames for op in frame)
        return Rehearsed(Graph(job.function.__name__, ops, double.planned), run.value)
    finally:
        double.close()


_CANDIDATES = (
    "0", "1", "10", "100", "1000", "0.0", "0.00", "1.0", "yes", "no", "a", "A", "aa", "text",
    "Text", "a b", '""', "()", '"text"', "[]", "{}", "2000-01-01", "2000-01-01T00:00:00Z",
    "00:00", "00:00:00", "a@b.cc", "127.0.0.1", "-", "true",
)  # fmt: skip
_FORMATS = {
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "email": "a@example.org",
}
_DEEP = 6  # recursion depth from which the shortest option is taken


def placeholder(constraint: wire.Constraint | None, mark: str) -> str:
    """A text that satisfies `constraint`; `mark` if there is no constraint or no such text is
    found.
    """
    if constraint is None:
        return mark
    choices, asked = constraint.as_choices(), constraint.as_schema()
    if choices is not None:
        return choices[0]
    if asked is not None:
        schema = json.loads(asked.schema)
        return json.dumps(instance(schema, schema), ensure_ascii=False)
    pattern = constraint.as_pattern()
    return mark if pattern is None else _matching(pattern) or mark


def _matching(pattern: str) -> str | None:
    try:
        compiled = re.compile(pattern)
    except re.error:
        return None  # the runtime reports what is wrong with it
    return next((text for text in _CANDIDATES if compiled.fullmatch(text)), None)


def instance(schema: Any, root: Any, depth: int = 0) -> Any:
    """A small value that satisfies `schema`; references are resolved in `root`."""
    if not isinstance(schema, Mapping):
        return None
    if "$ref" in schema:
        return instance(_referred(str(schema["$ref"]), root), root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for several in ("anyOf", "oneOf", "allOf"):
        if schema.get(several):
            return instance(_option(schema[several], depth), root, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else None)
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        return _object(schema, root, depth)
    if kind == "array":
        fixed = [instance(item, root, depth + 1) for item in schema.get("prefixItems", [])]
        more = max(schema.get("minItems", 0) - len(fixed), 0)
        return fixed + [instance(schema.get("items"), root, depth + 1) for _ in range(more)]
    if kind == "string":
        return _string(schema)
    if kind in ("integer", "number"):
        return _number(schema)
    return False if kind == "boolean" else None


def _referred(path: str, root: Any) -> Any:
    found = root
    for part in path.removeprefix("#").strip("/").split("/"):
        if part:
            found = (
                found.get(part.replace("~1", "/").replace("~0", "~"))
                if isinstance(found, Mapping)
                else None
            )
    return found


def _option(options: Sequence[Any], depth: int) -> Any:
    """The first option; deep inside a recursion, one that ends it."""
    if depth > _DEEP:
        return next((option for option in options if option.get("type") == "null"), options[-1])
    return options[0]


def _object(schema: Mapping[str, Any], root: Any, depth: int) -> dict[str, Any]:
    properties = schema.get("properties", {})
    return {
        name: instance(properties.get(name, {}), root, depth + 1)
        for name in schema.get("required", ())
    }


def _string(schema: Mapping[str, Any]) -> str:
    if "pattern" in schema:
        found = _matching(str(schema["pattern"]))
        if found is not None:
            return found
    text = _FORMATS.get(str(schema.get("format")), "text")
    if "format" in schema:
        return text
    return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", len(text) + 4096)]


def _number(schema: Mapping[str, Any]) -> int | float:
    value: int | float = 0
    if "minimum" in schema:
        value = max(value, schema["minimum"])
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        value = schema["exclusiveMinimum"] + 1
    if "maximum" in schema:
        value = min(value, schema["maximum"])
    if "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
        value = schema["exclusiveMaximum"] - 1
    step = schema.get("multipleOf")
    return value if not step else -(-value // step) * step
