"""What each type of weights, keys and values costs: log-probabilities beside transformers in
float64.

    python -m benchmarks.exactness --model nano
    python -m benchmarks.exactness --model Mixtral

The likelihood of every token after each of `--tokens` tokens is compared: the mean and the greatest
difference of log-probabilities, the mean divergence of the distributions (KL), and how often the
likeliest token is the same. A model is a folder, or one of `MADE`: a mixture of experts with random
weights and a vocabulary of 512. The tokens are this file's text, or random ones for a made model.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.model.locate import NANO
from lmprog.runtime.scheduling.batch import Batch
from lmprog.runtime.text.tokenizer import load_tokenizer

PAGE = 16
_MADE_VOCABULARY = 512
_SIZES: dict[str, Any] = {
    "vocab_size": _MADE_VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 384,
    "moe_intermediate_size": 192,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "num_local_experts": 16,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
MADE = ("Mixtral", "Qwen3Moe", "Olmoe", "GptOss")
SIDES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantize": "int8"},
    "int4": {"dtype": "bfloat16", "quantize": "int4"},
}


def make(folder: Path, family: str) -> None:
    torch.manual_seed(0)
    known = getattr(transformers, f"{family}Config")
    fields = {name: size for name, size in _SIZES.items() if name in known().to_dict()}
    if family in ("Mixtral", "GptOss"):
        fields |= {"num_local_experts": 16}
    model = getattr(transformers, f"{family}ForCausalLM")(known(**fields))
    with torch.no_grad():
        for weight in model.parameters():  # spread enough that tokens differ in what they get
            if weight.dim() > 1:
                weight.copy_(torch.randn_like(weight) * weight.shape[-1] ** -0.5)
            else:
                weight.add_(torch.randn_like(weight) * 0.1)
        model.lm_head.weight.mul_(4)
    model.save_pretrained(folder)


def judged(folder: Path, tokens: list[int]) -> NDArray[np.float64]:
    """By transformers. # [tokens, vocab]"""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    )
    if hasattr(model, "set_experts_implementation"):  # its grouped products have no float64
        model.set_experts_implementation("eager")
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
    found: NDArray[np.float64] = logits.double().log_softmax(-1).numpy()
    return found


def computed(model: str, tokens: list[int], **config: Any) -> NDArray[np.float64]:
    """By the native engine, the whole prompt in one step; with keys and values as fp8 by torch,
    which computes here what a device would. # [tokens, vocab]
    """
    scheduler = SchedulerConfig(page_size=PAGE, num_pages=-(-len(tokens) // PAGE))
    is_fp8 = config.get("kv_dtype") == "fp8"
    config |= {"attention": "reference"} if is_fp8 else {"engine": "native"}
    engine = load_engine(
        RuntimeConfig(model=model, threads=1, scheduler=scheduler, **config), keep=False
    )
    every = np.arange(len(tokens), dtype=np.int32)

    def ints(*numbers: int) -> NDArray[np.int32]:
        return np.array(numbers, np.int32)

    batch = Batch(
        tokens=ints(*tokens),
        positions=every,
        row_starts=ints(0, len(tokens)),
        kv_lens=ints(len(tokens)),
        page_starts=ints(0, scheduler.num_pages or 0),
        pages=np.arange(scheduler.num_pages or 0, dtype=np.int32),
        write_tokens=every,
        write_slots=every,
        copies=np.zeros((0, 2), np.int32),
        logit_tokens=every,
        page_size=PAGE,
    )
    logits = np.asarray(engine.forward(batch), np.float64)
    logits -= logits.max(-1, keepdims=True)
    found: NDArray[np.float64] = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return found


def table(folder: Path, tokens: list[int], asked: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    wanted = judged(folder, tokens)
    for weights in asked.weights.split(","):
        for kv in asked.kv.split(","):
            config = SIDES[weights]
            given = computed(
                str(folder), tokens, **config, **({} if kv == "default" else {"kv_dtype": kv})
            )
            off = np.abs(given - wanted)
            divergence = float((np.exp(wanted) * (wanted - given)).sum(-1).mean())
            same = float((given.argmax(-1) == wanted.argmax(-1)).mean())
            yield (
                weights,
                kv,
                f"{off.mean():.2g}",
                f"{off.max():.2g}",
                f"{divergence:.2g}",
                f"{same:.2%}",
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="nano", help=f"a folder, nano, or {', '.join(MADE)}")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--weights", default=",".join(SIDES), help="types of weights, by commas")
    parser.add_argument("--kv", default="default", help="types of keys and values, by commas")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if asked.model in MADE:
            folder = Path(scratch)
            make(folder, asked.model)
            draw = np.random.default_rng(0).integers(0, _MADE_VOCABULARY, asked.tokens)
            tokens = draw.tolist()
        else:
            folder = NANO if asked.model == "nano" else Path(asked.model)
            text = Path(__file__).read_text("utf-8")
            tokens = load_tokenizer(folder).encode(text)[: asked.tokens]
        print(f"| {asked.model}: weights | keys, values | mean | greatest | KL | top-1 |")
        print("|-|-|-:|-:|-:|-:|")
        for row in table(folder, tokens, asked):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
