"""EleutherAI's evaluation harness on `lmprog serve`, beside its own `hf` model.

    python -m benchmarks.harness --items 200

One multiple-choice task: five examples and a text of `--shared` tokens that all items share, some 40
tokens of each item's own, four choices. Both sides are the harness as it is installed (the extra
`harness`), on the same random checkpoint of 110M parameters, with one thread. What is reported is
the processor time of all processes of a side, the harness's own start (some 10 s) included, and
whether both sides give the same log-probabilities and accuracy.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.models import make
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
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Outcome:
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
            row = {"prompt": before + made["own"], "choices": made["choices"]}
            out.write(json.dumps({**row, "answer": made["answer"]}) + "\n")
    (folder / "shared_prefix.yaml").write_text(TASK.format(items=folder / "items.jsonl"), "utf-8")


_WORDS = [
    "the",
    "a",
    "dog",
    "cat",
    "man",
    "woman",
    "house",
    "tree",
    "water",
    "fire",
    "day",
    "night",
    "sun",
    "moon",
    "red",
    "blue",
    "green",
    "big",
    "small",
    "old",
    "new",
    "good",
    "bad",
    "first",
    "last",
    "year",
    "time",
    "hand",
    "eye",
    "head",
    "name",
    "city",
    "river",
    "road",
    "door",
    "book",
    "word",
]


def evaluated(folder: Path, side: str, *model: str) -> Outcome:
    """The harness on the task in `folder`."""
    out = folder / side
    before = _used()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "lm_eval", *model, "--tasks", "shared_prefix"),
            *("--include_path", str(folder), "--output_path", str(out), "--log_samples"),
        ],
        env={**os.environ, **_OFFLINE, **_ONE_THREAD},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the harness failed on the side {side}:\n{done.stderr}")
    return outcome(out, _used() - before)


def outcome(out: Path, seconds: float = 0.0) -> Outcome:
    """What the harness wrote into `out`."""
    (results,) = out.rglob("results_*.json")
    (samples,) = out.rglob("samples_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text("utf-8").splitlines()]
    rows.sort(key=lambda row: int(row["doc_id"]))
    found = [float(response[0]) for row in rows for response in row["filtered_resps"]]
    (scores,) = json.loads(results.read_text("utf-8"))["results"].values()
    return Outcome(float(scores["acc,none"]), found, seconds)


@contextmanager
def served(model: Path) -> Iterator[str]:
    """The address of `lmprog serve` on any free port."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "lmprog.cli", "serve", str(model), "--port", "0"),
            *("--threads", "1", "--dtype", "float32"),
        ],
        env={**os.environ, **_ONE_THREAD},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    reader = threading.Thread(target=process.stdout.read)  # else the pipe fills up
    try:
        url = ""
        for line in process.stdout:
            url = url or next((word for word in line.split() if word.startswith("http://")), "")
            if line.startswith("ready"):
                break
        reader.start()
        yield url
    finally:
        process.terminate()
        process.wait()
        reader.join()


def _used() -> float:
    """Of all processes that have ended, and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--shared", type=int, default=1000)
    parser.add_argument("--own", type=int, default=40)
    parser.add_argument(
        "--size", default="S", help="of the checkpoint, as benchmarks/engine names it"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, model = Path(scratch), Path(scratch) / "model"
        make(model, given.size)
        write_task(folder, given.items, given.shared, given.own, random.Random(1))
        theirs = evaluated(
            *(folder, "hf", "--model", "hf", "--device", "cpu", "--batch_size", "4"),
            *("--model_args", f"pretrained={model},dtype=float32"),
        )
        before = _used()
        with served(model) as url:
            address = f"base_url={url}/v1/completions,num_concurrent=8,tokenized_requests=True"
            ours = evaluated(
                *(folder, "lmprog", "--model", "local-completions", "--model_args"),
                f"model={model},{address},tokenizer_backend=huggingface,tokenizer={model}",
            )
        our_seconds = _used() - before
    apart = max(abs(a - b) for a, b in zip(ours.logprobs, theirs.logprobs, strict=True))
    print(f"{given.items} items, {given.shared} shared and {given.own} own tokens, 4 choices")
    print(
        f"lmprog serve + harness: {our_seconds:.1f} s of processor time, accuracy {ours.accuracy}"
    )
    print(
        f"the harness's hf model: {theirs.seconds:.1f} s of processor time, accuracy {theirs.accuracy}"
    )
    print(f"ratio {theirs.seconds / our_seconds:.1f}; log-probabilities apart by {apart:.1e}")


if __name__ == "__main__":
    main()
