"""Depthwise convolution on tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .tokens import Grid, to_map, to_tokens


class DepthwiseConv(nn.Conv2d):
    """Convolve every channel of the token grid by itself, with bias and zero padding.

    Serves as positional encoding (3x3), as local enhancement of values (5x5) and inside the
    feed-forward network (3x3). Prefix tokens have no neighbours: they get zeros.

    Args:
        dim: Channels C.
        kernel_size: Side of the kernel, odd.
    """

    def __init__(self, dim: int, kernel_size: int) -> None:
        super().__init__(dim, dim, kernel_size, padding=kernel_size // 2, groups=dim)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map ``(B, P + H·W, C)`` to the same shape."""
        out = to_tokens(super().forward(to_map(x, grid)))
        num_prefix = x.shape[1] - out.shape[1]
        if num_prefix:
            out = torch.cat((torch.zeros_like(x[:, :num_prefix], dtype=out.dtype), out), 1)
        return out
