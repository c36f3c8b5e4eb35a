"""Heads that ask how much a frozen backbone knows: segmentors' heads on one map.

This module needs mmseg; `mmspatial.models.heads` registers the heads without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import Tensor, nn


class ProbeHead(BaseDecodeHead):
    """Features of one map, and a 1x1 convolution to classes.

    Args:
        features: Module on ``(B, in_channels, H, W)``.
        in_channels: Channels of the map.
        channels: Channels of the features.
        options: Further arguments of mmseg's ``BaseDecodeHead``; no dropout unless they say so.
    """

    def __init__(
        self, features: nn.Module, in_channels: int, channels: int, options: dict[str, Any]
    ) -> None:
        super().__init__(in_channels, channels, **{'dropout_ratio': 0.0, **options})
        self.features = features

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Map the backbone's outputs, of which it takes one, to ``(B, num_classes, H, W)``."""
        return self.cls_seg(self.features(self._transform_inputs(inputs)))


class LinearHead(ProbeHead):
    """The strict linear probe: batch norm without parameters, and a 1x1 convolution to classes.

    The norm only takes away the scale of the features, so that one learning rate suits all
    backbones; in evaluation it is part of the linear map.

    Args:
        in_channels: Channels of the map.
        **options: Arguments of mmseg's ``BaseDecodeHead``, such as ``num_classes`` and
            ``in_index``.
    """

    def __init__(self, in_channels: int, **options: Any) -> None:
        super().__init__(nn.BatchNorm2d(in_channels, affine=False), in_channels, in_channels,
                         options)  # fmt: skip


class MLPHead(ProbeHead):
    """LocAtViT's probe: one hidden layer on each position, normed over the whole map.

    ::

        conv1x1 -> GroupNorm(1) -> GELU -> conv1x1 to classes

    Args:
        in_channels: Channels of the map.
        channels: Width of the hidden layer.
        **options: Arguments of mmseg's ``BaseDecodeHead``, such as ``num_classes`` and
            ``in_index``.
    """

    def __init__(self, in_channels: int, channels: int = 512, **options: Any) -> None:
        hidden = nn.Sequential(
            nn.Conv2d(in_channels, channels, 1), nn.GroupNorm(1, channels), nn.GELU()
        )
        super().__init__(hidden, in_channels, channels, options)
