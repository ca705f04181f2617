"""Branches as programs use them: text, generations, forks, variables."""
