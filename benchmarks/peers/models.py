"""The model that peers are compared on: a Llama of random weights, the same numbers for all sides.

Knows how it is made and turned into what each side reads; runs the peers' Python for that.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks import engine
from lmprog.runtime.engine.model.locate import NANO
from lmprog.runtime.text.tokenizer import load_tokenizer

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def make(folder: Path, size: str) -> None:
    """A checkpoint of `engine.SIZES` in float32 with nano's tokenizer.

    Tokens that the tokenizer does not have get logits of 0, so that none of them is ever likeliest
    and all outputs are texts that can be compared.
    """
    folder.mkdir(parents=True, exist_ok=True)
    engine.make(folder, size)
    path = folder / "model.safetensors"
    # numbers that float16 holds too, since OpenVINO reads no GGUF file in float32
    weights = {
        name: weight.astype(np.float16).astype(np.float32)
        for name, weight in load_file(path).items()
    }
    weights["lm_head.weight"][load_tokenizer(NANO).vocab_size :] = 0
    save_file(weights, path)
    for name in _TOKENIZER_FILES:
        shutil.copy(NANO / name, folder)


def make_gguf(folder: Path, python: str, types: dict[str, int]) -> None:
    """f32.gguf and the quantized `types` (by llama.cpp's numbers) beside the checkpoint."""
    here = Path(__file__).parent
    whole = folder / "f32.gguf"
    subprocess.run([python, here / "gguf_model.py", folder, whole], check=True)
    for name, number in types.items():
        code = (
            "import ctypes, llama_cpp, sys\n"
            "given = llama_cpp.llama_model_quantize_default_params()\n"
            "given.ftype, given.nthread, given.pure = int(sys.argv[3]), 1, True\n"
            "sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), "
            "ctypes.byref(given)))\n"
        )
        target = folder / f"{name}.gguf"
        command = [python, "-c", code, whole, target, str(number)]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
