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

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from benchmarks import runner
from benchmarks.models import PAGE, batch, num_pages
from lmprog.config import RuntimeConfig, SchedulerConfig
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.model.locate import NANO
from lmprog.runtime.text.tokenizer import load_tokenizer

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
} | dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
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
    every, step = np.arange(len(tokens), dtype=np.int32), batch(1, len(tokens), 0)
    step = replace(step, tokens=np.array(tokens, np.int32), logit_tokens=every)
    is_fp8 = config.get("kv_dtype") == "fp8"
    config |= {"attention": "reference"} if is_fp8 else {"engine": "native"}
    config |= {"scheduler": SchedulerConfig(page_size=PAGE, num_pages=num_pages(step))}
    engine = load_engine(RuntimeConfig(model=model, threads=1, **config), keep=False)
    logits = np.asarray(engine.forward(step), np.float64)
    logits -= logits.max(-1, keepdims=True)
    found: NDArray[np.float64] = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return found


@runner.command
def main(
    *,
    model: Annotated[str, f"a folder, nano, or {', '.join(MADE)}"] = "nano",
    tokens: int = 400,
    weights: Annotated[runner.Names, "types of weights, by commas"] = tuple(SIDES),
    kv: Annotated[runner.Names, "types of keys and values, by commas"] = ("default",),
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        if model in MADE:
            folder = Path(scratch)
            make(folder, model)
            text = np.random.default_rng(0).integers(0, _MADE_VOCABULARY, tokens).tolist()
        else:
            folder = NANO if model == "nano" else Path(model)
            text = load_tokenizer(folder).encode(Path(__file__).read_text("utf-8"))[:tokens]
        runner.head(f"{model}: weights", "keys, values", "mean", "greatest", "KL", "top-1", texts=2)
        wanted = judged(folder, text)
        for side in weights:
            for kind in kv:
                more = {} if kind == "default" else {"kv_dtype": kind}
                given = computed(str(folder), text, **SIDES[side], **more)
                off = np.abs(given - wanted)
                divergence = float((np.exp(wanted) * (wanted - given)).sum(-1).mean())
                same = float((given.argmax(-1) == wanted.argmax(-1)).mean())
                figures = (off.mean(), off.max(), divergence)
                runner.say(side, kind, *(f"{figure:.2g}" for figure in figures), f"{same:.2%}")
