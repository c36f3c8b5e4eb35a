"""Spatial priors: what an attention layer knows of positions, each over an op of its own."""

from .base import Prior
from .decay import DecayPrior
from .gated import GatedPrior
from .gaussian import GaussianPrior
from .none import NoPrior

__all__ = ['DecayPrior', 'GatedPrior', 'GaussianPrior', 'NoPrior', 'Prior']
