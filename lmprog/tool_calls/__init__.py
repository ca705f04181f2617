"""Calls of tools as texts: written, read while they come, and constrained, for any `CallForm`.

Knows forms and texts; knows no templates (`runtime/text/tool_call_derivation` finds a model's
form), no requests and no branches.
"""
