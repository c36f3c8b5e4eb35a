"""Spatial priors: what an attention layer knows of positions, each over an op of its own.

A prior is a module called as ``prior(q, k, v, positions, num_prefix, key_mask)`` with q, k, v in
an op's layout ``(B, [G,] M, L, D)``; it returns the attention's output in that layout.
"""

from .decay import DecayPrior

__all__ = ['DecayPrior']
