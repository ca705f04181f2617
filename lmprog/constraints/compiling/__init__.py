"""Where the kinds of constraints come together: what compiles each of them, and keeps the results.

Knows all that is below; nothing else of `constraints` knows it.
"""
