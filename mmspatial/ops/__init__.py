"""Functions on tensors: the attention ops that the backbones stand on."""

from ._dispatch import explain, is_capturing, is_exporting
from ._softmax import no_autocast
from ._tables import cached_table
from .cross_covariance import cross_covariance_attention
from .decay_attention import decay_attention
from .gated_attention import gated_attention
from .gaussian_attention import gaussian_attention
from .plain import plain_attention
from .positions import Positions, grid_positions
from .resample import alias_free_gelu, downsample, resample, upsample

__all__ = [
    'Positions',
    'alias_free_gelu',
    'cached_table',
    'cross_covariance_attention',
    'decay_attention',
    'downsample',
    'explain',
    'gated_attention',
    'gaussian_attention',
    'grid_positions',
    'is_capturing',
    'is_exporting',
    'no_autocast',
    'plain_attention',
    'resample',
    'upsample',
]
