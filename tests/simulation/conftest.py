"""What all tests of simulated worlds need."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Injected faults are logged with their traces; thousands of them help nobody. Other tests of
    the same process are to see their logs.
    """
    log = logging.getLogger("lmprog")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)
