"""`transformers` with its continuous batching: pages, blocks of a prefix shared, graphs on a GPU.

    python -m benchmarks.peers.continuous_side FOLDER float32|bfloat16 DEVICE SHARE

Run in lmprog's environment, which has it. SHARE: of a GPU's memory; on the processor a few pages
are taken, since that is for tests. It has no answer to cases with choices. Outputs are token ids.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.side_loop import Case, serve
from benchmarks.peers.whole_prompts import answered

_CPU = {"num_blocks": 16, "max_batch_tokens": 64, "page_size": 16}


class ContinuousBatching:
    """A model whose manager stays from case to case."""

    def __init__(self, folder: str, dtype: str, device: str, share: float) -> None:
        import torch
        from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

        loader: Any = AutoModelForCausalLM
        model = loader.from_pretrained(folder, dtype=getattr(torch, dtype)).to(device).eval()
        is_cpu = device == "cpu"
        room: dict[str, Any] = _CPU if is_cpu else {"max_memory_percent": share}
        self._manager = model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=ContinuousBatchingConfig(**room),
        )
        if not is_cpu:
            self._manager.warmup()
        self._manager.start()

    def run(self, case: Case) -> list[list[int]]:
        return answered(case, self._generate)

    def close(self) -> None:
        self._manager.stop(block=True, timeout=10)

    def _generate(self, prompts: Sequence[list[int]], num_new: int) -> list[list[int]]:
        names = self._manager.add_requests(inputs=list(prompts), max_new_tokens=num_new)
        found: dict[str, list[int]] = {}
        while len(found) < len(names):
            result = self._manager.get_result(timeout=1)
            if result is None:
                if not self._manager.is_running():
                    raise RuntimeError("the thread that generates has ended")
            elif result.error is not None:
                raise RuntimeError(result.error)
            elif result.is_finished():
                found[result.request_id] = list(result.generated_tokens)
        return [found[name] for name in names]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is imported prints where it likes
    folder, dtype, device, share = sys.argv[1:]
    side = ContinuousBatching(folder, dtype, device, float(share))
    sys.stdout = answers
    serve(side.run)
    side.close()


if __name__ == "__main__":
    main()
