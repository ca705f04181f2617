"""The fixtures of the language: a runtime in this process, and a backend on it."""

from tests.lang.conftest import backend, real, small

__all__ = ["backend", "real", "small"]
