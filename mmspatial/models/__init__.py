"""Backbones and heads; importing this package registers them."""

from .backbones import EVT, RMT, AliasFreeViT, LocAtSwin, LocAtViT

__all__ = ['EVT', 'RMT', 'AliasFreeViT', 'LocAtSwin', 'LocAtViT']
