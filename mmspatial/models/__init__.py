"""Backbones, necks and heads; importing this package registers them."""

from . import heads  # noqa: F401 (registers the probes)
from .backbones import EVT, RMT, SDT, AliasFreeViT, LocAtSwin, LocAtViT, ViT
from .necks import SimpleFeaturePyramid

__all__ = [
    'EVT',
    'RMT',
    'SDT',
    'AliasFreeViT',
    'LocAtSwin',
    'LocAtViT',
    'SimpleFeaturePyramid',
    'ViT',
]
