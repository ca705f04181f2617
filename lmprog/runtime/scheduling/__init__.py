"""Who runs how many tokens in a step, and on which pages: waiting queue, page tables, plan.

Integers only; knows no tensors and no text.
"""
