"""Engines that are given whole prompts, and find what they share in their caches, each in this
process: one side of a comparison.

    python -m benchmarks.peers.whole_prompts openvino FOLDER PRECISION [THREADS]
    python -m benchmarks.peers.whole_prompts convert FILE.gguf
    python -m benchmarks.peers.whole_prompts vllm FOLDER float32|bfloat16 [THREADS [SHARE MOST_TOKENS]]
    python -m benchmarks.peers.whole_prompts sglang|minisgl FOLDER SHARE MOST_TOKENS
    python -m benchmarks.peers.whole_prompts continuous FOLDER float32|bfloat16 DEVICE SHARE

SHARE is of a GPU's memory. None has an answer to cases with choices: log-probabilities of given
tokens are not to be had, or pass the prefix cache by. Outputs are token ids. Imports nothing but the
standard library until an engine is asked for, since each has an environment of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.peers.side_loop import Case, serve

Generate = Callable[[Sequence[list[int]], int], list[list[int]]]
"""Prompts, and how many tokens each goes on for; gives those tokens."""
VLLM_SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # its engine of a process of its own never answered
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the system places all sides' threads
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def answered(case: Case, generate: Generate) -> list[list[int]]:
    """Token ids of each generation of a case without choices."""
    if case["turns"]:
        return _chats(case, generate)
    shared, own = case["shared"], case["own"]
    if len(own) > 1:
        generate([shared], 1)  # so that the others find it: what is cached are whole runs
    return generate([shared + one for one in own], case["out"])


def _chats(case: Case, generate: Generate) -> list[list[int]]:
    texts: list[list[int]] = [[] for _ in case["turns"]]
    found = []
    for turn in zip(*case["turns"], strict=True):
        texts = [before + new for before, new in zip(texts, turn, strict=True)]
        answers = generate(texts, case["out"])
        texts = [text + answer for text, answer in zip(texts, answers, strict=True)]
        found.append(answers)
    return [answer for chat in zip(*found, strict=True) for answer in chat]


def openvino(folder: str, precision: str, threads: str = "1") -> Generate:
    """Continuous batching with its prefix cache, of the openvino_model.xml that `convert` left;
    keys and values in the same precision."""
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    scheduling = genai.SchedulerConfig()
    scheduling.cache_size = 2
    scheduling.enable_prefix_caching = True
    scheduling.max_num_batched_tokens = 2048
    properties = {"INFERENCE_NUM_THREADS": int(threads), "INFERENCE_PRECISION_HINT": precision}
    properties |= {"KV_CACHE_PRECISION": precision}
    pipeline = genai.ContinuousBatchingPipeline(folder, scheduling, "CPU", properties)

    def generate(prompts: Sequence[list[int]], num_new: int) -> list[list[int]]:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.ignore_eos = num_new, False, True
        config.set_eos_token_id(0)
        given = [ov.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        results = pipeline.generate(given, [config] * len(given))
        return [list(result.m_generation_ids[0]) for result in results]

    return generate


def convert(gguf: str) -> None:
    """Leaves openvino_model.xml beside the file. The library then fails on our placeholder of a
    tokenizer, which nobody needs."""
    import openvino_genai as genai

    try:
        genai.LLMPipeline(gguf, "CPU", enable_save_ov_model=True)
    except (RuntimeError, IndexError) as error:
        if not os.path.exists(os.path.join(os.path.dirname(gguf), "openvino_model.xml")):
            raise
        print(f"the tokenizer is left out: {error}", file=sys.stderr)


def vllm(folder: str, dtype: str, threads: str = "", *room: str) -> Generate:
    """With its prefix cache; without a share of a GPU's memory the wheel is that for processors."""
    os.environ.update(VLLM_SETTINGS | ({"OMP_NUM_THREADS": threads} if threads else {}))
    import vllm

    share, most_tokens = (float(room[0]), int(room[1])) if room else (None, 4096)
    engine = vllm.LLM(
        folder,
        dtype=dtype,
        enable_prefix_caching=True,
        max_model_len=most_tokens,
        max_num_seqs=256 if room else 64,
        skip_tokenizer_init=True,
        **({} if share is None else {"gpu_memory_utilization": share}),
    )

    def generate(prompts: Sequence[list[int]], num_new: int) -> list[list[int]]:
        forced: Any = {"max_tokens": num_new, "min_tokens": num_new, "ignore_eos": True}
        greedy = vllm.SamplingParams(temperature=0.0, detokenize=False, **forced)
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        results = engine.generate(given, greedy, use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]

    return generate


