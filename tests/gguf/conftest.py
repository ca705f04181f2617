"""The judged checkpoints of `tests/model`."""

from tests.model.conftest import judged

__all__ = ["judged"]
