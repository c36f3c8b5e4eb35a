"""Layers that commute with cyclic shifts of the map (Alias-Free ViT)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mmspatial.ops import alias_free_gelu, cross_covariance_attention

from .conv import fuse_norm_before
from .ffn import FFN
from .norm import build_norm2d
from .tokens import Grid, to_map, to_tokens


class AliasFreeGELU(nn.Module):
    """GELU on a map upsampled to twice the grid, and down again without what it added above.

    Args:
        reduction: Factor by which the resulting grid is smaller than the given one.
        impl: See `mmspatial.ops.alias_free_gelu`.
    """

    def __init__(self, reduction: int = 1, impl: str = 'auto') -> None:
        super().__init__()
        self.reduction = reduction
        self.impl = impl

    def extra_repr(self) -> str:
        """Show the reduction."""
        return f'reduction={self.reduction}'

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, C, H, W)`` to ``(B, C, H / reduction, W / reduction)``."""
        return alias_free_gelu(x, self.reduction, impl=self.impl)


class CircularConv(nn.Conv2d):
    """3x3 convolution of a periodic map.

    Args:
        in_channels: Channels before.
        out_channels: Channels after.
        stride: Of the convolution.
        groups: Of the convolution.
        bias: Whether to add one.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        stride: int = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(in_channels, out_channels, 3, stride, groups=groups, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, C, H, W)`` to ``(B, C', H / stride, W / stride)``."""
        # PyTorch's own circular padding leaves channels-last memory.
        x = torch.cat((x[:, :, -1:], x, x[:, :, :1]), 2)
        x = torch.cat((x[..., -1:], x, x[..., :1]), 3)
        return super().forward(x)


class TokenNorm(nn.Module):
    """Norm whose statistics are the same after any shift: those of the whole map.

    ::

        y = (x - mean over L) / sqrt(mean over (L, C) of the numerator's square + eps)

    and an affine map per channel.

    Args:
        dim: Channels C.
        eps: Of the variance.
    """

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, L, C)`` to the same shape; statistics are in at least float32."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        centred = wide - wide.mean(1, keepdim=True)
        variance = centred.square().mean((1, 2), keepdim=True)
        scale = self.weight * (variance + self.eps).rsqrt()  # (B, 1, C)
        return (centred * scale + self.bias).to(x.dtype)


class CrossCovariance(nn.Module):
    """Attention between the channels of each head.

    Args:
        dim: Channels C.
        num_heads: Heads M, which divide C.
        impl: See `mmspatial.ops.cross_covariance_attention`.

    Raises:
        ValueError: If the heads do not divide the channels.
    """

    def __init__(self, dim: int, num_heads: int, impl: str = 'auto') -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f'{dim} channels cannot be divided into {num_heads} heads')
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.impl = impl

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, L, C)`` to the same shape."""
        heads = self.temperature.shape[0]
        qkv = self.qkv(x).unflatten(-1, (3, heads, -1))  # (B, L, 3, M, D)
        q, k, v = qkv.transpose(1, 3).unbind(2)  # (B, M, L, D)
        x = cross_covariance_attention(q, k, v, self.temperature, impl=self.impl)
        return self.proj(x.transpose(1, 2).flatten(2))  # (B, L, C)


class LocalInteraction(nn.Module):
    """Two depthwise convolutions, between which each patch meets its neighbours.

    Args:
        dim: Channels C.
        act: Non-linearity on maps.
        norm_cfg: See `build_norm2d`.
    """

    def __init__(self, dim: int, act: nn.Module, norm_cfg: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.conv1 = CircularConv(dim, dim, groups=dim)
        self.act = act
        self.norm = build_norm2d(dim, norm_cfg)
        self.conv2 = CircularConv(dim, dim, groups=dim)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map ``(B, H·W, C)`` to the same shape."""
        return to_tokens(self.conv2(self.norm(self.act(self.conv1(to_map(x, grid))))))

    def fuse_for_inference(self) -> None:
        """Fold the norm into the second convolution."""
        self.norm = fuse_norm_before(self.norm, self.conv2)


class MapFFN(FFN):
    """Linear, a non-linearity on the map of hidden channels, Linear.

    Args:
        dim: Channels C.
        ratio: Hidden width over C.
        act: Non-linearity on maps.
    """

    def __init__(self, dim: int, ratio: float, act: nn.Module) -> None:
        super().__init__(dim, ratio)
        self.act = act

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map ``(B, H·W, C)`` to the same shape."""
        return self.fc2(to_tokens(self.act(to_map(self.fc1(x), grid))))
