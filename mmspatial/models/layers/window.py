"""Swin's attention: in windows of the grid, shifted in every other block."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from timm.layers import resize_rel_pos_bias_table_simple
from torch import Tensor, nn

from mmspatial.ops import cached_table, grid_positions

from .tokens import Grid, round_up


@cached_table
def relative_index(height: int, width: int, device: torch.device) -> Tensor:
    """Number the offsets within a window, row-major from the most negative one.

    Args:
        height: Rows of the window.
        width: Columns of the window.
        device: Where the tensor is made.

    Returns:
        ``(n, n)`` int64: the row of the table that holds the bias of query i and key j.
    """
    where = grid_positions(height, width, device)[0].long()
    offset = where[:, None] - where[None]  # (n, n, 2)
    return (offset[..., 0] + height - 1) * (2 * width - 1) + offset[..., 1] + width - 1


@cached_table
def shift_mask(padded: Grid, window: Grid, shift: Grid, device: torch.device) -> Tensor:
    """Keep tokens apart that only the roll has brought together.

    Args:
        padded: Rows and columns, divisible by those of the window.
        window: Rows and columns of a window.
        shift: Rows and columns rolled.
        device: Where the tensor is made.

    Returns:
        ``(G, 1, n, n)`` float32, 0 or -100, for the G windows.
    """
    parts = []
    for size, span, step in zip(padded, window, shift, strict=True):
        index = torch.arange(size, device=device)
        parts.append((index >= size - span).long() + (index >= size - step) if step else index * 0)
    part = (3 * parts[0][:, None] + parts[1])[None, :, :, None]  # (1, H, W, 1)
    part = split_windows(part, window)[0, :, :, 0]  # (G, n)
    return torch.where(part[:, None, :, None] == part[:, None, None], 0.0, -100.0)


def split_windows(x: Tensor, window: Grid) -> Tensor:
    """Cut a map into windows.

    Args:
        x: ``(B, H, W, C)`` with sides divisible by those of the window.
        window: Rows and columns of a window.

    Returns:
        ``(B, G, n, C)``, windows and their tokens row-major.
    """
    x = x.unflatten(2, (-1, window[1])).unflatten(1, (-1, window[0]))
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)  # (B, G, n, C)


def merge_windows(x: Tensor, window: Grid, padded: Grid) -> Tensor:
    """Undo `split_windows`: ``(B, G, n, C)`` to ``(B, H, W, C)`` with ``padded = (H, W)``."""
    x = x.unflatten(2, window).unflatten(1, (padded[0] // window[0], padded[1] // window[1]))
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)  # (B, H, W, C)


class WindowAttention(nn.Module):
    """Attention within windows, with a learned bias for each offset and a prior.

    Tokens are rolled up and left by the shift, then zero-padded at the bottom and right to whole
    windows; padding takes part like tokens.

    Args:
        dim: Channels C.
        num_heads: Heads M, which divide C.
        prior: Module that attends, see `mmspatial.models.layers.priors`; it takes ``attn_bias``.
        window: Rows and columns of a window.
        shift: Rows and columns to roll by, less than the window's.

    Raises:
        ValueError: If the heads do not divide the channels.
    """

    def __init__(
        self, dim: int, num_heads: int, prior: nn.Module, *, window: Grid, shift: Grid = (0, 0)
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f'{dim} channels cannot be divided into {num_heads} heads')
        self.num_heads = num_heads
        self.prior = prior
        self.window = window
        self.shift = shift
        offsets = (2 * window[0] - 1) * (2 * window[1] - 1)
        self.bias_table = nn.Parameter(torch.empty(offsets, num_heads))
        nn.init.trunc_normal_(self.bias_table, std=0.02)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def extra_repr(self) -> str:
        """Show the settings that make this layer differ from its neighbours."""
        return f'window={self.window}, shift={self.shift}'

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Map ``(B, H·W, C)`` to the same shape."""
        x = x.unflatten(1, grid)  # (B, H, W, C)
        if any(self.shift):
            x = x.roll((-self.shift[0], -self.shift[1]), (1, 2))
        padded = (round_up(grid[0], self.window[0]), round_up(grid[1], self.window[1]))
        x = F.pad(x, (0, 0, 0, padded[1] - grid[1], 0, padded[0] - grid[0]))

        x = self.qkv(split_windows(x, self.window)).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = x.permute(3, 0, 1, 4, 2, 5)  # (B, G, M, n, D) each
        x = self.prior(q, k, v, self.window, attn_bias=self._bias(padded, x.device))
        x = self.proj(x.transpose(2, 3).flatten(3))  # (B, G, n, C)

        x = merge_windows(x, self.window, padded)[:, : grid[0], : grid[1]]
        if any(self.shift):
            x = x.roll(self.shift, (1, 2))
        return x.flatten(1, 2)  # (B, N, C)

    def fit_weights(self, state: dict[str, Tensor], prefix: str) -> None:
        """Resize the table of a checkpoint that was trained with square windows of another size.

        Args:
            state: Weights by our names; changed in place.
            prefix: Of this module's names.
        """
        source = state.get(prefix + 'bias_table')
        if source is None or source.shape == self.bias_table.shape:
            return
        if math.isqrt(len(source)) ** 2 == len(source):
            state[prefix + 'bias_table'] = resize_rel_pos_bias_table_simple(
                source, self.window, self.bias_table.shape
            )

    def _bias(self, padded: Grid, device: torch.device) -> Tensor:
        """Return the table's bias ``(M, n, n)``, with a shift's mask ``(G, M, n, n)``."""
        bias = self.bias_table[relative_index(*self.window, device)].permute(2, 0, 1)
        if any(self.shift):
            bias = bias + shift_mask(padded, self.window, self.shift, device).to(bias.dtype)
        return bias
