"""Fixtures of several files: a runtime in this process, and a backend on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lmprog.backends.client import RuntimeBackend, describe
from lmprog.launch import greet
from tests.lang.small_runtime import Real, Small


@pytest.fixture
def small() -> Iterator[Small]:
    made = Small()
    yield made
    made.end()


@pytest.fixture
def backend(small: Small) -> Iterator[RuntimeBackend]:
    with RuntimeBackend(greet(small.channel.connect())) as made:
        yield made
        assert describe(made)["open_branches"] == 0, "every branch is closed by whoever opened it"


@pytest.fixture
def real() -> Iterator[Real]:
    """With a small random model, constraints and a chat template."""
    made = Real()
    yield made
    made.end()
