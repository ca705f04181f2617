"""One runtime on the shipped model for all examples: the one that each starts in its last lines
when it is run.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lmprog


@pytest.fixture(scope="session")
def nano() -> Iterator[lmprog.Runtime]:
    with lmprog.Runtime("nano") as runtime:
        yield runtime


@pytest.fixture(autouse=True)
def default_backend(nano: lmprog.Runtime) -> Iterator[None]:
    lmprog.set_default_backend(nano)
    lmprog.flush_cache()  # so that no figure depends on which test came before
    yield
    lmprog.set_default_backend(None)
