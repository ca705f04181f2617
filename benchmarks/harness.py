"""Tools of others that measure and improve, on `lmprog serve`.

    python -m benchmarks.harness lm-eval --items 200
    python -m benchmarks.harness tuning --dspy PYTHON [--tasks read,sort,add_up]

*lm-eval*: EleutherAI's evaluation harness, beside its own `hf` model. One multiple-choice task: five examples and a text of `--shared` tokens that all items share, some 40
tokens of each item's own, four choices. Both sides are the harness as it is installed (the extra
`harness`), on the same random checkpoint of 110M parameters, with one thread. What is reported is
the processor time of all processes of a side, the harness's own start (some 10 s) included, and
whether both sides give the same log-probabilities and accuracy.

*tuning*: DSPy's BootstrapFewShotWithRandomSearch with its own settings, in the Python given, and then
`program.tune` with as many model calls, on the tasks of `examples/tasks`. Each side has a server of
its own, with one thread; what is counted there in between is what counts: calls, tokens computed and
generated, processor time of gateway, runtime and client. DSPy's half of the rows that are compared is
the same as the half that it shows. Both are scored on the 200 rows held out. DSPy has the text of our
programs as its prompts (`--adapter plain`), since nano answers nothing right to the prompts that it
makes itself (`--adapter chat`); it reads all fields in one call, our program asks for each.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import lmprog
from benchmarks import runner
from benchmarks.endurance import ONE_THREAD, ServedProcess, served
from benchmarks.models import make_comparable
from examples.tasks.tasks import TASKS as OURS
from lmprog.backends.blackbox.server_backend import RuntimeEndpoint
from lmprog.evaluation.rows import rows_of
from lmprog.runtime.engine.model.locate import NANO
from lmprog.runtime.text.tokenizer import load_tokenizer
from lmprog.testing import StrictOpenAI
from lmprog.testing.services import num_words

TASK = """\
task: shared_prefix
dataset_path: json
dataset_kwargs:
  data_files:
    test: {items}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{prompt}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
_WORDS_TEXT = """
the a dog cat man woman house tree water fire day night sun moon red blue green big small old
new good bad first last year time hand eye head name city river road door book word
"""
_WORDS = _WORDS_TEXT.split()


@dataclass(frozen=True)
class Scored:
    """What a side found, and the seconds of processor time that it took."""

    accuracy: float
    logprobs: list[float]
    seconds: float


def write_task(folder: Path, items: int, shared: int, own: int, dice: random.Random) -> None:
    """The task's description and its items, of words that the tokenizer knows."""
    tokenizer = load_tokenizer(NANO)
    words = [word for word in sorted(_WORDS) if len(tokenizer.encode(f" {word}")) == 1]

    def text(count: int) -> str:
        return "".join(f" {dice.choice(words)}" for _ in range(count))

    def question() -> dict[str, Any]:
        choices = [text(dice.randrange(1, 4)) for _ in range(4)]
        return {"own": f"Q:{text(own - 5)}?\nA:", "choices": choices, "answer": dice.randrange(4)}

    shots = [question() for _ in range(5)]
    told = "".join(f"{shot['own']}{shot['choices'][shot['answer']]}\n" for shot in shots)
    before = text(max(0, shared - len(tokenizer.encode(told)))) + "\n" + told
    with (folder / "items.jsonl").open("w", encoding="utf-8") as out:
        for _ in range(items):
            made = question()
            out.write(json.dumps({"prompt": before + made.pop("own"), **made}) + "\n")
    (folder / "shared_prefix.yaml").write_text(TASK.format(items=folder / "items.jsonl"), "utf-8")


def evaluated(folder: Path, side: str, *model: str) -> Scored:
    """The harness on the task in `folder`."""
    out, before = folder / side, _used()
    command = [sys.executable, "-m", "lm_eval", *model, "--tasks", "shared_prefix", "--log_samples"]
    command += ["--include_path", str(folder), "--output_path", str(out)]
    environment = {**os.environ, **_OFFLINE, **ONE_THREAD}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the harness failed on the side {side}:\n{done.stderr}")
    return outcome(out, _used() - before)


