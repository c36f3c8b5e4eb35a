"""The backbones, a file each: its variants and what only this paper has."""

from .aliasfree import AliasFreeViT
from .evt import EVT
from .locatswin import LocAtSwin
from .locatvit import LocAtViT
from .rmt import RMT
from .sdt import SDT
from .vit import ViT

__all__ = ['EVT', 'RMT', 'SDT', 'AliasFreeViT', 'LocAtSwin', 'LocAtViT', 'ViT']
