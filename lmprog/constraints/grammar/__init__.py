"""Context-free grammars (GBNF, and a subset of Lark) -> net, where a net means exactly what the
grammar means.

`read.py` is the entry. What is left to the other engine is said by `NotOurs`.
"""
