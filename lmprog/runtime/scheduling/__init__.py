"""Scheduling: the waiting queue, page tables, the plan of a step. Integers only; knows no
tensors.
"""
