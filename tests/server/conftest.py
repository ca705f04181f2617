"""Fixtures of several files: nano in a process of its own, and a server before it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lmprog.launch import Runtime
from tests.server.live import Live, serving


@pytest.fixture(scope="session")
def nano() -> Iterator[Runtime]:
    with Runtime("nano", threads=1) as runtime:
        yield runtime


@pytest.fixture(scope="session")
def live(nano: Runtime) -> Iterator[Live]:
    with serving(nano) as made:
        yield made
