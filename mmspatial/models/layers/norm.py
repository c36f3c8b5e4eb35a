"""Norms over maps."""

from __future__ import annotations

from typing import Any

from torch import nn


def build_norm2d(dim: int, norm_cfg: dict[str, Any] | None = None) -> nn.Module:
    """Build the norm that follows a convolution.

    Args:
        dim: Channels C.
        norm_cfg: OpenMMLab's words, as in ``dict(type='GN', num_groups=8)``; None for
            ``BatchNorm2d``. Say ``sync_bn='torch'`` at the top of a config, rather than
            ``type='SyncBN'`` here, to synchronise in distributed training only.

    Returns:
        A module on ``(B, C, H, W)``.
    """
    if norm_cfg is None or norm_cfg == {'type': 'BN'}:
        return nn.BatchNorm2d(dim)
    from mmcv.cnn import build_norm_layer

    return build_norm_layer(norm_cfg, dim)[1]
