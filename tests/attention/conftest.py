"""The instruction sets that this processor has, as a fixture."""

from __future__ import annotations

import pytest
from ragged import shape_of

from lmprog.errors import NotSupported
from lmprog.runtime.engine.attention import NativeAttention
from lmprog.runtime.engine.native.interface import PATHS


def available(path: str) -> bool:
    try:
        NativeAttention(shape_of(), 1, 16, path=path)
    except NotSupported:
        return False
    return True


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if not available(name):
        pytest.skip(f"this processor has no {name}")
    return name
