"""From the image to tokens, and from one stage's grid to the next."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import resample_abs_pos_embed_nhwc
from torch import Tensor, nn

from .conv import fuse_norm_after
from .norm import build_norm2d
from .tokens import Grid, is_open, round_up, to_map, to_tokens


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Zero-pad ``(B, C, h, w)`` at the bottom and right to sides divisible by ``multiple``."""
    height, width = x.shape[-2:]
    pad_h, pad_w = round_up(height, multiple) - height, round_up(width, multiple) - width
    return F.pad(x, (0, pad_w, 0, pad_h)) if is_open(height, width) or pad_h or pad_w else x


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

    def fuse_for_inference(self) -> None:
        """Fold the norms into the convolutions."""
        for i in range(0, len(self), 3):
            self[i], self[i + 1] = fuse_norm_after(self[i], self[i + 1])


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

    def fuse_for_inference(self) -> None:
        """Fold the norm into the convolution."""
        self.conv, self.norm = fuse_norm_after(self.conv, self.norm)


class PatchEmbed(nn.Module):
    """Project each patch of the image, zero-padded at the bottom and right, to a token.

    Args:
        in_channels: Channels of the image.
        dim: Channels C of the tokens.
        patch_size: Side of a patch.
        norm_eps: Epsilon of the LayerNorm on the tokens (Swin); None for no norm (ViT).
    """

    def __init__(
        self, in_channels: int, dim: int, patch_size: int, *, norm_eps: float | None = None
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_channels, dim, patch_size, patch_size)
        self.norm = nn.Identity() if norm_eps is None else nn.LayerNorm(dim, norm_eps)

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Map ``(B, in_channels, h, w)`` to ``(B, H·W, C)`` and ``(H, W)``, H = ceil(h / p)."""
        x = self.proj(pad_to_multiple(x, self.patch_size))
        return self.norm(to_tokens(x)), (x.shape[2], x.shape[3])


class PrefixEmbed(nn.Module):
    """Patches behind a class token and registers, with a learned position embedding (ViT).

    The position embedding has a row for every token, those in front included, and is added last.

    Args:
        patches: Makes the patch tokens.
        dim: Channels C.
        grid: Rows and columns that the position embedding is kept for; it is resized to others.
        num_registers: Registers, between the class token and the patches.
        positions: Whether there is a position embedding.
    """

    def __init__(
        self,
        patches: PatchEmbed,
        dim: int,
        grid: Grid,
        *,
        num_registers: int = 0,
        positions: bool = True,
    ) -> None:
        super().__init__()
        self.patches = patches
        self.grid = grid
        self.num_prefix = 1 + num_registers
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim) * 1e-6)
        self.registers = (
            nn.Parameter(torch.randn(1, num_registers, dim) * 1e-6) if num_registers else None
        )
        self.pos_embed = None
        if positions:
            self.pos_embed = nn.Parameter(torch.empty(1, self.num_prefix + grid[0] * grid[1], dim))
            nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Map ``(B, in_channels, h, w)`` to ``(B, P + H·W, C)`` and ``(H, W)``."""
        tokens, grid = self.patches(x)
        prefix = (self.cls_token,) if self.registers is None else (self.cls_token, self.registers)
        tokens = torch.cat(
            (*(t.expand(x.shape[0], -1, -1) for t in prefix), tokens), 1
        )  # (B, L, C)
        if self.pos_embed is not None:
            tokens = tokens + resize_positions(self.pos_embed, self.num_prefix, self.grid, grid)
        return tokens, grid

    def fit_weights(self, state: dict[str, Tensor], prefix: str) -> None:
        """Fit the position embedding of a checkpoint to this grid and these prefix tokens.

        A count of rows that this grid has means this grid, any other a square one. Registers
        that the source does not have keep their rows here; prefix tokens that it embeds without
        a position (timm's ``no_embed_class``) get zeros.

        Args:
            state: Weights by our names; changed in place.
            prefix: Of this module's names.
        """
        source = state.get(prefix + 'pos_embed')
        if self.pos_embed is None or source is None or source.shape == self.pos_embed.shape:
            return
        if source.shape[::2] != self.pos_embed.shape[::2]:
            return  # another width
        # 2 for DeiT's distillation token, which has no place here.
        for num_prefix in (self.num_prefix, 1, 0, 2):
            total = source.shape[1] - num_prefix
            side = math.isqrt(max(total, 0))
            grid = self.grid if total == self.grid[0] * self.grid[1] else (side, side)
            if total < 1 or grid[0] * grid[1] != total:
                continue
            rows = self.pos_embed.detach()[:, : self.num_prefix].to(source, copy=True)
            kept = min(num_prefix, self.num_prefix)
            rows[:, :kept] = source[:, :kept]
            if num_prefix == 0:
                rows.zero_()
            resized = resize_positions(source[:, num_prefix:], 0, grid, self.grid)
            state[prefix + 'pos_embed'] = torch.cat((rows, resized), 1)
            return


def resize_positions(rows: Tensor, num_prefix: int, old: Grid, new: Grid) -> Tensor:
    """Resize a position embedding to another grid, by timm's antialiased bicubic interpolation.

    Args:
        rows: ``(1, P + H·W, C)`` with ``old = (H, W)``.
        num_prefix: P rows in front, which are kept.
        old: Grid of ``rows``.
        new: Grid wanted.

    Returns:
        ``(1, P + H'·W', C)`` with ``new = (H', W')``.
    """
    if not is_open(*new) and old == new:
        return rows
    grid_rows = rows[:, num_prefix:].unflatten(1, old)  # (1, H, W, C)
    grid_rows = resample_abs_pos_embed_nhwc(grid_rows, list(new)).flatten(1, 2)  # (1, N', C)
    return torch.cat((rows[:, :num_prefix], grid_rows), 1)


class PatchMerging(nn.Module):
    """Join each 2x2 cell to a token: concatenation, LayerNorm, Linear (Swin).

    Args:
        dim: Channels before.
        out_dim: Channels after.
        norm_eps: Epsilon of the LayerNorm.
    """

    def __init__(self, dim: int, out_dim: int, *, norm_eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim, norm_eps)
        self.reduction = nn.Linear(4 * dim, out_dim, bias=False)

    def forward(self, x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        """Map ``(B, H·W, C)`` on ``(H, W)`` to tokens on ``(ceil(H / 2), ceil(W / 2))``."""
        x = pad_to_multiple(to_map(x, grid), 2).permute(0, 2, 3, 1)  # (B, H, W, C)
        rows, cols = x.shape[1] // 2, x.shape[2] // 2
        # Within a cell Swin runs down the columns: top left, bottom left, top right, bottom right.
        x = x.unflatten(2, (cols, 2)).unflatten(1, (rows, 2)).permute(0, 1, 3, 4, 2, 5)
        x = x.flatten(3).flatten(1, 2)  # (B, N', 4C)
        return self.reduction(self.norm(x)), (rows, cols)
