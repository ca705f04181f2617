"""A server of the commands' own, for all tests of commands that are its clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lmprog.cli.batch import own_server


@pytest.fixture(scope="session")
def served() -> Iterator[tuple[str, str]]:
    """(URL, key) of a server before nano."""
    with own_server("nano", 8) as found:
        yield found
