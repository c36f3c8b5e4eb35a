"""Which tokens attend to one another: all, a row, a column, or a group of the sequence.

A layout splits per-token features ``(B, L, M, X)`` into what the ops take, ``(B, M, L, X)`` or,
with a group axis, ``(B, G, M, n, X)``, and merges their result back. Splits are views, but for
padding. X is the head width, or whatever else a prior keeps per token and head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspatial.ops import Positions, cached_table, grid_positions

from .tokens import Grid, is_open, round_up


class Full:
    """All tokens attend to all; the only layout that takes prefix tokens."""

    def split(self, x: Tensor, grid: Grid) -> Tensor:
        """View ``(B, L, M, X)`` as ``(B, M, L, X)``."""
        return x.transpose(1, 2)

    def merge(self, x: Tensor, grid: Grid) -> Tensor:
        """Undo `split`."""
        return x.transpose(1, 2)

    def positions(self, grid: Grid, device: torch.device) -> tuple[Positions, Tensor | None]:
        """Return the positions and the key mask for the ops."""
        return grid, None


class Rows:
    """Tokens attend within their row of the grid."""

    def split(self, x: Tensor, grid: Grid) -> Tensor:
        """View ``(B, H·W, M, X)`` as ``(B, H, M, W, X)``."""
        return x.unflatten(1, grid).transpose(2, 3)  # (B, H, M, W, X)

    def merge(self, x: Tensor, grid: Grid) -> Tensor:
        """Undo `split`."""
        return x.transpose(2, 3).flatten(1, 2)  # (B, H·W, M, X)

    def positions(self, grid: Grid, device: torch.device) -> tuple[Positions, Tensor | None]:
        """Return the positions and the key mask for the ops."""
        return (1, grid[1]), None


class Columns:
    """Tokens attend within their column of the grid."""

    def split(self, x: Tensor, grid: Grid) -> Tensor:
        """View ``(B, H·W, M, X)`` as ``(B, W, M, H, X)``."""
        return x.unflatten(1, grid).permute(0, 2, 3, 1, 4)  # (B, W, M, H, X)

    def merge(self, x: Tensor, grid: Grid) -> Tensor:
        """Undo `split`."""
        return x.permute(0, 3, 1, 2, 4).flatten(1, 2)  # (B, H·W, M, X)

    def positions(self, grid: Grid, device: torch.device) -> tuple[Positions, Tensor | None]:
        """Return the positions and the key mask for the ops."""
        return (grid[0], 1), None


@dataclass(frozen=True)
class Groups:
    """Tokens attend within groups of the row-major sequence, which ignore the rows (EVT).

    The sequence is padded at its end to G groups of n tokens. Token i is in group ``i // n``, or
    ``i % G`` if ``dilated``. Nobody attends to padding, and each group has at least one token.

    Args:
        size: Tokens n in a group; a grid with fewer tokens is one group.
        dilated: Whether the tokens of a group are spread over the whole grid.
    """

    size: int
    dilated: bool = False

    def _shape(self, grid: Grid) -> tuple[int, int, int]:
        """Return the groups G, the tokens n in each, and the padding G·n - N."""
        total = grid[0] * grid[1]
        n = self.size if is_open(total) else min(self.size, total)
        padded = round_up(total, n)
        return padded // n, n, padded - total

    def split(self, x: Tensor, grid: Grid) -> Tensor:
        """Turn ``(B, N, M, X)`` into ``(B, G, M, n, X)``."""
        groups, n, padding = self._shape(grid)
        if is_open(padding) or padding:
            x = F.pad(x, (0, 0, 0, 0, 0, padding))
        if self.dilated:
            return x.unflatten(1, (n, groups)).permute(0, 2, 3, 1, 4)  # (B, G, M, n, X)
        return x.unflatten(1, (groups, n)).transpose(2, 3)  # (B, G, M, n, X)

    def merge(self, x: Tensor, grid: Grid) -> Tensor:
        """Undo `split`."""
        order = (0, 3, 1, 2, 4) if self.dilated else (0, 1, 3, 2, 4)
        return x.permute(order).flatten(1, 2)[:, : grid[0] * grid[1]]  # (B, N, M, X)

    def positions(self, grid: Grid, device: torch.device) -> tuple[Positions, Tensor | None]:
        """Return the positions and the key mask for the ops."""
        return _group_positions(self, grid, device)


@cached_table
def _group_positions(
    layout: Groups, grid: Grid, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Return coordinates ``(G, n, 2)``, and ``(G, n)`` True for tokens, or None if all are."""
    coordinates = grid_positions(*grid, device).unsqueeze(2)  # (1, N, 1, 2)
    grouped = layout.split(coordinates, grid)[0, :, 0]  # (G, n, 2)
    total = grid[0] * grid[1]
    if not is_open(total) and grouped.shape[0] * grouped.shape[1] == total:
        return grouped, None
    # `split` pads with zeros.
    is_token = layout.split(torch.ones_like(coordinates[..., :1]), grid)[0, :, 0, :, 0] > 0
    return grouped, is_token


Layout = Full | Rows | Columns | Groups