def outcome(out: Path, seconds: float = 0.0) -> Scored:
    """What the harness wrote into `out`."""
    (results,) = out.rglob("results_*.json")
    (samples,) = out.rglob("samples_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text("utf-8").splitlines()]
    rows.sort(key=lambda row: int(row["doc_id"]))
    found = [float(response[0]) for row in rows for response in row["filtered_resps"]]
    (scores,) = json.loads(results.read_text("utf-8"))["results"].values()
    return Scored(float(scores["acc,none"]), found, seconds)


def _used() -> float:
    """Of all processes that have ended, and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def lm_eval(
    *,
    items: int = 200,
    shared: int = 1000,
    own: int = 40,
    size: Annotated[str, "of the checkpoint, as benchmarks/models names it"] = "S",
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder, model = Path(scratch), Path(scratch) / "model"
        make_comparable(model, size)
        write_task(folder, items, shared, own, random.Random(1))
        theirs = evaluated(
            *(folder, "hf", "--model", "hf", "--device", "cpu", "--batch_size", "4"),
            *("--model_args", f"pretrained={model},dtype=float32"),
        )
        before = _used()
        ended_by = signal.SIGTERM  # so that the runtime's time is counted
        with served("--dtype", "float32", model=str(model), ended_by=ended_by) as server:
            address = f"base_url={server.url}/v1/completions,num_concurrent=8"
            ours = evaluated(
                *(folder, "lmprog", "--model", "local-completions", "--model_args"),
                f"model={model},{address},tokenized_requests=True,tokenizer_backend=huggingface,"
                f"tokenizer={model}",
            )
        our_seconds = _used() - before
    apart = max(abs(a - b) for a, b in zip(ours.logprobs, theirs.logprobs, strict=True))
    print(f"{items} items, {shared} shared and {own} own tokens, 4 choices")
    for name, seconds, side in (
        ("lmprog serve + harness", our_seconds, ours),
        ("the harness's hf model", theirs.seconds, theirs),
    ):
        print(f"{name}: {seconds:.1f} s of processor time, accuracy {side.accuracy}")
    print(f"ratio {theirs.seconds / our_seconds:.1f}; log-probabilities apart by {apart:.1e}")


# -- tuning, beside DSPy

Told = dict[str, Any]
DSPY_SIDE = runner.ROOT / "benchmarks" / "peers" / "dspy_side.py"
TASKS: dict[str, Told] = {
    "read": {
        "input": "order",
        "lines": {"order": "Order: ", "name": "Name: ", "city": "City: ", "count": "Count: "},
        "instruction": "Read the order.\n\n",
        "stop": ["\n\n"],
        "max_tokens": 24,
    },
    "sort": {"input": "message", "lines": {"message": "", "label": "Kind: "}, "max_tokens": 8},
    "add_up": {"input": "question", "lines": {"question": "Q: ", "answer": "A: "}, "max_tokens": 4},
}
"""As DSPy's side has them: the same texts as in `examples/tasks/tasks.py`."""
KINDS = ["invoice", "complaint", "question", "thanks"]
COUNTED = {"calls": "calls_done", "computed": "computed_tokens", "generated": "generation_tokens"}
PATIENT = ("--stall", "600")  # a busy machine is no runtime that hangs
LEAST_FEWER, LEAST_CHEAPER, MOST_BEHIND = 8.0, 2.0, 0.01


@dataclass(frozen=True, slots=True)
class Side:
    """What tuning took and found."""

    counts: dict[str, int]
    busy: float
    accuracy: float

    def told(self) -> list[str]:
        counts = [f"{self.counts[name]:,}" for name in COUNTED]
        return [f"{self.accuracy:.3f}", *counts, f"{self.busy:.1f}"]


class Place:
    """A service that both sides may use: nano, before which there is a server."""

    def __init__(self, server: ServedProcess) -> None:
        self.server = server
        self.url = server.url

    def connect(self) -> Any:
        return RuntimeEndpoint(self.url)

    def read(self) -> tuple[dict[str, int], float]:
        """What was done so far, and in how many seconds of processor time."""
        with urllib.request.urlopen(f"{self.server.url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        found = {line.partition("{")[0]: line.rpartition(" ")[2] for line in lines}
        counts = {name: int(float(found[f"lmprog_{of}_total"])) for name, of in COUNTED.items()}
        pids = (self.server.pid, self.server.runtime_pid())
        return counts, runner.processor_time(*pids)

    def of(self, work: Callable[[], None]) -> tuple[dict[str, int], float]:
        before, busy = self.read()
        work()
        after, busy_now = self.read()
        return {name: after[name] - before[name] for name in COUNTED}, busy_now - busy


class ScriptedPlace(Place):
    """A double of a service, whose model often knows what it is shown an example of."""

    def __init__(self, service: StrictOpenAI) -> None:
        self._service = service
        self.url = service.url

    def connect(self) -> Any:
        return self._service.connect(is_chat_model=False, constraints="best_effort")

    def read(self) -> tuple[dict[str, int], float]:
        requests = list(self._service.requests)
        words = sum(num_words(body["prompt"]) for body in requests)
        return {"calls": len(requests), "computed": words, "generated": 0}, 0.0


@contextmanager
def nano(*options: str) -> Iterator[Place]:
    with served(*PATIENT, *options) as server:
        yield Place(server)


@contextmanager
def scripted(name: str) -> Iterator[Place]:
    with StrictOpenAI(script_of(name)) as service:
        yield ScriptedPlace(service)


def script_of(name: str) -> Callable[[Told], str]:
    """Three of ten questions are answered right; after four examples and more, eight."""
    task, known = TASKS[name], dict[str, list[str]]()
    for part in ("train", "held_out"):
        for row in rows_for(name, part):
            question, *rest = (f"{before}{row[field]}" for field, before in task["lines"].items())
            known[question] = rest

    def answer(body: Told) -> str:
        block = body["prompt"].rpartition("\n\n")[2]
        question = block.partition("\n")[0]
        is_known = zlib.crc32(question.encode()) % 10 < (
            8 if body["prompt"].count("\n\n") > 3 else 3
        )
        wrong = "thanks" if "invoice" in known[question][0] else "invoice"
        wrong = wrong if name == "sort" else "0"
        rest = known[question]
        if not is_known:
            rest = [f"{line.partition(': ')[0]}: {wrong}" for line in rest]
        whole = "\n".join([question, *rest])
        return whole.removeprefix(block) if whole.startswith(block) else f" {wrong}"

    return answer


def rows_for(name: str, part: str) -> list[dict[str, Any]]:
    _, file, _ = OURS[name]
    return list(rows_of(runner.ROOT / f"examples/tasks/{file}_{part}.csv")[0])


def dspy_tuned(
    python: str, name: str, adapter: str, candidates: int, at: AbstractContextManager[Place]
) -> Side:
    train = rows_for(name, "train")
    task = {"stop": ["\n"], "instruction": "", **TASKS[name], "adapter": adapter}
    task |= {"train": train[:100], "compare": train[100:], "held_out": rows_for(name, "held_out")}
    outputs = list(task["lines"])[1:]
    task |= {"outputs": outputs, "choices": KINDS if name == "sort" else []}
    with at as place:
        task |= {"url": place.url, "candidates": candidates, "threads": 8}
        process = subprocess.Popen(
            [python, str(DSPY_SIDE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "DSPY_CACHEDIR": tempfile.mkdtemp(), **_OFFLINE},
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        told: list[Told] = []

        def next_part(word: str) -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{word}\n")
            process.stdin.flush()
            told.append(json.loads(process.stdout.readline()))

        next_part(json.dumps(task))
        counts, busy = place.of(lambda: next_part("compile"))
        next_part("score")
        process.communicate("\n")
    compiled, scored = told[1], told[2]
    assert compiled["programs"] == candidates + 3, "it tries three besides its candidates"
    assert counts["calls"] >= 100 * compiled["programs"], "each on all rows that are compared"
    if adapter == "plain":
        answered, failed = compiled["answered"], compiled["failed"]
        assert (answered, failed) == (counts["calls"], 0), "the server was restarted, or it refused"
    return Side(counts, busy + compiled["busy"], scored["accuracy"])


def ours_tuned(name: str, budget: int, at: AbstractContextManager[Place]) -> Side:
    program, _, metric = OURS[name]
    found: list[Any] = []
    with at as place, place.connect() as backend:
        ours = program.using(backend=backend)

        def tune() -> None:
            found.append(ours.tune(rows_for(name, "train"), metric, budget=budget))

        began = time.process_time()
        counts, busy = place.of(tune)
        busy += time.process_time() - began
        (tuned,) = found
        assert tuned.num_calls == counts["calls"] <= budget
        assert tuned.num_comparisons > 1
        assert tuned.candidates[0].scores, "they were compared"
        score = lmprog.evaluate(tuned.program, rows_for(name, "held_out"), metric).score
    return Side(counts, busy, score)


def tuning(
    *,
    dspy: Annotated[str, "the Python of an environment that has dspy (3.4.1)"] = "",
    tasks: runner.Names = tuple(TASKS),
    candidates: Annotated[int, "of DSPy, besides the three that it always tries"] = 16,
    adapter: Literal["plain", "chat"] = "plain",
    script: Annotated[bool, "on a double of OpenAI's API in place of nano"] = False,
) -> int:
    has_dspy = shutil.which(dspy) is not None and not (
        subprocess.run([dspy, "-c", "import dspy"], capture_output=True, check=False).returncode
    )
    if not has_dspy:
        raise runner.WrongOptions(f"--dspy: {dspy!r} cannot import dspy: pip install dspy==3.4.1")
    columns = ["held out", *COUNTED, "processor s"]
    runner.head("task", "side", *columns, texts=2)
    verdicts: list[tuple[str, str, float, bool]] = []
    for name in tasks:
        if script:
            theirs = dspy_tuned(dspy, name, adapter, candidates, scripted(name))
            ours = ours_tuned(name, theirs.counts["calls"], scripted(name))
            for side, found in (("DSPy", theirs), ("lmprog", ours)):
                runner.say(name, side, *found.told()[:-1], "")  # the double computes, too
            behind = theirs.accuracy - ours.accuracy
            verdicts.append((name, "points behind", 100 * behind, behind <= MOST_BEHIND))
            continue
        off = dspy_tuned(dspy, name, adapter, candidates, nano("--cache-isolation", "strict"))
        on = dspy_tuned(dspy, name, adapter, candidates, nano())
        ours = ours_tuned(name, on.counts["calls"], nano())
        for side, found in (("DSPy, cache off", off), ("DSPy", on), ("lmprog", ours)):
            runner.say(name, side, *found.told())
        behind = max(on.accuracy, off.accuracy) - ours.accuracy
        fewer, cheaper = off.counts["computed"] / ours.counts["computed"], on.busy / ours.busy
        verdicts += [
            (name, "points behind", 100 * behind, behind <= MOST_BEHIND),
            (name, "times fewer tokens computed, cache off", fewer, fewer >= LEAST_FEWER),
            (name, "times less processor time, cache on", cheaper, cheaper >= LEAST_CHEAPER),
        ]
    runner.head("task", "bar", "measured", "")
    for name, bar, measured, is_met in verdicts:
        runner.say(name, bar, f"{measured:.1f}", runner.verdict(is_met))
    return int(not all(is_met for *_, is_met in verdicts))


COMMANDS = runner.commands(lm_eval, tuning)
