"""Fairness between keys: a share of the places for each, and weighted fair queueing of their calls.

Knows results, weights and tokens; knows neither HTTP nor connections.
"""
