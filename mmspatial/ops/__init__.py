"""Functions on tensors: the attention ops that the backbones stand on."""

from ._tables import cached_table
from .decay_attention import decay_attention
from .positions import Positions

__all__ = ['Positions', 'cached_table', 'decay_attention']
