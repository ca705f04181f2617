"""Uniform numbers from counters: (seed, step) determines the number, whatever else is going on.

splitmix64 (Steele, Lea, Flood 2014) on a mix of seed and step. Integers only.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def uniform(seed: int, step: int) -> float:
    """A number in (0, 1), never 0 or 1 itself."""
    return (_mixed(_mixed(seed & _MASK) ^ (step * _GOLDEN & _MASK)) >> 11 | 1) / (1 << 53)


def _mixed(value: int) -> int:
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
