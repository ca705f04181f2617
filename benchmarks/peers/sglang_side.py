"""SGLang, or mini-sglang, in this process, with its radix cache.

    python -m benchmarks.peers.sglang_side sglang|minisgl FOLDER SHARE MOST_TOKENS

On a GPU only. SHARE: of its memory. Neither has been met here: the calls are those of their
documentation. They have no answer to cases with choices. Outputs are token ids; those of mini-sglang
are one token short, since it does not give out the last one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from benchmarks.peers.side_loop import serve
from benchmarks.peers.whole_prompts import Generate, answered


def sglang(folder: str, share: float, most_tokens: int) -> Generate:
    import sglang

    engine = sglang.Engine(
        model_path=folder,
        dtype="bfloat16",
        skip_tokenizer_init=True,
        mem_fraction_static=share,
        context_length=most_tokens,
    )

    def generate(prompts: Sequence[list[int]], num_new: int) -> list[list[int]]:
        greedy = {"temperature": 0.0, "max_new_tokens": num_new, "ignore_eos": True}
        found = engine.generate(input_ids=list(prompts), sampling_params=greedy)
        return [list(one["output_ids"]) for one in found]

    return generate


def minisgl(folder: str, share: float, most_tokens: int) -> Generate:
    from minisgl.core import SamplingParams
    from minisgl.llm import LLM

    engine = LLM(folder, memory_ratio=share, max_seq_len_override=most_tokens)

    def generate(prompts: Sequence[list[int]], num_new: int) -> list[list[int]]:
        greedy = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=num_new)
        return [list(one["token_ids"]) for one in engine.generate(list(prompts), greedy)]

    return generate


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is imported prints where it likes
    kind, folder, share, most_tokens = sys.argv[1:]
    make = {"sglang": sglang, "minisgl": minisgl}[kind]
    generate = make(folder, float(share), int(most_tokens))
    sys.stdout = answers
    serve(lambda case: answered(case, generate))


if __name__ == "__main__":
    main()
