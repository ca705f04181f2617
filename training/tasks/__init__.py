"""The task families, each a module of functions from a `Draw` to a `Document`."""

from __future__ import annotations
