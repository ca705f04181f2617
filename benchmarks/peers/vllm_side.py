"""vLLM: its engine in this process, with its prefix cache.

    python -m benchmarks.peers.vllm_side FOLDER float32|bfloat16 [THREADS [SHARE MOST_TOKENS]]

It has no answer to cases with choices: log-probabilities of given tokens pass its prefix cache by.
SHARE is of a GPU's memory; without it the wheel is that for processors.
Its engine of a process of its own never answered where this was tried; in one process it did.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from benchmarks.peers.side_loop import Case, serve
from benchmarks.peers.whole_prompts import answered

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the system places all sides' threads
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
_MOST_TOKENS = 4096


class Vllm:
    """One engine."""

    def __init__(self, folder: str, dtype: str, most_tokens: int, **room: float) -> None:
        import vllm

        self._sampling = vllm.SamplingParams
        self._engine = vllm.LLM(
            folder,
            dtype=dtype,
            enable_prefix_caching=True,
            max_model_len=most_tokens,
            max_num_seqs=256 if room else 64,
            skip_tokenizer_init=True,
            **room,
        )

    def run(self, case: Case) -> list[list[int]]:
        return answered(case, self._generate)

    def _generate(self, prompts: Sequence[list[int]], num_new: int) -> list[list[int]]:
        greedy = self._sampling(
            max_tokens=num_new,
            min_tokens=num_new,
            temperature=0.0,
            ignore_eos=True,
            detokenize=False,
        )
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        results = self._engine.generate(given, greedy, use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is imported prints where it likes
    os.environ.update(SETTINGS)
    if len(sys.argv) > 3:
        os.environ["OMP_NUM_THREADS"] = sys.argv[3]
    if len(sys.argv) > 5:
        share, most_tokens = float(sys.argv[4]), int(sys.argv[5])
        side = Vllm(sys.argv[1], sys.argv[2], most_tokens, gpu_memory_utilization=share)
    else:
        side = Vllm(sys.argv[1], sys.argv[2], _MOST_TOKENS)
    sys.stdout = answers
    serve(side.run)


if __name__ == "__main__":
    main()
