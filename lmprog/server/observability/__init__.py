"""Metrics and traces: what is counted and timed, and in which form it goes out. Knows no routes."""
