"""Doubles for testing programs without a model: `Scripted` answers from a list or a function of the prompt."""

from __future__ import annotations

from lmprog.lang.backends.scripted import Asked, Hold, Scripted, Scripting

__all__ = ["Asked", "Hold", "Scripted", "Scripting"]
