"""OpenVINO GenAI: continuous batching with its prefix cache.

    python -m benchmarks.peers.openvino_side FOLDER PRECISION [THREADS]

FOLDER has the openvino_model.xml that the library itself made of a GGUF file (`convert` below).
Keys and values are kept in the same precision. The pipeline gives no log-probabilities of tokens
that it did not choose, so it has no answer to cases with choices.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import numpy as np
import openvino as ov
import openvino_genai as genai

from benchmarks.peers.side_loop import Case, serve
from benchmarks.peers.whole_prompts import answered


def convert(gguf: str) -> None:
    """Leaves openvino_model.xml beside the file. The library then fails on our placeholder of a
    tokenizer, which nobody needs."""
    try:
        genai.LLMPipeline(gguf, "CPU", enable_save_ov_model=True)
    except (RuntimeError, IndexError) as error:
        if not os.path.exists(os.path.join(os.path.dirname(gguf), "openvino_model.xml")):
            raise
        print(f"the tokenizer is left out: {error}", file=sys.stderr)


class OpenVino:
    """One pipeline."""

    def __init__(self, folder: str, precision: str, threads: int) -> None:
        scheduling = genai.SchedulerConfig()
        scheduling.cache_size = 2
        scheduling.enable_prefix_caching = True
        scheduling.max_num_batched_tokens = 2048
        properties = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
        }
        self._pipeline = genai.ContinuousBatchingPipeline(folder, scheduling, "CPU", properties)

    def run(self, case: Case) -> list[list[int]]:
        return answered(case, self._generate)

    def _generate(self, prompts: Sequence[list[int]], num_new: int) -> list[list[int]]:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.ignore_eos = num_new, False, True
        config.set_eos_token_id(0)
        given = [ov.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        results = self._pipeline.generate(given, [config] * len(given))
        return [list(result.m_generation_ids[0]) for result in results]


if __name__ == "__main__":
    if sys.argv[1] == "convert":
        convert(sys.argv[2])
    else:
        threads = int(sys.argv[3]) if len(sys.argv) > 3 else 1
        serve(OpenVino(sys.argv[1], sys.argv[2], threads).run)
