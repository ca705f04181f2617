"""The engine that computes a whole step in one call of C++, without torch."""

from __future__ import annotations