def sglang(folder: str, share: str, most_tokens: str) -> Generate:
    """With its radix cache, on a GPU only; not met here: the calls are those of its documentation."""
    import sglang

    room: Any = {"mem_fraction_static": float(share), "context_length": int(most_tokens)}
    engine = sglang.Engine(model_path=folder, dtype="bfloat16", skip_tokenizer_init=True, **room)

    def generate(prompts: Sequence[list[int]], num_new: int) -> list[list[int]]:
        greedy = {"temperature": 0.0, "max_new_tokens": num_new, "ignore_eos": True}
        found = engine.generate(input_ids=list(prompts), sampling_params=greedy)
        return [list(one["output_ids"]) for one in found]

    return generate


def minisgl(folder: str, share: str, most_tokens: str) -> Generate:
    """As `sglang`; outputs are one token short, since it does not give out the last one."""
    from minisgl.core import SamplingParams
    from minisgl.llm import LLM

    engine = LLM(folder, memory_ratio=float(share), max_seq_len_override=int(most_tokens))

    def generate(prompts: Sequence[list[int]], num_new: int) -> list[list[int]]:
        greedy = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=num_new)
        return [list(one["token_ids"]) for one in engine.generate(list(prompts), greedy)]

    return generate


def continuous(folder: str, dtype: str, device: str, share: str) -> Generate:
    """`transformers` with its continuous batching: pages, blocks of a prefix shared, graphs on a
    GPU. On the processor a few pages are taken, since that is for tests."""
    import torch
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    loader: Any = AutoModelForCausalLM
    generation: Any = GenerationConfig
    model = loader.from_pretrained(folder, dtype=getattr(torch, dtype)).to(device).eval()
    few = {"num_blocks": 16, "max_batch_tokens": 64, "page_size": 16}
    room: dict[str, Any] = few if device == "cpu" else {"max_memory_percent": float(share)}
    manager = model.init_continuous_batching(
        generation_config=generation(do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(**room),
    )
    if device != "cpu":
        manager.warmup()
    manager.start()
    ENDINGS.append(lambda: manager.stop(block=True, timeout=10))

    def generate(prompts: Sequence[list[int]], num_new: int) -> list[list[int]]:
        names = manager.add_requests(inputs=list(prompts), max_new_tokens=num_new)
        found: dict[str, list[int]] = {}
        while len(found) < len(names):
            result = manager.get_result(timeout=1)
            if result is None:
                if not manager.is_running():
                    raise RuntimeError("the thread that generates has ended")
            elif result.error is not None:
                raise RuntimeError(result.error)
            elif result.is_finished():
                found[result.request_id] = list(result.generated_tokens)
        return [found[name] for name in names]

    return generate


ENDINGS: list[Callable[[], object]] = []
"""What is done when the last case has been answered."""
ENGINES: dict[str, Callable[..., Generate]] = {
    one.__name__: one for one in (openvino, vllm, sglang, minisgl, continuous)
}


def main(kind: str, *arguments: str) -> None:
    if kind == "convert":
        convert(*arguments)
        return
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is imported prints where it likes
    generate = ENGINES[kind](*arguments)
    sys.stdout = answers
    serve(lambda case: answered(case, generate))
    for end in ENDINGS:
        end()


if __name__ == "__main__":
    main(*sys.argv[1:])
