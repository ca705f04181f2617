"""Compiles context-free grammars (GBNF, and a subset of Lark) into nets with exactly their
language.

The entry point is `read.py`. `NeedsLlguidance` marks a grammar that is left to llguidance.
"""
