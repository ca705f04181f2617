"""Calls of tools as texts: written, read while they come, and constrained, for any `CallForm`.

Knows forms and texts; knows no templates (`runtime/text/call_derivation.py` finds a model's form),
no requests and no branches.
"""
