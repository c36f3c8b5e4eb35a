"""Rotary position encoding in two dimensions at once, by learned frequencies (RoPE-ViT)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mmspatial.ops import grid_positions

from .tokens import Grid

_BASE = 10.0


class MixedRotary(nn.Module):
    """Turn each pair of channels by an angle linear in both coordinates of the token.

    ::

        angle = column · freqs[0] + row · freqs[1]
        (x[2m], x[2m+1]) -> (x[2m] · cos - x[2m+1] · sin,  x[2m+1] · cos + x[2m] · sin)

    Angles are computed in at least float32. The frequencies start as geometric series along two
    axes, turned at random for each head.

    Args:
        num_heads: Heads M.
        head_dim: Head width D, divisible by 4.

    Raises:
        ValueError: If the width is not divisible by 4.

    References:
        RoPE-ViT (arXiv 2403.13298); checked against timm's ``RotaryEmbeddingMixed``.
    """

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        if head_dim % 4:
            raise ValueError(f'rotary needs a head width divisible by 4, got {head_dim}')
        size = _BASE ** -(torch.arange(0, head_dim, 4) / head_dim)
        turn = 2 * math.pi * torch.rand(num_heads, 1)
        direction = torch.cat(
            (turn.expand(-1, len(size)), (turn + math.pi / 2).expand(-1, len(size))), 1
        )
        self.freqs = nn.Parameter(torch.stack((direction.cos(), direction.sin())) * size.repeat(2))

    def forward(self, x: Tensor, grid: Grid, num_prefix: int = 0) -> Tensor:
        """Turn queries or keys ``(B, M, P + H·W, D)``; the P tokens in front stay as they are."""
        dtype = torch.promote_types(self.freqs.dtype, torch.float32)
        row, column = grid_positions(*grid, x.device).to(dtype).transpose(1, 2)[0, :, :, None]
        along_x, along_y = self.freqs.to(dtype).unsqueeze(-2)  # (M, 1, D / 2)
        angle = column * along_x + row * along_y  # (M, N, D / 2)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        even, odd = x[..., num_prefix:, ::2], x[..., num_prefix:, 1::2]
        turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)
        return torch.cat((x[..., :num_prefix, :], turned), -2)
