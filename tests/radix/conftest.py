"""Fixtures of the tree's rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.radix.bench import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    it = Bench()
    yield it
    it.check()
