"""From the image to tokens, and from one stage's grid to the next."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .norm import build_norm2d
from .tokens import Grid, to_map, to_tokens


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Zero-pad ``(B, C, h, w)`` at the bottom and right to sides divisible by ``multiple``."""
    pad_h, pad_w = -x.shape[-2] % multiple, -x.shape[-1] % multiple
    return F.pad(x, (0, pad_w, 0, pad_h)) if pad_h or pad_w else x


class ConvStem(nn.Sequential):
    """Four 3x3 convolutions with batch norm, stride 4 together (RMT, EVT, SDT).

    Args:
        in_channels: Channels of the image.
        dim: Channels C of the tokens.
        norm_cfg: See `build_norm2d`.
    """

    stride = 4

    def __init__(self, in_channels: int, dim: int, norm_cfg: dict[str, Any] | None = None) -> None:
        layers: list[nn.Module] = []
        channels = in_channels
        for out_channels, stride in ((dim // 2, 2), (dim // 2, 1), (dim, 2), (dim, 1)):
            layers += [
                nn.Conv2d(channels, out_channels, 3, stride, 1),
                build_norm2d(out_channels, norm_cfg),
                nn.GELU(),
            ]
            channels = out_channels
        super().__init__(*layers[:-1])

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Map ``(B, in_channels, h, w)`` to ``(B, H·W, C)`` and ``(H, W)``, H = ceil(h / 4)."""
        x = super().forward(x.contiguous(memory_format=torch.channels_last))
        return to_tokens(x), (x.shape[2], x.shape[3])


class ConvDownsample(nn.Module):
    """3x3 convolution of stride 2 with batch norm, between stages (RMT, EVT, SDT).

    Args:
        dim: Channels before.
        out_dim: Channels after.
        norm_cfg: See `build_norm2d`.
    """

    def __init__(self, dim: int, out_dim: int, norm_cfg: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, out_dim, 3, 2, 1)
        self.norm = build_norm2d(out_dim, norm_cfg)

    def forward(self, x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        """Map ``(B, H·W, C)`` on ``(H, W)`` to tokens on ``(ceil(H / 2), ceil(W / 2))``."""
        x = self.norm(self.conv(to_map(x, grid)))
        return to_tokens(x), (x.shape[2], x.shape[3])
