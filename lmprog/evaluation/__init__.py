"""How good a program is, which of two is better, and what makes it better: measured on rows.

Stands on the language: a row is one run of the program. Nothing of it is loaded by programs that
only run.
"""
