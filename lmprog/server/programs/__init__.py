"""`/v1/programs`: a whole program in one request, run where its prefixes are."""

from __future__ import annotations

from lmprog.server.programs.running_program import router

__all__ = ["router"]
