"""DSPy's side of `benchmarks.harness tuning`, in a Python that has it: a program is compiled by
BootstrapFewShotWithRandomSearch and scored on rows held out.

The task comes as a line of JSON. At each line of its own it waits for one, so that who started it can
count what a server did between two. Knows DSPy and the standard library; imports nothing of lmprog.

*plain*: the text of lmprog's programs, completed by `/v1/completions`. *chat*: DSPy as it comes, with
its ChatAdapter, by `/v1/chat/completions`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import threading
import time
import urllib.parse
from typing import Any, Literal

import dspy
from dspy.lm15 import Message, Response, TextPart, Usage
from dspy.teleprompt import BootstrapFewShotWithRandomSearch

Row = dict[str, Any]


class Completions:
    """An engine that has texts completed, as they are; a connection for each thread."""

    def __init__(self, url: str) -> None:
        self._address = urllib.parse.urlsplit(url).netloc
        self._own = threading.local()
        self._lock = threading.Lock()
        self.num_answered = self.num_failed = 0

    def complete(self, request: Any) -> Response:
        if not hasattr(self._own, "connection"):
            self._own.connection = http.client.HTTPConnection(self._address)
        body = {
            "model": "nano",
            "prompt": request.messages[-1].text,
            "temperature": request.config.temperature,
            "max_tokens": request.config.max_tokens,
            "stop": list(request.config.stop),
        }
        told = self._posted(json.dumps(body))
        (choice,) = told["choices"]
        usage = Usage(told["usage"]["prompt_tokens"], told["usage"]["completion_tokens"])
        parts = (TextPart(choice["text"]),)
        return Response(told["id"], "nano", Message("assistant", parts), "stop", usage)

    def _posted(self, body: str) -> Row:
        headers = {"Content-Type": "application/json", "Authorization": "Bearer none"}
        try:
            self._own.connection.request("POST", "/v1/completions", body, headers)
            answer = self._own.connection.getresponse()
        except (http.client.HTTPException, OSError):  # the server has closed an idle one
            self._own.connection.close()
            self._own.connection.request("POST", "/v1/completions", body, headers)
            answer = self._own.connection.getresponse()
        told: Row = json.loads(answer.read())
        with self._lock:
            self.num_answered += answer.status == 200
            self.num_failed += answer.status != 200
        return told


class Plain(dspy.Adapter):  # type: ignore[misc]
    """Rows as lines: the input without, or with, its name; then a line for each output."""

    def __init__(self, lines: dict[str, str], instruction: str) -> None:
        super().__init__()
        self._lines = lines
        """By field: what stands before it."""
        self._instruction = instruction

    def format(self, signature: Any, demos: list[Row], inputs: Row) -> list[Row]:
        outputs = list(signature.output_fields)
        shown = "".join(f"{self._text(demo, self._lines)}\n\n" for demo in demos)
        asked = f"{self._text(inputs, inputs)}\n{self._lines[outputs[0]].rstrip()}"
        return [{"role": "user", "content": f"{self._instruction}{shown}{asked}"}]

    def _text(self, row: Row, names: Any) -> str:
        return "\n".join(f"{self._lines[name]}{row[name]}" for name in names)

    def parse(self, signature: Any, completion: str) -> Row:
        lines = completion.split("\n")
        found = {}
        for nth, name in enumerate(signature.output_fields):
            line = lines[nth] if nth < len(lines) else ""
            found[name] = line.removeprefix(self._lines[name].rstrip() if nth else "").strip()
        return found


def program_of(task: Row) -> dspy.Predict:
    fields: Row = {task["input"]: (str, dspy.InputField())}
    for name in task["outputs"]:
        is_choice = task["choices"] and task["adapter"] == "chat"
        kind: Any = Literal[tuple(task["choices"])] if is_choice else str
        fields[name] = (kind, dspy.OutputField())
    return dspy.Predict(dspy.Signature(fields, task["instruction"] or None))


def said(told: Row) -> None:
    """Tells it, and waits until it is read."""
    print(json.dumps(told), file=_OUT, flush=True)
    sys.stdin.readline()


def main() -> None:
    task = json.loads(sys.stdin.readline())
    is_plain = task["adapter"] == "plain"
    limits = {"temperature": 0.0, "max_tokens": task["max_tokens"]}
    engine = Completions(task["url"])
    if is_plain:
        limits |= {"engine": engine, "stop": task["stop"]}
    else:
        limits |= {"api_base": f"{task['url']}/v1", "api_key": "none"}
    lm = dspy.LM("openai/nano", cache=False, **limits)
    adapter = Plain(task["lines"], task["instruction"]) if is_plain else dspy.ChatAdapter()
    dspy.configure(lm=lm, adapter=adapter)

    def metric(example: Any, found: Any, trace: Any = None) -> float:
        right = [str(example[name]) == str(found[name]).strip() for name in task["outputs"]]
        return float(all(right)) if trace is not None else sum(right) / len(right)

    def examples(part: str) -> list[Any]:
        return [dspy.Example(**row).with_inputs(task["input"]) for row in task[part]]

    said({"dspy": dspy.__version__})
    began = time.process_time()
    search = BootstrapFewShotWithRandomSearch(
        metric=metric,
        num_candidate_programs=task["candidates"],
        num_threads=task["threads"],
        max_errors=10**9,
    )
    tuned = search.compile(program_of(task), trainset=examples("train"), valset=examples("compare"))
    busy = time.process_time() - began
    told = {"answered": engine.num_answered, "failed": engine.num_failed} if is_plain else {}
    said({"busy": busy, "programs": len(tuned.candidate_programs), **told})
    rows = examples("held_out")
    evaluate = dspy.Evaluate(
        devset=rows, metric=metric, num_threads=task["threads"], max_errors=10**9
    )
    said({"accuracy": evaluate(tuned).score / 100, "shots": len(tuned.demos)})


if __name__ == "__main__":
    _OUT = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        main()
