"""Models: one native decoder for Llama and its kin (`decoder`), everything else through
transformers (`fallback`).
"""

from __future__ import annotations
