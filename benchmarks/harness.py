"""EleutherAI's evaluation harness on `lmprog serve`, beside its own `hf` model.

    python -m benchmarks.harness --items 200

One multiple-choice task: five examples and a text of `--shared` tokens that all items share, some 40
tokens of each item's own, four choices. Both sides are the harness as it is installed (the extra
`harness`), on the same random checkpoint of 110M parameters, with one thread. What is reported is
the processor time of all processes of a side, the harness's own start (some 10 s) included, and
whether both sides give the same log-probabilities and accuracy.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from benchmarks import runner
from benchmarks.endurance import ONE_THREAD, served
from benchmarks.models import make_comparable
from lmprog.runtime.engine.model.locate import NANO
from lmprog.runtime.text.tokenizer import load_tokenizer

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


@runner.command
def main(
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
