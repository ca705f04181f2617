"""Every test of a sampler runs for both: `sampler()` is the one whose turn it is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cache

import pytest
import torch

from lmprog.config import RuntimeConfig
from lmprog.errors import NotSupported
from lmprog.native import compiler
from lmprog.runtime.engine.engine import load_engine
from lmprog.runtime.engine.native.engine import NativeEngine
from lmprog.runtime.engine.native.sampler import NativeSampler
from lmprog.runtime.engine.torch_engine.sampler import TorchSampler
from lmprog.runtime.scheduling.sampling_requests import SampleRequest, ScoreRequest, StepResults

JUDGED = ("avx512bf16", "avx2", "neon", "generic")
"""Instruction sets whose vectors differ; the others share them."""

_turn: list[str] = []


class Numbers:
    """The native sampler, given tensors."""

    def __init__(self, path: str) -> None:
        self._native = NativeSampler(_engine(path))

    def sample(
        self, logits: torch.Tensor, picks: Sequence[SampleRequest], scores: Sequence[ScoreRequest]
    ) -> StepResults:
        return self._native.sample(logits.float().numpy(), picks, scores)


@cache
def _engine(path: str) -> NativeEngine:
    before = os.environ.get("LMPROG_ENGINE_PATH")
    os.environ["LMPROG_ENGINE_PATH"] = path
    try:
        engine = load_engine(RuntimeConfig(model="dummy:tiny", threads=2, engine="native"))
    finally:
        if before is None:
            del os.environ["LMPROG_ENGINE_PATH"]
        else:
            os.environ["LMPROG_ENGINE_PATH"] = before
    assert isinstance(engine, NativeEngine)
    return engine


def sampler() -> TorchSampler | Numbers:
    return TorchSampler() if _turn == ["torch"] else Numbers(_turn[0])


@pytest.fixture(params=["torch", *JUDGED], autouse=True)
def turn(request: pytest.FixtureRequest) -> Iterator[None]:
    _turn[:] = [request.param]
    if request.param != "torch":
        if compiler() is None:
            pytest.skip("needs a C++ compiler")
        try:
            _engine(request.param)
        except NotSupported:
            pytest.skip(f"this processor has no {request.param}")
    yield
    _turn.clear()
