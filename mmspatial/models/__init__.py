"""Backbones and heads; importing this package registers them."""

from .backbones import EVT, RMT, SDT, AliasFreeViT, LocAtSwin, LocAtViT

__all__ = ['EVT', 'RMT', 'SDT', 'AliasFreeViT', 'LocAtSwin', 'LocAtViT']
