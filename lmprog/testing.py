"""Doubles for testing programs without a model: `Scripted` answers from a list or a function of the
prompt.
"""

from __future__ import annotations

from lmprog.backends.scripted import Hold, Scripted, ScriptedRequest, Scripting

__all__ = ["Hold", "Scripted", "ScriptedRequest", "Scripting"]
