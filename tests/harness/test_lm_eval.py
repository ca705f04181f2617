"""EleutherAI's evaluation harness, as it is installed, on `lmprog serve`: its scores are the model's.

Runs where the extra `harness` is installed (`make test-harness`).
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lmprog.runtime.engine.model.locate import NANO
from tests.server.process import Served, served

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm_eval is not installed"
)

QUESTIONS = ["What is 2 + 2?", "Is a dog an animal?", "Tom has a cat. What does Tom have?"]
CHOICES = ["4", "yes", "A cat.", "no idea at all"]
COMMON = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {items}
test_split: test
doc_to_text: "Q: {{{{question}}}}\\nA:"
doc_to_target: 0
"""
SCORED = 'output_type: multiple_choice\ndoc_to_choice: "{{choices}}"\n'
WRITTEN = (
    "output_type: generate_until\n"
    'generation_kwargs: {until: ["\\n"], max_gen_toks: 8, do_sample: false}\n'
    "metric_list: [{metric: exact_match}]\n"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served("--dtype", "float32") as made:
        yield made


def evaluated(folder: Path, url: str, task: str) -> list[dict[str, Any]]:
    """The harness's samples of a task, in order."""
    items = folder / "items.jsonl"
    rows = [json.dumps({"question": question, "choices": CHOICES}) for question in QUESTIONS]
    items.write_text("\n".join(rows) + "\n", "utf-8")
    (folder / "task.yaml").write_text(COMMON.format(name="own", items=items) + task, "utf-8")
    given = (
        f"model=nano,base_url={url}/v1/completions,num_concurrent=4,tokenized_requests=True,"
        f"tokenizer_backend=huggingface,tokenizer={NANO}"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "lm_eval", "--model", "local-completions"),
            *("--model_args", given, "--tasks", "own", "--include_path", str(folder)),
            *("--output_path", str(folder / "out"), "--log_samples"),
        ],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (file,) = (folder / "out").rglob("samples_own_*.jsonl")
    samples = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return sorted(samples, key=lambda sample: int(sample["doc_id"]))


@torch.inference_mode()
def scores(question: str) -> list[float]:
    """The log-probability of each choice after the question, by transformers."""
    tokenizer = AutoTokenizer.from_pretrained(NANO)
    model = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32)
    found = []
    for choice in CHOICES:
        before = tokenizer.encode(f"Q: {question}\nA:")
        whole = tokenizer.encode(f"Q: {question}\nA: {choice}")
        logprobs = model(torch.tensor([whole])).logits[0].log_softmax(-1)
        found.append(
            math.fsum(float(logprobs[at - 1, whole[at]]) for at in range(len(before), len(whole)))
        )
    return found


def test_choices_get_the_models_log_probabilities(server: Served, tmp_path: Path) -> None:
    samples = evaluated(tmp_path, server.url, SCORED)
    assert len(samples) == len(QUESTIONS)
    for sample, question in zip(samples, QUESTIONS, strict=True):
        found = [float(response[0]) for response in sample["filtered_resps"]]
        assert found == pytest.approx(scores(question), abs=1e-3)


def test_generations_are_those_of_the_server(server: Served, tmp_path: Path) -> None:
    samples = evaluated(tmp_path, server.url, WRITTEN)
    for sample, question in zip(samples, QUESTIONS, strict=True):
        body = {
            "model": "nano",
            "prompt": f"Q: {question}\nA:",
            "max_tokens": 8,
            "stop": ["\n"],
            "temperature": 0,
        }
        answer = server.http.post("/v1/completions", json=body).json()["choices"][0]["text"]
        assert sample["filtered_resps"] == [answer]
