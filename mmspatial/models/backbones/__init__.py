"""The backbones, a file each: its variants and what only this paper has."""

from .evt import EVT
from .rmt import RMT

__all__ = ['EVT', 'RMT']
