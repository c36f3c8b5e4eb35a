"""A pyramid, for heads that want one, from the maps of a plain ViT."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.nn.functional as F
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from mmspatial.registry import MODELS


@MODELS.register_module()
class SimpleFeaturePyramid(nn.Module):
    """Rescale maps of one size, each by a factor of its own (ViTDet, arXiv 2203.16527).

    Up by transposed convolutions that halve the channels, down by max pooling; then a 1x1 and a
    3x3 convolution; LayerNorm over channels after each. As in BEiT and XCiT every level comes
    from another block, where ViTDet takes all of them from the last one.

    Args:
        in_channels: Channels of each map.
        out_channels: Channels of every output.
        scales: Factor of each map, a power of two: with patches of 16 pixels ``(4, 2, 1, 0.5)``
            gives strides 4, 8, 16, 32.
        num_outs: Number of outputs; those beyond the maps are every second position of the one
            before, as in mmdet's FPN.

    Raises:
        ValueError: If the numbers of maps, factors and outputs do not fit, or a factor is no
            power of two.

    Example:
        >>> import torch
        >>> neck = SimpleFeaturePyramid(in_channels=[192] * 4, out_channels=256)
        >>> [tuple(y.shape) for y in neck([torch.randn(1, 192, 3, 5)] * 4)]
        [(1, 256, 12, 20), (1, 256, 6, 10), (1, 256, 3, 5), (1, 256, 2, 3)]
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        out_channels: int,
        scales: Sequence[float] = (4, 2, 1, 0.5),
        num_outs: int = 4,
    ) -> None:
        super().__init__()
        if len(in_channels) != len(scales) or num_outs < len(scales):
            raise ValueError(
                f'{len(scales)} scales need as many in_channels and at least as many num_outs, '
                f'got in_channels={list(in_channels)}, num_outs={num_outs}'
            )
        self.in_channels = list(in_channels)
        self.out_channels = out_channels
        self.num_outs = num_outs
        self.levels = nn.ModuleList(
            _level(channels, out_channels, scale)
            for channels, scale in zip(in_channels, scales, strict=True)
        )

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Map ``(B, C_i, H, W)`` each to ``(B, out_channels, ceil(s_i · H), ceil(s_i · W))``.

        Raises:
            ValueError: If the maps differ in size, as those of a pyramid do.
        """
        sizes = [x.shape[2:] for x in inputs]
        if any(size != sizes[0] for size in sizes):
            raise ValueError(
                f'SimpleFeaturePyramid rescales the maps of a plain ViT, which have one size; '
                f'got {", ".join(str(tuple(size)) for size in sizes)}. A backbone that is a '
                f'pyramid itself takes a config without this neck.'
            )
        outputs = [level(x) for level, x in zip(self.levels, inputs, strict=True)]
        while len(outputs) < self.num_outs:
            outputs.append(F.max_pool2d(outputs[-1], 1, stride=2))
        return tuple(outputs)


def _level(channels: int, out_channels: int, scale: float) -> nn.Sequential:
    """Build what turns one map into one output."""
    steps = math.log2(scale) if scale > 0 else math.nan
    if not steps.is_integer():
        raise ValueError(f'scale {scale} is no power of two')
    layers: list[nn.Module] = []
    if steps < 0:
        # Rounded up, so that a map of one position keeps it.
        factor = 2 ** int(-steps)
        layers.append(nn.MaxPool2d(factor, factor, ceil_mode=True))
    for step in range(int(steps)):
        if step:
            layers += [LayerNorm2d(channels), nn.GELU()]
        layers.append(nn.ConvTranspose2d(channels, channels // 2, 2, 2))
        channels //= 2
    for kernel, width in ((1, channels), (3, out_channels)):
        conv = nn.Conv2d(width, out_channels, kernel, padding=kernel // 2, bias=False)
        layers += [conv, LayerNorm2d(out_channels)]
    return nn.Sequential(*layers)
